"""The other end of the cable, driven step by step: it follows LINK/1 until a rule makes it misbehave.

A `ConformancePeer` keeps a session alive by itself (RSTACK, ACK, PONG, PING), and each of these can be
switched off. `heard` lists every received frame, with the message that the frame completed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.channels import slices_of
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, TAG_BYTES, Frame, FrameDecoder, FrameKind
from link1.link import RandomSource
from tools.kit.conform.cable_line import CableLine
from tools.kit.raw_frames import raw_frame

PING_EVERY_MS = 400
SAY_AGAIN_MS = 400
SAY_TIMES = 3
ANSWER_MS = 1_500
"""How long an answer that needs no person may take, on a machine under load."""
HEARTBEAT_PONG_MS = 300
"""How long the PONG of a heartbeat is waited for before the next PING is counted by itself."""
OPEN_MS = 4_000
"""RST is answered at once, and one is sent every 500 ms: an end that is there has answered by then."""


class Broken(Exception):
    """A rule does not hold; the text says what was found."""


class NotTried(Exception):
    """A rule cannot be tried here; the text says what to do so that it can."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One frame of the other end; `message` when it completed one, None inside when it was unreadable."""

    at_ms: int
    frame: Frame
    data: bytes | None = None
    type: str = ""
    body: JsonObject = field(default_factory=dict)


Wanted = Callable[[Heard], bool]


@dataclass
class ConformancePeer:
    """See the module's docstring. `random` gives tags and nonces; a fixed one makes a run repeatable."""

    line: CableLine
    random: RandomSource
    auto_ack: bool = True
    auto_pong: bool = True
    auto_ping: bool = True
    auto_rstack: bool = True
    heard: list[Heard] = field(default_factory=list)
    own_tag: bytes = b"\x00" * TAG_BYTES
    peer_tag: bytes = b""
    not_canonical: list[str] = field(default_factory=list)
    errors: list[JsonObject] = field(default_factory=list)
    """Bodies of every error of the run, in all sessions."""
    decisions: list[JsonObject] = field(default_factory=list)
    """Bodies of every decision of the run, in all sessions, repeats too."""
    _pongs_owed: int = 0
    _decoder: FrameDecoder = field(default_factory=FrameDecoder)
    _next_mid: dict[int, int] = field(default_factory=dict)
    _expected: dict[int, int] = field(default_factory=dict)
    _parts: dict[int, dict[int, Frame]] = field(default_factory=dict)
    _last_sent_ms: int = 0

    # ---- sessions

    def open(self, *, acks: bool = True, within_ms: int = OPEN_MS) -> None:
        """Begin a new session: fresh tag, RST, until RSTACK. Raises Broken when none comes."""
        self.auto_pong = self.auto_ping = self.auto_rstack = True
        self.auto_ack = acks
        self._begin(b"")
        self.heard.clear()
        self.write(b"\x00")
        deadline_ms = self.now_ms + within_ms
        while self.now_ms < deadline_ms:
            self.write(raw_frame(FrameKind.RST, payload=self.own_tag))
            if self.wait(self._is_rstack, 500) is not None:
                return
        raise Broken(f"no RSTACK to our RST within {within_ms} ms")

    def _is_rstack(self, heard: Heard) -> bool:
        return heard.frame.kind is FrameKind.RSTACK and heard.frame.payload[:TAG_BYTES] == self.own_tag

    def _begin(self, peer_tag: bytes) -> None:
        """Forget the session; a fresh tag of ours, and the peer's if it is known."""
        tag = self.random(TAG_BYTES)
        if tag[0] in (self.own_tag[0], 0):
            tag = bytes((self.own_tag[0] % 254 + 1,)) + tag[1:]
        self.own_tag, self.peer_tag = tag, peer_tag
        self._next_mid.clear()
        self._expected.clear()
        self._parts.clear()
        self._pongs_owed = 0

    # ---- saying

    @property
    def now_ms(self) -> int:
        return self.line.now_ms()

    @property
    def sess(self) -> int:
        """What our frames carry: the first byte of the other end's tag."""
        return self.peer_tag[0] if self.peer_tag else 0

    def write(self, data: bytes) -> None:
        self._last_sent_ms = self.now_ms
        self.line.write(data)

    def frame(self, kind: int, **members: Any) -> None:
        """One frame of this session, with any members."""
        if kind == FrameKind.PING and not members:
            self._pongs_owed += 1
        self.write(raw_frame(kind, **({"sess": self.sess} | members)))

    def next_mid(self, channel: int = 0) -> int:
        return self._next_mid.get(channel, 0)

    def expected_mid(self, channel: int = 0) -> int:
        """The mid of the other end's next message: that after the last one acknowledged."""
        return self._expected.get(channel, 0)

    def take_mid(self, channel: int = 0) -> int:
        """Use up the mid of our next message."""
        mid = self.next_mid(channel)
        self._next_mid[channel] = mid + 1
        return mid

    def fragments(self, data: bytes, mid: int, channel: int = 0) -> list[bytes]:
        """The frames of a message, not sent yet."""
        slices = slices_of(data)
        return [
            raw_frame(
                FrameKind.DATA,
                chan=channel,
                sess=self.sess,
                mid=mid,
                index=index,
                count=len(slices),
                payload=piece,
            )
            for index, piece in enumerate(slices)
        ]

    def say(self, type_: str, body: Any, channel: int = 0) -> int:
        """Send a message and wait for its ACK; the mark of what was heard before it."""
        return self.say_bytes(canonical_bytes({"v": 1, "type": type_, "body": body}), channel)

    def say_bytes(self, data: bytes, channel: int = 0) -> int:
        """Send any bytes as a message and wait for the ACK; raises Broken when none comes."""
        mark, mid = len(self.heard), self.next_mid(channel)
        frames = b"".join(self.fragments(data, self.take_mid(channel), channel))
        for _ in range(SAY_TIMES):
            self.write(frames)
            if self.acked(mid, SAY_AGAIN_MS, mark, channel):
                return mark
        raise Broken(f"no ACK of message {mid} on channel {channel} after {SAY_TIMES} transmissions")

    def push(self, data: bytes) -> None:
        """Send any bytes as a message once, without waiting for anything."""
        self.write(b"".join(self.fragments(data, self.take_mid(0), 0)))

    def acked(self, mid: int, within_ms: int, since: int = 0, channel: int = 0) -> bool:
        def wanted(heard: Heard) -> bool:
            frame = heard.frame
            return frame.kind is FrameKind.ACK and frame.mid == mid and frame.chan == channel

        return self.wait(wanted, within_ms, since) is not None

    def resume_acks(self) -> None:
        """Acknowledge again, first of all what was heard whole and is not acknowledged yet."""
        self.auto_ack = True
        for heard in self.heard:
            channel, mid = heard.frame.chan, heard.frame.mid
            whole = heard.frame.kind is FrameKind.DATA and heard.data is not None
            if whole and mid == self.expected_mid(channel):
                self._expected[channel] = mid + 1
                self.frame(FrameKind.ACK, chan=channel, mid=mid)

    # ---- hearing

    @property
    def mark(self) -> int:
        """Where `heard` ends now, to look only at what comes after."""
        return len(self.heard)

    def wait(self, wanted: Wanted, within_ms: int, since: int | None = None) -> Heard | None:
        """The first entry from `since` (default: from now) on that `wanted` takes; None when none came."""
        position = len(self.heard) if since is None else since
        deadline_ms = self.now_ms + within_ms
        while True:
            while position < len(self.heard):
                if wanted(self.heard[position]):
                    return self.heard[position]
                position += 1
            if self.now_ms >= deadline_ms and not self._step(self.now_ms):
                return None
            self._step(deadline_ms)

    def message(self, type_: str, within_ms: int = ANSWER_MS, since: int | None = None) -> Heard | None:
        """The next message of a type."""
        return self.wait(lambda heard: heard.type == type_, within_ms, since)

    def ping(self) -> None:
        """Send a PING and wait for its PONG, and not for that of one of our heartbeats. Raises Broken."""
        pinging, self.auto_ping = self.auto_ping, False
        deadline_ms = self.now_ms + HEARTBEAT_PONG_MS
        while self._pongs_owed and self.now_ms < deadline_ms:
            self._step(deadline_ms)
        self._pongs_owed = 0
        mark = self.mark
        self.frame(FrameKind.PING)
        answered = self.wait(lambda h: h.frame.kind is FrameKind.PONG, ANSWER_MS, mark)
        self.auto_ping = pinging
        if answered is None:
            raise Broken(f"a PING in the session is not answered within {ANSWER_MS} ms")

    def listen(self, duration_ms: int) -> None:
        """Let time pass, staying alive."""
        self.wait(lambda _heard: False, duration_ms)

    def _step(self, deadline_ms: int) -> bool:
        """Read once, not longer than until the deadline; True when something came."""
        until_ms = deadline_ms
        if self.auto_ping and self.peer_tag:
            if self.now_ms - self._last_sent_ms >= PING_EVERY_MS:
                self.frame(FrameKind.PING)
            until_ms = min(until_ms, self._last_sent_ms + PING_EVERY_MS)
        data = self.line.read(until_ms)
        for frame in self._decoder.feed(data):
            self._take(frame)
        return bool(data)

    def _take(self, frame: Frame) -> None:
        at_ms = self.now_ms
        if frame.kind is FrameKind.RST:
            self._take_rst(frame)
        elif frame.kind is FrameKind.RSTACK:
            if frame.payload[:TAG_BYTES] == self.own_tag:
                self.peer_tag = frame.payload[TAG_BYTES:]
        elif frame.sess != self.own_tag[0]:
            return  # what an honest end drops: of an earlier session
        elif frame.kind is FrameKind.PING and self.auto_pong:
            self.frame(FrameKind.PONG)
        elif frame.kind is FrameKind.PONG:
            self._pongs_owed = max(0, self._pongs_owed - 1)
        data = frame.payload if frame.kind is FrameKind.HINT else None
        if frame.kind is FrameKind.DATA:
            data = self._assemble(frame)
        type_, body = self._read(data) if data is not None else ("", {})
        heard = Heard(at_ms, frame, data, type_, body)
        if type_ == "error":
            self.errors.append(body)
        elif type_ == "decision":
            self.decisions.append(body)
        self.heard.append(heard)

    def _take_rst(self, frame: Frame) -> None:
        if not self.auto_rstack:
            return
        if frame.payload != self.peer_tag:
            # Our own RST may be unanswered: then our tag stays.
            if self.peer_tag:
                self._begin(frame.payload)
            else:
                self.peer_tag = frame.payload
        self.write(raw_frame(FrameKind.RSTACK, payload=frame.payload + self.own_tag))

    def _assemble(self, frame: Frame) -> bytes | None:
        """The message that a fragment completes, once; ACKs it, and a repeated one again."""
        expected = self._expected.get(frame.chan, 0)
        if frame.mid != expected:
            if frame.mid < expected and self.auto_ack:
                self.frame(FrameKind.ACK, chan=frame.chan, mid=frame.mid)
            return None
        parts = self._parts.setdefault(frame.chan, {})
        if any(part.count != frame.count for part in parts.values()):
            return None  # dropped whole, as any end drops it
        parts[frame.index] = frame
        if len(parts) < frame.count:
            return None
        del self._parts[frame.chan]
        if self.auto_ack:
            self._expected[frame.chan] = expected + 1
            self.frame(FrameKind.ACK, chan=frame.chan, mid=frame.mid)
        return b"".join(parts[index].payload for index in range(frame.count))

    def _read(self, data: bytes) -> tuple[str, JsonObject]:
        """Type and body of a message; what is not RFC 8785 of an envelope is noted for the rule on that."""
        try:
            obj = read_strict(data, max_bytes=MAX_MESSAGE_BYTES)
            type_, body = obj["type"], obj["body"]
            if canonical_bytes({"v": 1, "type": type_, "body": body}) != data:
                self.not_canonical.append(str(type_))
            if isinstance(type_, str) and isinstance(body, dict):
                return type_, body
        except (FormatError, KeyError) as error:
            self.not_canonical.append(f"unreadable: {type(error).__name__}")
        return "", {}
