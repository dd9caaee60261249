"""The validator in C against a device played by hand, and its readers against those of this package.

What it may open for is tried rule by rule; its frames and its JSON are judged against ours on the same bytes.
"""

import asyncio
import os
import pty
import random
import select
import subprocess
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import UnionType
from typing import Any

import pytest

from link1.canonical import JsonObject
from link1.channels import Outgoing
from link1.device_end import DeviceEnd
from link1.envelope import RULES, MessageRefused, MessageType, Role, encode_message, read_message
from link1.events import (
    CancelReceived,
    DecisionReceived,
    Down,
    ErrorReceived,
    PassageReceived,
    Proven,
    ReadyReceived,
    RequestReceived,
    UnknownReceived,
)
from link1.frames import BadFrameError, Channel, Frame, FrameKind, decode_frame, encode_frame
from link1.keys import SigningKey
from link1.link_states import DownReason
from link1.objects import ErrorCode, GuideHint, Request, Verdict
from link1.signed import Kind, object_ref, sign_object
from link1.transport.pump import CablePump
from link1.transport.serial_port import Port, open_port
from tests.link1.cable import (
    DEVICE_KEY,
    STRANGER_KEY,
    VALIDATOR_KEY,
    Manipulator,
    device_status,
    make_device,
    mixed_faults,
    pinned,
    request,
    verdict_for,
    whole,
)
from tests.until import until
from tools.kit.c_validator.driver import CValidator, running
from tools.kit.link_pcap import Captured, Direction
from tools.kit.pty_pair import PtyPair
from tools.rig.model.traces import breaches_of

WITHIN_S = 15.0


class Spoiling:
    """A port of which every write goes through a manipulator; `packets` is what the device wrote and read."""

    def __init__(self, port: Port, manipulate: Manipulator, packets: list[Captured]) -> None:
        self._port = port
        self._manipulate = manipulate
        self._packets = packets

    def fileno(self) -> int:
        return self._port.fileno()

    def read(self, max_bytes: int) -> bytes:
        data = self._port.read(max_bytes)
        self._packets.append(Captured(0, Direction.FROM_VALIDATOR, data))
        return b"".join(self._manipulate(data)) if data else data

    def write(self, data: bytes) -> int:
        self._packets.append(Captured(0, Direction.FROM_DEVICE, data))
        for piece in self._manipulate(data):
            self._port.write(piece)
        return len(data)

    def unsent(self) -> int:
        return 0

    def close(self) -> None:
        self._port.close()


class DeviceByHand:
    """A real device end on a pump; what it answers is for the test."""

    def __init__(self, port: str, manipulate: Manipulator, **changes: Any) -> None:
        self.end: DeviceEnd = make_device(**changes)
        self.events: list[Any] = []
        self.packets: list[Captured] = []
        self._news = asyncio.Event()
        self.pump: CablePump[Any] = CablePump(
            self.end, lambda: Spoiling(open_port(port), manipulate, self.packets), on_event=self._note
        )

    def _note(self, event: Any) -> None:
        self.events.append(event)
        self._news.set()
        if isinstance(event, Proven):
            self.end.send_status(device_status())

    async def saw(self, kind: type | UnionType) -> Any:
        """The next event of a kind; what came before it is let go."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for place, event in enumerate(self.events):
                    if isinstance(event, kind):
                        del self.events[: place + 1]
                        return event
                self._news.clear()
                await self._news.wait()

    async def all_arrived(self) -> None:
        """Everything said is acknowledged."""
        await asyncio.to_thread(until, lambda: self.end.link.idle, WITHIN_S)

    def say(self, verdict: Verdict | JsonObject) -> str:
        """Send a verdict, signed as it should be unless it is a wrapper already."""
        wrapper = (
            sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
            if isinstance(verdict, Verdict)
            else verdict
        )
        assert self.end.send_verdict(wrapper)
        self.pump.kick()
        return object_ref(wrapper)


def called_with(folder: Path, port: str) -> list[str]:
    return [
        *("--port", port, "--device-pub-b64", DEVICE_KEY.public.b64, "--key-file", str(folder / "dbd.key")),
        *("--state", str(folder / "state"), "--dbd-id", "dbd-1", "--gate-id", "gate-1"),
    ]


class Setting:
    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.manipulate: Manipulator = whole

    @asynccontextmanager
    async def joined(
        self, *more: str, own_key: SigningKey = VALIDATOR_KEY, **changes: Any
    ) -> AsyncIterator[tuple[DeviceByHand, CValidator]]:
        (self.folder / "dbd.key").write_bytes(own_key.seed)
        with PtyPair(directory=self.folder) as pair:
            device = DeviceByHand(pair.left, self.manipulate, **changes)
            task = asyncio.create_task(device.pump.run())
            options = [*called_with(self.folder, pair.right), *more]
            try:
                async with running(self.program, *options) as validator:
                    yield device, validator
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def setting(program: Path, tmp_path: Path) -> Setting:
    return Setting(program, tmp_path)


async def asked(device: DeviceByHand, validator: CValidator) -> Request:
    validator.command("a")
    received: RequestReceived = await device.saw(RequestReceived)
    return received.request


async def told_verdict(validator: CValidator) -> JsonObject:
    return await validator.told("verdict", within_s=WITHIN_S)


def opened(validator: CValidator) -> int:
    return sum(line["event"] == "gate_opened" for line in validator.lines)


def test_golden_frames_and_signature(program: Path) -> None:
    done = subprocess.run([program, "--self-test"], capture_output=True, text=True, check=True)
    assert "BAD" not in done.stdout


def test_the_port_is_raw_whatever_the_last_program_left(program: Path, tmp_path: Path) -> None:
    near, far = pty.openpty()
    left = termios.tcgetattr(far)
    left[0] |= termios.IXON | termios.IXOFF | termios.IXANY | termios.INPCK
    left[2] |= termios.CRTSCTS | termios.CSTOPB
    termios.tcsetattr(far, termios.TCSANOW, left)
    (tmp_path / "dbd.key").write_bytes(VALIDATOR_KEY.seed)
    options = called_with(tmp_path, os.ttyname(far))
    running_there = subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        until(lambda: select.select([near], [], [], 0)[0], WITHIN_S)  # it has said its first RST
        found = termios.tcgetattr(far)
    finally:
        running_there.communicate(b"q", timeout=WITHIN_S)
        os.close(near)
        os.close(far)
    flow = termios.IXON | termios.IXOFF | termios.IXANY | termios.INPCK
    assert (found[0] & flow, found[2] & (termios.CRTSCTS | termios.CSTOPB)) == (0, 0)


def test_it_fits_a_small_microcontroller(program: Path) -> None:
    done = subprocess.run([program, "--sizes"], capture_output=True, text=True, check=True)
    sizes = dict(line.split() for line in done.stdout.splitlines())
    assert int(sizes["total"]) < 16 * 1024


async def test_it_opens_for_its_own_open_request_and_for_nothing_else(setting: Setting) -> None:
    async with setting.joined("--manual") as (device, validator):
        await device.saw(ReadyReceived)
        # Without a request.
        device.say(verdict_for(request(9), seq=1))
        assert (await told_verdict(validator))["said"] == "not_open"
        stale = (await device.saw(DecisionReceived)).decision
        assert (stale.actuated, stale.reason, stale.decision_seq) == (False, "stale", 1)
        # Another nonce, another time, another ttl than asked for.
        mine = await asked(device, validator)
        for seq, other in enumerate(
            (
                replace(mine, nonce_b64="A" * 22 + "=="),
                replace(mine, issued_at_ms=mine.issued_at_ms + 1),
                replace(mine, ttl_ms=mine.ttl_ms + 1),
            ),
            start=2,
        ):
            device.say(verdict_for(other, seq=seq))
            assert (await told_verdict(validator))["said"] == "mismatch"
            assert not (await device.saw(DecisionReceived)).decision.actuated
        assert opened(validator) == 0
        # The right one, and then a copy of it.
        ref = device.say(verdict_for(mine, seq=5))
        await validator.told("gate_opened", within_s=WITHIN_S)
        assert (await told_verdict(validator))["verdict_ref"] == ref
        first = await device.saw(DecisionReceived)
        assert (first.decision.actuated, first.decision.verdict_ref) == (True, ref)
        device.say(verdict_for(mine, seq=5))
        assert (await told_verdict(validator))["said"] == "repeat"
        assert (await device.saw(DecisionReceived)).wrapper == first.wrapper, "byte for byte"
        # A verdict_seq that was acted on already.
        mine = await asked(device, validator)
        device.say(verdict_for(mine, seq=5))
        assert (await told_verdict(validator))["said"] == "old_seq"
        assert opened(validator) == 0


async def test_what_it_says_breaks_no_rule_of_the_model(setting: Setting) -> None:
    """Requests, a cancel and a verdict that crosses it, as the device's port saw them."""
    async with setting.joined("--manual") as (device, validator):
        for seq in range(1, 4):
            mine = await asked(device, validator)
            if seq == 2:
                validator.command("c")
                await device.saw(CancelReceived)
            device.say(verdict_for(mine, seq=seq))
            decision: DecisionReceived = await device.saw(DecisionReceived)
            assert decision.decision.actuated is (seq != 2)
    breaches, messages = breaches_of(device.packets)
    # The verdicts of this test are not chained.
    assert [breach for breach in breaches if "prev_ref" not in breach.rule] == []
    assert messages >= 12


async def test_it_refuses_what_does_not_hold(setting: Setting) -> None:
    async with setting.joined("--manual") as (device, validator):
        mine = await asked(device, validator)
        good = verdict_for(mine)

        def signed(**changes: Any) -> JsonObject:
            return sign_object(Kind.VERDICT, good.to_obj() | changes, DEVICE_KEY)

        wrong = [
            ("bad_signature", sign_object(Kind.VERDICT, good.to_obj(), STRANGER_KEY)),
            ("bad_signature", signed() | {"signer_kid": STRANGER_KEY.kid}),
            ("bad_signature", signed() | {"verdict": good.to_obj() | {"attempts": 9}}),
            ("malformed", signed(result="SPOOF")),
            ("malformed", signed(quality_q=101)),
            ("malformed", signed(v=True)),
            ("malformed", signed() | {"more": 1}),
            ("wrong_gate", signed(gate_id="gate-2")),
            ("wrong_gate", signed(device_id="dev-2")),
        ]
        for code, wrapper in wrong:
            device.say(wrapper)
            said: ErrorReceived = await device.saw(ErrorReceived)
            assert (said.code, said.about, said.txn_id) == (code, "verdict", None)
        device.say(verdict_for(mine, accept=False, seq=2))
        assert (await told_verdict(validator))["reason"] == "not_recognised"
        assert opened(validator) == 0


async def test_what_cannot_be_read_is_answered_about_its_type_and_an_error_never(setting: Setting) -> None:
    async with setting.joined("--manual") as (device, _):
        await device.saw(ReadyReceived)
        for member in (b'"v":2', b'"v":1,"of_later":1', b'"v":true', b'"v":1,"body":[]'):
            body = b"" if b"body" in member else b'"body":{},'
            for type_ in (b"error", b"resolve"):
                text = b"{" + body + b'"type":"' + type_ + b'",' + member + b"}"
                device.end.link.send(Channel.CONTROL, Outgoing("x", text))
            device.pump.kick()
            said: ErrorReceived = await device.saw(ErrorReceived)
            assert (said.about, said.code) == (
                "resolve",
                "unsupported_version" if b"2" in member else "malformed",
            )


async def test_it_asks_a_device_that_serves_no_one_once_a_second(setting: Setting) -> None:
    async with setting.joined() as (device, validator):
        await device.saw(ReadyReceived)
        device.end.send_status(device_status(serving=False))
        device.pump.kick()
        await validator.told("status", lambda line: line["detail"] == "not serving", within_s=WITHIN_S)
        ended_at = []
        for _ in range(3):
            received: RequestReceived = await device.saw(RequestReceived)
            ended_at.append(monotonic())
            device.end.send_error(ErrorCode.EXPIRED, MessageType.REQUEST, received.request.txn_id)
            device.pump.kick()
        assert ended_at[2] - ended_at[0] > 1.9


async def test_cancelled_replaced_late_and_expired_requests(setting: Setting) -> None:
    async with setting.joined("--manual", "--ttl-ms", "500") as (device, validator):
        mine = await asked(device, validator)
        device.end.send_guide(mine.txn_id, GuideHint.CLOSER)
        device.pump.kick()
        assert (await validator.told("guide", within_s=WITHIN_S))["detail"] == "closer"
        validator.command("c")
        assert (await device.saw(CancelReceived)).txn_id == mine.txn_id
        device.say(verdict_for(mine, seq=1))
        assert not (await told_verdict(validator))["actuated"]
        older = await asked(device, validator)
        newer = await asked(device, validator)
        device.say(verdict_for(older, seq=2))
        assert (await told_verdict(validator))["said"] == "not_open"
        device.end.send_error(ErrorCode.EXPIRED, MessageType.REQUEST, newer.txn_id)
        device.pump.kick()
        await validator.told("request_ended", lambda line: line["detail"] == "expired", within_s=WITHIN_S)
        last = await asked(device, validator)
        await validator.told("request_ended", lambda line: line["detail"] == "no_answer", within_s=WITHIN_S)
        device.say(verdict_for(last, seq=3))
        assert (await told_verdict(validator))["said"] == "not_open"


def test_a_wrong_key_on_either_side_is_unpaired_and_nothing_is_served(setting: Setting) -> None:
    async def story(**changes: Any) -> None:
        async with setting.joined("--manual", **changes) as (device, validator):
            validator.command("a")
            assert (await device.saw(ErrorReceived)).code == "unpaired"
            assert not any(isinstance(event, RequestReceived) for event in device.events)

    asyncio.run(story(verdict_key=STRANGER_KEY))

    async def refused_there(**changes: Any) -> None:
        async with setting.joined("--manual", **changes) as (device, validator):
            validator.command("a")
            downs = [await device.saw(Down), await device.saw(Down)]  # by the reset of whichever end is first
            assert {down.reason for down in downs} <= {DownReason.UNPAIRED, DownReason.PEER_RESET}
            assert not any(down.proven for down in downs)
            assert not any(line["event"] == "link_up" for line in validator.lines)

    asyncio.run(refused_there(gate_id="gate-2"))
    asyncio.run(refused_there(validator_keys=pinned(STRANGER_KEY.public)))


async def test_what_became_of_these_is_answered_also_after_a_restart(setting: Setting) -> None:
    async with setting.joined("--manual", "--passage-sensor") as (device, validator):
        assert (await device.saw(ReadyReceived)).passage_sensor
        ref = device.say(verdict_for(await asked(device, validator), seq=1))
        decision = (await device.saw(DecisionReceived)).wrapper
        passage = (await device.saw(PassageReceived)).wrapper
        assert (passage["passage"]["cause"], passage["passage"]["dbd_event_seq"]) == ("giro", 1)
    async with setting.joined("--manual", "--passage-sensor") as (device, validator):
        await device.saw(ReadyReceived)
        mine = await asked(device, validator)
        device.end.send_resolve([ref, "f" * 32])
        device.pump.kick()
        assert (await device.saw(DecisionReceived)).wrapper == decision
        assert (await device.saw(PassageReceived)).wrapper == passage
        assert not any(isinstance(event, UnknownReceived) for event in device.events), "a request is open"
        device.say(verdict_for(mine, seq=2))
        assert (await device.saw(UnknownReceived)).verdict_refs == ("f" * 32,)


async def test_a_verdict_that_was_asked_about_and_then_decided_is_not_unknown(setting: Setting) -> None:
    """As after a reset: the device asks about its verdict, and gives it when the request comes again."""
    async with setting.joined("--manual") as (device, validator):
        await device.saw(ReadyReceived)

        async def decided(seq: int, *also: str) -> None:
            verdict = verdict_for(await asked(device, validator), seq=seq)
            ref = object_ref(sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY))
            device.end.send_resolve([ref, *also])
            device.pump.kick()
            await device.all_arrived()  # a verdict would overtake the resolve
            device.say(verdict)
            assert (await device.saw(DecisionReceived)).decision.actuated

        await decided(1, "f" * 32)
        assert (await device.saw(UnknownReceived)).verdict_refs == ("f" * 32,)
        await decided(2)
        await asyncio.sleep(0.3)
        assert not any(isinstance(event, UnknownReceived) for event in device.events)


async def test_with_another_key_it_has_forgotten_and_still_opens_for_no_old_verdict(setting: Setting) -> None:
    both = pinned(VALIDATOR_KEY.public, STRANGER_KEY.public)

    async def resolved(device: DeviceByHand, *refs: str) -> None:
        device.end.send_resolve(refs)
        device.pump.kick()
        await device.all_arrived()
        await asyncio.sleep(0.3)
        answers = (UnknownReceived, DecisionReceived)
        assert not any(isinstance(event, answers) for event in device.events)

    async with setting.joined("--manual") as (device, validator):
        ref = device.say(verdict_for(await asked(device, validator), seq=7))
        assert (await device.saw(DecisionReceived)).decision.decision_seq == 1
    async with setting.joined("--manual", own_key=STRANGER_KEY, validator_keys=both) as (
        device,
        validator,
    ):
        await device.saw(ReadyReceived)
        await resolved(device, ref, "f" * 32)
        device.say(verdict_for(await asked(device, validator), seq=7))
        assert (await told_verdict(validator))["said"] == "old_seq"
        assert (await device.saw(DecisionReceived)).decision.decision_seq == 1
    (setting.folder / "state").unlink()
    for option in (["--forgot"], []):
        async with setting.joined("--manual", *option) as (device, validator):
            await device.saw(ReadyReceived)
            await resolved(device, ref, "f" * 32)


async def test_a_state_file_that_is_not_as_it_was_written_is_refused(setting: Setting) -> None:
    async with setting.joined("--manual") as (device, validator):
        device.say(verdict_for(await asked(device, validator)))
        await device.saw(DecisionReceived)
    state = setting.folder / "state"
    whole_file = state.read_bytes()
    options = [*called_with(setting.folder, str(setting.folder / "absent")), "--passages", "0"]

    def started() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([setting.program, *options], capture_output=True, text=True, check=False)

    assert started().returncode == 0, "as it was written it is taken"
    rng = random.Random(8)
    for place in [*rng.sample(range(200), 30), *rng.sample(range(len(whole_file)), 20)]:
        damaged = bytearray(whole_file)
        damaged[place] ^= 1 << rng.randrange(8)
        state.write_bytes(damaged)
        done = started()
        assert (done.returncode, "restore it" in done.stderr) == (2, True), place
    state.write_bytes(whole_file[:-1])
    assert started().returncode == 2


async def test_every_verdict_is_decided_once_over_a_bad_cable(setting: Setting) -> None:
    setting.manipulate = mixed_faults(11, 0.1)
    decided: dict[str, JsonObject] = {}
    async with setting.joined() as (device, validator):
        asked = (await device.saw(RequestReceived)).request
        for seq in range(1, 21):
            txn_id = asked.txn_id
            wrapper = sign_object(Kind.VERDICT, verdict_for(asked, seq=seq).to_obj(), DEVICE_KEY)
            decision = None
            while decision is None or decision.decision_seq != seq:
                if decision is None:
                    device.end.send_verdict(wrapper)
                    device.pump.kick()
                else:
                    assert decided[decision.verdict_ref]["decision_seq"] == decision.decision_seq
                # After a reset a request comes again, and with it the moment to give the verdict again.
                event = await device.saw(DecisionReceived | RequestReceived)
                decision = event.decision if isinstance(event, DecisionReceived) else None
                asked = event.request if isinstance(event, RequestReceived) else asked
            decided[decision.verdict_ref] = decision.to_obj()
            assert decision.verdict_ref == object_ref(wrapper)
            while asked.txn_id == txn_id and seq < 20:
                asked = (await device.saw(RequestReceived)).request
    assert opened(validator) == 20
    assert sorted(answer["decision_seq"] for answer in decided.values()) == list(range(1, 21))


# ---- the same bytes, read here and there


class Judge:
    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen(
            [program, "--judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, letter: str, data: bytes) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{letter} {data.hex()}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def judge(program: Path) -> Iterator[Judge]:
    judge = Judge(program)
    try:
        yield judge
    finally:
        judge.process.communicate(timeout=WITHIN_S)
        assert judge.process.returncode == 0


def verdict_of_ours(data: bytes) -> str:
    try:
        return read_message(data, Role.DEVICE, Channel.CONTROL).type.value
    except MessageRefused as refused:
        if refused.about not in ("guide", "mail", "mail_ack", "mail_none"):
            return refused.code.value
        its_own = MessageType(refused.about)
    # What is only on the wrong channel is a readable envelope; the judge does not know the channel.
    try:
        return read_message(data, Role.DEVICE, RULES[its_own].channel).type.value
    except MessageRefused as refused:
        return refused.code.value


STRANGE = [
    b'{"v":1,"type":"hello","body":{}}',
    b' {"v":1 ,"type":\t"hello","body":{"a":[1,-2,{"b":null}]}}\r\n',
    b'{"v":1,"type":"hello","body":{"a":1,"\\u0061":2}}',
    b'{"v":1,"type":"he\\u006clo","body":{}}',
    b'{"v":1,"type":"hello","body":{"a":"\\ud83d\\ude00"}}',
    b'{"v":1,"type":"hello","body":{"a":"\\ud83d"}}',
    b'{"v":1,"type":"hello","body":{"a":"\\ude00\\ud83d"}}',
    b'{"v":1,"type":"hello","body":{"a":"\xed\xa0\x80"}}',
    b'{"v":1,"type":"hello","body":{"a":"\xc0\xaf"}}',
    b'{"v":1,"type":"hello","body":{"a":"\xf4\x90\x80\x80"}}',
    b'{"v":1,"type":"hello","body":{"a":"\xf0\x9f\x98\x80"}}',
    b'{"v":true,"type":"hello","body":{}}',
    b'{"v":2,"type":"hello"}',
    b'{"v":1,"type":"hello","body":[]}',
    b'{"v":1,"type":"later","body":{}}',
    b'{"v":1,"type":"request","body":{}}',
    b'{"v":1,"type":"hello","body":{},"x":0}',
    b'{"v":1.0,"type":"hello","body":{}}',
    b'{"v":-0,"type":"hello","body":{}}',
    b'{"v":01,"type":"hello","body":{}}',
    b'{"v":1,"type":"hello","body":{"a":9007199254740991}}',
    b'{"v":1,"type":"hello","body":{"a":9007199254740992}}',
    b'{"v":1,"type":"hello","body":{"a":-9007199254740991}}',
    b'{"v":1,"type":"hello","body":{"a":NaN}}',
    b'{"v":1,"type":"hello","body":{"a":"\n"}}',
    b'{"v":1,"type":"hello","body":{"a":' + b"[" * 14 + b"]" * 14 + b"}}",
    b'{"v":1,"type":"hello","body":{"a":' + b"[" * 15 + b"]" * 15 + b"}}",
    b'\xef\xbb\xbf{"v":1,"type":"hello","body":{}}',
    b"",
    b"[]",
    b"{}{}",
]


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if data:
                data[place % len(data)] = rng.choice(b'{}[]",:\\u0019-eE.tfn \x00\x1f\x7f\x80\xc3\xed\xff')
            case 1:
                data[place:place] = rng.choice(seeds)[: rng.randrange(24)]
            case 2:
                del data[place : place + rng.randrange(9)]
            case _:
                data[place:place] = bytes([rng.choice(b'{}[]",:\\019-eE. ')])
    return bytes(data)


def test_json_is_judged_as_the_device_s_own_reader_judges_it(judge: Judge) -> None:
    rng = random.Random(5)
    honest = [encode_message(type_, {"a": [1, "x\u00e9", {"b": None}], "c": False}) for type_ in MessageType]
    seeds = [data for data in STRANGE if data] + honest
    samples = STRANGE + honest + [mutated(rng, seeds) for _ in range(6_000)]
    wrong = [data for data in samples if data and judge.say("J", data) != expected(data)]
    assert wrong == []


def expected(data: bytes) -> str:
    ours = verdict_of_ours(data)
    return "unsupported_type" if ours in ("mail", "mail_ack", "mail_none") else ours


def test_frames_are_judged_as_the_device_s_own_decoder_judges_them(judge: Judge) -> None:
    rng = random.Random(6)
    frames = [
        Frame(FrameKind.RST, payload=bytes(8)),
        Frame(FrameKind.RSTACK, payload=bytes(range(16))),
        Frame(FrameKind.PING, sess=3),
        Frame(FrameKind.ACK, Channel.MAIL, 200, 65535),
        Frame(FrameKind.HINT, sess=1, payload=b"x" * 300),
        Frame(FrameKind.DATA, sess=9, mid=7, index=0, count=2, payload=rng.randbytes(1024)),
        Frame(FrameKind.DATA, sess=9, mid=7, index=1, count=2, payload=bytes(254)),
    ]
    whole_frames = [encode_frame(frame)[:-1] for frame in frames]
    samples = whole_frames + [bytes([1, 1, 255]) * n for n in range(1, 9)]
    for _ in range(3_000):
        spoilt = bytearray(rng.choice(whole_frames))
        for _ in range(rng.randrange(1, 3)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(1, 256)
        cut = rng.randrange(1, len(spoilt) + 1) if rng.random() < 0.3 else len(spoilt)
        samples.append(bytes(spoilt[:cut]))
    for data in samples:
        try:
            decode_frame(data)
            ours = "frame"
        except BadFrameError:
            ours = "dropped"
        assert judge.say("F", data) == ours, data.hex()
