"""The systemd units: what they may do to the machine, judged by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize(
    ("unit", "at_most"),
    [("palmd.service", 0.4), ("palm-syncd.service", 1.2), ("palm-usb-gadget.service", 1.5)],
)
def test_exposure_stays_low(unit: str, at_most: float) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= at_most


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
        assert "NoExecPaths=-/var/lib/palm-access -/run/palm-access -/tmp -/var/tmp -/dev/shm" in text
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
