"""A board with versions of the software in a folder in the place of /opt/palm-access: real environments, the
real daemon, and a "service manager" of three lines."""

import contextlib
import json
import os
import shutil
import signal
import site
import subprocess
from pathlib import Path
from typing import Any

from device.config.config import load_config
from device.errors import IpcError
from device.updates.install import TrialSettings, install
from device.updates.manifest import ReleaseKind
from device.updates.versions import Installation, Versions
from device.values.status import read_status
from tests import REPOSITORY
from tests.device.updates.update_setting import signed
from tests.device.whole_device import Device, make_device
from tools.cloud.pack_release import manifest_obj
from tools.rig.demo.waiting import wait_until

SOURCE = REPOSITORY
PACKAGES = ("cloud_client", "device", "gallery", "link1", "models")
OLDER, OLD, NEW = "8.9.0-1", "9.0.0-1", "9.1.0-1"
OLD_SAYS, NEW_SAYS = "9.0.0", "9.1.0"
"""What palmd calls itself: a packager's revision is none of its own."""


def environment(folder: Path, version: str, *, fault: str = "", small: bool = False) -> Path:
    """What the package installs, without the libraries, which are found where this test finds them; `small`:
    the packages as well.

    `fault` is Python that the daemon runs when it is started to serve.
    """
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for name in () if small else PACKAGES:
        # Beside this test others may be at work in the source: nothing but what palmd runs is looked at.
        ignored = shutil.ignore_patterns("__pycache__", ".*", "sed*", "reference_server", "synthesis")
        shutil.copytree(SOURCE / name, packages / name, ignore=ignored)
    libraries = next(path for path in site.getsitepackages() if path.endswith("site-packages"))
    (packages / "libraries.pth").write_text(f"{SOURCE}\n{libraries}\n" if small else f"{libraries}\n")
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


class Board:
    """A device whose software lies below a prefix, with a "service manager" of three lines."""

    def __init__(self, folder: Path, *, small: bool = False) -> None:
        """`OLDER` was in use before `OLD`, which is."""
        self.device: Device = make_device(folder / "device")
        self.prefix = folder / "opt"
        for version in (OLDER, OLD):
            environment(self.prefix / "versions" / version, version, small=small or version is OLDER)
            linked(self.prefix / "versions" / version)
        (self.prefix / "previous").symlink_to(Path("versions") / OLDER)
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

    def start(self) -> None:
        """Start what is in use, as at boot; returns when it answers."""
        subprocess.run([self._restarting], check=True)
        wait_until("palmd to answer", 60, self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.running_version())
        except IpcError:
            return False

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
