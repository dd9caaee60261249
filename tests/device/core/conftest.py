"""What the tests of the whole daemon begin with."""

from pathlib import Path

import pytest

from tests.device.whole_device import Device, make_device


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return make_device(tmp_path)
