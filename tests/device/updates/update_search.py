"""Every course of events around the device's models, up to a bound, on the real state of updates.

Releases arrive, good ones and bad ones, of the gallery's model or of another, and are withdrawn; the gallery
begins epochs; the program is started, dies, is stopped; software comes that ships another model; a trial is
passed or not; a technician goes back.
After each start a model must be in force that is on the disk, fits the gallery where one does, and has not
failed before; what has not proved itself must be on trial, and the way back must lead to a model that has.

    python -m tests.device.updates.update_search [DEPTH]
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from device.errors import UpdateRefused
from device.updates.state import (
    SHIPPED,
    GalleryFacts,
    UpdateState,
    ended_on_purpose,
    model_tested,
    offered,
    proved,
    returned,
    rolled_back,
    shipped_at_start,
    starting,
    withdrawn,
)
from tests.device.updates.update_setting import manifest

OURS, OTHER = "palm-1", "palm-2"
"""The model_id of the model that is shipped at first, and of another, which needs its own epoch."""
RELEASES: Final = 3
EPOCHS: Final = 3
_FIRST: Final = 7
_PAYLOAD: Final = bytes(200)
_MANIFESTS: Final = [manifest(_PAYLOAD, _FIRST + number) for number in range(RELEASES)]


@dataclass(frozen=True, slots=True)
class World:
    """A device and what is true about its releases. `loaded`: the running program's model; None: none runs.
    `good`: releases that serve; `trusted`: proved, or a technician's choice; `failed`: gave way. `package`:
    the model_id that comes with the software; `copy`: of the copy of one; `shipped`: of the one in use."""

    state: UpdateState
    facts: GalleryFacts
    loaded: int | None = None
    released: int = 0
    good: frozenset[int] = frozenset()
    trusted: frozenset[int] = frozenset({SHIPPED})
    failed: frozenset[int] = frozenset()
    package: str = OURS
    copy: str = OURS
    shipped: str = OURS


def steps(world: World) -> Iterator[tuple[str, World]]:
    """What may happen next."""
    if world.loaded is None:
        yield "start", _started(world)
        package = OURS if world.package == OTHER else OTHER
        yield f"software with {package}", replace(world, package=package)
        return
    yield "dies", replace(world, loaded=None)
    yield "stopped", replace(world, state=ended_on_purpose(world.state), loaded=None)
    yield from _releases(world)
    yield from _galleries(world)
    yield from _trial(world)
    if world.shipped == world.package == world.facts.model_id != world.copy:
        yield "copied", replace(world, copy=world.package)
    if world.state.waiting is not None:
        yield "withdrawn", replace(world, state=withdrawn(world.state, world.state.waiting))
    try:
        state = rolled_back(world.state, world.facts, world.shipped)
    except UpdateRefused:
        return
    yield "rolled back", replace(world, state=state, trusted=world.trusted | {state.model})


def _started(world: World) -> World:
    before = world.state
    shipped, copy = shipped_at_start(before, world.facts, world.package, world.copy)
    after = starting(before, world.facts, shipped, 0)
    failed = world.failed
    if after.failed is not None and after.failed != before.failed:
        failed |= {after.failed.release_seq}
    return replace(world, state=after, loaded=after.model, failed=failed, shipped=shipped, copy=copy)


def _releases(world: World) -> Iterator[tuple[str, World]]:
    if world.released == RELEASES:
        return
    came = _MANIFESTS[world.released]
    seq = came.release_seq
    for model_id in (OURS, OTHER):
        state = model_tested(offered(world.state, came), came, model_id)
        after = replace(world, state=state, released=world.released + 1)
        yield f"{seq} of {model_id}, bad", after
        yield f"{seq} of {model_id}, good", replace(after, good=world.good | {seq})


def _galleries(world: World) -> Iterator[tuple[str, World]]:
    epoch, held = world.facts.epoch, world.facts.model_id
    if epoch < EPOCHS:
        for model_id in (None, OURS, OTHER):
            yield f"epoch of {model_id}", replace(world, facts=GalleryFacts(epoch + 1, model_id))
    if held is None:
        for model_id in (OURS, OTHER):
            yield f"first template of {model_id}", replace(world, facts=GalleryFacts(epoch, model_id))


def _trial(world: World) -> Iterator[tuple[str, World]]:
    trial = world.state.trial
    if trial is None or trial.release_seq != world.loaded:
        return
    if trial.release_seq in world.good:
        yield "passed", replace(world, state=proved(world.state), trusted=world.trusted | {trial.release_seq})
    yield (
        "gave way",
        replace(
            world,
            state=returned(world.state, "unhealthy"),
            failed=world.failed | {trial.release_seq},
        ),
    )


def faults(before: World, world: World) -> Iterator[str]:
    """What must not be so after a start."""
    state, facts = world.state, world.facts
    here = {SHIPPED: world.shipped} | {slot.release_seq: slot.model_id for slot in state.slots}
    if state.model not in here:
        yield "the model in force is not on the disk"
        return
    if state.model in world.failed:
        yield "a model that failed is in force again"
    fitting = {*here.values(), world.package, before.copy}
    if facts.model_id is not None and facts.model_id != here[state.model] and facts.model_id in fitting:
        yield "a model that fits the gallery is here and not in force"
    if world.copy != before.copy and facts.model_id != world.copy:
        yield "a copy is given up whose gallery may still come"
    trial = state.trial
    if state.model not in world.trusted and trial is None:
        yield "what has not proved itself is in force without a trial"
    if trial is not None and (trial.release_seq != state.model or trial.back_to not in here):
        yield "the trial is not of the model in force, or has no way back"
    if trial is not None and trial.back_to not in world.trusted:
        yield "the way back leads to a model that has not proved itself"
    if state.previous is not None and state.previous not in here:
        yield "the model before is not on the disk"


def settles(world: World) -> bool:
    """Whether a device whose models on trial all die settles on a model that is not on trial."""
    for _ in range(5 * RELEASES):
        world = _started(replace(world, loaded=None))
        if world.state.trial is None:
            return True
    return False


@dataclass
class Searched:
    worlds: int
    steps: int
    deepest: int
    """Steps of the longest course that leads to a state that no shorter one does."""
    found: dict[str, tuple[str, ...]]
    """Each fault, and the shortest course that leads to it."""


def search(depth: int = sys.maxsize) -> Searched:
    """All courses of at most `depth` steps; without it every state there is. None goes on from a fault."""
    begin = World(UpdateState(home_epoch=1), GalleryFacts(1, OURS))
    edge: list[tuple[World, tuple[str, ...]]] = [(begin, ())]
    seen, count = {begin}, 0
    found: dict[str, tuple[str, ...]] = {}
    deepest = 0
    while edge and deepest < depth:
        deepest += 1
        further: list[tuple[World, tuple[str, ...]]] = []
        for world, course in edge:
            for name, after in steps(world):
                count += 1
                wrong = list(faults(world, after)) if name == "start" else []
                if after in seen and not wrong:
                    continue
                seen.add(after)
                if not settles(after):
                    wrong.append("it never comes to a model that is not on trial")
                for fault in wrong:
                    found.setdefault(fault, (*course, name))
                if not wrong:
                    further.append((after, (*course, name)))
        edge = further
    return Searched(len(seen), count, deepest, found)


def main() -> int:
    began = time.monotonic()
    result = search(*map(int, sys.argv[1:]))
    print(
        f"{result.worlds} states, {result.steps} steps, the longest course has {result.deepest};"
        f" {time.monotonic() - began:.0f} s"
    )
    for fault, course in result.found.items():
        print(f"{fault}: {', '.join(course)}")
    return int(bool(result.found))


if __name__ == "__main__":
    sys.exit(main())
