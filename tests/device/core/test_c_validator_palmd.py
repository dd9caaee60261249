"""The validator in C against the real daemon: good cables, damaged ones, cut ones, and restarts of either."""

import asyncio
import json
import random
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.trust.keystore import KeyStore
from link1.canonical import JsonObject
from link1.transport.serial_port import Port, open_port
from tests.device.whole_device import Device, ask_carrier, pictures
from tools.kit.c_validator.driver import CValidator, running
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID, GATE_ID

WITHIN_S = 30.0


def options(device: Device, port: str) -> list[str]:
    key = device.folder / "dbd.key"
    if not key.exists():
        key.write_bytes(device.board.validator_key.seed)
    return [
        "--port", port, "--device-pub-b64", device.board.verdict_key.b64, "--key-file", str(key),
        "--state", str(device.folder / "dbd.state"), "--dbd-id", DBD_ID, "--gate-id", GATE_ID, "--manual",
    ]  # fmt: skip


async def passage(device: Device, validator: CValidator, occasion: int) -> JsonObject:
    """One hand: asked for, shown, decided; on a busy machine again where no capture was good."""
    said: JsonObject = {"said": "POOR_CAPTURE"}
    while said["said"] == "POOR_CAPTURE":
        validator.command("a")
        await validator.told("request", within_s=WITHIN_S)
        with device.hand(pictures(occasion=occasion)):
            said = await validator.told("verdict", within_s=WITHIN_S)
    return said


async def decided(device: Device, verdicts: int) -> None:
    """Until so many verdicts and the decision about each are in the daemon's journal: a validator says that
    it has decided before the device has heard of it."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            _, body = await ask_carrier(device, "verdicts.next", wait_ms=0, limit=100)
            if sum("signed_decision" in item for item in json.loads(body)["items"]) == verdicts:
                return
            await asyncio.sleep(0.02)


async def serving(validator: CValidator) -> None:
    await validator.told("status", lambda line: line["detail"] == "serving", within_s=WITHIN_S)


def journaled(device: Device) -> list[JsonObject]:
    """Everything that the daemon would upload; only while it is not running."""
    keys = KeyStore.open(device.config.keys_dir)
    journal = Journal(
        device.config.journal_path,
        device_id=DEVICE_ID,
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=SystemClock(),
    )
    try:
        return list(journal.next_upload(100).items)
    finally:
        journal.close()


class Relay:
    """Two virtual cables joined by a thread that may damage, drop and double what passes."""

    def __init__(self) -> None:
        self.share = 0.0
        self.cut = False
        self.damaged = 0
        self._rng = random.Random(7)
        self._stop = threading.Event()

    @contextmanager
    def joined(self) -> Iterator[tuple[str, str]]:
        with ExitStack() as stack:
            near, far = stack.enter_context(PtyPair()), stack.enter_context(PtyPair())
            ports = open_port(near.right), open_port(far.left)
            thread = threading.Thread(target=self._carry, args=ports)
            thread.start()
            try:
                yield near.left, far.right
            finally:
                self._stop.set()
                thread.join()
                for port in ports:
                    port.close()

    def _carry(self, left: Port, right: Port) -> None:
        others = {left: right, right: left}
        while not self._stop.is_set():
            for port in select.select([left, right], [], [], 0.02)[0]:
                for piece in self._spoil(port.read(4096)):
                    while piece and not self._stop.is_set():
                        piece = piece[others[port].write(piece) :]  # noqa: PLW2901

    def _spoil(self, data: bytes) -> list[bytes]:
        if self.cut:
            return []
        first = self.share > 0 and not self.damaged  # always damaged: a short run may draw none
        if not first and self._rng.random() >= self.share:
            return [data]
        self.damaged += 1
        start = self._rng.randrange(len(data))
        burst = data[:start] + self._rng.randbytes(len(data[start : start + 64])) + data[start + 64 :]
        return self._rng.choice([[burst], [], [data, data], [data[:start]]])


def join(device: Device, left: str) -> None:
    (device.folder / "cable").unlink(missing_ok=True)
    (device.folder / "cable").symlink_to(left)


async def test_passages_over_a_cable_that_damages_loses_and_doubles(device: Device, program: Path) -> None:
    """And is cut for a while: every verdict is decided once, and the device has every decision."""
    relay = Relay()

    with relay.joined() as (left, right), device.running() as palmd:
        join(device, left)
        port = right
        async with running(program, *options(device, port)) as validator:
            await serving(validator)
            first = await passage(device, validator, 9000)
            assert (first["said"], first["actuated"], first["reason"]) == ("MATCH", True, "ok")
            relay.share = 0.15
            second = await passage(device, validator, 9001)
            assert second["actuated"]
            relay.share = 0.0
            relay.cut = True
            await validator.told("link_down", within_s=WITHIN_S)
            relay.cut = False
            await validator.told("link_up", within_s=2.5)
            third = await passage(device, validator, 9002)
            assert third["actuated"]
            await decided(device, third["decision_seq"])
        palmd.kill()
        palmd.wait(20)
    assert relay.damaged > 0
    items = journaled(device)
    assert len(items) >= 3
    assert each_was_decided_once(items)
    matched = [item["signed_verdict"]["verdict"]["result"] == "MATCH" for item in items]
    assert [item["signed_decision"]["decision_obj"]["actuated"] for item in items] == matched


def each_was_decided_once(items: list[JsonObject]) -> bool:
    verdicts = [item["signed_verdict"]["verdict"]["verdict_seq"] for item in items]
    decisions = [item["signed_decision"]["decision_obj"]["decision_seq"] for item in items]
    return verdicts == decisions == list(range(1, len(items) + 1))


async def test_restarts_of_either_end_lose_and_double_nothing(device: Device, program: Path) -> None:
    """The daemon is killed between its verdict and the decision; the validator forgets nothing."""

    with PtyPair() as pair:
        join(device, pair.left)
        with device.running() as palmd:
            port = pair.right
            kill = palmd.kill
            async with running(program, *options(device, port)) as validator:
                await serving(validator)
                said = await passage(device, validator, 9000)
                kill()
                before = int(said["decision_seq"])
        with device.running() as palmd:
            port = pair.right
            async with running(program, *options(device, port)) as validator:
                await serving(validator)
                assert (await passage(device, validator, 9001))["decision_seq"] > before
                validator.command("r")
                await serving(validator)
                await decided(device, (await passage(device, validator, 9002))["decision_seq"])
            palmd.kill()
            palmd.wait(20)
    items = journaled(device)
    assert len(items) >= 3
    assert each_was_decided_once(items)
