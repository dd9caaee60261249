"""Makes a failing run short: fewer acts, with the same sentence broken."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Final, TypeVar

from tools.rig.simulation.plan import CALM_S, Act, Plan
from tools.rig.simulation.world import RunResult, run

T = TypeVar("T")
ENOUGH: Final = 30
"""So few acts can be read."""
_LAST: Final = (10, 20, 40, 80, 160)
_COARSE: Final = 8
_TRIES: Final = (2, 8, 64)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Of a plan: some acts, by their places, from `skip_s` until `until_s`, with other `luck`."""

    kept: tuple[int, ...]
    until_s: float
    skip_s: float = 0.0
    luck: int = 0

    def of(self, plan: Plan) -> Plan:
        acts = (plan.acts[place] for place in self.kept)
        ends_s, backup_s = plan.carrier_ends_at_s, plan.backup_at_s
        return replace(
            plan,
            acts=tuple(replace(act, at_s=act.at_s - self.skip_s) for act in acts),
            until_s=self.until_s - self.skip_s,
            carrier_ends_at_s=None if ends_s is None else max(0.0, ends_s - self.skip_s),
            backup_at_s=None if backup_s is None else max(0.0, backup_s - self.skip_s),
            luck=self.luck,
        )

    def __str__(self) -> str:
        """As options of `--replay`."""
        kept = f"--keep {','.join(map(str, self.kept))} --until {self.until_s!r}"
        return f"{kept} --skip {self.skip_s!r} --luck {self.luck}"


def shrunk(failed: RunResult, *, cpu_s: float) -> tuple[PlanPart, RunResult]:
    """The shortest part found in so much CPU time that breaks what `failed` broke, and its run.

    The last acts alone are tried first, then halves, then the list without whole kinds, then without parts.
    Without an act a run takes another course, and a rare meeting of two moments is missed although what leads
    to both is still there: then the same acts are tried with other luck, ever more often.
    """
    search = _Search(failed, time.process_time() + cpu_s)
    # What was to come after the end of the failed run had no part in it.
    search.fails([place for place in search.kept if search.plan.acts[place].at_s <= failed.simulated_s])
    search.tries = _TRIES[0]
    search.of_late()
    search.tries = _TRIES[0] if search.part.luck else 1
    search.without_acts(2)
    search.without_kinds()
    search.without_acts(_COARSE)
    for tries in _TRIES[1:]:
        search.tries = tries
        if len(search.kept) > ENOUGH:
            search.of_late()
        if len(search.kept) > ENOUGH and search.part.luck:
            search.without_acts(_COARSE)
    search.tries = 1
    search.without_acts(len(search.kept))
    return search.part, search.result


class _Search:
    """What was found so far: the shortest part that fails."""

    def __init__(self, failed: RunResult, until_s: float) -> None:
        self.plan, self.violation, self._until_s = failed.plan, failed.violation, until_s
        self.part, self.result = PlanPart(tuple(range(len(failed.plan.acts))), failed.plan.until_s), failed
        self._ends_s = min(failed.plan.until_s, failed.simulated_s + CALM_S)
        self._lucks = count(1)
        self.tries = 1

    @property
    def kept(self) -> tuple[int, ...]:
        return self.part.kept

    def more(self) -> bool:
        return time.process_time() < self._until_s

    def fails(self, kept: Sequence[int], skip_s: float | None = None) -> bool:
        """Whether these acts break the same sentence, in one of `tries`; then they are the part."""
        skip_s = self.part.skip_s if skip_s is None else skip_s
        for luck in (self.part.luck, *islice(self._lucks, self.tries - 1)):
            part = PlanPart(tuple(kept), self._ends_s, skip_s, luck)
            result = run(part.of(self.plan))
            if result.violation and self.violation and result.violation.name == self.violation.name:
                self.part, self.result = part, result
                return True
            if not self.more():
                break
        return False

    def without_kinds(self) -> None:
        acts, kept = self.plan.acts, self.kept

        def fail(kinds: Sequence[Act]) -> bool:
            return self.fails([place for place in kept if acts[place].act in kinds])

        every = list(dict.fromkeys(acts[place].act for place in kept))
        ddmin(every, fail, self.more, len(every))

    def without_acts(self, most_parts: int) -> None:
        ddmin(list(self.kept), self.fails, self.more, most_parts)

    def of_late(self) -> None:
        """Most often what came long before had no part in it, and a short run is soon tried."""
        kept = self.kept
        for last in _LAST:
            late = kept[-last:]
            if not self.more() or last >= len(kept):
                return
            if self.fails(late, max(0.0, self.plan.acts[late[0]].at_s - CALM_S)):
                return


def ddmin(
    acts: list[T], fails: Callable[[Sequence[T]], bool], more: Callable[[], bool], most_parts: int
) -> None:
    """Zeller and Hildebrandt's: leave out ever smaller parts, while the rest fails and `more` holds."""
    parts = 2
    while len(acts) >= 2 and more():
        size = max(1, len(acts) // parts)
        for start in range(0, len(acts), size):
            rest = acts[:start] + acts[start + size :]
            if more() and fails(rest):
                acts, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1 or parts >= most_parts:
                return
            parts = min(2 * parts, len(acts))
