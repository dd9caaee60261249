"""What the real ends say to each other, judged by the rules of the models; and captures that break them."""

import io
from collections.abc import Callable
from typing import Any

import pytest

from link1.canonical import canonical_bytes, read_strict
from link1.frames import Channel, Frame, FrameDecoder, FrameKind, encode_frame
from tests.link1.cable import Manipulator, frames_in, mixed_faults, whole
from tests.tools.conform_ends import SimulatedDevice, SimulatedValidator, device, validator
from tools.kit.link_pcap import Captured, Direction, PcapWriter, read_pcap
from tools.rig.model.traces import breaches_of

DEVICE, VALIDATOR = Direction.FROM_DEVICE, Direction.FROM_VALIDATOR
HAND_EVERY_MS, HAND_STAYS_MS, TICK_MS = 2_500, 900, 50


class Site:
    """The real device end and engine, the real desk, a cable with faults, and a monitor in the middle."""

    def __init__(self, faults: Manipulator = whole) -> None:
        self.device: SimulatedDevice = device()
        self.validator: SimulatedValidator = validator()
        self.faults = faults
        self.now_ms = 1_000
        self.packets: list[Captured] = []
        self.device.port_opened(self.now_ms)
        self.validator.port_opened(self.now_ms)

    def run(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, TICK_MS):
            self.now_ms += TICK_MS
            if self.now_ms % HAND_EVERY_MS == 0:
                self.device.hand_comes(self.now_ms, HAND_STAYS_MS)
            self.device.tick(self.now_ms)
            self.validator.tick(self.now_ms)
            while self._carry(self.device, self.validator, DEVICE) | self._carry(
                self.validator, self.device, VALIDATOR
            ):
                pass

    def _carry(self, source: Any, sink: Any, direction: Direction) -> bool:
        data = source.data_to_send(self.now_ms)
        if not data:
            return False
        source.sent(len(data), self.now_ms)
        for frame in frames_in(data):
            if frame != b"\x00":
                self.packets.append(Captured(self.now_ms * 1_000, direction, frame))
            for piece in self.faults(frame):
                sink.receive(piece, self.now_ms)
        return True

    def restart_device(self) -> None:
        self.device = self.device.restarted()
        self.device.port_opened(self.now_ms)

    def restart_validator(self) -> None:
        self.validator = self.validator.restarted()
        self.validator.port_opened(self.now_ms)


def test_a_sound_cable_breaks_no_rule() -> None:
    site = Site()
    site.run(20_000)
    assert len(site.device.verdicts) >= 6
    assert breaches_of(site.packets)[0] == []


@pytest.mark.parametrize("seed", range(4))
def test_damage_and_restarts_break_no_rule(seed: int) -> None:
    site = Site(mixed_faults(seed, 0.08))
    for turn in range(6):
        site.run(9_000 + 700 * seed)
        (site.restart_device if (turn + seed) % 2 else site.restart_validator)()
    site.run(9_000)
    assert len(site.device.verdicts) >= 8
    breaches, messages = breaches_of(site.packets)
    assert breaches == []
    assert messages > 60


def test_a_capture_is_judged_from_its_file() -> None:
    site = Site()
    site.run(6_000)
    file = io.BytesIO()
    writer = PcapWriter(file)
    for packet in site.packets:
        writer.write(packet)
    file.seek(0)
    assert breaches_of(read_pcap(file))[0] == []


# ---- captures in which a rule is broken

Packets = list[Captured]


def frame_of(packet: Captured) -> Frame:
    return FrameDecoder().feed(packet.data)[0]


def said(packet: Captured) -> dict[str, Any] | None:
    """The message of a packet that holds a whole one."""
    frame = frame_of(packet)
    if frame.kind is not FrameKind.DATA or frame.chan is not Channel.CONTROL or frame.count != 1:
        return None
    return read_strict(frame.payload, max_bytes=4096)


def rewritten(
    type_: str, change: Callable[[dict[str, Any]], None], *, place: int = 0
) -> Callable[[Packets], Packets]:
    """The `place`-th message of a type, changed."""

    def spoil(packets: Packets) -> Packets:
        at = [n for n, packet in enumerate(packets) if (said(packet) or {}).get("type") == type_][place]
        frame, message = frame_of(packets[at]), said(packets[at])
        assert message is not None
        change(message["body"])
        data = encode_frame(
            Frame(frame.kind, frame.chan, frame.sess, frame.mid, 0, 1, canonical_bytes(message))
        )
        return [*packets[:at], Captured(0, packets[at].direction, data), *packets[at + 1 :]]

    return spoil


def without(kind: FrameKind) -> Callable[[Packets], Packets]:
    return lambda packets: [packet for packet in packets if frame_of(packet).kind is not kind]


def without_type(type_: str) -> Callable[[Packets], Packets]:
    return lambda packets: [packet for packet in packets if (said(packet) or {}).get("type") != type_]


def verdict_number(seq: int) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["verdict"].update(verdict_seq=seq)


SPOILT: dict[str, Callable[[Packets], Packets]] = {
    "S2: the next message waits for the ACK": without(FrameKind.ACK),
    "S2: messages are numbered": without_type("hello"),
    "S3: a proof has the nonce": rewritten("prove", lambda b: b["hello_obj"].update(own_nonce_b64="A" * 44)),
    "S5: nothing is said before": rewritten(
        "prove", lambda b: b["hello_obj"].update(peer_nonce_b64="A" * 44)
    ),
    "P2: a verdict repeats": rewritten("verdict", lambda b: b["verdict"].update(ttl_ms=1_000)),
    "P4: verdicts in the order": rewritten("verdict", verdict_number(1), place=2),
    "P4: prev_ref": rewritten("verdict", lambda b: b["verdict"].update(prev_ref="e" * 32), place=2),
    "P5: a verdict only in": rewritten("request", lambda b: b["request"].update(txn_id="f" * 32), place=2),
    "P2: a decision is about": rewritten(
        "decision", lambda b: b["decision_obj"].update(verdict_ref="e" * 32)
    ),
    "P4: a decision_seq": rewritten("decision", lambda b: b["decision_obj"].update(decision_seq=1), place=1),
}


@pytest.mark.parametrize("rule", SPOILT)
def test_a_capture_that_breaks_a_rule_is_refused(rule: str) -> None:
    site = Site()
    site.run(12_000)
    breaches, _ = breaches_of(SPOILT[rule](site.packets))
    assert any(breach.rule.startswith(rule) for breach in breaches), breaches[:5]
