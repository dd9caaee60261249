"""Crash states by the thousand: record a device's life, cut its power everywhere, see what it promised.

    python power_sweep.py [--ways N] [--starts N] [--flips N] [--jobs N] [--broken HOW] [--seed N] [--json]

Before each change on the disk and after the last, the power goes: with nothing that was not synced, with all
of it, and in N random ways. After some of the cuts the start is recorded too, and cut off in the same way.
At N cuts every file is damaged as well, one bit or one cut at a time.
"""

import argparse
import json
import logging
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.power.power_flips import Flipped, sweep_flips
from tests.power.power_promises import broken_promises
from tests.power.syscall_log import NEEDS_STRACE, STRACE, record
from tests.ram import in_memory
from tools.rig.simulation.crash_disk import Change, CrashDisk, LinkTo, Mark, Tree, fingerprint, lay_out


@dataclass
class Found:
    """What a sweep came to."""

    changes: int = 0
    cuts: int = 0
    states: set[bytes] = field(default_factory=set)
    seen: set[tuple[bytes, int]] = field(default_factory=set)
    """States, each with how much had been told."""
    checks: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: "Found") -> None:
        self.cuts += other.cuts
        self.states |= other.states
        self.checks += other.checks
        self.broken += other.broken


def record_life(folder: Path, *, broken: str = "", rounds: int = 6) -> list[Change]:
    """Record one run of the workload in `folder`, which is empty."""
    state = folder / "state"
    state.mkdir()
    command = [sys.executable, "-m", "tests.power.power_workload", str(state), str(folder / "marks")]
    command += ["--rounds", str(rounds), *(["--broken", broken] if broken else [])]
    return record(command, state=state, marks=folder / "marks", log=folder / "strace.txt")


def record_start(tree: Tree, folder: Path) -> list[Change]:
    """Record the device's start on a crash state, laid out in the empty `folder`."""
    state = folder / "state"
    state.mkdir(mode=0o700)
    lay_out(tree, state)
    command = [sys.executable, "-m", "tests.power.power_reopen", str(state)]
    return record(command, state=state, marks=folder / "marks", log=folder / "strace.txt")


def sweep_starts(changes: Sequence[Change], state: Path, *, starts: int, ways: int, seed: int = 1) -> Found:
    """Cut the power a second time: during the start after a cut, at `starts` random moments of the life."""
    found, rng = Found(), random.Random(seed)
    promised = next(number for number, change in enumerate(changes) if isinstance(change, Mark))
    for cut in sorted(rng.sample(range(promised + 1, len(changes)), starts)):
        disk = CrashDisk(state)
        for change in changes[:cut]:
            disk.follow(change)
        left = disk.crash(rng)
        with tempfile.TemporaryDirectory(prefix="power-") as name:
            started = record_start(left, Path(name))
            again = CrashDisk(Path(name) / "state", left)
            for number in range(len(started) + 1):
                if number:
                    again.follow(started[number - 1])
                trees = [again.crash(), *(again.crash(random.Random(way)) for way in range(ways))]
                _check(trees, disk.marks, found, f"{cut}, again {number}")
    return found


def _quiet() -> None:
    """What the device logs about a damaged state is thousands of lines here."""
    logging.disable(logging.CRITICAL)


def _check(trees: list[Tree], marks: list[dict[str, Any]], found: Found, where: str) -> None:
    """Look at those states that were not seen before with as much told."""
    with in_memory("power-") as name:
        folder = Path(name) / "state"
        for tree in trees:
            print_ = fingerprint(tree)
            if (print_, len(marks)) in found.seen:
                continue
            found.seen.add((print_, len(marks)))
            found.states.add(print_)
            found.checks += 1
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            lay_out(tree, folder)
            found.broken += [f"cut after change {where}: {what}" for what in broken_promises(folder, marks)]


def on_disk(folder: Path) -> Tree:
    """What lies in a folder, as a state of a disk."""

    def content(path: Path) -> bytes | None:
        if path.is_symlink():
            return LinkTo(os.fsencode(path.readlink()))
        return None if path.is_dir() else path.read_bytes()

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


def crash_states(
    changes: Sequence[Change],
    state: Path,
    *,
    ways: int,
    seed: int,
    share: tuple[int, int] = (0, 1),
    start: Tree | None = None,
) -> Iterator[tuple[int, list[Tree], list[dict[str, Any]]]]:
    """(how many changes had happened, what may be on the disk, what had been told), for every cut of this
    `share` (number, of how many). `ways`: how many random ways the power goes at each cut; `start`: what was
    on the disk before."""
    disk = CrashDisk(state, start)
    for number in range(len(changes) + 1):
        if number:
            disk.follow(changes[number - 1])
        if number % share[1] != share[0]:
            continue
        trees = [disk.crash()]
        if disk.has_pending and not (number and isinstance(changes[number - 1], Mark)):
            seeds = [f"{seed} {number} {way}" for way in range(ways)]
            trees += [disk.crash(keep_all=True), *(disk.crash(random.Random(one)) for one in seeds)]
        yield number, trees, disk.marks


def sweep_share(arguments: tuple[Sequence[Change], Path, int, int, int, tuple[int, int], int]) -> Found:
    """Check the crash states of one share of the cuts; `every`: only each so-manieth of them."""
    changes, state, ways, seed, every, (number, jobs), most = arguments
    share = (number * every, jobs * every)
    found = Found()
    for cut, trees, marks in crash_states(changes, state, ways=ways, seed=seed, share=share):
        _check(trees, marks, found, str(cut))
        if len(found.broken) >= most:
            break
    return found


def sweep(
    changes: Sequence[Change],
    state: Path,
    *,
    ways: int,
    seed: int = 1,
    every: int = 1,
    jobs: int = 1,
    most: int = 20,
) -> Found:
    """Cut the power at each `every`-th change; stops a share of it after `most` broken promises."""
    shares = [(changes, state, ways, seed, every, (number, jobs), most) for number in range(jobs)]
    found = Found(changes=len(changes))
    if jobs == 1:
        found.add(sweep_share(shares[0]))
        return found
    with multiprocessing.get_context("spawn").Pool(jobs, _quiet) as pool:
        for part in pool.imap_unordered(sweep_share, shares):
            found.add(part)
    return found


def flipped_share(arguments: tuple[Sequence[Change], Path, list[int], int, int]) -> Flipped:
    """Damage what lies on the disk at these cuts, with what was not synced and without it, each file in about
    `most` ways."""
    changes, state, cuts, most, seed = arguments
    disk, found = CrashDisk(state), Flipped()
    with in_memory("power-") as name:
        for number, change in enumerate(changes):
            disk.follow(change)
            if number in cuts:
                trees = [disk.whole(), disk.crash()] if disk.has_pending else [disk.whole()]
                for tree in trees:
                    found.add(
                        sweep_flips(tree, disk.marks, Path(name) / "state", most=most, seed=seed + number)
                    )
    return found


def flip(
    changes: Sequence[Change], state: Path, *, cuts: int, most: int, seed: int = 1, jobs: int = 1
) -> Flipped:
    """Kill the device at `cuts` random moments after it was provisioned, cut its power there, and damage its
    files."""
    promised = next(number for number, change in enumerate(changes) if isinstance(change, Mark))
    chosen = random.Random(seed).sample(range(promised + 1, len(changes)), cuts)
    shares = [(changes, state, chosen[job::jobs], most, seed) for job in range(jobs)]
    if jobs == 1:
        return flipped_share(shares[0])
    found = Flipped()
    with multiprocessing.get_context("spawn").Pool(jobs, _quiet) as pool:
        for part in pool.imap_unordered(flipped_share, shares):
            found.add(part)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", type=int, default=4, help="random ways in which the power goes at each cut")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6, help="passages between the workload's other events")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--starts", type=int, default=8, help="starts after a cut that are cut off again")
    parser.add_argument("--flips", type=int, default=24, help="moments at which every file is damaged")
    parser.add_argument("--damages", type=int, default=24, help="ways in which each file is")
    parser.add_argument("--at-least", type=int, default=0, help="fail when there were fewer different states")
    parser.add_argument("--broken", default="")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    _quiet()
    if STRACE is None:
        print(NEEDS_STRACE, file=sys.stderr)
        return 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the jobs: galleries of a few palms
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        changes = record_life(Path(name), broken=asked.broken, rounds=asked.rounds)
        found = sweep(
            changes,
            Path(name) / "state",
            ways=asked.ways,
            seed=asked.seed,
            every=asked.every,
            jobs=asked.jobs,
        )
        again = sweep_starts(
            changes, Path(name) / "state", starts=asked.starts, ways=asked.ways, seed=asked.seed
        )
        found.add(again)
        damaged = flip(
            changes,
            Path(name) / "state",
            cuts=asked.flips,
            most=asked.damages,
            seed=asked.seed,
            jobs=asked.jobs,
        )
    told = {
        "changes": found.changes,
        "states_of_starts_cut_off_again": len(again.states),
        "different_states": len(found.states),
        "checks": found.checks,
        "broken_promises": len(found.broken),
        "damaged_states": damaged.states,
        "forks": len(damaged.forks),
        "seconds": round(time.monotonic() - began, 1),
    }
    if asked.json:
        print(json.dumps(told))
    else:
        print(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in told.items()))
    for (file, end), count in sorted(damaged.ends.items()):
        print(f"  {file}, damaged: {end} {count} times", file=sys.stderr)
    for line in (found.broken + damaged.forks)[:20]:
        print(line, file=sys.stderr)
    return 0 if not found.broken and not damaged.forks and len(found.states) >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
