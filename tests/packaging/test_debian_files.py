"""Scripts, rules and examples of the package, judged without building it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.rig.packaging.deb import SOURCE, SYSTEM_FILES
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, PKCS11, only, without

DEBIAN = SOURCE / "tools/rig/packaging/debian"
SERVER = SOURCE / "tools/rig/packaging/cloud/debian"
GADGET = SOURCE / "systemd/usb-gadget"
SCRIPTS = [
    *(DEBIAN / name for name in ("preinst", "postinst", "prerm", "postrm", "palm-access-rollback")),
    GADGET,
    *(SERVER / name for name in ("backup", "palm-access-cloud", "postinst", "prerm", "postrm")),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_scripts_are_sound(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck (apt install shellcheck)")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", ["keys", "credentials"])
def test_removing_the_package_says_that_the_device_stays(tmp_path: Path, folder: str) -> None:
    (tmp_path / "state" / folder).mkdir(parents=True)
    script = (DEBIAN / "postrm").read_text()
    for place, name in (("/opt/palm-access", "opt"), ("/var/lib/palm-access", "state"), ("/run/", "run/")):
        assert place in script
        script = script.replace(place, f"{tmp_path}/{name}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rm").symlink_to("/bin/rm")  # and none of what would change the system
    done = subprocess.run(
        ["/bin/sh", "-c", script, "postrm", "remove"],
        env={"PATH": f"{tmp_path}/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"stay in {tmp_path}/state" in done.stdout


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


def test_a_board_with_a_token_gets_pinned_libraries_without_markers() -> None:
    taken = only((SOURCE / "tools/rig/packaging/lock/dev.txt").read_text(), PKCS11)
    pinned = [line for line in taken.splitlines() if "==" in line]
    assert {line.partition("==")[0] for line in pinned} == PKCS11
    assert not any(";" in line for line in pinned) and taken.count("--hash") > len(pinned)


def test_the_drop_in_for_a_tpm_is_the_pages_and_opens_the_tpm_alone() -> None:
    lines = (SOURCE / "systemd/palmd-tpm.conf").read_text().splitlines()
    page = (SOURCE / "docs/howto/ATTESTATION.md").read_text()
    assert [line for line in lines if "Allow" in line] == ["DeviceAllow=/dev/tpmrm0 rw"]
    assert SYSTEM_FILES["palmd-tpm.conf"] in page
    (environment,) = (line.partition("=")[2] for line in lines if line.startswith("Environment="))
    variables = dict(pair.split("=", 1) for pair in environment.split())
    assert f"-g palm-access {variables['TPM2_PKCS11_STORE']}\n" in page
    assert len(variables["PKCS11_SQL_LOCK"]) == 1, "tpm2-pkcs11 1.9.0 misreads longer ones"


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
