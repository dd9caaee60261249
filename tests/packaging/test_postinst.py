"""What the package does with versions, cut off before each of its steps: the one in use is whole, and `dpkg
--configure` makes an end of it."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tools.rig.packaging.deb import SOURCE

POSTINST: Final = SOURCE / "tools/rig/packaging/debian/postinst"
STEPS: Final = ("cp", "ln", "mkdir", "mv", "rm", "sed", "sync")
CUT_OFF: Final = -signal.SIGKILL


class Board:
    """`package` is what dpkg has unpacked. `cut`: the step before which the power goes."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "opt"
        self._tools = folder / "tools"
        self._steps = folder / "steps"
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
        package = self.base / "package"
        shutil.rmtree(package, ignore_errors=True)
        for path, text in self.files_of(version).items():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text)
        (package / "bin/palmd").chmod(0o755)
        (package / "bin/python").symlink_to("/bin/sh")
        text = POSTINST.read_text().replace("@VERSION@", version)
        assert "base=/opt/palm-access\n" in text
        script = text.replace("base=/opt/palm-access\n", f"base={self.base}\n").partition('\ncase "$1" in')[0]
        self._steps.write_text("0\n")
        done = subprocess.run(
            ["sh", "-c", f"{script}\ninstall_version\n"],
            env={"PATH": f"{self._tools}:/usr/bin:/bin", "CUT": str(cut)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, CUT_OFF), done.stderr
        return done.returncode

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
        pytest.param(("1", "2"), "2", "2", {"1", "2"}, id="again"),
        pytest.param(("1", "2"), "1", "1", {"1", "2"}, id="back"),
        pytest.param(("1", "2"), "2", "3", {"2", "3"}, id="again, then an upgrade"),
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
