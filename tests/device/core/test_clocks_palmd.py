"""The whole daemon while its clocks jump: six hours are six hours, and only a new head opens it again."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from device.core.opening import boot_id
from device.platform.ipc import IpcClient, ask_core
from device.trust.trust import load_trust, reread, save_trust
from device.updates.manifest import Offer
from device.updates.state import SHIPPED, ModelSlot, UpdateState
from device.updates.store import UpdateStore
from models.manifest import load_manifest, shipped_model_dir
from tests.device.whole_device import Device, known_people, until
from tests.republished import republish
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import snapshot_pages

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


class Scripted:
    """A device whose clocks are in the test's hand."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.file = device.folder / "clocks.json"
        self.boot = boot_id()  # under which the gallery was filled
        self.templates = len(known_people())
        self.set()

    def set(
        self, *, wall_h: float = 0, boottime_h: float = 0, boot: str = "", clock_kept: bool = True
    ) -> None:
        aside = self.file.with_suffix(".partial")
        aside.write_text(
            json.dumps(
                {
                    "wall_off_ms": int(wall_h * HOUR),
                    "boottime_off_ms": int(boottime_h * HOUR),
                    "boot": boot or self.boot,
                    "clock_kept": clock_kept,
                }
            )
        )
        aside.rename(self.file)

    @contextmanager
    def running(self) -> Iterator[None]:
        driver = "tests.device.core.scripted_palmd"
        command = [sys.executable, "-m", driver, str(self.device.board.config_path), str(self.file)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            asyncio.run(until(lambda: self.device.status().device_id != ""))
            yield
        finally:
            process.kill()
            process.communicate()

    def gallery(self) -> tuple[bool, str]:
        told = self.device.status().gallery
        return told.fresh, told.reason

    def comes_to(self, fresh: bool, reason: str) -> None:
        def stands() -> bool:
            stale = "GALLERY_STALE" in self.device.health()
            return self.gallery() == (fresh, reason) and stale is not fresh

        asyncio.run(until(stands))

    def new_head(self, issued_at_ms: int) -> None:
        """As the carrier brings it: a snapshot with one more template."""
        self.templates += 1
        model_id = load_manifest(shipped_model_dir()).model_id
        key = self.device.board.service_key
        pages = snapshot_pages(known_people(), self.templates, model_id, key, issued_at_ms)

        async def bring() -> None:
            core = await IpcClient.connect(self.device.config.carrier_socket)
            for page in pages:
                await core.call("gallery.snapshot", page, timeout_s=20)
            core.close()

        asyncio.run(bring())


@pytest.fixture
def scripted(device: Device, tmp_path: Path) -> Iterator[Scripted]:
    with PtyPair() as pair:
        (tmp_path / "cable").symlink_to(pair.left)
        yield Scripted(device)


def test_a_start_judges_an_offer_by_the_time_that_the_running_core_knows(scripted: Scripted) -> None:
    """Not by a date that was signed far ahead, nor by a wall clock that was set back."""
    state_dir, trust_path = scripted.device.config.device.state_dir, scripted.device.config.trust_path
    model_id, store = load_manifest(shipped_model_dir()).model_id, UpdateStore(state_dir)
    republish(shipped_model_dir(), model_id, store.model_folder(7))
    waits = UpdateState(
        model_seq=7, slots=(ModelSlot(7, "2.0", model_id),), waiting=7, home_epoch=1, by_network=(7,)
    )

    def model_after_a_start(offered_at_ms: int) -> int:
        store.save(replace(waits, offer=Offer(offered_at_ms, (7,))))
        with scripted.running():
            told = ask_core(scripted.device.control_socket, "update.status").header["updates"]
            return int(told["model"]["release_seq"])

    save_trust(trust_path, reread(load_trust(trust_path), {"service_ms": true_ms() + 48 * HOUR}))
    assert model_after_a_start(true_ms()) == 7
    scripted.set(wall_h=-48, boot="boot-2")
    assert model_after_a_start(true_ms() - 25 * HOUR) == SHIPPED


def true_ms() -> int:
    return time.time_ns() // 1_000_000


def test_steps_sleep_and_six_hours_while_it_runs(scripted: Scripted) -> None:
    with scripted.running():
        scripted.comes_to(True, "fresh")
        for wall_h in (-24 * 365.0, 24 * 365.0, -24 * 365 * 50.0):
            scripted.set(wall_h=wall_h)
            assert scripted.gallery() == (True, "fresh")
        scripted.set(wall_h=-10, boottime_h=5.9)  # asleep meanwhile; the wall clock went the other way
        assert scripted.gallery() == (True, "fresh")
        scripted.set(wall_h=-10, boottime_h=6.1)
        scripted.comes_to(False, "expired")
        assert "that the validator carries mail" in scripted.device.health()["GALLERY_STALE"]
        scripted.set(wall_h=6.1, boottime_h=6.1)
        scripted.new_head(true_ms() + int(6.1 * HOUR))
        scripted.comes_to(True, "fresh")


def test_a_board_without_a_clock_is_closed_after_a_power_cut_until_a_head_comes(scripted: Scripted) -> None:
    with scripted.running():
        scripted.comes_to(True, "fresh")
    for wall_h, boot in ((-24 * 365 * 56.0, "boot-2"), (0.0, "boot-3")):  # 1970, and where it stopped
        scripted.set(wall_h=wall_h, boot=boot, clock_kept=False)
        with scripted.running():
            scripted.comes_to(False, "time_unknown")
            scripted.new_head(true_ms())
            scripted.comes_to(True, "fresh")


def test_a_kept_clock_counts_the_hours_without_power(scripted: Scripted) -> None:
    with scripted.running():
        scripted.comes_to(True, "fresh")
    scripted.set(wall_h=3, boot="boot-2")
    with scripted.running():
        scripted.comes_to(True, "fresh")
        assert scripted.device.status().gallery.left_s <= 3 * 3600
    scripted.set(wall_h=7, boot="boot-3")
    with scripted.running():
        scripted.comes_to(False, "expired")


def test_a_date_far_ahead_does_not_brick_it(scripted: Scripted) -> None:
    with scripted.running():
        scripted.new_head(true_ms() + 50 * YEAR)
        scripted.comes_to(True, "fresh")
        scripted.new_head(true_ms())
        scripted.comes_to(True, "fresh")
        scripted.set(boottime_h=6.3)
        scripted.comes_to(False, "expired")
        scripted.set(boottime_h=6.3, wall_h=6.3)
        scripted.new_head(true_ms() + int(6.3 * HOUR))
        scripted.comes_to(True, "fresh")
