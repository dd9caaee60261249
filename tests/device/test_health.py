from device.health import Health, HealthWord


def test_words_come_and_go_and_changes_are_told_once() -> None:
    told: list[tuple[HealthWord, ...]] = []
    health = Health(told.append)
    health.report(HealthWord.OFFLINE, "no answer from the service")
    health.report(HealthWord.OFFLINE, "no answer since noon")
    assert health.details == {HealthWord.OFFLINE: "no answer since noon"}
    health.report(HealthWord.CAMERA_FAULT)
    assert health.words == (HealthWord.CAMERA_FAULT, HealthWord.OFFLINE)
    health.clear(HealthWord.OFFLINE)
    health.clear(HealthWord.OFFLINE)
    assert told == [
        (HealthWord.OFFLINE,),
        (HealthWord.CAMERA_FAULT, HealthWord.OFFLINE),
        (HealthWord.CAMERA_FAULT,),
    ]


def test_some_words_end_serving_and_others_do_not() -> None:
    health = Health(lambda _words: None)
    assert health.serving
    health.put(HealthWord.KEY_UNATTESTED, True)
    health.put(HealthWord.LINK_DOWN, True)
    assert health.serving
    for word in (HealthWord.GALLERY_STALE, HealthWord.STORE_FAULT, HealthWord.REVOKED):
        serving = []
        for standing in (True, False):
            health.put(word, standing)
            serving.append(health.serving)
        assert serving == [False, True]


def test_a_word_can_be_cleared_from_within_the_notification() -> None:
    health: Health
    seen: list[tuple[HealthWord, ...]] = []

    def changed(words: tuple[HealthWord, ...]) -> None:
        seen.append(words)
        if words:
            health.clear(words[0])

    health = Health(changed)
    health.report(HealthWord.OFFLINE)
    assert seen == [(HealthWord.OFFLINE,), ()]
