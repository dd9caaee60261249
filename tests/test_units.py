"""The systemd units: what they may do to the machine, judged by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize(("unit", "at_most"), [("palmd.service", 0.4), ("palm-syncd.service", 1.2)])
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
