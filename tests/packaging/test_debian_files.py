"""Scripts, rules and examples of the package, judged without building it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.rig.packaging.deb import SOURCE, SYSTEM_FILES
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, without

DEBIAN = SOURCE / "tools/rig/packaging/debian"
GADGET = SOURCE / "systemd/usb-gadget"
SCRIPTS = [
    *(DEBIAN / name for name in ("preinst", "postinst", "prerm", "postrm", "palm-access-rollback")),
    GADGET,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck (apt install shellcheck)")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_units_name_what_the_package_installs() -> None:
    for name in SYSTEM_FILES:
        assert (SOURCE / "systemd" / name).exists()
    assert "/opt/palm-access/current/bin/palmd " in (SOURCE / "systemd/palmd.service").read_text()
    assert SYSTEM_FILES["usb-gadget"] in (SOURCE / "systemd/palm-usb-gadget.service").read_text()


def test_the_lock_without_what_no_board_needs() -> None:
    lock = (SOURCE / "tools/rig/packaging/lock/device.txt").read_text()
    kept = without(lock, NOT_ON_A_BOARD)
    names = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert {line.partition("==")[0] for line in kept.splitlines() if "==" in line} == names - {"pip"}
    assert kept.count("--hash") < lock.count("--hash")


def gadget(sys: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", GADGET, *arguments],
        env={"PATH": "/usr/bin:/bin", "PALM_GADGET_SYS": str(sys), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_gadget_says_what_is_missing(tmp_path: Path) -> None:
    assert gadget(tmp_path).returncode == 2
    no_controller = gadget(tmp_path, "start")
    assert no_controller.returncode == 1
    assert "peripheral mode" in no_controller.stderr
    (tmp_path / "class/udc/fe980000.usb").mkdir(parents=True)
    other = gadget(tmp_path, "start", PALM_GADGET_UDC="nothing")
    assert other.returncode == 1
    assert "there are: fe980000.usb" in other.stderr
    no_configfs = gadget(tmp_path, "start")
    assert no_configfs.returncode == 1
    assert "modprobe libcomposite" in no_configfs.stderr
    assert gadget(tmp_path, "stop").returncode == 0
