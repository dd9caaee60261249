"""The power goes at every moment of an installation of software, and the board comes back with a version that
is whole: the old one, or the new one once it has passed its trial.

    python update_sweep.py [--ways N] [--starts N]

`palm-update` is recorded as it installs a release that serves, and a release that dies. After each cut the
board starts as systemd starts it: `palm-access-rollback --recover`, then the note of how the trial ended.
"""

import argparse
import contextlib
import io
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from device.errors import DeviceError
from device.updates.install import recover
from device.updates.manifest import Manifest, ReleaseKind
from device.updates.versions import Versions
from tests.device.updates.installed_board import NEW, OLD, OLDER, SOURCE, Board, environment, linked
from tests.power.power_sweep import crash_states, on_disk
from tests.power.syscall_log import NEEDS_STRACE, STRACE, record
from tests.ram import in_memory
from tools.cloud.pack_release import manifest_obj, pack_app
from tools.rig.simulation.crash_disk import Change, CrashDisk, Rename, Tree, fingerprint, lay_out

SCRIPT: Final = SOURCE / "tools/rig/packaging/debian/palm-access-rollback"
RELEASES: Final = {"serves": ("", 60.0), "dies": ("sys.exit(9)", 3.0)}
"""What their palmd does when it is started to serve, and how long they are tried at most."""
NEXT: Final = "9.2.0-1"


@dataclass
class RecordedUpdate:
    """A recorded one. `start`: what was on the disk before; `whole`: each version's files."""

    prefix: Path
    start: Tree
    changes: list[Change]
    whole: dict[str, Tree]


@dataclass
class FoundInUpdates:
    states: set[bytes] = field(default_factory=set)
    ends: set[tuple[str, str]] = field(default_factory=set)
    """`current` and `previous` after a start."""
    broken: list[str] = field(default_factory=list)


def record_installation(folder: Path, release: str, broken: str = "") -> RecordedUpdate:
    """Record `palm-update` in the empty `folder`."""
    (folder / "device").mkdir()
    board = Board(folder, small=True)
    fault, within_s = RELEASES[release]
    payload = pack_app(environment(folder / "release", NEW, fault=fault, small=True))
    board.start()
    board.stage(payload, 7)
    linked(folder / "release")
    start = on_disk(board.prefix)
    whole = {version: _below(start, f"versions/{version}/") for version in (OLDER, OLD)}
    command = [
        sys.executable,
        "-m",
        "tests.power.update_workload",
        str(folder),
        str(board.config_path),
        str(within_s),
    ]
    changes = record(
        [*command, *(["--broken", broken] if broken else [])],
        state=board.prefix,
        marks=folder / "marks",
        log=folder / "strace.txt",
    )
    return RecordedUpdate(board.prefix, start, changes, whole | {NEW: on_disk(folder / "release")})


def sweep(made: RecordedUpdate, *, ways: int, every: int = 1) -> FoundInUpdates:
    """Cut the power at each `every`-th change."""
    found = FoundInUpdates()
    told: set[tuple[bytes, int]] = set()
    with _room() as folder:
        states = crash_states(
            made.changes, made.prefix, ways=ways, seed=1, share=(0, every), start=made.start
        )
        for cut, trees, marks in states:
            for tree in trees:
                state = fingerprint(tree)
                if (state, len(marks)) not in told:
                    told.add((state, len(marks)))
                    found.states.add(state)
                    _check(made, tree, marks, folder, found, f"cut after change {cut}")
    return found


def sweep_starts(made: RecordedUpdate, *, starts: int, ways: int) -> FoundInUpdates:
    """Cut the power a second time, during the start after it, at `starts` moments from the trial on."""
    found, chance = FoundInUpdates(), random.Random(1)
    back = str(made.prefix / "back")
    trial = next(
        at for at, change in enumerate(made.changes) if isinstance(change, Rename) and change.to == back
    )
    for cut in sorted(chance.sample(range(trial, len(made.changes)), starts)):
        disk = CrashDisk(made.prefix, made.start)
        for change in made.changes[:cut]:
            disk.follow(change)
        left = disk.crash(chance)
        with tempfile.TemporaryDirectory(prefix="power-") as name, _room() as folder:
            prefix = Path(name) / "opt"
            _lay_out(left, prefix)
            python = f"{sys.executable} -m device.updates.install --recover --prefix {prefix}"
            script = f"PALM_ROLLBACK_BASE={prefix} sh {SCRIPT} --recover && {python}"
            changes = record(
                ["sh", "-c", script],
                state=prefix,
                marks=Path(name) / "marks",
                log=Path(name) / "strace.txt",
            )
            for number, trees, _ in crash_states(changes, prefix, ways=ways, seed=1, start=left):
                for tree in trees:
                    found.states.add(fingerprint(tree))
                    _check(made, tree, disk.marks, folder, found, f"cut after change {cut}, again {number}")
    return found


def _check(
    made: RecordedUpdate,
    tree: Tree,
    marks: Sequence[dict[str, Any]],
    folder: Path,
    found: FoundInUpdates,
    where: str,
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _lay_out(tree, folder)
    try:
        ends = _start(folder)
    except (OSError, DeviceError) as error:
        found.broken.append(f"{where}: the board does not start: {error!r}")
        return
    found.ends.add(ends)
    found.broken += [f"{where}: {what}" for what in _faults(made, folder, ends, marks)]


def _start(prefix: Path) -> tuple[str, str]:
    """As at boot; what `current` and `previous` lead to then."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PALM_ROLLBACK_BASE": str(prefix)}
    subprocess.run(["sh", SCRIPT, "--recover"], env=env, check=True, capture_output=True)
    with contextlib.redirect_stderr(io.StringIO()):
        recover(Versions(prefix))
    return Versions(prefix).current, (prefix / "previous").readlink().name


def _faults(
    made: RecordedUpdate, prefix: Path, ends: tuple[str, str], marks: Sequence[dict[str, Any]]
) -> Iterator[str]:
    now, versions = on_disk(prefix), Versions(prefix)
    if ends not in ((OLD, OLDER), (NEW, OLD)):
        yield f"current leads to {ends[0]}, previous to {ends[1]}"
    for version in ends:
        if _below(now, f"versions/{version}/") != made.whole.get(version):
            yield f"{version} is linked and not whole"
    newest = versions.newest()
    in_force = newest is not None and not newest.code
    if newest is not None and newest.trial:
        yield "a trial goes on after the start"
    if in_force is not (ends[0] == NEW):
        yield f"{ends[0]} is in use, and the note says {newest}"
    if marks and in_force is not (marks[-1]["code"] == ""):
        yield f"palm-update ended with {marks[-1]['code']!r}, and the note says {newest}"
    if recover(versions) or on_disk(prefix) != now:
        yield "a second start changes something"
    try:
        versions.tidy()
        versions.place(_next_release(prefix), prefix.parent / "next")
    except (OSError, DeviceError) as error:
        yield f"the next release cannot be put in: {error!r}"


def _next_release(prefix: Path) -> Manifest:
    payload = prefix.parent / "next"
    if not payload.exists():
        payload.write_bytes(pack_app(environment(prefix.parent / "next-release", NEXT, small=True)))
    obj = manifest_obj(
        payload.read_bytes(),
        kind=ReleaseKind.APP,
        name="palm-access-device",
        version=NEXT,
        min_app_version="0.0.1",
        release_seq=8,
    )
    return Manifest.of_signed(obj, {})


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    """The name of a folder to lay states out in."""
    with in_memory("power-") as name:
        yield Path(name) / "opt"


def _below(tree: Tree, folder: str) -> Tree:
    return {path[len(folder) :]: data for path, data in tree.items() if path.startswith(folder)}


def _lay_out(tree: Tree, prefix: Path) -> None:
    """With the modes of root's files, which a state does not have."""
    prefix.mkdir()
    lay_out(tree, prefix)
    for path in prefix.glob("versions/*/bin/palmd"):
        path.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", type=int, default=4, help="random ways in which the power goes at each cut")
    parser.add_argument("--starts", type=int, default=4, help="starts after a cut that are cut off again")
    parser.add_argument("--at-least", type=int, default=0, help="fail when there were fewer different states")
    asked = parser.parse_args()
    if STRACE is None:
        print(NEEDS_STRACE, file=sys.stderr)
        return 1
    began, states, broken = time.monotonic(), 0, []
    for release in RELEASES:
        with tempfile.TemporaryDirectory(prefix="power-") as name:
            made = record_installation(Path(name), release)
            once = sweep(made, ways=asked.ways)
            again = sweep_starts(made, starts=asked.starts, ways=asked.ways)
        states += len(once.states | again.states)
        broken += once.broken + again.broken
        print(
            f"a release that {release}: {len(made.changes)} changes, {len(once.states)} different states,"
            f" {len(again.states)} of starts that were cut off; in use afterwards: "
            + ", ".join(sorted({current for current, _ in once.ends | again.ends}))
        )
    print(f"{len(broken)} broken promises, {time.monotonic() - began:.0f} s")
    for line in broken[:20]:
        print(line, file=sys.stderr)
    return 0 if not broken and states >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
