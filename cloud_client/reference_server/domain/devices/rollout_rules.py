"""How a rollout goes on: which devices a wave has, how its devices are, when the next opens, when it halts.

Pure functions over what is known of the devices; ``rollouts`` keeps that, and does what they say.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import sqrt
from typing import Final

GOOD_PERCENT: Final = 95
"""This share of the devices that are heard or took the release has to be well."""
BAD_PERCENT: Final = 2
BAD_DEVICES: Final = 2
"""Over this share of a wave, and at least so many devices: the rollout halts."""
ENOUGH_VERDICTS: Final = 300
STANDARD_ERRORS: Final = 3.29
SHARE_DIFFERENCE: Final = 0.02


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device that a release was offered to."""

    wave: int
    state: str | None
    """What it reports of the release; None: it has not taken it."""
    holds: bool
    """It runs the release, or has verified a model that waits for its epoch."""
    served_before: bool
    stopped_ms: int | None
    """Since when it does not serve; None while it does, or has not said."""
    heard_ms: int


class Standing(Enum):
    """How a device is that was offered a release."""

    WELL = auto()
    FAILED = auto()
    """Bad, by its own word."""
    SILENT = auto()
    """Bad: it took the release, and nothing is heard of it."""
    ON_ITS_WAY = auto()
    """It took the release, or is heard and has yet to take it."""
    AWAY = auto()
    """Neither heard nor known to have taken the release."""


@dataclass(frozen=True, slots=True)
class Share:
    """Verdicts, and how many of them accept."""

    decided: int
    accepted: int

    @property
    def mean(self) -> float:
        return self.accepted / self.decided


@dataclass(frozen=True, slots=True)
class Halt:
    """The rollout is to be halted."""

    reason: str


class Next(Enum):
    """What else may follow from a look."""

    WAIT = auto()
    OPEN = auto()
    """The next wave opens; after the last one the rollout is done."""


def first_of(release_seq: int, device_ids: Iterable[str], percent: int) -> list[str]:
    """The first ⌈percent·N/100⌉ of N devices in the order of this release."""
    ranked = sorted(device_ids, key=lambda device_id: _rank(release_seq, device_id))
    return ranked[: -(-percent * len(ranked) // 100)]


def _rank(release_seq: int, device_id: str) -> bytes:
    return hashlib.sha256(f"{release_seq}\0{device_id}".encode()).digest()


def standing(member: OfferedDevice, now_ms: int, silence_ms: int) -> Standing:
    """How a device is at ``now_ms``."""
    heard = now_ms - member.heard_ms < silence_ms
    if member.state is None:
        return Standing.ON_ITS_WAY if heard else Standing.AWAY
    serves = member.stopped_ms is None
    if member.state == "failed":
        return Standing.FAILED
    if member.served_before and member.stopped_ms is not None and now_ms - member.stopped_ms >= silence_ms:
        return Standing.FAILED
    if not heard:
        return Standing.SILENT
    return Standing.WELL if member.holds and (serves or not member.served_before) else Standing.ON_ITS_WAY


def judge(standings: Sequence[Standing], *, soaked: bool, took: Share, others: Share) -> Halt | Next:
    """What follows from the devices of a wave (those of earlier ones included) and from the verdicts.

    ``soaked``: the wave has been open for long enough.
    """
    count = Counter(standings)
    failed, silent, well = count[Standing.FAILED], count[Standing.SILENT], count[Standing.WELL]
    bad, total = failed + silent, len(standings)
    if bad and (bad == total or (bad >= BAD_DEVICES and bad * 100 > BAD_PERCENT * total)):
        return Halt(f"{bad} of {total} devices are bad: {failed} failed, {silent} silent")
    if differ(took, others):
        return Halt(
            f"{took.mean:.1%} of {took.decided} verdicts accept since the release was taken, "
            f"{others.mean:.1%} of {others.decided} on other devices in the same hours"
        )
    known = total - count[Standing.AWAY]
    ready = soaked and well >= 1 and well * 100 >= GOOD_PERCENT * known
    return Next.OPEN if ready else Next.WAIT


def differ(took: Share, others: Share) -> bool:
    """Whether two shares of accepted verdicts differ by more than chance, and by enough to matter.

    The standard error is that of two samples of one share, the share of both together. With the two shares
    by themselves it would be far too small where one of them happens to be near 1, as a good share is.
    """
    if min(took.decided, others.decided) < ENOUGH_VERDICTS:
        return False
    share = (took.accepted + others.accepted) / (took.decided + others.decided)
    error = sqrt(share * (1 - share) * (1 / took.decided + 1 / others.decided))
    difference = abs(took.mean - others.mean)
    return difference > max(STANDARD_ERRORS * error, SHARE_DIFFERENCE)
