"""A cable in memory: two real ends joined by bytes that a manipulator may damage.

Time is a number that `Cable.run` moves from deadline to deadline, so a silence of five minutes takes no
time, and nothing ever sleeps. `Script` plays one end by hand: raw frames and messages, nothing automatic.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from link1.canonical import JsonObject, b64_encode, canonical_bytes, read_strict
from link1.channels import Outgoing
from link1.device_end import DeviceEnd
from link1.envelope import RULES, MessageType, encode_message
from link1.frames import (
    MAX_PAYLOAD_BYTES,
    Channel,
    Frame,
    FrameDecoder,
    FrameKind,
    encode_frame,
)
from link1.keys import PublicKey, SigningKey
from link1.objects import (
    AppVersion,
    Decision,
    DeviceStatus,
    GalleryMark,
    MailMarks,
    Pad,
    Passage,
    Request,
    Verdict,
    VerdictResult,
)
from link1.signed import Kind, sign_object
from link1.validator.end import ValidatorEnd

DEVICE_KEY = SigningKey.from_seed(b"d" * 32)
VALIDATOR_KEY = SigningKey.from_seed(b"v" * 32)
STRANGER_KEY = SigningKey.from_seed(b"s" * 32)

Manipulator = Callable[[bytes], list[bytes]]
"""What becomes of the bytes of one frame: pieces to deliver, in order."""


class End(Protocol):
    def port_opened(self, now_ms: int) -> list[Any]: ...
    def port_closed(self, now_ms: int) -> list[Any]: ...
    def receive(self, data: bytes, now_ms: int) -> list[Any]: ...
    def tick(self, now_ms: int) -> list[Any]: ...
    def next_deadline_ms(self) -> int | None: ...
    def data_to_send(self, now_ms: int, max_bytes: int = ...) -> bytes: ...
    def sent(self, count: int, now_ms: int, in_port: int = ...) -> list[Any]: ...


def seeded(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def pinned(*keys: PublicKey) -> Callable[[str, int | None], PublicKey | None]:
    by_kid = {key.kid: key for key in keys}
    return lambda kid, _at_ms: by_kid.get(kid)


def make_device(seed: int = 1, **changes: Any) -> DeviceEnd:
    arguments: dict[str, Any] = {
        "device_id": "dev-1",
        "gate_id": "gate-1",
        "dbd_id": "dbd-1",
        "verdict_key": DEVICE_KEY,
        "validator_keys": pinned(VALIDATOR_KEY.public),
        "random": seeded(seed),
    }
    return DeviceEnd(**(arguments | changes))


def make_validator(seed: int = 2, **changes: Any) -> ValidatorEnd:
    arguments: dict[str, Any] = {
        "dbd_id": "dbd-1",
        "gate_id": "gate-1",
        "key": VALIDATOR_KEY,
        "device_keys": pinned(DEVICE_KEY.public),
        "passage_sensor": False,
        "random": seeded(seed),
    }
    return ValidatorEnd(**(arguments | changes))


def send_as(end: DeviceEnd, type_: MessageType, body: JsonObject) -> None:
    """Let a device's end say a message that it would not say itself."""
    data, channel = encode_message(type_, body), RULES[type_].channel
    if channel is None:
        end.link.send_hint(data)
    else:
        end.link.send(channel, Outgoing(type_.value, data))


def whole(data: bytes) -> list[bytes]:
    return [data]


def frames_in(data: bytes) -> list[bytes]:
    """What one write holds, cut behind each 0x00."""
    *frames, rest = data.split(b"\x00")
    return [frame + b"\x00" for frame in frames] + ([rest] if rest else [])


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def nothing(_data: bytes) -> list[bytes]:
    return []


def doubled(data: bytes) -> list[bytes]:
    return [data, data]


def damaging(seed: int, share: float) -> Manipulator:
    """Flip one bit in a share of the frames."""
    rng = random.Random(seed)

    def manipulate(data: bytes) -> list[bytes]:
        if rng.random() >= share:
            return [data]
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        return [bytes(damaged)]

    return manipulate


def mixed_faults(seed: int, share: float) -> Manipulator:
    """Damage, lose, double and cut a share of the frames, and wipe out bursts of 64 bytes."""
    rng = random.Random(seed)

    def burst(data: bytes) -> list[bytes]:
        start = rng.randrange(len(data))
        return [data[:start] + rng.randbytes(len(data[start : start + 64])) + data[start + 64 :]]

    def cut(data: bytes) -> list[bytes]:
        return [data[: rng.randrange(len(data))]]

    faults: list[Manipulator] = [damaging(seed, 1.0), nothing, doubled, cut, burst]

    def manipulate(data: bytes) -> list[bytes]:
        return rng.choice(faults)(data) if rng.random() < share else [data]

    return manipulate


@dataclass
class Cable:
    """Two ends, the bytes between them, and what each reported."""

    left: End
    right: End
    now_ms: int = 1_000
    to_right: Manipulator = whole
    to_left: Manipulator = whole
    left_events: list[Any] = field(default_factory=list)
    right_events: list[Any] = field(default_factory=list)
    on_left: Callable[[Any], None] | None = None
    on_right: Callable[[Any], None] | None = None

    def open(self) -> None:
        self.left_reports(self.left.port_opened(self.now_ms))
        self.right_reports(self.right.port_opened(self.now_ms))

    def left_reports(self, events: list[Any]) -> None:
        self.left_events += events
        for event in events:
            if self.on_left is not None:
                self.on_left(event)

    def right_reports(self, events: list[Any]) -> None:
        self.right_events += events
        for event in events:
            if self.on_right is not None:
                self.on_right(event)

    def exchange(self) -> None:
        """Carry bytes both ways until neither end has anything to say now."""
        for _ in range(10_000):
            moved = self._carry(self.left, self.right, self.to_right, self.left_reports, self.right_reports)
            moved |= self._carry(self.right, self.left, self.to_left, self.right_reports, self.left_reports)
            if not moved:
                return
        raise AssertionError("the ends never come to rest")

    def _carry(
        self,
        source: End,
        sink: End,
        manipulate: Manipulator,
        source_says: Callable[[list[Any]], None],
        sink_says: Callable[[list[Any]], None],
    ) -> bool:
        data = source.data_to_send(self.now_ms)
        if not data:
            return False
        source_says(source.sent(len(data), self.now_ms))
        for frame in frames_in(data):
            for piece in manipulate(frame):
                sink_says(sink.receive(piece, self.now_ms))
        return True

    def run(self, duration_ms: int) -> None:
        """Let time pass, stopping at every deadline of either end."""
        end_ms = self.now_ms + duration_ms
        self.exchange()
        while self.now_ms < end_ms:
            deadlines = [
                d for d in (self.left.next_deadline_ms(), self.right.next_deadline_ms()) if d is not None
            ]
            self.now_ms = max(self.now_ms + 1, min([end_ms, *deadlines]))
            self.left_reports(self.left.tick(self.now_ms))
            self.right_reports(self.right.tick(self.now_ms))
            self.exchange()

    def cut(self) -> None:
        self.to_left = self.to_right = nothing

    def mend(self) -> None:
        self.to_left = self.to_right = whole


@dataclass
class Script:
    """One end played by hand against a real one: what it says is said exactly so."""

    end: End
    tag: bytes = b"\x5a" * 8
    now_ms: int = 1_000
    events: list[Any] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    peer_tag: bytes = b""
    auto_ack: bool = True
    next_mid: dict[Channel, int] = field(default_factory=dict)
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    parts_of: dict[tuple[Channel, int], dict[int, bytes]] = field(default_factory=dict)
    messages: list[bytes] = field(default_factory=list)
    hints: list[bytes] = field(default_factory=list)

    def open(self) -> None:
        """Both ends open; the handshake of tags is done, nothing is said yet by this end."""
        self.events += self.end.port_opened(self.now_ms)
        self.pump()
        self.say(Frame(FrameKind.RST, payload=self.tag))
        rst = [frame for frame in self.frames if frame.kind is FrameKind.RST][-1]
        self.peer_tag = rst.payload
        self.say(Frame(FrameKind.RSTACK, payload=self.peer_tag + self.tag))

    def say(self, *frames: Frame) -> None:
        for frame in frames:
            self.events += self.end.receive(encode_frame(frame), self.now_ms)
        self.pump()

    def pump(self) -> None:
        """Take everything the end has to say now."""
        while data := self.end.data_to_send(self.now_ms):
            self.events += self.end.sent(len(data), self.now_ms)
            for frame in self.decoder.feed(data):
                self._take(frame)

    def _take(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind is FrameKind.HINT:
            self.hints.append(frame.payload)
        if frame.kind is not FrameKind.DATA:
            return
        parts = self.parts_of.setdefault((frame.chan, frame.mid), {})
        parts[frame.index] = frame.payload
        if len(parts) == frame.count and self.auto_ack:
            del self.parts_of[frame.chan, frame.mid]
            self.messages.append(b"".join(parts[i] for i in range(frame.count)))
            self.events += self.end.receive(
                encode_frame(Frame(FrameKind.ACK, frame.chan, self.peer_tag[0], frame.mid)), self.now_ms
            )

    def send(self, type_: str, body: Any, channel: Channel = Channel.CONTROL) -> None:
        self.send_raw(canonical_bytes({"v": 1, "type": type_, "body": body}), channel)

    def send_raw(self, data: bytes, channel: Channel = Channel.CONTROL) -> None:
        mid = self.next_mid.get(channel, 0)
        self.next_mid[channel] = mid + 1
        self.say(*self.frames_of(data, mid, channel))

    def frames_of(self, data: bytes, mid: int, channel: Channel = Channel.CONTROL) -> Iterator[Frame]:
        slices = [data[i : i + MAX_PAYLOAD_BYTES] for i in range(0, len(data), MAX_PAYLOAD_BYTES)]
        for index, piece in enumerate(slices):
            yield Frame(FrameKind.DATA, channel, self.peer_tag[0], mid, index, len(slices), piece)

    def acknowledge(self, channel: Channel = Channel.CONTROL) -> None:
        """Acknowledge the newest message that came whole on the channel."""
        mids = [frame.mid for frame in self.frames if (frame.kind, frame.chan) == (FrameKind.DATA, channel)]
        if mids:
            self.say(Frame(FrameKind.ACK, channel, self.peer_tag[0], mids[-1]))

    def after(self, duration_ms: int) -> None:
        """Let time pass in steps of 50 ms, staying alive with a PONG now and then."""
        for _ in range(0, duration_ms, 50):
            self.now_ms += 50
            self.events += self.end.tick(self.now_ms)
            if self.peer_tag and self.now_ms % 500 == 0:
                self.events += self.end.receive(
                    encode_frame(Frame(FrameKind.PONG, sess=self.peer_tag[0])), self.now_ms
                )
            self.pump()

    def take_messages(self) -> list[tuple[str, JsonObject]]:
        """The messages received since the last call, as (type, body)."""
        read = [read_strict(message, max_bytes=4096) for message in self.messages]
        taken = [(message["type"], message["body"]) for message in read]
        self.messages.clear()
        return taken

    def take_frames(self) -> list[Frame]:
        taken, self.frames = self.frames, []
        return taken


def request(number: int = 1, **changes: Any) -> Request:
    values: dict[str, Any] = {
        "txn_id": f"{number:032x}",
        "gate_id": "gate-1",
        "dbd_id": "dbd-1",
        "nonce_b64": "AAAAAAAAAAAAAAAAAAAAAA==",
        "issued_at_ms": 1_700_000_000_000,
        "ttl_ms": 15_000,
    }
    return Request(**(values | changes))


def verdict_for(asked: Request, seq: int = 1, accept: bool = True, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "txn_id": asked.txn_id,
        "gate_id": asked.gate_id,
        "dbd_id": asked.dbd_id,
        "nonce_b64": asked.nonce_b64,
        "issued_at_ms": asked.issued_at_ms,
        "ttl_ms": asked.ttl_ms,
        "decided_at_ms": asked.issued_at_ms + 900,
        "device_id": "dev-1",
        "result": VerdictResult.MATCH if accept else VerdictResult.NO_MATCH,
        "verdict_seq": seq,
        "prev_ref": "0" * 32,
        "score_q": 8_200 if accept else 2_100,
        "margin_q": 4_000,
        "quality_q": 88,
        "pad": Pad("pass", "texture", 9_000),
        "attempts": 1,
        "model_id": "palm-1",
        "thr_id": "thr-1",
        "gallery": GalleryMark("main", 1, 7, "0" * 16),
        "subject_ref": "5" * 32 if accept else None,
        "hand": "R" if accept else None,
    }
    return Verdict(**(values | changes))


def device_status(**changes: Any) -> DeviceStatus:
    values: dict[str, Any] = {
        "device_id": "dev-1",
        "nonce_b64": "",
        "serving": True,
        "health": ("KEY_UNATTESTED",),
        "app": AppVersion("palm-access-device", "0.1.0"),
        "model_id": "palm-1",
        "thr_id": "thr-1",
        "gallery": GalleryMark("main", 1, 7, "0" * 16),
        "last": None,
        "mail": MailMarks(0, 0, 0),
        "at_ms": 1_700_000_000_000,
    }
    return DeviceStatus(**(values | changes))


def decision_for(verdict: Verdict, verdict_ref: str, seq: int = 1, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "txn_id": verdict.txn_id,
        "gate_id": verdict.gate_id,
        "dbd_id": verdict.dbd_id,
        "nonce_b64": verdict.nonce_b64,
        "verdict_ref": verdict_ref,
        "reason": "ok",
        "outcome": "LIBERAR",
        "actuated": True,
        "decision_seq": seq,
        "decided_at_ms": 1_700_000_001_000,
    }
    return Decision(**(values | changes))


def passage_for(verdict: Verdict, verdict_ref: str, seq: int = 1, **changes: Any) -> Passage:
    values: dict[str, Any] = {
        "txn_id": verdict.txn_id,
        "dbd_id": verdict.dbd_id,
        "gate_id": verdict.gate_id,
        "verdict_ref": verdict_ref,
        "passed": True,
        "cause": "giro",
        "at_ms": 1_700_000_002_000,
        "dbd_event_seq": seq,
    }
    return Passage(**(values | changes))


# ---- the validator's side of a handshake, played by hand

NONCE = b64_encode(b"n" * 32)


def hello(**changes: Any) -> JsonObject:
    body: JsonObject = {
        "role": "validator",
        "id": "dbd-1",
        "gate_id": "gate-1",
        "kid": VALIDATOR_KEY.kid,
        "nonce_b64": NONCE,
    }
    return body | changes


def proof(device_hello: JsonObject, key: SigningKey = VALIDATOR_KEY, **changes: Any) -> JsonObject:
    hello_obj: JsonObject = {
        "v": 1,
        "role": "validator",
        "id": "dbd-1",
        "gate_id": "gate-1",
        "peer_id": "dev-1",
        "own_nonce_b64": NONCE,
        "peer_nonce_b64": device_hello["nonce_b64"],
    }
    return sign_object(Kind.HELLO, hello_obj | changes, key)


def greeted(**changes: Any) -> tuple[Script, JsonObject]:
    """A device whose hello has come, and that hello."""
    script = Script(make_device(**changes))
    script.open()
    ((type_, body),) = script.take_messages()
    assert type_ == "hello"
    return script, body


def proven() -> Script:
    script, body = greeted()
    script.send("hello", hello())
    script.send("prove", proof(body))
    script.take_messages()
    script.events.clear()
    return script
