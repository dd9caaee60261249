"""Root's part of a software update: real environments, the real daemon, and a folder in the place of /opt."""

import contextlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device.config.config import load_config
from device.platform.ipc import ask_core
from device.updates.archive import APP_LIMITS, unpack
from device.updates.install import TrialSettings, install, recover
from device.updates.manifest import ReleaseKind
from device.updates.versions import Installation, Versions
from device.values.status import read_status
from tests import REPOSITORY
from tests.device.updates.update_fuse import Fuse, PowerCut, power
from tests.device.updates.update_setting import signed
from tests.device.whole_device import Device, make_device
from tools.cloud.pack_release import manifest_obj, pack_app, write_release

SOURCE = REPOSITORY
PACKAGES = ("cloud_client", "device", "gallery", "link1", "models")
OLD, NEW = "9.0.0-1", "9.1.0-1"
OLD_SAYS, NEW_SAYS = "9.0.0", "9.1.0"
"""What palmd calls itself: a packager's revision is none of its own."""


def environment(folder: Path, version: str, *, fault: str = "") -> Path:
    """What the package installs, without the libraries, which are found where this test finds them.

    `fault` is Python that the daemon runs when it is started to serve.
    """
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for name in PACKAGES:
        # Beside this test others may be at work in the source: nothing but what palmd runs is looked at.
        ignored = shutil.ignore_patterns("__pycache__", ".*", "sed*", "reference_server", "synthesis")
        shutil.copytree(SOURCE / name, packages / name, ignore=ignored)
    libraries = next(path for path in site.getsitepackages() if path.endswith("site-packages"))
    (packages / "libraries.pth").write_text(libraries + "\n")
    own = version.partition("-")[0]
    described = packages / f"palm_access_device-{own}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: palm-access-device\nVersion: {own}\n")
    (folder / "bin").mkdir()
    (folder / "VERSION").write_text(f"{version}\n")
    (folder / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
    )
    script = folder / "bin" / "palmd"
    script.write_text(
        "#!/bin/sh\n"
        'exec "$(dirname "$(readlink -f "$0")")/python3" -c \'import sys\n'
        f'if "--check" not in sys.argv: {fault or "pass"}\n'
        'from device.core.main import main\nsys.exit(main())\' "$@"\n'
    )
    script.chmod(0o755)
    return folder


def linked(folder: Path) -> None:
    for name, goal in (
        ("python3.11", "/usr/bin/python3.11"),
        ("python3", "python3.11"),
        ("python", "python3.11"),
    ):
        (folder / "bin" / name).symlink_to(goal)


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    made = tmp_path_factory.mktemp("payloads")
    return {
        "good": pack_app(environment(made / "good", NEW)),
        "dies": pack_app(environment(made / "dies", NEW, fault="sys.exit(9)")),
    }


class Board:
    """A device whose software lies below a prefix, with a "service manager" of three lines."""

    def __init__(self, folder: Path) -> None:
        self.device: Device = make_device(folder / "device")
        self.prefix = folder / "opt"
        environment(self.prefix / "versions" / OLD, OLD)
        linked(self.prefix / "versions" / OLD)
        (self.prefix / "current").symlink_to(Path("versions") / OLD)
        self.versions = Versions(self.prefix)
        self.config_path = self.device.board.config_path
        self.config = load_config(self.config_path)
        self._restarting = folder / "restart"
        self._restarting.write_text(
            "#!/bin/sh\n"
            f"[ -e {folder}/pid ] && kill $(cat {folder}/pid) 2>/dev/null\n"
            f"PALM_ACCESS_PREFIX={self.prefix} nohup {self.prefix}/current/bin/palmd"
            f" --config {self.config_path} >>{folder}/log 2>&1 </dev/null & echo $! >{folder}/pid\n"
        )
        self._restarting.chmod(0o755)
        self._pid = folder / "pid"
        self.trial = TrialSettings(str(self._restarting), steady_s=1.0, within_s=30.0)

    def stop(self) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(self._pid.read_text()), signal.SIGKILL)

    def stage(self, payload: bytes, release_seq: int, **changed: Any) -> None:
        """As palmd leaves it."""
        staged = self.config.device.state_dir / "updates" / "app"
        staged.mkdir(parents=True, exist_ok=True)
        (staged / "payload").write_bytes(payload)
        wrapper = signed(self.release(payload, release_seq) | changed, self.device.board.root_key)
        (staged / "manifest.json").write_text(json.dumps(wrapper))

    def release(self, payload: bytes, release_seq: int) -> dict[str, Any]:
        return manifest_obj(
            payload,
            kind=ReleaseKind.APP,
            name="palm-access-device",
            version=NEW,
            min_app_version="0.0.1",
            release_seq=release_seq,
        )

    def install(self) -> Installation | None:
        return install(self.config, self.config_path, self.versions, self.trial)

    def running_version(self) -> str:
        return str(read_status(self.config.control_socket).app.version)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    (tmp_path / "device").mkdir()
    one = Board(tmp_path)
    try:
        yield one
    finally:
        one.stop()


@pytest.mark.long
def test_a_good_version_serves_and_a_broken_one_is_put_back_by_itself(
    board: Board, payloads: dict[str, bytes]
) -> None:
    board.stage(payloads["dies"], 7)
    board.trial = replace(board.trial, within_s=5.0)
    outcome = board.install()
    assert outcome is not None
    assert (outcome.code, outcome.trial) == ("no_start", False)
    assert board.versions.current == OLD
    assert not board.versions.folder(NEW).exists()
    assert board.install() is None  # that release_seq is used up

    board.stage(payloads["good"], 8)
    board.trial = replace(board.trial, within_s=30.0)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == ""
    assert (board.versions.current, board.running_version()) == (NEW, NEW_SAYS)
    assert (board.prefix / "previous").readlink().name == OLD


@pytest.mark.long
def test_a_software_from_a_stick_goes_all_the_way(board: Board, payloads: dict[str, bytes]) -> None:
    """palmctl → palmd → its state directory → root's installer → the new palmd, which clears up."""
    payload = payloads["good"]
    subprocess.run([board.trial.restart], check=True)
    while True:
        with contextlib.suppress(Exception):
            assert board.running_version() == OLD_SAYS
            break
    stick = board.prefix / "release.palm"
    write_release(stick, signed(board.release(payload, 9), board.device.board.root_key), payload)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tools.palmctl.main",
            "update",
            "apply",
            str(stick),
            "--config",
            str(board.config_path),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    staged = board.config.device.state_dir / "updates" / "app" / "manifest.json"
    while not staged.exists():
        assert updates(board)["failed"] is None
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == ""
    while updates(board)["app_waiting"] is not None:
        pass
    assert (board.running_version(), staged.exists()) == (NEW_SAYS, False)


def updates(board: Board) -> dict[str, Any]:
    told = ask_core(board.config.control_socket, "update.status").header["updates"]
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"sha256": "0" * 64}, "bad_hash"),
        ({"version": OLD}, "version_in_use"),
        ({"version": "9.2.0"}, "bad_version"),
        ({"version": "../x"}, "bad_version"),
        ({"kind": "model"}, "wrong_kind"),
    ],
)
def test_what_palmd_staged_is_judged_anew(
    board: Board, payloads: dict[str, bytes], changed: dict[str, Any], code: str
) -> None:
    board.stage(payloads["dies"], 7, **changed)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == code
    assert board.versions.current == OLD
    assert not (board.prefix / "incoming").exists()


def test_roots_that_palmd_writes_count_for_nothing(
    board: Board, payloads: dict[str, bytes], tmp_path: Path
) -> None:
    from link1.keys import SigningKey

    (board.prefix / "roots.json").write_text(json.dumps({"roots": [SigningKey.generate().public.b64]}))
    board.stage(payloads["good"], 7)
    with pytest.raises(Exception, match=r"roots\.json"):
        board.install()
    assert board.versions.current == OLD


def test_power_cuts_leave_the_old_version_or_the_new_one(tmp_path: Path) -> None:
    """The steps on the disk from the unpacked payload to the end of a trial, cut at each, then recovered."""

    def prefix(number: int) -> Path:
        folder = tmp_path / str(number)
        for version in (OLD, NEW):
            (folder / "versions" / version).mkdir(parents=True)
            (folder / "versions" / version / "VERSION").write_text(version)
        (folder / "current").symlink_to(Path("versions") / OLD)
        return folder

    def steps(folder: Path, code: str) -> None:
        versions = Versions(folder)
        versions.note(Installation(7, NEW, OLD, trial=True))
        versions.switch(NEW)
        if code:
            versions.switch(OLD)
        versions.note(Installation(7, NEW, OLD, trial=False, code=code))

    for code in ("", "unhealthy"):
        whole = Fuse(tmp_path)
        folder = prefix(0)
        with power(whole):
            steps(folder, code)
        shutil.rmtree(folder)
        for blow_at in range(1, whole.count + 1):
            folder = prefix(blow_at)
            with power(Fuse(tmp_path, blow_at)), contextlib.suppress(PowerCut):
                steps(folder, code)
            versions = Versions(folder)
            newest = versions.newest()
            was_on_trial = newest is not None and newest.trial
            assert (folder / "current" / "VERSION").read_text() in (OLD, NEW)
            assert recover(versions) is was_on_trial
            current = (folder / "current" / "VERSION").read_text()
            settled = versions.newest()
            if was_on_trial or settled is None or settled.code:
                assert current == OLD
            else:
                assert current == NEW
            shutil.rmtree(folder)


def test_the_packed_environment_holds_no_links(tmp_path: Path, payloads: dict[str, bytes]) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(payloads["dies"])
    (tmp_path / "out").mkdir()
    unpack(payload, tmp_path / "out", APP_LIMITS)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
