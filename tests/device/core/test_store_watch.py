"""STORE_FAULT of a gallery that a search could not read: it stands until the same rows can be read. And how
long the journal is tidied up in one go."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device.core import housekeeping
from device.core.housekeeping import MAINTAIN_AT_LATEST_S, MAINTAIN_TIMES, Housekeeping, StoreWatch
from device.health import Health, HealthWord
from device.journal.journal import PURGE_ROWS
from device.platform import sd_notify
from device.platform.clock import SystemClock
from device.platform.threads import StoreThread
from gallery.errors import StoreError
from tests.until import until_async


class GalleryDouble:
    def __init__(self) -> None:
        self.fault = ""

    def remember_time(self, _now: object) -> None:
        pass

    def reread(self) -> None:
        if self.fault:
            raise StoreError(self.fault)


QUIET = SimpleNamespace(pending_uploads=lambda: 0, probe=lambda: None, keep_reserve=lambda: True)
"""A journal that has nothing to say."""


def store_watch(state_dir: Path, thread: StoreThread, **changes: Any) -> StoreWatch:
    members: dict[str, Any] = {
        "journal": QUIET,
        "journal_thread": thread,
        "gallery": None,
        "state_dir": state_dir,
        "health": Health(lambda _words: None),
        "clock": SystemClock(),
        "wiped": lambda: False,
        "idle": lambda: True,
        "journal_is_back": lambda: None,
    }
    return StoreWatch(**(members | changes))


@pytest.mark.parametrize("told_at_once", [True, False])
async def test_it_stands_while_the_rows_cannot_be_read(tmp_path: Path, told_at_once: bool) -> None:
    gallery, health, thread = GalleryDouble(), Health(lambda _words: None), StoreThread("journal")
    served = SimpleNamespace(serving=gallery, fault="")

    watch = store_watch(tmp_path, thread, gallery=served, health=health)
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
    thread.close()


async def test_a_journal_that_is_back_is_used_also_where_the_gallery_never_opened(tmp_path: Path) -> None:
    """And the technician reads about the gallery again, not about a disk that has room by now."""
    back: list[None] = []
    health, thread = Health(lambda _words: None, {HealthWord.STORE_FAULT: "no gallery"}), StoreThread("j")
    closed = SimpleNamespace(serving=None, fault="no gallery")

    watch = store_watch(
        tmp_path, thread, gallery=closed, health=health, journal_is_back=lambda: back.append(None)
    )
    await watch.look()
    assert back == []
    health.report(HealthWord.STORE_FAULT, "No space left on device")
    for _ in range(2):
        await watch.look()
        assert (health.details[HealthWord.STORE_FAULT], len(back)) == ("no gallery", 1)
    thread.close()


@pytest.mark.parametrize(("each_s", "calls"), [(0.01, MAINTAIN_TIMES), (0.6, 4)])
def test_a_slow_disk_is_not_tidied_up_until_the_watchdog_bites(
    tmp_path: Path, each_s: float, calls: int
) -> None:
    """Ten seconds without a word, and systemd ends the core; on a card one call may take half a second."""
    loop, thread, called = asyncio.new_event_loop(), StoreThread("journal"), []
    began_s, passed_s = loop.time(), 0.0
    loop.time = lambda: began_s + passed_s  # type: ignore[method-assign]

    def maintain() -> int:
        nonlocal passed_s
        passed_s += each_s
        called.append(passed_s)
        return PURGE_ROWS

    async def story() -> None:
        nonlocal passed_s
        watch = store_watch(tmp_path, thread, journal=SimpleNamespace(maintain=maintain))
        passed_s += MAINTAIN_AT_LATEST_S
        await watch.maintain()
        assert len(called) == calls
        await watch.maintain()
        assert len(called) == calls, "it rests"

    loop.run_until_complete(story())
    loop.close()
    thread.close()


async def test_a_journal_that_is_busy_for_long_is_not_taken_for_a_stuck_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers to one `resolve` are 64 writes, which take 13 s at 200 ms each: systemd ended the core."""
    fed: list[None] = []
    monkeypatch.setattr(housekeeping, "STORE_WITHIN_S", 0.05)
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.0)
    monkeypatch.setattr(sd_notify, "watchdog", lambda: fed.append(None))
    thread, may_write = StoreThread("journal"), threading.Semaphore(0)
    health = Health(lambda _words: None)

    async def write_one_after_another() -> None:
        while not fed:
            may_write.release()
            await asyncio.sleep(0.001)

    watch = store_watch(
        tmp_path, thread, gallery=SimpleNamespace(serving=GalleryDouble(), fault=""), health=health
    )
    writes = [asyncio.create_task(thread.do(may_write.acquire)) for _ in range(10_000)]
    keeper = Housekeeping(watch, (), health, SystemClock(), ())
    running = asyncio.create_task(keeper.run())
    try:
        await until_async(lambda: "no sign of activity from: store" in caplog.text)
        assert fed == [], "it is stuck"
        writing = asyncio.create_task(write_one_after_another())
        await until_async(lambda: fed)
        assert not writes[-1].done(), "its own question has not been answered yet"
    finally:
        running.cancel()
        may_write.release(len(writes))
    await asyncio.gather(running, writing, *writes, return_exceptions=True)
    thread.close()
