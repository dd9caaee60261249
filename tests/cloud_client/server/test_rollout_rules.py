"""The rules of a rollout, by properties."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.reference_server.domain.devices.rollout_rules import (
    Halt,
    Next,
    OfferedDevice,
    Share,
    Standing,
    differ,
    first_of,
    judge,
    standing,
)

SILENCE_MS = 900_000
NOW_MS = 10**12
NONE = Share(0, 0)
IDS = st.sets(st.text("abcdefgh0123456789-", min_size=1, max_size=8), max_size=120)
STANDINGS = st.lists(st.sampled_from(Standing), max_size=300)
MEMBERS = st.builds(
    OfferedDevice,
    wave=st.just(1),
    state=st.sampled_from([None, "receiving", "verified", "trial", "running", "failed", "withdrawn"]),
    holds=st.booleans(),
    served_before=st.booleans(),
    stopped_ms=st.none() | st.integers(NOW_MS - 3 * SILENCE_MS, NOW_MS),
    heard_ms=st.integers(NOW_MS - 3 * SILENCE_MS, NOW_MS),
)


def judged(standings: list[Standing], *, soaked: bool = True) -> Halt | Next:
    return judge(standings, soaked=soaked, took=NONE, others=NONE)


@given(IDS, st.integers(1, 2**53 - 1), st.integers(1, 100), st.integers(1, 100))
def test_a_wave_holds_the_first_of_its_order(ids: set[str], seq: int, one: int, other: int) -> None:
    low, high = sorted((one, other))
    small, large = first_of(seq, ids, low), first_of(seq, ids, high)
    assert len(small) == math.ceil(low * len(ids) / 100)
    assert large[: len(small)] == small
    assert set(first_of(seq, ids, 100)) == ids
    ranks = [hashlib.sha256(str(seq).encode() + b"\0" + name.encode()).digest() for name in large]
    assert ranks == sorted(ranks)


@given(MEMBERS)
def test_a_device_that_took_nothing_is_never_bad(member: OfferedDevice) -> None:
    how = standing(replace(member, state=None), NOW_MS, SILENCE_MS)
    assert how is (Standing.ON_ITS_WAY if NOW_MS - member.heard_ms < SILENCE_MS else Standing.AWAY)


@given(MEMBERS.filter(lambda member: member.state is not None))
def test_well_or_bad_as_the_rules_have_it(member: OfferedDevice) -> None:
    how = standing(member, NOW_MS, SILENCE_MS)
    silent = NOW_MS - member.heard_ms >= SILENCE_MS
    stopped = member.stopped_ms is not None
    long_stopped = stopped and NOW_MS - (member.stopped_ms or 0) >= SILENCE_MS
    bad = member.state == "failed" or (member.served_before and long_stopped) or silent
    assert (how in (Standing.FAILED, Standing.SILENT)) is bad
    well = not bad and member.holds and (not stopped or not member.served_before)
    assert (how is Standing.WELL) is well


@given(STANDINGS)
def test_a_wave_halts_over_two_percent_and_two_devices_or_all(standings: list[Standing]) -> None:
    bad = sum(how in (Standing.FAILED, Standing.SILENT) for how in standings)
    total = len(standings)
    halts = bad > 0 and (bad == total or (bad >= 2 and bad / total > 0.02))
    assert isinstance(judged(standings), Halt) is halts


@given(STANDINGS)
def test_the_next_wave_opens_on_95_percent_of_the_known(standings: list[Standing]) -> None:
    follows = judged(standings)
    if isinstance(follows, Halt):
        return
    well = standings.count(Standing.WELL)
    known = len(standings) - standings.count(Standing.AWAY)
    assert (follows is Next.OPEN) is (well > 0 and well / known >= 0.95)
    assert judged(standings, soaked=False) is Next.WAIT


@given(STANDINGS)
def test_a_device_that_gets_well_never_holds_a_rollout_back(standings: list[Standing]) -> None:
    """Of what may follow, none gets worse when one device more is well."""
    order = {Halt: 0, Next.WAIT: 1, Next.OPEN: 2}

    def rank(follows: Halt | Next) -> int:
        return 0 if isinstance(follows, Halt) else order[follows]

    before = rank(judged(standings))
    for index, how in enumerate(standings):
        if how is not Standing.WELL:
            better = [*standings[:index], Standing.WELL, *standings[index + 1 :]]
            assert rank(judged(better)) >= before


SHARES = st.integers(300, 5000).flatmap(
    lambda decided: st.builds(Share, st.just(decided), st.integers(0, decided))
)


@given(SHARES, SHARES)
def test_shares_differ_by_chance_and_by_enough(one: Share, other: Share) -> None:
    assert differ(one, other) is differ(other, one)
    p, q = one.accepted / one.decided, other.accepted / other.decided
    both = (one.accepted + other.accepted) / (one.decided + other.decided)
    error = math.sqrt(both * (1 - both) / one.decided + both * (1 - both) / other.decided)
    difference = abs(p - q)
    if not math.isclose(difference, max(0.02, 3.29 * error)):
        assert differ(one, other) is (difference > 0.02 and difference > 3.29 * error)


@pytest.mark.parametrize("decided", [0, 1, 299])
def test_too_few_verdicts_say_nothing(decided: int) -> None:
    for few, many in ((Share(decided, 0), Share(1000, 1000)), (Share(1000, 1000), Share(decided, 0))):
        assert not differ(few, many)


def test_equal_shares_rarely_differ_by_chance() -> None:
    """One look at two samples of the same share: at most one in a thousand, by the contract's 3.29."""
    accepted = np.random.default_rng(7).binomial(400, 0.95, (3000, 2))
    found = sum(differ(Share(400, int(one)), Share(400, int(other))) for one, other in accepted)
    assert found <= 10


def test_the_reason_has_the_numbers() -> None:
    halt = judge([Standing.WELL], soaked=False, took=Share(400, 200), others=Share(1000, 970))
    assert halt == Halt(
        "50.0% of 400 verdicts accept since the release was taken, "
        "97.0% of 1000 on other devices in the same hours"
    )
