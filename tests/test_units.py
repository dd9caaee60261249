"""The systemd units: what they may do to the machine, judged by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from device.platform.roles import SocketRole, socket_path
from tests import REPOSITORY

UNITS = REPOSITORY / "systemd"
SERVER_UNITS = REPOSITORY / "tools/rig/packaging/cloud/debian"
EXPOSURE = {
    "palmd.service": 0.5,  # 0.1 of it: a helper keeps off the core of the recogniser
    "palm-syncd.service": 1.2,
    "palm-update.service": 1.5,
    "palm-update-recover.service": 0.8,
    "palm-usb-gadget.service": 1.2,
    "palm-totem.service": 1.3,
    "palm-kiosk.service": 3.5,
    "palm-access-cloud.service": 1.2,
    "palm-access-cloud-backup.service": 1.2,
}
"""At most, by `systemd-analyze security`: from 0 to 10."""
SERVICES = sorted([*UNITS.glob("*.service"), *SERVER_UNITS.glob("*.service")])
MODULE_OF = {
    "char-video4linux": "uvcvideo",
    "char-ttyACM": "cdc_acm",
    "char-ttyUSB": "usbserial",
    "char-ttyGS": "u_serial",
    "char-usb_device": "cdc_acm",  # which needs usbcore
    "char-ttyS": None,  # these two are part of Debian's kernels
    "char-ttyAMA": None,
}
"""The module by which the kernel knows a class of devices."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_exposure_stays_low(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE[unit.name]


def test_every_service_has_its_bound() -> None:
    assert {path.name for path in SERVICES} == set(EXPOSURE)


def test_a_class_of_devices_is_known_before_the_core_may_use_it() -> None:
    """systemd leaves out of DeviceAllow= what the kernel does not know when the unit starts: after a boot in
    which the driver comes later, the core would not be permitted to open its own cable.
    """
    core = directives(UNITS / "palmd.service")
    loaded = set((UNITS / "palm-access.modules-load").read_text().split("\n"))
    before = " ".join(core["After"]).split()
    assert "systemd-modules-load.service" in before
    loaded |= {name[len("modprobe@") : -len(".service")] for name in before if name.startswith("modprobe@")}
    for allowed in core["DeviceAllow"]:
        module = MODULE_OF[allowed.removesuffix(" rw")]
        assert module is None or module in loaded, allowed


def test_the_carrier_is_a_user_of_its_own_and_sees_one_socket() -> None:
    core, carrier = (directives(UNITS / name) for name in ("palmd.service", "palm-syncd.service"))
    assert core["User"] == ["palm-access"]
    assert carrier["User"] == carrier["Group"] == ["palm-syncd"]
    assert carrier["TemporaryFileSystem"] == ["/run/palm-access:ro,noexec,mode=0755"]
    own = socket_path(Path("/run/palm-access"), SocketRole.CARRIER).parent
    assert carrier["BindReadOnlyPaths"] == [str(own)]
    assert carrier["InaccessiblePaths"] == ["-/var/lib/palm-access"]
    assert "RuntimeDirectory" not in carrier
    assert not any(name.startswith("LoadCredential") for name in carrier)
    assert "SupplementaryGroups" not in carrier


@pytest.mark.parametrize("unit", SERVICES, ids=lambda path: path.name)
def test_no_other_line_takes_the_place_of_an_empty_folder(unit: Path) -> None:
    """Of several lines for one path systemd 252 heeds one, and TemporaryFileSystem= comes last."""
    found = directives(unit)
    hidden = {value.partition(":")[0] for value in found.get("TemporaryFileSystem", [])}
    others = {
        path.lstrip("-+")
        for name in ("NoExecPaths", "ExecPaths", "ReadOnlyPaths", "ReadWritePaths", "BindReadOnlyPaths")
        for value in found.get(name, [])
        for path in value.split()
    }
    assert not hidden & others


def test_the_folder_of_each_socket_admits_one_group() -> None:
    lines = [line.split() for line in (UNITS / "palm-access.tmpfiles").read_text().splitlines()]
    folders = {line[1]: line[2:] for line in lines if line[0] == "d"}
    for role, group in (
        (SocketRole.CARRIER, "palm-syncd"),
        (SocketRole.TECHNICIAN, "palm-access"),
        (SocketRole.TOTEM, "palm-totem"),
    ):
        folder = socket_path(Path("/run/palm-access"), role).parent
        assert folders[str(folder)] == ["2750", "palm-access", group]
    made = {
        line.split()[1]
        for line in (UNITS / "palm-access.sysusers").read_text().splitlines()
        if line[:1] in {"u", "g"}
    }
    assert made == {"palm-access", "palm-syncd", "palm-totem"}


def directives(unit: Path) -> dict[str, list[str]]:
    """Every value of each directive, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_core_has_no_network_and_the_carrier_no_devices() -> None:
    core = (UNITS / "palmd.service").read_text()
    carrier = (UNITS / "palm-syncd.service").read_text()
    assert "PrivateNetwork=yes" in core
    assert "RestrictAddressFamilies=AF_UNIX\n" in core
    assert "PrivateDevices=yes" in carrier
    assert "ORT_DISABLE_TELEMETRY=1" in core


def test_a_board_that_nobody_provisioned_starts_nothing() -> None:
    for unit in ("palmd.service", "palm-syncd.service"):
        text = (UNITS / unit).read_text()
        assert "ConditionPathExists=/etc/palm-access/device.toml" in text
        assert "RestartPreventExitStatus=2 3" in text


def test_nothing_that_a_daemon_can_write_can_run() -> None:
    for unit in ("palmd.service", "palm-syncd.service"):
        text = (UNITS / unit).read_text()
        assert "-/tmp -/var/tmp -/dev/shm\n" in text
        assert "ProtectSystem=strict" in text
        assert "ReadOnlyPaths=/run\n" in text
        assert "MemorySwapMax=0" in text


def test_a_core_that_keeps_failing_rests_and_comes_back() -> None:
    core = (UNITS / "palmd.service").read_text()
    assert "StartLimitBurst=10" in core
    assert "OnFailure=palmd-again.timer" in core
    assert "Unit=palmd.service" in (UNITS / "palmd-again.timer").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    units = [path for path in UNITS.iterdir() if path.suffix in {".service", ".timer", ".path"}]
    for unit in units:
        # The programs and pages are the package's; here is only the question whether each line is understood.
        text = re.sub(r"^ExecSt(art|op)=\S+", r"ExecSt\1=/bin/true", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "palm" in line]
    assert ours == []


def test_the_pages_that_are_named_are_those_of_the_package() -> None:
    """The package has docs/ as it is in /usr/share/doc/palm-access."""
    files = [*UNITS.glob("*.service"), *UNITS.glob("*.rules")]
    named = {
        page
        for file in files
        for page in re.findall(r"/usr/share/doc/palm-access/([\w/]+\.md)", file.read_text(encoding="utf-8"))
    }
    assert len(named) >= 2
    assert [page for page in sorted(named) if not (REPOSITORY / "docs" / page).exists()] == []
