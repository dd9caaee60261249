"""`palm-access-rollback`: back to a version, with the units fitted to it."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from device.updates.versions import Versions
from tools.rig.packaging.deb import SOURCE

SCRIPT = SOURCE / "tools/rig/packaging/debian/palm-access-rollback"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may switch versions")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Version 3 in use, 2 before it; 1 is of the time when both daemons had one user."""
    for version in ("1", "2", "3"):
        folder = tmp_path / "opt/versions" / version
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/palmd").write_text("")
        (folder / "bin/palmd").chmod(0o755)
        if version != "1":
            (folder / "UNITS").write_text("2\n")
    (tmp_path / "opt/current").symlink_to("versions/3")
    (tmp_path / "opt/previous").symlink_to("versions/2")
    return tmp_path


def rollback(base: Path, *words: str, fails: bool = False, script: Path = SCRIPT, path: str = "") -> str:
    done = subprocess.run(
        ["sh", script, *words],
        check=False,
        capture_output=True,
        text=True,
        env={
            "PATH": f"{path}/usr/sbin:/usr/bin:/sbin:/bin",
            "PALM_ROLLBACK_BASE": str(base / "opt"),
            "PALM_ROLLBACK_SYSTEMD": str(base / "systemd"),
        },
    )
    assert (done.returncode != 0) is fails, done.stderr
    return done.stderr


def test_a_version_of_these_units_needs_no_override(base: Path) -> None:
    rollback(base)
    assert (base / "opt/current").readlink() == Path("versions/2")
    assert not (base / "systemd/palm-syncd.service.d").exists()


def test_an_earlier_version_has_its_carrier_back_as_it_was_and_only_while_it_runs(base: Path) -> None:
    rollback(base, "1")
    override = base / "systemd/palm-syncd.service.d/former.conf"
    lines = override.read_text().splitlines()
    assert "[Service]" in lines
    assert "User=palm-access" in lines
    # What the unit hides is shown again before a part of it is hidden.
    assert lines.index("InaccessiblePaths=") < lines.index(
        "InaccessiblePaths=-/var/lib/palm-access/keys/verdict.key"
    )
    rollback(base)
    assert (base / "opt/current").readlink() == Path("versions/3")
    assert not override.parent.exists()


def test_a_version_whose_python_is_gone_is_not_gone_back_to(base: Path) -> None:
    (base / "opt/versions/2/bin/python").symlink_to("python3.11")
    (base / "opt/versions/2/bin/python3.11").symlink_to(base / "usr/bin/python3.11")
    said = rollback(base, fails=True)
    assert f"version 2 cannot run: {base}/usr/bin/python3.11 is not here" in said
    assert (base / "opt/current").readlink() == Path("versions/3")
    (base / "usr/bin").mkdir(parents=True)
    (base / "usr/bin/python3.11").write_text("")
    (base / "usr/bin/python3.11").chmod(0o755)
    rollback(base)
    assert (base / "opt/current").readlink() == Path("versions/2")


def links(base: Path) -> dict[str, str]:
    return {path.name: path.readlink().name for path in (base / "opt").iterdir() if path.is_symlink()}


def test_a_way_back_that_a_power_cut_halved_is_taken_when_it_is_asked_for_again(base: Path) -> None:
    """The link to the version in use comes first, or the version to go back to would be named by none."""
    (base / "tools").mkdir()
    (base / "tools/mv").write_text(
        f'#!/bin/sh\n[ ! -e {base}/moved ] || kill -9 $PPID $$\ntouch {base}/moved\nexec /bin/mv "$@"\n'
    )
    (base / "tools/mv").chmod(0o755)
    rollback(base, fails=True, path=f"{base}/tools:")
    rollback(base)
    assert links(base)["current"] == "2"


def test_during_a_trial_the_way_back_is_to_the_version_that_ran(base: Path) -> None:
    (base / "opt/back").symlink_to("versions/1")
    rollback(base)
    assert links(base) == {"current": "1", "previous": "2"}
    assert (base / "systemd/palm-syncd.service.d/former.conf").exists()


def test_a_version_that_is_asked_for_during_a_trial_comes_after_the_one_that_ran(base: Path) -> None:
    (base / "opt/back").symlink_to("versions/1")
    rollback(base, "3")  # the one on trial: nothing to do
    assert links(base) == {"current": "3", "previous": "2", "back": "1"}
    rollback(base, "2")
    assert links(base) == {"current": "2", "previous": "1"}


def test_a_start_during_a_trial_goes_back_and_any_other_changes_nothing(base: Path) -> None:
    rollback(base, "--recover")
    assert links(base) == {"current": "3", "previous": "2"}
    for note in (
        "",
        '{"trial": true, "co',
        '{"trial": true, "code": ""}',
        '{"trial": false, "code": "no_start"}',
    ):
        (base / "opt/update.json").write_text(note)
        (base / "opt/back").symlink_to("versions/1")
        rollback(base, "--recover")
        rollback(base, "--recover")
        assert links(base) == {"current": "1", "previous": "2"}


def test_a_start_after_a_trial_that_was_passed_makes_an_end_of_it(base: Path) -> None:
    (base / "opt/update.json").write_text('{"trial": false, "code": ""}')
    (base / "opt/back").symlink_to("versions/1")
    rollback(base, "--recover")
    assert links(base) == {"current": "3", "previous": "1"}


def test_a_way_back_that_is_gone_is_not_taken(base: Path) -> None:
    (base / "opt/back").symlink_to("versions/4")
    rollback(base, "--recover")
    assert links(base) == {"current": "3", "previous": "2"}


def test_the_installation_of_a_release_ends_first_and_goes_on_afterwards(base: Path) -> None:
    """The path unit before the service, which it would start again at once."""
    script, asked = base / "rollback", base / "asked"
    guard = '[ "$base" = /opt/palm-access ] && [ -d /run/systemd/system ]'
    text = SCRIPT.read_text()
    assert guard in text
    script.write_text(text.replace(guard, "true"))
    (base / "tools").mkdir()
    systemctl = base / "tools/systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" $(readlink {base}/opt/current) >>{asked}\n')
    systemctl.chmod(0o755)
    rollback(base, script=script, path=f"{base}/tools:")
    before, after = "versions/3", "versions/2"
    assert asked.read_text().splitlines() == [
        f"is-active --quiet palm-update.path {before}",
        f"stop palm-update.path {before}",
        f"stop palm-update.service {before}",
        f"daemon-reload {after}",
        f"reset-failed palmd.service palm-syncd.service {after}",
        f"restart palmd.service palm-syncd.service {after}",
        f"start palm-update.path {after}",
    ]
    asked.unlink()
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{asked}\n[ "$1" != is-active ]\n')
    rollback(base, script=script, path=f"{base}/tools:")
    assert "start palm-update.path" not in asked.read_text().splitlines()  # someone had stopped it


@pytest.mark.parametrize("words", [(), ("--recover",)], ids=["back", "recover"])
def test_it_waits_for_another_installation(base: Path, words: tuple[str, ...]) -> None:
    (base / "opt/back").symlink_to("versions/1")
    with ThreadPoolExecutor() as threads:
        with Versions(base / "opt").locked():
            done = threads.submit(rollback, base, *words)
            time.sleep(1.0)
            assert links(base) == {"current": "3", "previous": "2", "back": "1"}
        done.result(timeout=60)
    assert links(base) == {"current": "1", "previous": "2"}
