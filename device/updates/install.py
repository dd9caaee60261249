"""Root's part of a software update: `palm-update.service` runs it when palmd has staged a release.

    copy → signature and hash verified again → unpacked next to the version in use → its self-test
         → noted as on trial → `current` switched → daemons restarted → healthy as before? → noted as in force
                                                                                    └ no → switched back

palmd is trusted only with delivery: the roots and the files that are verified are root's copies
(`device.updates.versions`). A power cut at any point leaves the old version or the new one in `current`; a
new version that was on trial gives way before palmd starts, and `--recover` notes that.
"""

import argparse
import errno
import hashlib
import importlib.metadata
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from device import APP_PACKAGE
from device.config.config import DeviceConfig, config_path, load_config
from device.errors import ConfigError, DeviceError, IpcError, StateError, UpdateRefused
from device.health import NOT_SERVING
from device.platform.ipc import ask_core
from device.trust.trust import load_trust
from device.updates.manifest import MAX_MANIFEST_BYTES, Manifest, ReleaseKind, read_manifest
from device.updates.room import KEEP_FREE_BYTES
from device.updates.versions import Installation, Versions
from device.values.status import HealthNote
from link1 import members
from link1.canonical import read_strict
from link1.errors import FormatError
from link1.objects import AppVersion
from link1.wire import WireObject

SERVICE_USER: Final = "palm-access"
_DAEMONS: Final = "palmd.service palm-syncd.service"
RESTART: Final = f"sh -c 'systemctl reset-failed {_DAEMONS}; exec systemctl restart {_DAEMONS}'"
"""Starts that a version on trial has used up do not count for the version before it."""
SELF_TEST_WITHIN_S: Final = 180.0
SETTLED_WITHIN_S: Final = 30.0
_PIECE_BYTES: Final = 1024 * 1024
_WATCHED = {str(word) for word in NOT_SERVING} | {"LINK_DOWN"}


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """`restart`: a command; `steady_s`: how long a new version must serve; `within_s`: its time limit."""

    restart: str = RESTART
    steady_s: float = 10.0
    within_s: float = 120.0


def install(
    config: DeviceConfig, path: Path, versions: Versions, trial: TrialSettings
) -> Installation | None:
    """Install what palmd staged; None when no new release waits.

    Raises UpdateRefused for a file that cannot be read; every other refusal is noted and returned.
    """
    if recover(versions):
        _restart(trial)
    staged = config.device.state_dir / "updates" / "app"
    if not (staged / "manifest.json").exists():
        return None
    newest = versions.newest()
    wrapper = read_strict(
        _own_copy(staged / "manifest.json", MAX_MANIFEST_BYTES), max_bytes=MAX_MANIFEST_BYTES
    )
    roots = versions.roots(load_trust(config.trust_path))
    manifest = read_manifest(wrapper, roots=roots, now_ms=time.time_ns() // 1_000_000)
    if newest is not None and manifest.release_seq <= newest.release_seq:
        return None
    before = versions.current
    versions.tidy()
    try:
        placed = _place(manifest, staged / "payload", versions)
        said = _app_version(placed)
        _self_test(placed, path)
    except UpdateRefused as refused:
        versions.tidy()
        print(f"palm-update: release {manifest.release_seq} is not installed: {refused}", file=sys.stderr)
        return _noted(versions, manifest, before, refused.code)
    running = _status(config)  # faults present before the switch are not caused by the new version
    known = frozenset() if running is None else running.watched_words
    if not (staged / "manifest.json").exists():
        versions.tidy()
        print(f"palm-update: release {manifest.release_seq} was withdrawn meanwhile", file=sys.stderr)
        return None
    versions.note(Installation(manifest.release_seq, manifest.version, before, trial=True))
    versions.try_out(manifest.version)
    code = _try_out(config, said, known, trial)
    if not code and versions.is_on_trial:
        outcome = _noted(versions, manifest, before, "")
        versions.keep()
        versions.tidy()
        return outcome
    # Without a way back a technician or a package has put in another version meanwhile, which stays.
    if versions.put_back():
        _restart(trial)
    versions.tidy()  # a disk that the release filled has room for the note then
    outcome = _noted(versions, manifest, before, code or "died_on_trial")
    print(
        f"palm-update: release {manifest.release_seq} did not serve ({outcome.code}); "
        f"{versions.current} is in use",
        file=sys.stderr,
    )
    return outcome


def recover(versions: Versions) -> bool:
    """End a trial during which the power failed or the installer died. True when the version that ran was put
    back just now; at a start that has happened before, without Python."""
    newest = versions.newest()
    if newest is None:
        return False
    if not newest.trial and not newest.code:
        versions.keep()
        return False
    put_back = versions.put_back()
    if not newest.trial:
        return put_back
    try:
        versions.note(replace(newest, trial=False, code="died_on_trial"))
    except OSError as error:  # the next run notes it; the daemons have to leave the version on trial now
        print(f"palm-update: {error}", file=sys.stderr)
    print(
        f"palm-update: the trial of {newest.version} was cut off; {versions.current} is in use",
        file=sys.stderr,
    )
    return put_back


def _noted(versions: Versions, manifest: Manifest, before: str, code: str) -> Installation:
    outcome = Installation(manifest.release_seq, manifest.version, before, trial=False, code=code)
    versions.note(outcome)
    return outcome


def _own_copy(path: Path, limit: int) -> bytes:
    """Read a file of another user: never through a link, and hardly more than `limit` bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(limit + 1)


def _place(manifest: Manifest, staged: Path, versions: Versions) -> Path:
    if manifest.kind is not ReleaseKind.APP:
        raise UpdateRefused("wrong_kind", "a model is not installed this way")
    shutil.rmtree(versions.incoming, ignore_errors=True)
    # Root may fill the disk to its last block; palmd could not write a verdict then.
    versions.check_room(manifest, KEEP_FREE_BYTES)
    versions.incoming.mkdir(mode=0o700)
    payload = versions.incoming / "payload"
    try:
        _copy(staged, payload, manifest)
        return versions.place(manifest, payload, keep_free_bytes=KEEP_FREE_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UpdateRefused("no_space", "the disk is full; make room, and release it again") from error
    finally:
        shutil.rmtree(versions.incoming)


def _copy(staged: Path, payload: Path, manifest: Manifest) -> None:
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as source, payload.open("wb") as copy:
        while size <= manifest.size and (piece := source.read(_PIECE_BYTES)):
            size += len(piece)
            digest.update(piece)
            copy.write(piece)
    if size != manifest.size or digest.hexdigest() != manifest.sha256:
        raise UpdateRefused("bad_hash", "the payload is not what its manifest names; release it again")


def _app_version(placed: Path) -> str:
    """The version of palmd in this environment: 0.2.0 in the packaged release 0.2.0-1."""
    site_packages = [str(path) for path in placed.glob("lib/python3*/site-packages")]
    for found in importlib.metadata.distributions(name=APP_PACKAGE, path=site_packages):
        return found.version
    raise UpdateRefused("bad_archive", f"the payload holds no {APP_PACKAGE}; pack it again")


def _self_test(placed: Path, config: Path) -> None:
    """The new version checks the configuration and its model, as the user that will run it."""
    for command in (
        [str(placed / "bin" / "palmd"), "--config", str(config), "--check"],
        [str(placed / "bin" / "python3"), "-I", "-m", "device.updates.models"],
    ):
        as_service: dict[str, Any] = (
            {"user": SERVICE_USER, "group": SERVICE_USER, "extra_groups": ()} if _drops_rights() else {}
        )
        try:
            done = subprocess.run(  # noqa: S603 - the release itself, after its signature was verified
                command,
                capture_output=True,
                text=True,
                errors="replace",  # a library may print anything before it dies
                timeout=SELF_TEST_WITHIN_S,
                check=False,
                **as_service,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            raise UpdateRefused("self_test", f"{command[0]} does not run: {error}") from error
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
            raise UpdateRefused("self_test", f"the new version failed its self-test: {why[0][:300]}")


def _drops_rights() -> bool:
    try:
        pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return False
    return os.geteuid() == 0


def _restart(trial: TrialSettings) -> bool:
    done = subprocess.run(shlex.split(trial.restart), check=False)  # noqa: S603 - from root's command line
    return done.returncode == 0


def _try_out(config: DeviceConfig, version: str, known: frozenset[str], trial: TrialSettings) -> str:
    """Restart, and check that the new version serves as the old one did. A code when it does not."""
    _restart(trial)
    began_s = well_since_s = time.monotonic()
    answered = False
    while time.monotonic() - began_s < trial.within_s:
        running = _status(config)
        if running is None or running.app.version != version or running.watched_words - known:
            well_since_s = time.monotonic()
        answered = answered or running is not None
        if time.monotonic() - well_since_s >= trial.steady_s:
            return ""
        time.sleep(0.25)
    return "unhealthy" if answered else "no_start"


class RunningCore(WireObject):
    """The members that the status of every version has; an installer must not use others."""

    app: AppVersion
    health: tuple[HealthNote, ...]

    @property
    def watched_words(self) -> frozenset[str]:
        return frozenset(note.word for note in self.health if note.word in _WATCHED)


def _status(config: DeviceConfig) -> RunningCore | None:
    try:
        answer = ask_core(config.control_socket, "status").header
        return RunningCore.from_obj(members.nested(answer, "status"))
    except (IpcError, FormatError):
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done or nothing to do, 1 failed or put back, 2 wrong usage."""
    options = argparse.ArgumentParser(prog="palm-update", description="Installs what palmd has staged.")
    options.add_argument("--config", type=Path, help="configuration file; default as for palmd")
    options.add_argument("--prefix", type=Path, default=Path("/opt/palm-access"))
    options.add_argument("--recover", action="store_true", help="only roll back what was on trial")
    options.add_argument("--restart", default=RESTART, help="the command that restarts the daemons")
    options.add_argument("--steady-s", type=float, default=TrialSettings().steady_s)
    options.add_argument("--within-s", type=float, default=TrialSettings().within_s)
    given = options.parse_args(arguments)
    versions, path = Versions(given.prefix), config_path(given.config)
    try:
        if given.recover:
            with versions.locked():
                recover(versions)
            return 0
        config = load_config(path)
        trial = TrialSettings(given.restart, given.steady_s, given.within_s)
        manifest = config.device.state_dir / "updates" / "app" / "manifest.json"
        try:
            with versions.locked():
                outcome = install(config, path, versions, trial)
        finally:
            # palmd reads the outcome and clears its folder. Until then the path unit starts this program
            # again, which must not happen so fast that systemd gives up.
            until_s = time.monotonic() + SETTLED_WITHIN_S
            while manifest.exists() and time.monotonic() < until_s:
                time.sleep(0.25)
    except (ConfigError, StateError, UpdateRefused, FormatError, OSError, DeviceError) as error:
        print(f"palm-update: {error}", file=sys.stderr)
        return 1
    if outcome is not None and not outcome.code:
        print(f"{outcome.version} (release {outcome.release_seq}) is in force")
    return 1 if outcome is not None and outcome.code else 0


if __name__ == "__main__":
    sys.exit(main())
