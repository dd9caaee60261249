"""Bodies with vectors: kept in memory, bounded, and overwritten however they end."""

from device.enrolment.outbox import LONGEST_WAIT_MS, MAX_WAITING, EnrolmentAnswer, EnrolmentOutbox

NOT_SENT = EnrolmentAnswer(0, "not_sent")


class Kiosk:
    """An outbox, and what it told."""

    def __init__(self) -> None:
        self.woken = 0
        self.answers: list[EnrolmentAnswer] = []
        self.bodies: list[bytearray] = []
        self.outbox = EnrolmentOutbox(self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def submit(self, number: int, now_ms: int = 0, **more: int) -> bool:
        body = bytearray(b'{"token":"t%d"}' % number)
        self.bodies.append(body)
        return self.outbox.submit(body, self.answers.append, now_ms, **more) is not None


def test_uploads_are_offered_in_order_until_they_are_answered() -> None:
    kiosk = Kiosk()
    assert kiosk.outbox.next(0) is None
    assert kiosk.submit(1) and kiosk.submit(2)
    assert kiosk.woken == 2
    first = kiosk.outbox.next(0)
    assert first is not None and first is kiosk.outbox.next(0)
    assert bytes(first.body) == b'{"token":"t1"}'
    assert kiosk.outbox.answered(first.ticket, EnrolmentAnswer(201))
    second = kiosk.outbox.next(0)
    assert second is not None and bytes(second.body) == b'{"token":"t2"}'
    assert second.idempotency_key != first.idempotency_key
    assert not kiosk.outbox.answered(first.ticket, EnrolmentAnswer(201))
    assert kiosk.answers == [EnrolmentAnswer(201)]


def test_every_end_overwrites_the_body() -> None:
    kiosk = Kiosk()
    for number in range(3):
        kiosk.submit(number, lives_ms=1_000 if number == 1 else LONGEST_WAIT_MS)
    first = kiosk.outbox.next(0)
    assert first is not None
    kiosk.outbox.answered(first.ticket, EnrolmentAnswer(403, "enrollment_session_invalid"))
    kiosk.outbox.expire(1_000)
    kiosk.outbox.clear()
    assert [set(body) for body in kiosk.bodies] == [{0}, {0}, {0}]
    assert kiosk.answers[1:] == [NOT_SENT, NOT_SENT]
    assert kiosk.outbox.next(0) is None


def test_nothing_lives_longer_than_a_session_can() -> None:
    kiosk = Kiosk()
    kiosk.submit(1, lives_ms=10 * LONGEST_WAIT_MS)
    assert kiosk.outbox.next(LONGEST_WAIT_MS - 1) is not None
    assert kiosk.outbox.next(LONGEST_WAIT_MS) is None
    assert kiosk.answers == [NOT_SENT]


def test_a_service_that_is_away_does_not_let_palms_pile_up() -> None:
    kiosk = Kiosk()
    assert [kiosk.submit(number) for number in range(MAX_WAITING + 1)] == [True] * MAX_WAITING + [False]
    assert kiosk.submit(99, now_ms=LONGEST_WAIT_MS)


def test_nothing_of_a_body_is_ever_shown() -> None:
    kiosk = Kiosk()
    kiosk.submit(7)
    assert "t7" not in repr(kiosk.outbox.next(0))
