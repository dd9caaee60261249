"""The whole daemon on a disk that fills up, refuses, or turns read-only while somebody stands at the gate."""

import asyncio
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from link1.objects import PREV_REF_OF_FIRST, VerdictResult
from link1.validator.desk import RequestEnded
from tests.device.core.small_disk import card, fill, refusing, repair, small_disk, wear_out
from tests.device.whole_device import (
    WITHIN_S,
    Device,
    Validator,
    answered,
    attempts,
    make_device,
    pictures,
    until,
    validator_at,
    validator_of,
)
from tools.kit.pty_pair import PtyPair

pytestmark = pytest.mark.slow


def device_on(disk: Path, beside: Path) -> Device:
    """A device whose state directory, and nothing else, lies on `disk`."""
    device = make_device(beside)
    shutil.copytree(beside / "state", disk / "state")
    shutil.rmtree(beside / "state")
    (beside / "state").symlink_to(disk / "state")
    subprocess.run(["sync", "-f", str(disk)], check=True)  # the copy is no promise of the device's
    return device


class Gate:
    """A validator, and the chain of the verdicts that it was told."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.refs = [PREV_REF_OF_FIRST]

    async def passes(self, validator: Validator) -> None:
        """Somebody known comes and is told so, next in the chain."""
        async for said in attempts(self.device, validator, pictures(occasion=9_000 + len(self.refs))):
            assert (said.verdict.verdict_seq, said.verdict.prev_ref) == (len(self.refs), self.refs[-1])
            self.refs.append(said.verdict_ref)
        assert said.verdict.result is VerdictResult.MATCH

    async def is_turned_away(self, validator: Validator) -> str:
        """What cannot be kept is not said: the request ends without a verdict. Returns its txn_id."""
        validator.arm(20_000)
        with self.device.hand(pictures(occasion=9_500)):
            ended = await validator.wait_for(RequestEnded)
        assert ended.why == "expired"
        return ended.txn_id

    async def hears(self, word: str, *, stands: bool) -> None:
        await until(lambda: (word in self.device.health()) is stands)


async def test_passages_go_on_while_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 160) as disk:
        device = device_on(disk, tmp_path)
        reserve = disk / "state" / "journal.db.reserve"
        gate = Gate(device)

        async def story(port: str) -> None:
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                await until(reserve.exists)
                await gate.passes(validator)
                assert "STORAGE_LOW" not in await asyncio.to_thread(device.health)
                fill(disk)
                await gate.hears("STORAGE_LOW", stands=True)
                await gate.passes(validator)
                assert not reserve.exists()
                assert (await asyncio.to_thread(device.status)).serving is True
                ballast = fill(disk)  # somebody else takes the room that was the reserve's
                await gate.is_turned_away(validator)
                await gate.hears("STORE_FAULT", stands=True)
                ballast.unlink()
                await gate.hears("STORE_FAULT", stands=False)
                await gate.hears("STORAGE_LOW", stands=False)
                assert reserve.exists()
                await gate.passes(validator)

        with PtyPair() as pair, device.running():
            await story(device.plug(pair))


async def test_a_disk_that_refuses_for_a_while(device: Device, tmp_path: Path) -> None:
    gate = Gate(device)

    def refuse(how: str) -> None:
        files = [path for path in (tmp_path / "state").iterdir() if path.name.startswith("journal.db")]
        words = ["chattr", how, *map(str, files)]
        if subprocess.run(words, check=False, capture_output=True).returncode:
            pytest.skip("only root may make files immutable, and not on every file system")

    async with validator_of(device) as validator:
        await validator.wait_serving()
        await gate.passes(validator)
        refuse("+i")
        try:
            await gate.is_turned_away(validator)
            await gate.hears("STORE_FAULT", stands=True)
        finally:
            refuse("-i")
        await gate.hears("STORE_FAULT", stands=False)
        await gate.passes(validator)


async def test_a_request_that_ended_on_a_full_disk_is_remembered_when_there_is_room(device: Device) -> None:
    gate = Gate(device)

    with PtyPair() as pair, device.running() as process:
        port = device.plug(pair)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            with refusing(process):
                txn_id = await gate.is_turned_away(validator)
            await gate.hears("STORE_FAULT", stands=False)
            await gate.passes(validator)  # the journal writes in order
    with closing(sqlite3.connect(device.config.journal_path)) as connection:
        assert connection.execute("SELECT txn_id, code FROM ended").fetchall() == [(txn_id, "expired")]


async def serves_again(device: Device, gate: Gate, port: str) -> None:
    """A device that was started anew lets the next one pass."""
    async with validator_at(port, device.board) as validator:
        await validator.wait_serving()
        await gate.passes(validator)


async def test_a_gallery_that_is_away_at_the_start_is_served_when_it_is_back(
    device: Device, tmp_path: Path
) -> None:
    gate, folder = Gate(device), tmp_path / "state/gallery"
    aside = folder.with_name("aside")

    with PtyPair() as pair:
        port = device.plug(pair)
        folder.rename(aside)
        folder.write_text("no folder")
        with device.running():
            await gate.hears("STORE_FAULT", stands=True)
            folder.unlink()
            aside.rename(folder)
            await gate.hears("STORE_FAULT", stands=False)
            await serves_again(device, gate, port)


async def test_a_signal_while_it_begins_again_ends_it(device: Device, tmp_path: Path) -> None:
    """systemd sends one, and kills what goes on a minute and a half later."""
    folder = tmp_path / "state/gallery"
    aside = folder.with_name("aside")
    # The same daemon, which looks for its gallery more often, and gets the signal at its last steps.
    program = """
import os, signal
from device.core import palmd
palmd.GALLERY_AGAIN_S = 0.1
stop = palmd.CaptureThread.stop
def signalled(self):
    os.kill(os.getpid(), signal.SIGTERM)
    return stop(self)
palmd.CaptureThread.stop = signalled
raise SystemExit(palmd.main())
"""
    folder.rename(aside)
    folder.write_text("no folder")
    with device.altered(program) as process:
        await until(lambda: "STORE_FAULT" in device.health())
        folder.unlink()
        aside.rename(folder)
        assert process.wait(WITHIN_S) == 0


async def test_a_gallery_whose_rows_are_damaged(device: Device, tmp_path: Path) -> None:
    """What cannot be scored exactly is not answered: NOT_READY, for as long as the rows do not open."""
    gate = Gate(device)
    file = tmp_path / "state" / "gallery" / "gallery.db"
    whole = file.read_bytes()
    with closing(sqlite3.connect(file)) as connection:
        rows = [row[0] for row in connection.execute("SELECT sealed FROM template")]

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running():
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                damaged = whole
                for sealed in rows:
                    damaged = damaged.replace(sealed[100:140], bytes(40))
                file.write_bytes(damaged)
                said = await answered(device, validator, pictures(occasion=9_600))
                assert said.verdict.result is VerdictResult.NOT_READY
                assert said.verdict.subject_ref is None
                gate.refs.append(said.verdict_ref)
                assert "does not open" in (await asyncio.to_thread(device.health))["STORE_FAULT"]
                assert (await asyncio.to_thread(device.status)).serving is False
        file.write_bytes(whole)
        with device.running():
            await serves_again(device, gate, port)


async def test_a_card_that_turns_read_only(tmp_path: Path) -> None:
    """It is told and nothing is said that could not be kept; after a restart the chain goes on."""
    with card(tmp_path / "card", tmp_path / "image", 120) as folder:
        device = device_on(folder, tmp_path)
        gate = Gate(device)

        async def before(port: str) -> None:
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                await gate.passes(validator)
                wear_out(folder)
                await gate.is_turned_away(validator)
                await gate.hears("STORE_FAULT", stands=True)
                assert (await asyncio.to_thread(device.status)).serving is False

        with PtyPair() as pair:
            port = device.plug(pair)
            with device.running():
                await before(port)
            repair(folder, tmp_path / "image")
            with device.running():
                await serves_again(device, gate, port)
