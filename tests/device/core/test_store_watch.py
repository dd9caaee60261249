"""STORE_FAULT of a gallery that a search could not read: it stands until the same rows can be read."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from device.core.housekeeping import StoreWatch
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.platform.threads import StoreThread
from gallery.errors import StoreError


class GalleryDouble:
    def __init__(self) -> None:
        self.fault = ""

    def remember_time(self, _now: object) -> None:
        pass

    def reread(self) -> None:
        if self.fault:
            raise StoreError(self.fault)


@pytest.mark.parametrize("told_at_once", [True, False])
def test_it_stands_while_the_rows_cannot_be_read(tmp_path: Path, told_at_once: bool) -> None:
    gallery, health, thread = GalleryDouble(), Health(lambda _words: None), StoreThread("journal")
    journal = SimpleNamespace(pending_uploads=lambda: 0, probe=lambda: None, keep_reserve=lambda: True)
    served: Any = SimpleNamespace(serving=gallery, fault="")

    async def story() -> None:
        watch = StoreWatch(
            journal=cast("Journal", journal),
            journal_thread=thread,
            gallery=served,
            state_dir=tmp_path,
            health=health,
            clock=SystemClock(),
            wiped=lambda: False,
            idle=lambda: True,
            journal_is_back=lambda: None,
        )
        await watch.look()
        assert HealthWord.STORE_FAULT not in health.words
        gallery.fault = "disk I/O error"
        if told_at_once:  # by the frame that met it
            health.report(HealthWord.STORE_FAULT, gallery.fault)
        for _ in range(2):
            await watch.look()
            assert health.details[HealthWord.STORE_FAULT] == "disk I/O error"
        gallery.fault = ""
        await watch.look()
        assert HealthWord.STORE_FAULT not in health.words

    asyncio.run(story())
    thread.close()
