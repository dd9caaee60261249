"""What a run does and when, drawn from its seed: people, operators, and what goes wrong.

A plan is a list of acts, so that a failing one can be made shorter. Each seed leaves out about half of the
kinds of trouble (swarm testing): some faults hide others.
"""

import errno
import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from tools.rig.simulation.disk import WriteFault
from tools.rig.simulation.service import PEOPLE


class Act(StrEnum):
    """The kinds of acts. The comment says what `size` and `extra` are."""

    PASSAGE = "passage"  # size: ttl_ms; extra: person (-1: a stranger); for_s: how long the hand stays
    HAND_FIRST = "hand first"  # the same, and the hand is there before the request
    CANCELLED = "cancelled passage"  # the same, and the validator cancels about when the hand comes
    REPLACED = "replaced passage"  # the same, and another request replaces the first one
    ENROL = "enrol"  # extra: person
    ERASE = "erase"  # extra: person
    BLOCK = "block"  # extra: person
    UNBLOCK = "unblock"  # extra: person
    EPOCH = "new epoch"
    REVOKE = "revoke"
    CABLE_NOISE = "cable noise"  # size: chance; for_s
    CABLE_PULLED = "cable pulled"  # for_s
    CABLE_SILENT = "cable silent"  # for_s
    CABLE_ONE_WAY = "cable carries one way"  # for_s; what the validator says is lost
    CABLE_REPEATS = "cable repeats"  # size: chance; for_s
    CABLE_LATE = "cable late"  # size: seconds; for_s
    RESET = "session reset"
    CORE_KILLED = "core killed"  # extra: after so many steps
    POWER_CUT = "power cut"  # extra: after so many steps; for_s: until it is back
    CARRIER_KILLED = "carrier killed"  # extra: after so many steps
    VALIDATOR_KILLED = "validator killed"  # extra: after so many steps
    VALIDATOR_POWER_CUT = "validator power cut"  # extra, for_s as above
    SERVER_DOWN = "server down"  # extra: after so many steps; for_s
    NETWORK_DOWN = "network down"  # for_s
    NETWORK_FLAKY = "network flaky"  # size: chance; for_s
    NETWORK_SLOW = "network slow"  # size: seconds; for_s
    OFFICE_DOWN = "office network down"  # for_s
    GALLERY_WITHHELD = "gallery withheld"  # for_s
    GALLERY_STRIPPED = "gallery stripped"  # for_s; heads come, and their deltas do not
    GALLERY_REPLAYED = "gallery replayed"  # size: chance; for_s
    WALL_CLOCK = "wall clock set"  # size: by so many ms
    VALIDATOR_WALL_CLOCK = "validator wall clock set"  # size: by so many ms
    DISK_FULL = "disk full"  # for_s; every write fails
    SYNC_FAILS = "sync fails"  # for_s
    DISK_SLOW = "disk slow"  # size: seconds for one piece of work; for_s
    CABLE_GATHERS = "cable gathers"  # size: seconds; for_s; a reset follows the next decision
    FORGED_CANCELS = "forged cancels"  # size: how many at most; for_s
    FORGED_DECISIONS = "forged decisions"  # the same; extra: how much deeper nested than a good one
    WITNESS_FAILS = "witness fails"  # one write; for_s: after that, none; extra: place in WITNESS_FAULTS
    DISK_FILLS = "disk fills"  # extra: bytes that are left for files to grow by; for_s


TROUBLES: Final = tuple(act for act in Act if list(Act).index(act) >= list(Act).index(Act.EPOCH))
_WIDER: Final = (Act.DISK_FILLS,)
_NEWER: Final = TROUBLES[TROUBLES.index(Act.CABLE_GATHERS) : -len(_WIDER)]
"""Drawn by lots of their own: of the other kinds a seed has what it had before these were there."""
KEPT_SEEDS: Final = (1107, 1719, 2730, 2773, 3370, 4039, 4158, 4709, 7661, 7915)
"""These have failed, before the newer kinds were there: they keep the plan with which they did."""
WIDER_FROM: Final = 1_000_000
"""From this seed on a world has more ways of failing (`_wider`); smaller ones keep their plans."""
WITNESS_FAULTS: Final = (
    WriteFault("journal.db.witness", errno.EIO),
    WriteFault("journal.db.witness", errno.ENOSPC, below=2 * 2_048),  # the mail's numbers
    WriteFault("gallery/gallery.witness", errno.EIO),
)
CALM_S: Final = 8.0
"""At the beginning: registered, not yet in step with the service."""
LONG_S: Final = 400.0
"""A run in which the gallery's time to live may pass."""
_MOST_TROUBLES: Final = 1.08
"""For each person who comes; at least a tenth."""
_MOST_NEWER: Final = 0.05
"""The same for one newer kind."""
_FLOODS: Final = (Act.FORGED_CANCELS, Act.FORGED_DECISIONS)
_MOST_FLOODS: Final = 2
"""Each takes as long as 20 passages."""
_PACES: Final = (0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 4.0)
"""Most gates are busy: a person each 1.4 s. At the others a request ends by itself, without another one."""
_LATE_S: Final = 4.0
_LEAST_TTL_MS: Final = 700
_REVOKED: Final = 0.25
_LASTS_S: Final = 170.0
_LASTING: Final = (
    Act.NETWORK_DOWN,
    Act.GALLERY_WITHHELD,
    Act.GALLERY_STRIPPED,
    Act.GALLERY_STRIPPED,
    Act.GALLERY_STRIPPED,
    Act.GALLERY_REPLAYED,
    Act.POWER_CUT,
    Act.SERVER_DOWN,
)
"""Troubles that may last longer than that."""


@dataclass(frozen=True, slots=True)
class PlannedAct:
    """One act. `for_s`: how long it lasts; see `Act` for the others."""

    at_s: float
    act: Act
    for_s: float = 0.0
    size: float = 0.0
    extra: int = 0

    def __str__(self) -> str:
        parts = [f"{self.at_s:8.3f} s  {self.act}"]
        parts += [f"for {self.for_s:.3f} s"] if self.for_s else []
        parts += [f"size {self.size:.3f}"] if self.size else []
        return ", ".join(parts + ([f"extra {self.extra}"] if self.extra else []))


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. `offline`: this device has no network, and lives on the validator's mail. `rates`: of the clocks
    of the device and the validator. `clock_kept`: the device has a clock that runs without power."""

    seed: int
    acts: tuple[PlannedAct, ...]
    until_s: float
    offline: bool = False
    carries_mail: bool = True
    rates: tuple[float, float] = (1.0, 1.0)
    clock_kept: bool = True
    backup_at_s: float | None = None
    """When the service's backup is made that it is restored from at the end, when everything is at rest."""
    rotates_key: bool = False
    """Whether the validator gets another key at the end, when everything is at rest. What it signed with the
    one before is then judged by the time in it, so its clock was right."""
    latency_s: float = 0.02
    """The most that a request or an answer takes on the device's good days."""
    carrier_ends_at_s: float | None = None
    """When the device's carrier dies for good: from then on mail carries everything."""
    page_entries: int | None = None
    """How many entries of a snapshot come in a page; None: as many as the service gives."""
    luck: int = 0
    """Another number has the same acts meet other delays and losses."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed; the same on every machine."""
    chance = random.Random(f"plan {seed}")  # noqa: S311 - a simulation's
    until_s = chance.choice((60.0, 100.0, 150.0, 200.0, 250.0, LONG_S))
    allowed = [act for act in TROUBLES if act not in (*_NEWER, *_WIDER) and chance.random() < 0.5]
    people = _people(chance, until_s)
    acts: list[PlannedAct] = [*_operators(chance, until_s)]
    for _ in range(round(len(people) * chance.uniform(0.1, _MOST_TROUBLES)) if allowed else 0):
        # Half of the troubles come in the middle of a passage, where there is most to go wrong.
        near = chance.choice(people).at_s + chance.uniform(-1.5, 2.5)
        at_s = near if chance.random() < 0.5 else chance.uniform(CALM_S, until_s)
        acts.append(_trouble(chance, chance.choice(allowed), at_s, until_s))
        if acts[-1].act is Act.DISK_SLOW and acts[-1].size >= _LATE_S:
            people = _one_in_a_lull(people, acts[-1])
    acts += people
    if Act.REVOKE in allowed and chance.random() < _REVOKED:
        acts.append(PlannedAct(until_s * chance.uniform(0.7, 1.0), Act.REVOKE))  # what follows is the wipe
    lasting = [act for act in _LASTING if act in allowed]
    for begins_s in range(round(CALM_S), round(until_s - _LASTS_S), round(_LASTS_S)) if lasting else ():
        acts += _outlasting(chance, begins_s + chance.uniform(0.0, 20.0), chance.choice(lasting))
        if Act.WALL_CLOCK in allowed:
            back_ms = -(10 ** chance.uniform(5, 8))
            acts.append(PlannedAct(begins_s + chance.uniform(1.0, 60.0), Act.WALL_CLOCK, size=back_ms))
    acts += _newer_troubles(seed, people, until_s)
    offline = chance.random() < 0.2
    lots = random.Random(f"backup {seed}")  # noqa: S311
    plan = Plan(
        seed,
        tuple(sorted(acts, key=lambda act: act.at_s)),
        until_s,
        offline=offline,
        carries_mail=offline or chance.random() < 0.35,
        rates=(1 + chance.uniform(-2e-4, 2e-4), 1 + chance.uniform(-2e-4, 2e-4)),
        clock_kept=chance.random() < 0.7,
        backup_at_s=until_s * lots.uniform(0.1, 0.9) if lots.random() < 0.3 else None,
        rotates_key=all(act.act is not Act.VALIDATOR_WALL_CLOCK for act in acts),
        latency_s=chance.choice((0.02, 0.5, 1.5)),
    )
    return plan if seed < WIDER_FROM else _wider(plan)


def _wider(plan: Plan) -> Plan:
    """With a carrier that dies for good, erasures while a snapshot of many pages finds the disk full, and a
    disk that fills: what does not grow is written still."""
    chance, acts = random.Random(f"wider {plan.seed}"), list(plan.acts)  # noqa: S311
    ends_s = plan.until_s * chance.uniform(0.5, 1.0) if chance.random() < 0.5 else None
    pages = chance.choice((None, 1, 2))
    for _ in range(chance.randint(1, 3) if pages else 0):
        at_s, full_s = chance.uniform(CALM_S, plan.until_s), chance.uniform(0.1, 3.0)
        full = PlannedAct(at_s + full_s, Act.DISK_FULL, chance.uniform(0.5, 5.0))
        erased = PlannedAct(full.at_s + chance.uniform(-0.5, 1.0), Act.ERASE, extra=chance.randrange(PEOPLE))
        acts += [PlannedAct(at_s, Act.EPOCH), full, erased]
        if chance.random() < 0.5:
            acts.append(PlannedAct(erased.at_s + chance.uniform(0.0, 4.0), Act.POWER_CUT, 1.0, extra=1))
    for _ in range(chance.randint(1, 4) if chance.random() < 0.5 else 0):
        at_s, for_s = chance.uniform(CALM_S, plan.until_s), chance.choice((3.0, 20.0, 100.0))
        left = round(10 ** chance.uniform(3.0, 6.3))
        acts.append(PlannedAct(at_s, Act.DISK_FILLS, for_s * chance.uniform(0.5, 1.5), extra=left))
    return replace(
        plan,
        acts=tuple(sorted(acts, key=lambda act: act.at_s)),
        carrier_ends_at_s=ends_s if plan.carries_mail and not plan.offline else None,
        page_entries=pages,
    )


def _newer_troubles(seed: int, people: list[PlannedAct], until_s: float) -> list[PlannedAct]:
    acts: list[PlannedAct] = []
    for kind in () if seed in KEPT_SEEDS else _NEWER:
        chance = random.Random(f"{kind} {seed}")  # noqa: S311
        count = round(len(people) * chance.uniform(0.01, _MOST_NEWER)) + 1 if chance.random() < 0.5 else 0
        for _ in range(min(count, _MOST_FLOODS) if kind in _FLOODS else count):
            near = chance.choice(people).at_s + chance.uniform(-1.5, 2.5)
            at_s = near if chance.random() < 0.5 else chance.uniform(CALM_S, until_s)
            acts += _newer_trouble(chance, kind, at_s)
    return acts


def _newer_trouble(chance: random.Random, act: Act, at_s: float) -> list[PlannedAct]:
    for_s = chance.choice((0.3, 1.0, 3.0, 10.0)) * chance.uniform(0.5, 1.5)
    match act:
        case Act.WITNESS_FAILS:
            fault, times = chance.choice((0, 1, 1, 2)), chance.choice((1, 1, 8))
            return [PlannedAct(at_s + 2.0 * time, act, for_s, extra=fault) for time in range(times)]
        case Act.FORGED_CANCELS:  # while the journal is slow they wait for it
            slow = PlannedAct(at_s, Act.DISK_SLOW, for_s, 0.1)
            return [slow, PlannedAct(at_s, act, max(for_s, 1.0), chance.choice((20, 300)))]
        case Act.FORGED_DECISIONS:
            return [PlannedAct(at_s, act, for_s, chance.choice((3, 20, 100)), chance.choice((0, 10, 13)))]
        case _:  # a decision of that moment names a time before its key
            back = PlannedAct(at_s, Act.VALIDATOR_WALL_CLOCK, size=-(10 ** chance.uniform(5, 8)))
            gathers = PlannedAct(at_s, act, for_s, chance.uniform(0.02, 0.5))
            return [back, gathers] if chance.random() < 0.3 else [gathers]


def _outlasting(chance: random.Random, at_s: float, trouble: Act) -> list[PlannedAct]:
    """A trouble that outlasts the gallery's time to live, and what the device then does not hear of."""
    kinds = chance.sample((Act.ERASE, Act.BLOCK, Act.UNBLOCK, Act.ENROL), 2)
    return [
        PlannedAct(at_s, trouble, _LASTS_S - 20.0, 0.9, 1),
        *(
            PlannedAct(at_s + chance.uniform(1.0, 20.0), kind, extra=chance.randrange(PEOPLE))
            for kind in kinds
        ),
    ]


def _one_in_a_lull(people: list[PlannedAct], slow: PlannedAct) -> list[PlannedAct]:
    """While a verdict may be late one person comes, with little time: another request would end theirs."""
    one = PlannedAct(slow.at_s + 0.1, Act.HAND_FIRST, 2.0, _LEAST_TTL_MS, 0)
    return [*(act for act in people if not -1.0 < act.at_s - slow.at_s < 2 * _LATE_S), one]


def _people(chance: random.Random, until_s: float) -> list[PlannedAct]:
    acts, at_s, pace = [], CALM_S * 0.5, chance.choice(_PACES)
    kinds = (Act.PASSAGE,) * 7 + (Act.HAND_FIRST, Act.CANCELLED, Act.REPLACED)
    while at_s < until_s:
        at_s += pace * (chance.expovariate(1.0) + 0.7)
        person = -1 if chance.random() < 0.15 else chance.randrange(PEOPLE)
        ttl_ms = chance.choice((700, 2_000, 2_000, 5_000, 5_000, 15_000))
        acts.append(PlannedAct(at_s, chance.choice(kinds), chance.uniform(0.3, 1.4), ttl_ms, person))
    return acts


def _operators(chance: random.Random, until_s: float) -> list[PlannedAct]:
    kinds = (Act.ENROL, Act.ERASE, Act.BLOCK, Act.UNBLOCK)
    count = chance.randint(0, 3 + round(until_s / 12))
    return [
        PlannedAct(chance.uniform(0, until_s), chance.choice(kinds), extra=chance.randrange(PEOPLE))
        for _ in range(count)
    ]


def _trouble(  # noqa: C901, PLR0911 - one line a kind
    chance: random.Random, act: Act, at_s: float, until_s: float
) -> PlannedAct:
    for_s = chance.choice((0.1, 0.1, 0.3, 0.3, 1.0, 1.0, 3.0, 10.0)) * chance.uniform(0.5, 1.5)
    steps = chance.choice((1, 5, 20, 60, 200)) + chance.randrange(20)
    match act:
        case Act.GALLERY_REPLAYED:
            return PlannedAct(at_s, act, 4 * for_s, chance.uniform(0.1, 0.9))
        case Act.CABLE_NOISE | Act.CABLE_REPEATS | Act.NETWORK_FLAKY:
            return PlannedAct(at_s, act, for_s, chance.uniform(0.02, 0.5))
        case Act.CABLE_LATE:
            return PlannedAct(at_s, act, for_s, chance.uniform(0.05, 0.8))
        case Act.DISK_SLOW:
            size = chance.choice((0.05, 1.0, _LATE_S, _LATE_S))
            return PlannedAct(at_s, act, max(4 * for_s, 2 * size), size)
        case Act.NETWORK_SLOW:
            return PlannedAct(at_s, act, for_s, chance.uniform(0.5, 15.0))
        case Act.CORE_KILLED | Act.CARRIER_KILLED | Act.VALIDATOR_KILLED:
            return PlannedAct(at_s, act, extra=steps)
        case Act.POWER_CUT | Act.VALIDATOR_POWER_CUT | Act.SERVER_DOWN:
            return PlannedAct(at_s, act, min(for_s, 10.0), extra=steps)
        case Act.WALL_CLOCK | Act.VALIDATOR_WALL_CLOCK:
            return PlannedAct(at_s, act, size=chance.choice((-1, 1)) * 10 ** chance.uniform(3, 9))
        case Act.NETWORK_DOWN | Act.GALLERY_WITHHELD | Act.GALLERY_STRIPPED if chance.random() < 0.3:
            return PlannedAct(at_s, act, until_s)
        case Act.REVOKE:
            return PlannedAct(at_s, Act.RESET)
        case Act.DISK_FULL | Act.SYNC_FAILS:
            return PlannedAct(at_s, act, min(for_s, 5.0))
        case _:
            return PlannedAct(at_s, act, for_s)
