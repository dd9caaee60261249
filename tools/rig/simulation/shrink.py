"""Makes a failing run short: fewer acts, with the same sentence broken."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tools.rig.simulation.plan import Plan, PlannedAct
from tools.rig.simulation.world import RunResult, run

T = TypeVar("T")


def shrunk(failed: RunResult, *, cpu_s: float) -> RunResult:
    """The shortest run found in so much CPU time that breaks what `failed` broke (ddmin over its acts)."""
    until_s = time.process_time() + cpu_s
    best = failed
    if failed.violation is None:
        return failed
    name = failed.violation.name

    def fails(acts: Sequence[PlannedAct]) -> bool:
        nonlocal best
        result = run(replace(failed.plan, acts=tuple(acts)))
        if result.violation is None or result.violation.name != name:
            return False
        best = result
        return True

    # What was to come after the end of the failed run had no part in it.
    acts = [act for act in failed.plan.acts if act.at_s <= failed.simulated_s]
    if not fails(acts):
        acts = list(failed.plan.acts)
    ddmin(acts, fails, lambda: time.process_time() < until_s)
    return best


def ddmin(acts: list[T], fails: Callable[[Sequence[T]], bool], more: Callable[[], bool]) -> None:
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
            if size == 1:
                return
            parts = min(2 * parts, len(acts))


def kept_of(plan: Plan, whole: Plan) -> tuple[int, ...]:
    """The places of a shrunk plan's acts in the whole one."""
    return tuple(place for place, act in enumerate(whole.acts) if act in plan.acts)
