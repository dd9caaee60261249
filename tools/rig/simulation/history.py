"""What everyone has said and done in a run, and when: the facts that the invariants are about.

Facts come from outside the programs: bytes on the cable before anything happens to them, answers of the
service's network, the service's own database, events of the validator's desk, and what the device's programs
expose after each step. Nothing is asked of the code under test that it could get wrong for both sides of a
comparison.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from link1.canonical import JsonObject, read_strict
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, TAG_BYTES, Frame, FrameDecoder, FrameKind
from link1.signed import object_ref

_PARTIAL: Final = 16


Place = tuple[int, int, int]
"""Of a message on the cable: channel, mid, and between them what the end that acknowledges it, or waits for
that, calls the session: the first byte of its own tag."""


class Arrivals:
    """What has reached one end: messages in all their slices, and ACKs."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._slices: dict[tuple[int, int, int, int], set[int]] = {}
        self.whole: set[Place] = set()
        self.acks: set[Place] = set()

    def port_opened(self) -> None:
        """What a frame had begun with is never ended."""
        self._decoder.clear()

    def feed(self, data: bytes) -> None:
        """The end reads these bytes."""
        for frame in self._decoder.feed(data):
            place = (int(frame.chan), frame.sess, frame.mid)
            if frame.kind is FrameKind.ACK:
                self.acks.add(place)
            elif frame.kind is FrameKind.DATA and place not in self.whole:
                slices = self._slices.setdefault(
                    (*place, frame.count), set()
                )  # a session's byte may come again
                slices.add(frame.index)
                if len(slices) == frame.count:
                    self.whole.add(place)
                    del self._slices[*place, frame.count]


class Tap:
    """Reads what one end writes: whole messages out of its bytes. `acks` and `begun`: what the newest bytes
    acknowledge, and the messages that begin in them."""

    def __init__(self) -> None:
        self.acks: list[Place] = []
        self.begun: list[Place] = []
        self._own, self._tag = 0, b""
        self._decoder = FrameDecoder()
        self._partial: OrderedDict[tuple[int, int, int], dict[int, bytes]] = OrderedDict()
        self._told: dict[int, tuple[int, int, bytes]] = {}
        """The newest message of each channel: only that one may be sent again."""

    def port_opened(self) -> None:
        """What a frame had begun with is never ended."""
        self._decoder.clear()

    def feed(self, data: bytes) -> list[JsonObject]:
        """The messages that `data` completes, `{type, body}`; repeats of a message are left out."""
        messages = []
        self.acks, self.begun = [], []
        for frame in self._decoder.feed(data):
            match frame.kind:
                case FrameKind.RST | FrameKind.RSTACK:
                    if (own := frame.payload[-TAG_BYTES:]) != self._tag:  # an RSTACK may be said again
                        self._told.clear()  # numbers begin again
                    self._tag, self._own = own, own[0]
                case FrameKind.ACK:
                    self.acks.append((int(frame.chan), self._own, frame.mid))
                case FrameKind.DATA:
                    if frame.index == 0:
                        self.begun.append((int(frame.chan), self._own, frame.mid))
                    messages += self._completed(frame)
                case _:
                    pass
        return messages

    def _completed(self, frame: Frame) -> list[JsonObject]:
        """The message that a slice completes, unless it was told before."""
        key = (frame.chan, frame.sess, frame.mid)
        if frame.index == 0:
            self._partial.pop(key, None)  # numbers come again: what is left of one before is not of this one
        slices = self._partial.setdefault(key, {})
        slices[frame.index] = frame.payload
        if len(slices) < frame.count:
            while len(self._partial) > _PARTIAL:
                self._partial.popitem(last=False)
            return []
        del self._partial[key]
        whole = b"".join(slices[index] for index in range(frame.count) if index in slices)
        told = (frame.sess, frame.mid, whole)
        if self._told.get(frame.chan) == told:
            return []
        self._told[frame.chan] = told
        try:
            return [read_strict(whole, max_bytes=MAX_MESSAGE_BYTES)]
        except FormatError:
            return []


@dataclass(frozen=True, slots=True)
class SeenVerdict:
    """A verdict as it was first seen, anywhere. `at_s`: the simulation's time."""

    ref: str
    seq: int
    txn_id: str
    body: JsonObject
    at_s: float


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request of the validator's."""

    txn_id: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class StreamStep:
    """The service's gallery came to this position. `live`: who may be recognised there."""

    at_s: float
    epoch: int
    seq: int
    head16: str
    live: frozenset[str]


@dataclass
class History:
    """Everything so far. Lists are in the order of things."""

    log: list[str] = field(default_factory=list)
    now_s: float = 0.0
    verdicts: dict[str, SeenVerdict] = field(default_factory=dict)
    verdict_at: dict[int, str] = field(default_factory=dict)
    """verdict_seq to verdict_ref, as first seen."""
    verdict_of: dict[str, str] = field(default_factory=dict)
    """txn_id to verdict_ref, as first seen."""
    asked: dict[str, AskedRequest] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    """txn_id of requests that the validator gave up, and why."""
    left_open_at_s: dict[str, float] = field(default_factory=dict)
    """txn_id to when the device decided, or gave the request up."""
    last_sent_ms: dict[str, float] = field(default_factory=dict)
    """txn_id to the validator's monotonic clock at its last sending."""
    ended: dict[str, str] = field(default_factory=dict)
    """txn_id to the code with which the device said that it ended."""
    ended_unkept: dict[str, int] = field(default_factory=dict)
    """Of these, those said while the disk refused to keep anything, which STORE_FAULT reports, and in which
    life of the core. That life remembers them, the next one only if the disk came back before its end."""
    actuated: dict[str, float] = field(default_factory=dict)
    """verdict_ref to when the turnstile was opened."""
    highest_actuated_seq: int = 0
    decisions: dict[str, JsonObject] = field(default_factory=dict)
    """verdict_ref to the signed decision on the cable."""
    forged: int = 0
    """Decisions that the validator never signed."""
    complaints: int = 0
    """How often the device has called a decision bad."""
    decision_at: dict[int, str] = field(default_factory=dict)
    """decision_seq to object_ref."""
    passage_at: dict[int, str] = field(default_factory=dict)
    """dbd_event_seq to object_ref."""
    steps: list[StreamStep] = field(default_factory=list)
    newest_head_at_s: float = 0.0
    """When the newest head that reached the device was issued."""
    erased: dict[str, tuple[int, int]] = field(default_factory=dict)
    """subject_ref of who was erased, to the position of the service's gallery then."""
    position: tuple[int, int] = (1, 0)
    acknowledged: tuple[int, int] = (0, 0)
    """The furthest position that the device has named to anyone."""
    in_status: tuple[int, int] = (0, 0)
    """The position in the newest status; it may have waited for the cable."""
    settled_inbox: int = 0
    """The last inbox record that the device called applied."""
    outbox: dict[int, bytes] = field(default_factory=dict)
    """The records that the validator has collected, by number."""
    durable_last: int = 0
    """verdict_seq of the newest verdict that the gate calls durable."""
    durable_refs: set[str] = field(default_factory=set)
    witness_failures: int = 0
    """How many writes of the journal's witness may have failed. Each may leave a verdict in the journal that
    is never said: it keeps its number, and the service gets it as one without an outcome."""
    visits: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """(visit, life of the core) to the numbers of the verdicts about that hand."""
    visit: int = 0
    incarnation: int = 0
    lost: set[str] = field(default_factory=set)
    """Refs of verdicts of which the service has lost something, as it was restored from a backup."""
    verdicts_said: int = 0
    """Messages with a verdict that left the device, without what the link sent again."""
    verdicts_heard: int = 0
    said_in_session: list[str] = field(default_factory=list)
    """Refs of the verdicts of this session that the validator has not heard yet, in the order said."""
    wiped: bool = False
    revoked: bool = False
    slow_s: float = 0.0
    """The longest that the disk takes for one piece of work."""
    clock_was_wrong: bool = False
    """Whether the device's wall clock has ever been wrong."""
    hidden_s: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Boot to when it was, and how much of the time before it the wall clock then hid from the device."""
    heads: dict[float, float] = field(default_factory=dict)
    """When a head was issued, to when the device first held it."""

    def say(self, who: str, what: str) -> None:
        self.log.append(f"{self.now_s:10.4f} {who:9} {what}")

    def step_at(self, epoch: int, seq: int) -> StreamStep | None:
        """The service's gallery at a position."""
        return next((step for step in reversed(self.steps) if (step.epoch, step.seq) == (epoch, seq)), None)

    def superseded_at_s(self, epoch: int, seq: int) -> float | None:
        """When the service's gallery went beyond a position; None while it has not."""
        return next((step.at_s for step in self.steps if (step.epoch, step.seq) > (epoch, seq)), None)

    def held_since_s(self, issued_s: float) -> float:
        """When the device first held the newest of the heads issued by then."""
        return max((held_s for at_s, held_s in self.heads.items() if at_s <= issued_s + 0.01), default=0.0)

    def see_verdict(self, wrapper: JsonObject) -> tuple[SeenVerdict, bool]:
        """A verdict came into sight, and whether it is new."""
        ref = object_ref(wrapper)
        known = self.verdicts.get(ref)
        if known is not None:
            return known, False
        body = wrapper["verdict"]
        seen = SeenVerdict(ref, body["verdict_seq"], body["txn_id"], body, self.now_s)
        self.verdicts[ref] = seen
        return seen, True


def short(value: Any) -> str:
    """The beginning of an identifier, for the log."""
    return str(value)[:8]
