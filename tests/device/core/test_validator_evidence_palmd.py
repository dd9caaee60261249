"""The whole daemon and a validator that lies, whose key is rotated, or whose gate has a clock of 1970."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from device.core.opening import boot_id
from link1.canonical import JsonObject, canonical_bytes
from link1.envelope import MessageType
from link1.events import ErrorReceived
from link1.keys import SigningKey
from link1.link_states import DownReason
from link1.objects import Decision, ErrorCode
from link1.signed import Kind, sign_object
from link1.transport.pump import monotonic_ms
from link1.validator.desk import DeskEvent, ValidatorDesk
from link1.validator.events import DeviceProven, StatusReceived
from tests.device.status_makers import some_device_status
from tests.device.whole_device import (
    WITHIN_S,
    Device,
    Validator,
    answered,
    ask_carrier,
    pictures,
    until,
    validator_at,
    validator_of,
)
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID

A = TypeVar("A", bound=DeskEvent)
B = TypeVar("B", bound=DeskEvent)
YEAR_MS = 365 * 24 * 3_600_000
FLOOD = 200


async def uploaded(device: Device, verdict_ref: str) -> list[JsonObject]:
    """Everything that waits for upload, taken by a service that knows `verdict_ref`."""
    items: list[JsonObject] = []
    while True:
        header, body = await ask_carrier(device, "verdicts.next", wait_ms=0, limit=100)
        if not header["ticket"]:
            return items
        items += json.loads(body)["items"]
        answer = {"accepted": [], "duplicates": [verdict_ref], "rejected": []}
        await ask_carrier(
            device, "verdicts.done", canonical_bytes(answer), ticket=header["ticket"], status=200, code=""
        )


class ForgingDesk(ValidatorDesk):
    """A validator that also sends what it should not."""

    def send_decision(self, wrapper: JsonObject) -> bool:
        return self._end.send_decision(wrapper)

    def send_cancel(self) -> bool:
        return self._end.send_cancel("f" * 32)

    def reset(self) -> list[DeskEvent]:
        return self._follow(self._end.reset(monotonic_ms(), DownReason.UNANSWERED), monotonic_ms())


class SilentDesk(ValidatorDesk):
    """A validator that sends no answer."""

    def _say(self, type_: MessageType, body: JsonObject) -> None:
        del type_, body


def forging(validator: Validator) -> ForgingDesk:
    assert isinstance(validator.desk, ForgingDesk)
    return validator.desk


async def say(validator: Validator, wrapper: JsonObject) -> None:
    """A decision, as soon as the channel has room."""
    while not forging(validator).send_decision(wrapper):
        validator.news.clear()
        await validator.news.wait()  # an answer to one before it
    validator.pump.kick()


async def either(validator: Validator, one: type[A], other: type[B]) -> A | B:
    """The next event of one of two kinds."""
    while True:
        for event in validator.events:
            if isinstance(event, one | other):
                del validator.events[: validator.events.index(event) + 1]
                return event
        validator.news.clear()
        async with asyncio.timeout(WITHIN_S):
            await validator.news.wait()


async def ask_for_an_answer(validator: Validator) -> None:
    """A cancel of nothing: its answer comes behind all that was said before it."""
    while not forging(validator).send_cancel():
        validator.news.clear()
        await validator.news.wait()
    validator.pump.kick()


async def test_a_signed_contradiction_reaches_the_service_whatever_was_said_before_it(device: Device) -> None:
    told: list[JsonObject] = []

    def sign(number: int) -> JsonObject:
        return sign_object(Kind.DECISION, {"n": number}, SigningKey.from_seed(b"\x77" * 32))

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running() as process:
            async with validator_at(port, device.board, desk_type=ForgingDesk) as validator:
                await validator.wait_serving()
                said = await answered(device, validator, pictures())
                known = validator.desk.memory.find(said.verdict_ref)
                assert known is not None
                right = known.decision
                await until(lambda: device.status().uploads_waiting > 0)
                forged = [right | {"sig_b64": sign(number)["sig_b64"]} for number in range(FLOOD)]
                for wrapper in (*forged, forged[0]):
                    await say(validator, wrapper)
                opposite = replace(Decision.from_obj(right["decision_obj"]), actuated=False, decision_seq=2)
                told.append(sign_object(Kind.DECISION, opposite.to_obj(), device.board.validator_key))
                await say(validator, told[0])
                wrong = replace(opposite, verdict_ref="e" * 32, decision_seq=3)
                for _ in range(2):
                    await say(
                        validator, sign_object(Kind.DECISION, wrong.to_obj(), device.board.validator_key)
                    )
                await ask_for_an_answer(validator)
                complaints = 0
                while True:
                    error = await validator.wait_for(ErrorReceived)
                    if error.code == ErrorCode.CANCELLED:
                        break
                    assert error.code == ErrorCode.BAD_DECISION
                    complaints += 1
                assert complaints <= FLOOD + 1, "once for each distinct message"
                status = await asyncio.to_thread(device.status)
                assert status.to_obj()["counters"]["evidence.bad_signature"] == FLOOD + 1
                ref = said.verdict_ref
            process.terminate()  # a kill may come before the last of them is written
            process.wait(WITHIN_S)
        with device.running():
            items = await uploaded(device, ref)
    first, signed, *unsigned = items
    assert first["signed_decision"]["decision_obj"]["actuated"] is True
    assert [signed["signed_decision"], unsigned[0]["signed_decision"]["decision_obj"]["decision_seq"]] == [
        told[0],
        3,
    ]
    assert len(unsigned) == 1 + 16, "the other signed one, and the last sixteen of the forged"


async def test_one_status_a_handshake(device: Device) -> None:
    async with validator_of(device, desk_type=ForgingDesk) as validator:
        await validator.wait_serving()
        for _ in range(3):
            validator.events.clear()
            for event in forging(validator).reset():
                validator.on_event(event)
            validator.pump.kick()
            await validator.wait_for(DeviceProven)
            await ask_for_an_answer(validator)
            statuses = []
            while True:
                event = await either(validator, StatusReceived, ErrorReceived)
                if isinstance(event, ErrorReceived):
                    break
                statuses.append(replace(event.status, at_ms=0))
            assert len(statuses) == len(set(map(repr, statuses))) >= 1


async def test_a_verdict_that_left_and_got_no_decision_is_unknown_to_the_service(device: Device) -> None:
    """The time runs from the last byte: only the port's word starts it."""

    async with validator_of(device, desk_type=SilentDesk) as validator:
        await validator.wait_serving()
        said = await answered(device, validator, pictures())
        items = await uploaded(device, said.verdict_ref)
        assert not any("outcome_unknown" in item for item in items), "not before five seconds"
        await ask_carrier(device, "verdicts.next", wait_ms=20_000, limit=1)
        (item,) = await uploaded(device, said.verdict_ref)
    assert item["outcome_unknown"] is True


# ---- a clock that is wrong


@contextmanager
def running_at(device: Device, wall_off_ms: int) -> Iterator[None]:
    """`palmd` whose wall clock is so far from the machine's."""
    clocks = device.folder / "clocks.json"
    said = {"wall_off_ms": wall_off_ms, "boottime_off_ms": 0, "boot": boot_id(), "clock_kept": False}
    clocks.write_text(json.dumps(said))
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.device.core.scripted_palmd",
            str(device.board.config_path),
            str(clocks),
        ],
        stderr=subprocess.PIPE,
    )
    try:
        asyncio.run(until(lambda: device.status().device_id != ""))
        yield
    finally:
        process.kill()
        process.communicate()


def rotation(device: Device, new: SigningKey, at_ms: int) -> bytes:
    """The service's status after `dbd add` of another key."""

    def window(key: SigningKey, begin_ms: int, end_ms: int | None) -> JsonObject:
        return {
            "dbd_id": DBD_ID,
            "kid": key.kid,
            "pub_b64": key.public.b64,
            "not_before_ms": begin_ms,
            "not_after_ms": end_ms,
        }

    keys = [window(new, at_ms, None), window(device.board.validator_key, 0, at_ms)]
    status = some_device_status(device_id=DEVICE_ID, issued_at_ms=at_ms, gallery=None, dbd_keys=keys)
    return canonical_bytes(sign_object(Kind.DEVICE_STATUS, status, device.board.service_key))


@pytest.mark.parametrize("wall_off_ms", [-50 * YEAR_MS, 80 * YEAR_MS], ids=["1976", "far ahead"])
def test_after_a_rotation_no_clock_shuts_the_new_key_out_or_lets_the_old_one_in(
    device: Device, wall_off_ms: int
) -> None:
    new, old = SigningKey.generate(), device.board.validator_key

    async def proves(port: str, key: SigningKey) -> bool:
        board = replace(device.board, validator_key=key)
        async with validator_at(port, board) as validator:
            return isinstance(await either(validator, DeviceProven, ErrorReceived), DeviceProven)

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running():
            asyncio.run(ask_carrier(device, "status", rotation(device, new, time.time_ns() // 1_000_000)))
        with running_at(device, wall_off_ms):
            assert asyncio.run(proves(port, new))
            assert not asyncio.run(proves(port, old))
