"""What each daemon has loaded while it serves.

The core has no client of a network; the carrier has no camera, no cable and no recogniser.
"""

import re
import time
from pathlib import Path

import pytest

from tests.device.reference_cloud import Server
from tests.device.served_device import ServedDevice, served_device

CORE_NEVER = (
    "httpx",
    "httpcore",
    "requests",
    "urllib3",
    "http.client",
    "cloud_client.client",
    "device.syncd.main",
)
CARRIER_NEVER = (
    "cv2",
    "faiss",
    "onnxruntime",
    "serial",
    "usb",
    "device.core.core",
    "device.core.main",
    "device.core.palmd",
    "models",
    "gallery",
)
_IMPORT = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)
WITHIN_S = 60.0


def loaded(device: ServedDevice, name: str, never: tuple[str, ...]) -> set[str]:
    """Of the modules that the daemon has imported since its start, those that it must never have."""
    modules = set(_IMPORT.findall((device.folder / f"{name}.log").read_text()))
    assert "device" in modules, "the interpreter has listed what it imports"
    return {
        module for module in modules if module.startswith(tuple(f"{n}." for n in never)) or module in never
    }


def test_each_daemon_loads_its_own_side_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with served_device(tmp_path / "device", server, "gate-7-walls") as (device, _port):
        device.start("palmd")
        device.start("syncd")
        deadline = time.monotonic() + WITHIN_S
        while not device.says(lambda told: told.cloud.online):
            assert time.monotonic() < deadline, "the carrier never reported the service as reachable"
            time.sleep(0.1)
        assert loaded(device, "palmd", CORE_NEVER) == set()
        assert loaded(device, "syncd", CARRIER_NEVER) == set()
