"""The bench of rollouts: a fault on many devices is halted early, and a good release goes all the way."""

import pytest

from tools.rig.bench.rollouts import Fleet, ReleaseFault, roll_out

FLEET = Fleet(devices=200, soak_s=1800)


def test_a_good_release_is_done() -> None:
    outcome = roll_out(FLEET, ReleaseFault.FAILS, 0.0, seed=1)
    assert (outcome.halted_in, outcome.done, outcome.hurt) == (None, True, 0)


@pytest.mark.parametrize("fault", [ReleaseFault.FAILS, ReleaseFault.DIES])
def test_a_fault_on_every_device_ends_in_the_first_wave(fault: ReleaseFault) -> None:
    outcome = roll_out(FLEET, fault, 1.0, seed=1)
    assert (outcome.halted_in, outcome.done) == (1, False)
    assert outcome.hurt <= 2


def test_rejected_palms_are_seen_once_there_are_enough() -> None:
    """Two devices judge 300 palms in two hours and a half; the second wave has opened by then."""
    outcome = roll_out(FLEET, ReleaseFault.REJECTS, 1.0, seed=1)
    assert (outcome.halted_in, outcome.done) == (2, False)
    assert outcome.hurt <= 20


def test_a_run_repeats() -> None:
    assert roll_out(FLEET, ReleaseFault.DIES, 0.3, seed=5) == roll_out(FLEET, ReleaseFault.DIES, 0.3, seed=5)
