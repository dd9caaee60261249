"""Every course of events that a carrier of pages can arrange, up to a bound, on the real gallery.

A service enrols A and B, erases A two hours later and enrols C after four. The carrier has every page, head
and snapshot of all that time, and some that it has changed itself; it delivers any of them in any order, or
none, while hours pass and the device restarts, also with a clock that was set back. In each state the gallery
must hold what the service's log says at its position, must not have gone back, and must not recognise anyone
six hours after the last word of the service: above all not A six hours after the erasure.

    python -m tests.gallery.carrier_search        # the large bound
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from gallery.errors import PageRefused
from gallery.freshness import MAX_TTL_MS, GalleryNow
from gallery.gallery import Gallery
from link1.canonical import JsonObject, b64_encode
from link1.keys import SigningKey
from tests.gallery.gallery_service import NOW_MS, Service, encode, entry, palm, subject_ref, who
from tests.ram import in_memory

HOUR_MS = 3_600_000
STEP_MS = 3 * HOUR_MS
YEARS_MS = 70 * 365 * 24 * HOUR_MS
A, B, C, STRANGER = 1, 2, 3, 4
ERASED_MS = 2 * HOUR_MS
SHOWN_AGAIN = "a letter that was taken before makes an expired gallery fresh"
HELD_AT = ((), (A,), (A, B), (B,), (B, C))
"""Who is enrolled at each seq of the log."""


@dataclass(frozen=True, slots=True)
class Letter:
    """Something the carrier can deliver. `at_ms`: since when it exists. `forged`: changed by the carrier."""

    name: str
    at_ms: int
    apply: Callable[[Gallery, GalleryNow], object]
    forged: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """Clocks of one state; milliseconds since the beginning, `wall_off_ms` is how wrong the wall clock is."""

    true_ms: int = 0
    boot: int = 0
    booted_ms: int = 0
    wall_off_ms: int = 0

    @property
    def now(self) -> GalleryNow:
        return GalleryNow(1_000 + self.true_ms - self.booted_ms, NOW_MS + self.true_ms + self.wall_off_ms)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"


@dataclass(frozen=True, slots=True)
class Node:
    """A state: the files of the gallery, the clocks, and what was delivered."""

    files: tuple[tuple[str, bytes], ...]
    moment: Moment
    newest_ms: int
    """When the newest letter that was taken was made."""
    taken: frozenset[str]
    staged: str
    course: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Before:
    """What a step is compared with."""

    seq: int
    newest_head_ms: int
    fresh: bool

    @classmethod
    def of(cls, gallery: Gallery, moment: Moment) -> "Before":
        fresh = gallery.freshness(moment.now).fresh
        return cls(gallery.position.seq, gallery.newest_head_ms, fresh)


@dataclass(frozen=True, slots=True)
class CarrierFound:
    """`broken` is the first promise that was broken and the course of events to it, None for none."""

    states: int
    steps: int
    broken: tuple[str, tuple[str, ...]] | None


def letters(*, blanking: bool, absurd: bool = False) -> list[Letter]:
    """`blanking`: the carrier also passes off deltas as those of an erased person. `absurd`: the service once
    signed a head with a date of years to come, which gives six hours wherever it is shown first.
    """
    service = Service()
    made: list[Letter] = []

    def page(name: str, at_ms: int, obj: JsonObject, *, forged: bool = False) -> None:
        data = encode(obj)
        made.append(Letter(name, at_ms, lambda gallery, now: gallery.apply_deltas(data, now), forged))

    def head(at_ms: int) -> None:
        obj = service.head(issued_at_ms=NOW_MS + at_ms)
        made.append(
            Letter(f"head {at_ms // HOUR_MS} h", at_ms, lambda gallery, now: gallery.apply_head(obj, now))
        )

    def snapshot(name: str, at_ms: int, objs: list[JsonObject], *, forged: bool = False) -> None:
        for number, obj in enumerate(objs):
            data = encode(obj)

            def take(gallery: Gallery, now: GalleryNow, data: bytes = data) -> object:
                return gallery.apply_snapshot_page(data, now)

            made.append(Letter(f"{name} page {number}", at_ms, take, forged))

    service.upsert(entry(A, A), entry(B, B))
    first = service.deltas_obj(0, issued_at_ms=NOW_MS)
    page("deltas 1-2", 0, first)
    head(0)
    snapshot("snapshot 0 h", 0, service.snapshot_objs(1, NOW_MS))
    if absurd:
        ahead = service.head(issued_at_ms=NOW_MS + YEARS_MS)
        made.append(Letter("absurd head", 0, lambda gallery, now: gallery.apply_head(ahead, now)))
    service.tombstone(A)
    page("deltas 3", ERASED_MS, service.deltas_obj(2, issued_at_ms=NOW_MS + ERASED_MS))
    head(ERASED_MS)
    service.upsert(entry(C, C))
    last_ms = 4 * HOUR_MS
    last = service.deltas_obj(2, issued_at_ms=NOW_MS + last_ms)
    page("deltas 3-4", last_ms, last)
    page("deltas 4", last_ms, service.deltas_obj(3, issued_at_ms=NOW_MS + last_ms))
    page("deltas 1-4, A compacted", last_ms, service.deltas_obj(0, issued_at_ms=NOW_MS + last_ms))
    whole = service.snapshot_objs(1, NOW_MS + last_ms)
    snapshot("snapshot 4 h", last_ms, whole)
    head(9 * HOUR_MS)

    # What the carrier changes: nothing of it is signed.
    gap = service.deltas_obj(3, issued_at_ms=NOW_MS + last_ms)
    page("deltas 4, said to be followed by more", last_ms, {**gap, "has_more": True}, forged=True)
    other = {**first["data"][1], "vector_b64": b64_encode(palm(STRANGER).tobytes())}
    page("deltas 1-2, B's palm changed", 0, {**first, "data": [first["data"][0], other]}, forged=True)
    other = {**whole[1]["data"][0], "vector_b64": b64_encode(palm(STRANGER).tobytes())}
    with_stranger = [whole[0], {**whole[1], "data": [other]}]
    snapshot("snapshot 4 h, C's palm changed", last_ms, with_stranger, forged=True)
    own = SigningKey.from_seed(b"c" * 32)
    claimed = replace(service, key=own)
    claimed.heads, claimed.live = service.heads, service.live
    stale = claimed.head(2, NOW_MS + 9 * HOUR_MS, count=2)
    made.append(
        Letter("head of its own", 0, lambda gallery, now: gallery.apply_head(stale, now), forged=True)
    )
    if blanking:
        for size in (1, 2):
            for places in combinations(range(2), size):
                blank = [
                    {"seq": one["seq"], "op": "noop", "digest": one["digest"]} if place in places else one
                    for place, one in enumerate(last["data"])
                ]
                hidden = " and ".join(str(last["data"][place]["seq"]) for place in places)
                page(f"deltas 3-4, {hidden} hidden", last_ms, {**last, "data": blank}, forged=True)
    return made


class CarrierSearch:
    """States are visited breadth first, so that the course to a broken promise is a shortest one."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        hours: int,
        blanking: bool = False,
        absurd: bool = False,
        only: tuple[str, ...] = (),
    ) -> None:
        """`only`: how the names of the letters begin that the carrier has; all of them where it is empty."""
        self._folder = folder
        self._steps = steps
        self._last_ms = hours * HOUR_MS
        self._service = Service()
        known = letters(blanking=blanking, absurd=absurd)
        self._letters = [one for one in known if one.name.startswith(only or ("",))]
        self._places = 0

    def run(self) -> CarrierFound:
        start = self._open((), Moment())
        first = Node(self._files(start), Moment(), 0, frozenset(), "", ())
        visited, waiting, taken = {self._key(start[0], first)}, [first], 0
        self._drop(start)
        while waiting:
            node = waiting.pop(0)
            if len(node.course) == self._steps:
                continue
            for reached, key, broken in self._next(node):
                taken += 1
                if broken is not None:
                    return CarrierFound(len(visited), taken, (broken, reached.course))
                if key not in visited:
                    visited.add(key)
                    waiting.append(reached)
        return CarrierFound(len(visited), taken, None)

    # ---- one state

    def _open(self, files: tuple[tuple[str, bytes], ...], moment: Moment) -> tuple[Gallery, Path]:
        self._places += 1
        place = self._folder / str(self._places)
        place.mkdir()
        for name, data in files:
            (place / name).write_bytes(data)
        opened = self._service.open(place, now=moment.now, boot_id=moment.boot_id)
        return opened, place

    def _files(self, opened: tuple[Gallery, Path]) -> tuple[tuple[str, bytes], ...]:
        return tuple(sorted((file.name, file.read_bytes()) for file in opened[1].iterdir()))

    def _key(self, gallery: Gallery, node: Node) -> tuple[object, ...]:
        """What tells states apart: all that the gallery holds, the clocks, and what is staged."""
        now = node.moment.now
        held = (gallery.position, gallery.count, gallery.newest_head_ms, gallery.known_ms(now))
        return (*held, gallery.freshness(now), node.moment, node.newest_ms, node.taken, node.staged)

    def _next(self, node: Node) -> Iterator[tuple[Node, tuple[object, ...], str | None]]:
        """Every next state, and the promise that is broken in it."""
        moment, course = node.moment, node.course
        opened = self._open(node.files, moment)
        before = Before.of(opened[0], moment)
        for letter in self._letters:
            if letter.at_ms > moment.true_ms:
                continue
            try:
                letter.apply(opened[0], moment.now)
            except PageRefused:
                continue  # nothing has changed
            staged = letter.name if "page" in letter.name else node.staged
            newest_ms = node.newest_ms if letter.forged else max(node.newest_ms, letter.at_ms)
            taken = node.taken | {letter.name}
            reached = Node(self._files(opened), moment, newest_ms, taken, staged, (*course, letter.name))
            fresh = opened[0].freshness(moment.now).fresh
            again = letter.name in node.taken and fresh and not before.fresh
            broken = self._broken(opened[0], reached, before)
            yield reached, self._key(opened[0], reached), SHOWN_AGAIN if again else broken
            self._drop(opened)
            opened = self._open(node.files, moment)
        self._drop(opened)
        for name, later in self._times(moment):
            opened = self._open(node.files, later)
            reached = replace(node, files=self._files(opened), moment=later, course=(*course, name))
            yield reached, self._key(opened[0], reached), self._broken(opened[0], reached, before)
            self._drop(opened)

    def _times(self, moment: Moment) -> Iterator[tuple[str, Moment]]:
        if moment.true_ms + STEP_MS <= self._last_ms:
            yield "3 hours pass", replace(moment, true_ms=moment.true_ms + STEP_MS)
        rebooted = replace(moment, boot=moment.boot + 1, booted_ms=moment.true_ms)
        if moment.boot == 0:
            yield "reboot", rebooted
            yield "reboot, clock a day back", replace(rebooted, wall_off_ms=-24 * HOUR_MS)

    def _drop(self, opened: tuple[Gallery, Path]) -> None:
        opened[0].close()
        shutil.rmtree(opened[1])

    def _broken(self, gallery: Gallery, node: Node, before: Before) -> str | None:
        seq, newest_head_ms = gallery.position.seq, gallery.newest_head_ms
        true_ms, fresh = node.moment.true_ms, gallery.freshness(node.moment.now).fresh
        if seq < before.seq:
            return "the position went back"
        known = [person for person in (A, B, C, STRANGER) if who(gallery, person) == subject_ref(person)]
        # A device whose clock is wrong cannot tell a letter that was held back from a new one.
        if node.moment.wall_off_ms == 0:
            if (
                newest_head_ms < before.newest_head_ms < NOW_MS + YEARS_MS
            ):  # what agrees with the time follows
                return "an older head was taken"
            if fresh and A in known and true_ms > ERASED_MS + MAX_TTL_MS:
                return "an erased person is recognised six hours after the erasure"
            if fresh and true_ms > node.newest_ms + MAX_TTL_MS:
                return "a gate without word for six hours recognises people"
        if who(gallery, STRANGER) is not None:
            return "a palm that the service never signed is recognised"
        if known != list(HELD_AT[seq]):
            return f"at seq {seq} it holds {known} instead of {list(HELD_AT[seq])}"
        return None


def main() -> None:
    """Search the large bound, with and without blanked deltas; print what was found."""
    begun = time.process_time()
    for blanking in (False, True):
        with in_memory("carrier-") as folder:
            found = CarrierSearch(Path(folder), steps=5, hours=12, blanking=blanking).run()
        line = {"blanking": blanking, "states": found.states, "steps": found.steps, "broken": found.broken}
        print(json.dumps(line | {"cpu_s": round(time.process_time() - begun)}))
        if (found.broken is None) is blanking:
            sys.exit(1)


if __name__ == "__main__":
    main()
