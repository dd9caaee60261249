"""This software on the state that an earlier one left: it serves, and everything goes on where it was."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from device.config.config import load_config
from device.core.opening import boot_id
from device.platform.clock import SystemClock
from device.trust.credentials import key_source
from device.trust.keystore import KeyStore
from device.trust.known_time import gallery_now
from device.trust.trust import load_trust
from gallery.gallery import Gallery
from gallery.records import Position
from gallery.stream import Head
from link1.keys import SealKey, SigningKey
from link1.objects import VerdictResult
from link1.signed import Kind, sign_object
from models.manifest import load_manifest, shipped_model_dir
from tests.archives import unpack_kept
from tests.device.core.former_state import ARCHIVE, FOLDER, VERDICTS
from tests.device.whole_device import (
    Device,
    ask_carrier,
    attempts,
    known_people,
    nobody,
    pictures,
    until,
    validator_at,
)
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import STREAM, Board
from tools.palmctl.bench.verdict_latency import FolderWriter


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """Unpack the state into `tmp_path`; what is known of it."""
    unpack_kept(Path(__file__).with_name(ARCHIVE), tmp_path)
    path = tmp_path / "device.toml"
    path.write_text(path.read_text().replace(str(FOLDER), str(tmp_path)))
    read: dict[str, Any] = json.loads((tmp_path / "told.json").read_text())
    return read


@pytest.fixture
def device(tmp_path: Path, told: dict[str, Any]) -> Device:
    config = load_config(tmp_path / "device.toml")
    keys = KeyStore.load(key_source(config.keys_dir))
    seeds = {name: SigningKey.from_seed(bytes.fromhex(seed)) for name, seed in told["seeds"].items()}
    board = Board(
        tmp_path / "device.toml", keys.verdict.public, keys.seal.public, seeds["validator"], seeds["service"],
        seeds["root"], SealKey.generate(),
    )  # fmt: skip
    config.device.runtime_dir.mkdir()
    writer = FolderWriter(tmp_path / "camera")
    writer.put(nobody())
    return Device(tmp_path, board, config, writer)


def position_of(device: Device) -> Position:
    """Where the gallery stands that the earlier software left."""
    config, trust, clock = device.config, load_trust(device.config.trust_path), SystemClock()
    gallery = Gallery(
        config.gallery_dir,
        data_key=KeyStore.load(key_source(config.keys_dir)).data_key,
        model_id=load_manifest(shipped_model_dir()).model_id,
        stream=STREAM,
        epoch=1,
        gallery_key=lambda kid: trust.gallery_key(kid, None),
        now=gallery_now(clock),
        boot_id=boot_id(),
    )
    try:
        assert gallery.count == len(known_people())
        return gallery.position
    finally:
        gallery.close()


def new_head(device: Device, held: Position) -> bytes:
    """The service's answer when nothing has changed: the same place, said now."""
    now_ms = time.time_ns() // 1_000_000
    head = Head(STREAM, held.epoch, held.seq, held.head, len(known_people()), now_ms)
    signed = sign_object(Kind.GALLERY_HEAD, head.to_obj(), device.board.service_key)
    return json.dumps({"head": signed, "data": [], "has_more": False}).encode()


async def test_the_state_of_an_earlier_software_goes_on(device: Device, told: dict[str, Any]) -> None:
    held = position_of(device)
    assert device.config.cloud is not None
    assert device.config.cloud.url == "https://service.example"

    with PtyPair() as pair:
        (device.folder / "cable").symlink_to(pair.left)
        with device.running() as process:
            port = pair.right
            await until(lambda: device.status().device_id == "palm-bench")
            status = await asyncio.to_thread(device.status)
            assert status.verdict_seq == VERDICTS
            assert status.uploads_waiting >= VERDICTS
            await ask_carrier(device, "gallery.deltas", new_head(device, held))
            async with validator_at(port, device.board) as validator:
                last = (await validator.wait_serving()).status.last
                assert last is not None
                before = (last.verdict_seq, last.verdict_ref)
                assert before == (VERDICTS, told["verdicts"][-1]["ref"])
                async for said in attempts(device, validator, pictures(occasion=9100)):
                    assert (said.verdict.verdict_seq, said.verdict.prev_ref) == (before[0] + 1, before[1])
                    before = (said.verdict.verdict_seq, said.verdict_ref)
                assert said.verdict.result is VerdictResult.MATCH
                assert said.verdict.subject_ref == known_people()[0].subject_ref
            status = await asyncio.to_thread(device.status)
            assert status.gallery.templates == len(known_people())
            await until(lambda: device.status().uploads_waiting == before[0])
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
