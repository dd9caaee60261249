"""The device of the power-loss test: where its state lies, who made its keys, and how it is opened.

It is opened by the device's own code, whole. No model is installed, so templates carry the name that stands
for none: what is recognised by number here is decided by the gallery alone.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from device.config.config import (
    CameraSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
    ModelSection,
)
from device.core.opening import Opened, boot_id, open_device
from device.platform.clock import has_kept_time
from device.platform.threads import BulkTurn, StoreThread
from device.updates.models import NO_MODEL_ID
from gallery.stream import Entry
from tests.device.core_makers import (
    DBD_ID,
    DEVICE_ID,
    GALLERY_KEY,
    GATE_ID,
    HandClock,
)
from tests.gallery import gallery_service

STREAM = "stream-1"


def config_of(state: Path) -> DeviceConfig:
    return DeviceConfig(
        device=DeviceSection(DEVICE_ID, GATE_ID, DBD_ID, state, state),
        camera=CameraSection("file:none"),
        link=LinkSection("none"),
        model=ModelSection(state / "no-model"),
    )


def service(epoch: int = 1) -> gallery_service.Service:
    return gallery_service.Service(stream=STREAM, epoch=epoch, key=GALLERY_KEY)


def entry(person: int, number: int) -> Entry:
    return gallery_service.entry(person, number, model_id=NO_MODEL_ID)


class _Now(StoreThread):
    """Does what is asked where it is asked, so that a recording has one order."""

    async def do(self, work: Any) -> Any:
        return work()


@contextmanager
def opened(state: Path, clock: HandClock) -> Iterator[Opened]:
    """The device, opened by its own code. Raises what that raises."""
    threads = _Now("journal"), _Now("gallery")
    device = asyncio.run(
        open_device(
            config_of(state),
            clock,
            *threads,
            boot_id=boot_id(),
            clock_kept=has_kept_time(),
            bulk_turn=BulkTurn(),
        )
    )
    try:
        yield device
    finally:
        device.journal.close()
        if device.gallery is not None:
            device.gallery.close()
        for thread in threads:
            thread.close()
