"""What the package does with versions, cut off before each of its steps: the one in use is whole, and `dpkg
--configure` makes an end of it."""

import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from device.updates.versions import Versions
from tools.rig.packaging.deb import SOURCE

POSTINST: Final = SOURCE / "tools/rig/packaging/debian/postinst"
STEPS: Final = ("cp", "ln", "mkdir", "mv", "rm", "sed", "sync")
SYSTEM: Final = (
    *("deb-systemd-helper", "getent", "gpasswd", "palm-access-rollback", "systemctl", "systemd-sysusers"),
    *("systemd-tmpfiles", "udevadm"),
)
"""What postinst changes the system with."""
CUT_OFF: Final = -signal.SIGKILL


class Board:
    """`package` is what dpkg has unpacked. `cut`: the step before which the power goes."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "opt"
        self._tools = folder / "tools"
        self._steps = folder / "steps"
        self._systemd = folder / "systemd"
        """There while a service manager runs."""
        self._tools.mkdir()
        for name in STEPS:
            tool = self._tools / name
            tool.write_text(
                f"#!/bin/sh\nsteps=$(($(/bin/cat {self._steps}) + 1))\necho $steps >{self._steps}\n"
                f'[ $steps != "$CUT" ] || kill -9 $PPID\nexec /bin/{name} "$@"\n'
            )
            tool.chmod(0o755)

    def install(self, version: str, cut: int = 0) -> int:
        """Exit status of the installation; CUT_OFF when it was."""
        script = self._unpacked(version).partition('\ncase "$1" in')[0]
        done = self._run(f"{script}\ninstall_version\n", str(cut))
        assert done.returncode in (0, CUT_OFF), done.stderr
        return done.returncode

    def configure(self, version: str, system: dict[str, str]) -> None:
        """All of `postinst configure` with a service manager; `system`: what those of SYSTEM do, as
        shell; nothing by themselves."""
        self._systemd.mkdir()
        for name, script in (dict.fromkeys(SYSTEM, ":") | system).items():
            (self._tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (self._tools / name).chmod(0o755)
        text = self._unpacked(version).replace("/run/systemd/system", str(self._systemd))
        text = text.replace("/etc/", f"{self._systemd}/etc/")
        done = self._run(f"set -- configure {version}\n{text}", "0")
        assert done.returncode == 0, done.stderr

    def _unpacked(self, version: str) -> str:
        """Put a package where dpkg unpacks it; its postinst."""
        package = self.base / "package"
        shutil.rmtree(package, ignore_errors=True)
        for path, text in self.files_of(version).items():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text)
        (package / "bin/palmd").chmod(0o755)
        (package / "bin/python").symlink_to("/bin/sh")
        text = POSTINST.read_text().replace("@VERSION@", version)
        assert "base=/opt/palm-access\n" in text
        return text.replace("base=/opt/palm-access\n", f"base={self.base}\n")

    def _run(self, script: str, cut: str) -> subprocess.CompletedProcess[str]:
        self._steps.write_text("0\n")
        return subprocess.run(
            ["sh", "-c", script],
            env={"PATH": f"{self._tools}:/usr/bin:/bin", "CUT": cut},
            capture_output=True,
            text=True,
            check=False,
        )

    def link(self, name: str) -> str:
        return (self.base / name).readlink().name

    def whole(self, version: str) -> bool:
        """Whether every file is there, and palmd runs with the Python beside it."""
        folder, wanted = self.base / "versions" / version, self.files_of(version)
        there = {path: (folder / path).read_text() for path in wanted if (folder / path).exists()}
        if there != wanted:
            return False
        said = subprocess.run([folder / "bin/palmd"], capture_output=True, text=True, check=False).stdout
        return said == "palmd of " + (folder / "VERSION").read_text()

    def files_of(self, folder: str) -> dict[str, str]:
        """Of a version, or of a copy of it in another folder, whose scripts name that folder."""
        version = folder.removeprefix(".").removesuffix(".old")
        files = {name: f"{name} of {version}" for name in ("lib/a/one", "lib/b/two")}
        palmd = f"#!{self.base}/versions/{folder}/bin/python\necho palmd of {version}\n"
        return files | {"VERSION": f"{version}\n", "bin/palmd": palmd}

    @property
    def versions(self) -> set[str]:
        return {folder.name for folder in (self.base / "versions").iterdir()}


@pytest.mark.parametrize(
    ("before", "version", "then", "kept"),
    [
        pytest.param(("1", "2"), "3", "3", {"2", "3"}, id="upgrade"),
        pytest.param(("1", "2"), "2", "2", {"1", "2"}, id="again", marks=pytest.mark.long),
        pytest.param(("1", "2"), "1", "1", {"1", "2"}, id="back", marks=pytest.mark.long),
        pytest.param(("1", "2"), "2", "3", {"2", "3"}, id="again, then an upgrade", marks=pytest.mark.long),
        pytest.param((), "1", "1", {"1"}, id="first"),
    ],
)
def test_an_installation_that_is_cut_off_leaves_a_whole_version_and_is_ended(
    tmp_path: Path, before: tuple[str, ...], version: str, then: str, kept: set[str]
) -> None:
    for cut in range(1, 100):
        (tmp_path / str(cut)).mkdir()
        board = Board(tmp_path / str(cut))
        for earlier in before:
            assert board.install(earlier) == 0
        ended = board.install(version, cut)
        if before:
            assert board.whole(board.link("current")), (cut, board.link("current"))
        assert board.install(then) == 0
        assert board.link("current") == then
        assert board.versions == kept
        assert all(map(board.whole, kept)), cut
        others = kept - {then}
        assert not others or board.link("previous") == others.pop()
        if ended == 0:
            break
    assert ended == 0
    assert cut > (8 if before else 3)


def test_the_installation_of_a_release_ends_before_a_package_and_is_not_started_again_meanwhile(
    tmp_path: Path,
) -> None:
    """The path unit starts the installer again at once, whose first deed is to tidy the versions."""
    board = Board(tmp_path)
    board.install("1")
    path_unit = tmp_path / "path-unit-is-active"
    path_unit.touch()
    tidies = f"[ ! -e {path_unit} ] || rm -rf {board.base}/versions/.[!.]*"
    manager = f"""
        case "$*" in
        *stop*palm-update.path*) rm {path_unit} ;;
        *stop*palm-update.service*) {tidies} ;;
        *restart*palm-update.path*) touch {path_unit} ;;
        esac"""
    copies = f'/bin/cp "$@"\n{tidies}'
    board.configure("2", {"deb-systemd-invoke": manager, "cp": copies})
    assert (board.link("current"), board.whole("2")) == ("2", True)
    assert path_unit.exists()


def test_a_package_waits_for_another_installation(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.install("1")
    with ThreadPoolExecutor() as threads:
        with Versions(board.base).locked():
            installed = threads.submit(board.install, "2")
            time.sleep(1.0)
            assert (board.link("current"), board.versions) == ("1", {"1"})
            assert (board.base / "lock").stat().st_mode & 0o777 == 0o600  # who may open it could hold it
        assert installed.result(timeout=60) == 0
    assert board.link("current") == "2"
