"""Which key of the validator counts: windows that nothing takes away, and no clock that shuts a gate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device.errors import TrustError
from device.platform.threads import StoreThread
from device.trust.bundle import with_bundle
from device.trust.pinning import Pinning
from device.trust.policy import read_policy
from device.trust.trust import (
    MAX_REVOKED,
    DbdKey,
    Pinned,
    Trust,
    load_trust,
    merged_windows,
    reread,
    save_trust,
    with_dbd_keys,
    with_service_keys,
)
from link1.keys import SigningKey
from tests.device.core_makers import (
    DBD_ID,
    DBD_KEY,
    NOW_MS,
    config_obj,
    signed_config,
)
from tests.device.trust.pinned_makers import bundle, registered

KEYS = [DBD_KEY, *(SigningKey.from_seed(bytes((0x50 + number,)) * 32) for number in range(3))]
NEXT_KEY = KEYS[1]


def window(key: SigningKey, begin_ms: int, end_ms: int | None) -> DbdKey:
    return DbdKey(DBD_ID, key.public, begin_ms, end_ms)


def rotated(at_ms: int = NOW_MS) -> Trust:
    """After one rotation: the registered key until `at_ms`, the next one from there."""
    return with_dbd_keys(registered(), [window(NEXT_KEY, at_ms, None), window(DBD_KEY, 0, at_ms)], at_ms)


def counting(trust: Trust, wall_ms: int, service_ms: int) -> set[str]:
    return {key.public.kid for key in trust.dbd_keys_now(wall_ms, service_ms)}


# ---- now


@pytest.mark.parametrize("wall_ms", [0, 5_000, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS * 2])
def test_after_a_rotation_the_new_key_counts_whatever_the_wall_clock_says(wall_ms: int) -> None:
    assert counting(rotated(), wall_ms, NOW_MS) == {NEXT_KEY.kid}


def test_where_no_window_lies_around_the_wall_clock_the_service_s_time_decides() -> None:
    trust = reread(
        rotated(),
        {"dbd_keys": [window(DBD_KEY, 0, 100).to_obj(), window(NEXT_KEY, 100, 200).to_obj()]},
    )
    assert counting(trust, 10**15, 150) == {NEXT_KEY.kid}
    assert counting(trust, 10**15, 50) == {DBD_KEY.kid}
    assert counting(trust, 10**15, 300) == {DBD_KEY.kid, NEXT_KEY.kid}, "then every one does"


windows = st.builds(
    lambda key, begin, length: window(key, begin, None if length is None else begin + length),
    st.sampled_from(KEYS),
    st.integers(0, 100),
    st.none() | st.integers(1, 50),
)
lists = st.lists(windows, max_size=6)


@given(st.lists(lists, max_size=4), st.sets(st.sampled_from(KEYS)), st.integers(0, 200), st.integers(0, 200))
def test_some_unrevoked_key_always_counts_and_no_revoked_one_ever(
    told: list[list[DbdKey]], revoked: set[SigningKey], wall_ms: int, service_ms: int
) -> None:
    trust = reread(registered(), {"revoked_kids": sorted(key.kid for key in revoked)})
    for at_ms, listed in enumerate(told):
        trust = with_dbd_keys(trust, listed, at_ms)
    held = {key.public.kid for key in trust.dbd_keys}
    gone = {key.kid for key in revoked}
    pinned = Pinned(trust)
    pinned.heard(service_ms)
    assert pinned.service_ms == max(service_ms, trust.service_ms, trust.status_at_ms)
    now = counting(trust, wall_ms, pinned.service_ms)
    assert bool(now) == bool(held - gone)
    assert not now & gone
    for key in KEYS:
        assert (pinned.validator_key(key.kid, wall_ms) is not None) == (key.kid in now)
        known = pinned.once_pinned(key.kid)
        assert (None if known is None else known.revoked) == (key.kid in gone if key.kid in held else None)


@given(st.lists(lists, max_size=5))
def test_no_list_takes_a_window_away_and_the_newest_gives_its_end(told: list[list[DbdKey]]) -> None:
    trust = registered()
    ends: dict[tuple[str, int], int | None] = {}
    for listed in told:
        trust = with_dbd_keys(trust, listed, 1)
        ends |= {(key.public.kid, key.not_before_ms): key.not_after_ms for key in listed}
    now = {(key.public.kid, key.not_before_ms): key.not_after_ms for key in trust.dbd_keys if not key.assumed}
    assert now == ends
    same = [key for key in trust.dbd_keys if not key.assumed]
    assert with_dbd_keys(trust, same, 2) is trust, "a status a minute writes nothing"


def test_a_key_that_is_added_again_has_both_windows_for_its_evidence() -> None:
    again = [window(DBD_KEY, 2_000, None), window(NEXT_KEY, 1_000, 2_000), window(DBD_KEY, 0, 1_000)]
    trust = with_dbd_keys(rotated(1_000), again, 2_000)
    good = [trust.dbd_key(DBD_KEY.kid, at_ms) is not None for at_ms in (0, 999, 1_000, 1_999, 2_000)]
    assert good == [True, True, False, False, True]


def test_the_window_that_the_registration_left_out_is_the_service_s_to_give() -> None:
    """Else the key a device was registered with would never end."""
    trust = with_dbd_keys(registered(), [window(DBD_KEY, 500, 900)], 900)
    assert [trust.dbd_key(DBD_KEY.kid, at_ms) is not None for at_ms in (499, 500, 899, 900)] == [
        False,
        True,
        True,
        False,
    ]


def test_more_windows_than_can_be_kept_lose_those_that_ended_first() -> None:
    old = [window(KEYS[2], begin_ms, begin_ms + 1) for begin_ms in range(400)]
    trust = with_dbd_keys(registered(), [*old, window(NEXT_KEY, 400, None)], 1)
    assert len(trust.dbd_keys) == 256
    assert {DBD_KEY.kid, NEXT_KEY.kid} <= {key.public.kid for key in trust.dbd_keys}
    assert trust.dbd_key(KEYS[2].kid, 399) is not None


# ---- bundles


def test_what_a_bundle_revoked_stays_revoked() -> None:
    revoked = with_bundle(rotated(), bundle(revoked_kids=[NEXT_KEY.kid]), now_ms=NOW_MS)
    added = bundle(bundle_seq=2, dbd_keys=[window(NEXT_KEY, NOW_MS + 1, None).to_obj()])
    trust = with_bundle(revoked, added, now_ms=NOW_MS)
    trust = with_dbd_keys(trust, [window(NEXT_KEY, NOW_MS + 2, None)], NOW_MS + 2)
    assert counting(trust, NOW_MS + 3, NOW_MS + 3) == {DBD_KEY.kid}
    assert trust.dbd_key(NEXT_KEY.kid, NOW_MS + 3) is None
    known = Pinned(trust).once_pinned(NEXT_KEY.kid)
    assert known is not None
    assert known.revoked


def test_a_revoked_key_of_the_service_does_not_come_back_by_its_list_or_a_later_bundle() -> None:
    times = {"not_before": "2030-01-01T00:00:00.000Z", "not_after": None}
    item = {
        "kid": NEXT_KEY.kid,
        "alg": "ed25519",
        "use": ["gallery"],
        "pub_b64": NEXT_KEY.public.b64,
        **times,
    }
    trust = with_bundle(registered(), bundle(revoked_kids=[NEXT_KEY.kid]), now_ms=NOW_MS)
    assert with_service_keys(trust, [item], NOW_MS).gallery_key(NEXT_KEY.kid) is None
    later = with_bundle(trust, bundle(bundle_seq=2, keys=[item]), now_ms=NOW_MS)
    assert later.gallery_key(NEXT_KEY.kid) is None


def test_an_older_bundle_opens_no_window_that_a_newer_status_ended() -> None:
    trust = rotated(NOW_MS)
    late = bundle(issued_at_ms=NOW_MS - 1, dbd_keys=[window(DBD_KEY, 0, None).to_obj()])
    assert counting(with_bundle(trust, late, now_ms=NOW_MS), NOW_MS, NOW_MS) == {NEXT_KEY.kid}


def test_a_bundle_for_a_thousand_gates_is_taken_and_the_own_validator_s_keys_are_kept() -> None:
    others = [DbdKey(f"dbd-{number}", KEYS[3].public, 0, None).to_obj() for number in range(100, 1_100)]
    trust = with_bundle(
        registered(), bundle(dbd_keys=[*others, window(NEXT_KEY, 5, None).to_obj()]), now_ms=NOW_MS
    )
    assert {key.public.kid for key in trust.dbd_keys} == {DBD_KEY.kid, NEXT_KEY.kid}


def test_more_revocations_than_can_be_remembered_are_refused() -> None:
    trust = registered()
    for seq in range(1, MAX_REVOKED // 256 + 1):
        gone = [f"{seq * 1_000 + number:032x}" for number in range(256)]
        trust = with_bundle(trust, bundle(bundle_seq=seq, revoked_kids=gone), now_ms=NOW_MS)
    with pytest.raises(TrustError):
        with_bundle(trust, bundle(bundle_seq=99, revoked_kids=["f" * 32]), now_ms=NOW_MS)


# ---- the service's time


@dataclass
class Service:
    """Times that it signs, in any order; the device keeps what `worth_keeping` says."""

    trust: Trust
    newest_ms: int = 0
    writes: int = field(default=0)

    def sign(self, at_ms: int) -> None:
        self.newest_ms = max(self.newest_ms, at_ms)
        if self.trust.worth_keeping(at_ms):
            self.trust = reread(self.trust, {"service_ms": max(self.trust.service_ms, at_ms)})
            self.writes += 1


@given(lists, st.lists(st.integers(0, 200), max_size=20), st.integers(0, 200))
def test_what_is_kept_of_the_service_s_time_tells_the_same_keys_as_all_of_it(
    listed: Sequence[DbdKey], times: list[int], wall_ms: int
) -> None:
    service = Service(with_dbd_keys(registered(), listed, 1))
    for at_ms in times:
        service.sign(at_ms)
    kept_ms = service.trust.service_ms
    assert counting(service.trust, wall_ms, kept_ms) == counting(service.trust, wall_ms, service.newest_ms)


def test_a_time_a_minute_is_written_once_a_day() -> None:
    service = Service(reread(rotated(), {"service_ms": NOW_MS}))
    for minute in range(2 * 24 * 60):
        service.sign(NOW_MS + minute * 60_000)
    assert service.writes == 1


def test_it_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    trust = with_bundle(rotated(), bundle(revoked_kids=[KEYS[3].kid]), now_ms=NOW_MS)
    save_trust(path, trust)
    assert load_trust(path) == trust
    assert Pinned(load_trust(path)).service_ms == NOW_MS
    assert merged_windows(trust, [], newer=True) == list(trust.dbd_keys)


async def test_it_is_durable_where_it_lets_another_key_count(tmp_path: Path) -> None:
    """The next key was announced before; then the service signs something after its beginning."""
    path, changes = tmp_path / "trust.json", list[int]()
    planned = [window(DBD_KEY, 0, NOW_MS + 1_000), window(NEXT_KEY, NOW_MS + 1_000, None)]
    pinned = Pinned(with_dbd_keys(registered(), planned, NOW_MS))
    thread = StoreThread("test")
    pinning = Pinning(
        pinned,
        read_policy(pinned.trust.config, roots=pinned.trust.roots, taken_at_ms=NOW_MS),
        path=path,
        thread=thread,
        now_ms=lambda: 5_000,
        validator_keys_changed=lambda: changes.append(pinned.service_ms),
        policy_changed=lambda: None,
    )

    await pinning.heard(NOW_MS + 999)
    assert pinned.validator_key(NEXT_KEY.kid, 5_000) is None
    await pinning.heard(NOW_MS + 1_000)
    await pinning.heard(NOW_MS)  # older: changes nothing
    assert pinned.validator_key(NEXT_KEY.kid, 5_000) == NEXT_KEY.public
    thread.close()
    assert changes[-1] == NOW_MS + 1_000
    again = Pinned(load_trust(path))
    assert again.service_ms == NOW_MS + 1_000
    assert again.validator_key(NEXT_KEY.kid, 5_000) == NEXT_KEY.public
    assert again.validator_key(DBD_KEY.kid, 5_000) is None


async def test_a_bundle_tells_the_time_at_once(tmp_path: Path) -> None:
    """The next key was announced before; a bundle that the service signed later lets it count."""
    planned = [window(DBD_KEY, 0, NOW_MS + 1_000), window(NEXT_KEY, NOW_MS + 1_000, None)]
    pinned = Pinned(with_dbd_keys(registered(), planned, NOW_MS))
    thread = StoreThread("test")
    pinning = Pinning(
        pinned,
        read_policy(pinned.trust.config, roots=pinned.trust.roots, taken_at_ms=NOW_MS),
        path=tmp_path / "trust.json",
        thread=thread,
        now_ms=lambda: NOW_MS,
        validator_keys_changed=lambda: None,
        policy_changed=lambda: None,
    )
    assert pinned.validator_key(NEXT_KEY.kid, NOW_MS) is None
    await pinning.take_bundle(bundle(issued_at_ms=NOW_MS + 1_000))
    thread.close()
    assert pinned.service_ms == NOW_MS + 1_000
    assert pinned.validator_key(NEXT_KEY.kid, NOW_MS) == NEXT_KEY.public


async def test_what_a_technician_pinned_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    """Registered again over a stick while palmd runs; then the mail brings a configuration."""
    path, pinned, thread = tmp_path / "trust.json", Pinned(registered()), StoreThread("test")
    pinning = Pinning(
        pinned,
        read_policy(pinned.trust.config, roots=pinned.trust.roots, taken_at_ms=NOW_MS),
        path=path,
        thread=thread,
        now_ms=lambda: NOW_MS,
        validator_keys_changed=lambda: None,
        policy_changed=lambda: None,
    )
    both = [window(DBD_KEY, 0, None), window(NEXT_KEY, 0, None)]
    save_trust(path, with_dbd_keys(registered(), both, NOW_MS))
    await pinning.take_config(signed_config(config_obj(config_seq=2)))
    thread.close()
    for held in (Pinned(load_trust(path)), pinned):
        assert held.validator_key(NEXT_KEY.kid, NOW_MS) == NEXT_KEY.public
    assert read_policy(load_trust(path).config, roots=pinned.trust.roots, taken_at_ms=NOW_MS).config_seq == 2
