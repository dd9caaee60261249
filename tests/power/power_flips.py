"""One damaged byte, or a cut, in any file of a device that was killed: it may refuse, it must not fork.

A power cut is one thing, a card that gives back another byte than it was given is another, and it comes with
the same cut. Such a byte may cost the device what it knows, but then it says so: nothing that somebody was
told is replaced by something else, and nobody is recognised out of a gallery that went back.
"""

import contextlib
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from device.core.opening import Opened
from device.errors import DeviceError, SequenceHalted
from device.journal.journal import Journal
from device.trust.known_time import gallery_now
from device.trust.policy import read_policy
from device.wipe.wipe import finish_wipe
from gallery.errors import GalleryError
from gallery.gallery import Gallery
from link1.canonical import JsonObject
from link1.signed import object_ref
from tests.device.core_makers import NOW_MS, REJECTED, HandClock, make_request, sign_verdict, txn_id_of
from tests.gallery.gallery_service import who
from tests.power.power_device import opened
from tests.power.power_promises import Promises, Said
from tools.rig.simulation.crash_disk import Tree, lay_out

SQLITE_PAGE_BYTES = 512
"""Of the journal: frames of its log are so long, and 24 bytes more."""

Damage = Callable[[bytes], bytes]


@dataclass
class Flipped:
    """What came of damaged states: how often each file came to each end, and what was wrong."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    forks: list[str] = field(default_factory=list)

    @property
    def states(self) -> int:
        return sum(self.ends.values())

    def add(self, other: "Flipped") -> None:
        self.ends += other.ends
        self.forks += other.forks


def damages(name: str, data: bytes, rng: random.Random, *, most: int) -> Iterator[tuple[str, Damage]]:
    """Flips all over a file, at every header and frame of it, and cuts; about `most` of them."""
    size = len(data)
    places = {rng.randrange(size) for _ in range(most // 2)}
    places |= set(range(0, min(size, 100), max(1, 800 // most)))
    step = SQLITE_PAGE_BYTES + 24 if name.endswith("journal.db-wal") else 4096 + 24
    frames = range(32, size, step) if name.endswith("-wal") else range(0, size, SQLITE_PAGE_BYTES)
    chosen = rng.sample(frames, min(len(frames), most // 2))
    places |= {min(size - 1, start + rng.choice((0, 5, 9, 17, 24 + rng.randrange(64)))) for start in chosen}
    for place in sorted(places):
        bit = 1 << rng.randrange(8)
        yield f"bit {bit} of byte {place}", partial(_flipped, place, bit)
    for _ in range(max(1, most // 10)):
        length = rng.randrange(size + 1)
        yield f"cut to {length}", partial(_cut, length)


def _cut(length: int, data: bytes) -> bytes:
    return data[:length]


def _flipped(place: int, bit: int, data: bytes) -> bytes:
    return data[:place] + bytes((data[place] ^ bit,)) + data[place + 1 :]


def sweep_flips(tree: Tree, marks: list[Said], folder: Path, *, most: int, seed: int) -> Flipped:
    """Damage each file of a state in about `most` ways, one at a time, and see what the device makes of it
    in `folder`, which is made anew each time."""
    found, rng, now_ms = Flipped(), random.Random(seed), marks[-1]["at_ms"] + 1
    for name, data in sorted(tree.items()):
        if not data or name.endswith(("-shm", ".reserve")):
            continue
        for what, damage in damages(name, data, rng, most=most):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            lay_out({**tree, name: damage(data)}, folder)
            end, wrong = came_of_it(folder, marks, now_ms)
            found.ends[_kind(name), end] += 1
            found.forks += [f"{name}, {what}: {one}" for one in wrong]
    return found


def _kind(name: str) -> str:
    return "keys" if name.startswith("keys/") else name


def came_of_it(state: Path, marks: list[Said], now_ms: int) -> tuple[str, list[str]]:
    """How the device starts on `state` (`whole`, `stale` where its gallery serves nobody, `no gallery`,
    `halted`, `refused`, `wiped`, `ended` for a program without words), and every promise
    that it replaces by another."""
    promises = Promises.of(marks)
    found: list[str] = []
    try:
        if finish_wipe(state) is not None:
            return ("wiped", [] if promises.wipe else ["a wipe that nobody ordered"])
        with opened(state, HandClock(now_ms)) as device:
            end = _gallery(device, promises, now_ms, found)
            _trust(device, promises, found)
            _mail(device, promises, found)
            if _verdicts(device.journal, promises, found):
                end = "halted"
            return end, found
    except DeviceError as error:
        if len(str(error)) < 20:
            found.append(f"a refusal without a way out: {error}")
        return "refused", found
    except Exception as error:  # noqa: BLE001 - whatever else ends the program has no words for a person
        return "ended", [*found, f"{type(error).__name__}: {error}"]


def _verdicts(journal: Journal, promises: Promises, found: list[str]) -> bool:
    """Whether the journal is halted; else its next number is one that nobody was ever told."""
    for name in promises.asked:
        with contextlib.suppress(DeviceError):  # a row that says it is damaged
            memory = journal.find_txn(txn_id_of(name))
            if memory is None or memory.verdict is None:
                continue
            told = promises.verdicts.get(memory.verdict.seq)
            if told is not None and told["ref"] != memory.verdict.ref:
                found.append(f"verdict_seq {memory.verdict.seq} stands for another verdict than was told")
    request, wrapper = make_request("after the damage")

    def build(seq: int, prev_ref: str) -> JsonObject:
        return sign_verdict(request, REJECTED, seq, prev_ref)

    try:
        stored = journal.append_verdict(request.txn_id, object_ref(wrapper), build)
    except SequenceHalted:
        return True
    newest = max(promises.verdicts, default=0)
    if stored.seq <= newest:
        found.append(f"verdict_seq {stored.seq} is given a second time, {newest} was told")
    elif stored.seq == newest + 1 and newest:
        prev_ref = stored.wrapper["verdict"]["prev_ref"]
        if prev_ref != promises.verdicts[newest]["ref"]:
            found.append(f"the chain forks behind {newest}")
    return False


def _mail(device: Opened, promises: Promises, found: list[str]) -> None:
    boxes = device.journal.mail
    at = boxes.position()
    if not promises.inbox <= at.in_applied_seq <= promises.inbox + 1:
        found.append(f"the inbox stands at {at.in_applied_seq}, {promises.inbox} was acknowledged")
    if at.out_seq < max(promises.outbox, default=0):
        found.append(f"outbox number {at.out_seq + 1} would be given a second time")
    for seq, said in promises.outbox.items():
        with contextlib.suppress(DeviceError):
            record = boxes.next_record(seq - 1)
            if record is None or record.seq != seq:
                continue
            if hashlib.sha256(record.data).hexdigest() != said["sha256"]:
                found.append(f"outbox record {seq} is another one than was shown")


def _trust(device: Opened, promises: Promises, found: list[str]) -> None:
    policy = read_policy(device.trust.config, roots=device.trust.roots, taken_at_ms=NOW_MS)
    if policy.config_seq not in (promises.config_seq, promises.config_seq + 1):
        found.append(f"configuration {policy.config_seq} is in force, {promises.config_seq} was")


def _gallery(device: Opened, promises: Promises, now_ms: int, found: list[str]) -> str:
    gallery = device.gallery
    if gallery is None:
        if len(device.gallery_fault) < 20:
            found.append(f"a gallery refused without a way out: {device.gallery_fault}")
        return "no gallery"
    at = gallery.position
    if not gallery.freshness(gallery_now(HandClock(now_ms))).fresh:
        return "stale"
    if (at.epoch, at.seq) < promises.page:
        found.append(f"a gallery at {(at.epoch, at.seq)} serves, {promises.page} was told")
    with contextlib.suppress(GalleryError):
        _people(gallery, promises, found)
    return "whole"


def _people(gallery: Gallery, promises: Promises, found: list[str]) -> None:
    stream = promises.streams.get((gallery.position.epoch, gallery.position.seq))
    holds = stream["holds"] if stream is not None else {}
    for number in {number for one in promises.streams.values() for number in one["holds"]}:
        someone = who(gallery, int(number))
        if someone is not None and someone != holds.get(number):
            found.append(f"palm {number} is {someone}, who is not in the gallery")
