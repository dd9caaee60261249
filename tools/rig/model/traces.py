"""Reads a capture of the cable and says where it breaks a rule of LINK/1 that the models claim.

The rules are those of `session.pml` and `passage.pml` as they can be seen from the middle of the cable. They
are written here a second time, by hand, for frames and messages as they are. A capture that breaks none
proves nothing: a rule judges what was sent, not what an end did with it. Captures are those of `palmctl link
monitor --pcap`, whole from the opening of the cable; frames may be lost after the monitor, none before it.
Signatures are not verified.

    python -m tools.rig.model.traces cable.pcap
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from link1.canonical import JsonObject, read_strict
from link1.frames import MAX_MESSAGE_BYTES, TAG_BYTES, Channel, Frame, FrameDecoder, FrameKind
from link1.signed import object_ref
from tools.kit.link_pcap import Captured, Direction, read_pcap

BEFORE_PROOFS: Final = frozenset({"hello", "prove", "error"})
_OTHER: Final = {
    Direction.FROM_DEVICE: Direction.FROM_VALIDATOR,
    Direction.FROM_VALIDATOR: Direction.FROM_DEVICE,
}
_AS_ASKED: Final = ("txn_id", "gate_id", "dbd_id", "nonce_b64", "issued_at_ms", "ttl_ms")


@dataclass(frozen=True, slots=True)
class TraceBreach:
    """A rule that packet number `packet` (from 1) breaks."""

    packet: int
    rule: str


@dataclass(slots=True)
class _Channel:
    """What one end said on one channel in one session."""

    mid: int = -1
    slices: dict[int, bytes] = field(default_factory=dict)
    count: int = 0
    acknowledged: bool = True
    heard: bool = False
    """The message of `mid` was whole once, so its ACK is due."""


@dataclass(slots=True)
class _TracedEnd:
    """One end, as far as the cable knows it."""

    tags: list[bytes] = field(default_factory=list)
    channels: dict[Channel, _Channel] = field(default_factory=dict)
    nonce: str | None = None
    proof: JsonObject | None = None
    proven: bool = False
    """Both proofs of this session have passed the monitor."""
    decoder: FrameDecoder = field(default_factory=FrameDecoder)

    def new_session(self, tag: bytes) -> None:
        self.tags.append(tag)
        self.channels = {channel: _Channel() for channel in Channel}
        self.nonce = self.proof = None
        self.proven = False


@dataclass(slots=True)
class _Answer:
    """A verdict, and what the validator said about it."""

    txn_id: str
    asked_for: bool
    """No newer request and no cancel had been sent when its first copy was."""
    decision: JsonObject | None = None
    disowned: bool = False


class CaptureReader:
    """Fed with packets in order; `breaches` grows."""

    def __init__(self) -> None:
        self.breaches: list[TraceBreach] = []
        self.messages = 0
        self._packet = 0
        self._sides = {Direction.FROM_DEVICE: _TracedEnd(), Direction.FROM_VALIDATOR: _TracedEnd()}
        self._requests: dict[str, JsonObject] = {}
        self._asked_now: set[str] = set()
        self._open: str | None = None
        self._answers: dict[str, _Answer] = {}
        self._of_txn: dict[str, str] = {}
        self._last: JsonObject | None = None
        self._decision_seqs: set[int] = set()

    def feed(self, packet: Captured) -> None:
        """Judge one packet."""
        self._packet += 1
        if packet.direction is Direction.UNKNOWN:
            return
        for frame in self._sides[packet.direction].decoder.feed(packet.data):
            self._frame(packet.direction, frame)

    def _rule(self, holds: bool, rule: str) -> None:
        if not holds:
            self.breaches.append(TraceBreach(self._packet, rule))

    # ---- frames: session.pml

    def _frame(self, sender: Direction, frame: Frame) -> None:
        me, peer = self._sides[sender], self._sides[_OTHER[sender]]
        if frame.kind in (FrameKind.RST, FrameKind.RSTACK):
            tag = frame.payload[-TAG_BYTES:]
            if not me.tags or me.tags[-1] != tag:
                self._rule(tag not in me.tags, "S1: a tag is fresh in each session")
                same = frame.kind is FrameKind.RSTACK and bool(me.tags) and me.tags[-1][0] == tag[0]
                self._rule(not same, "S1: the first byte of a fresh tag differs from the last one's")
                me.new_session(tag)
                if sender is Direction.FROM_DEVICE:
                    self._asked_now.clear()
            if frame.kind is FrameKind.RSTACK:
                self._rule(frame.payload[:TAG_BYTES] in peer.tags, "S1: RSTACK answers a tag that was sent")
            return
        known = any(tag[0] == frame.sess for tag in peer.tags)
        self._rule(bool(me.tags) and known, "S1: a frame carries the first byte of a tag of its receiver")
        if not me.tags:
            return
        if frame.kind is FrameKind.DATA:
            self._data(sender, me.channels[frame.chan], frame)
        elif frame.kind is FrameKind.ACK and peer.tags and frame.sess == peer.tags[-1][0]:
            channel = peer.channels[frame.chan]
            if frame.mid == channel.mid:
                self._rule(channel.heard, "S4: an ACK is for a message that was sent whole")
                channel.acknowledged = True
            else:
                self._rule(frame.mid < channel.mid, "S4: an ACK is for a message that was sent")

    def _data(self, sender: Direction, channel: _Channel, frame: Frame) -> None:
        if frame.mid != channel.mid:
            self._rule(frame.mid == channel.mid + 1, "S2: messages are numbered from 0, one by one")
            self._rule(channel.acknowledged, "S2: the next message waits for the ACK of the one before")
            channel.mid, channel.slices, channel.count = frame.mid, {}, frame.count
            channel.acknowledged = channel.heard = False
        before = channel.slices.setdefault(frame.index, frame.payload)
        same = before == frame.payload and frame.count == channel.count
        self._rule(same, "S2: a message that is sent again is the same")
        if len(channel.slices) == channel.count and not channel.heard:
            channel.heard = True
            text = b"".join(channel.slices[index] for index in range(channel.count))
            self._message(sender, read_strict(text, max_bytes=MAX_MESSAGE_BYTES))

    # ---- messages: the handshake

    def _message(self, sender: Direction, message: JsonObject) -> None:
        self.messages += 1
        me, peer = self._sides[sender], self._sides[_OTHER[sender]]
        type_, body = message["type"], message["body"]
        if type_ == "hello":
            self._rule(me.nonce is None, "S3: one hello in a session")
            me.nonce = body["nonce_b64"]
        elif type_ == "prove":
            proof = body["hello_obj"]
            mine = me.nonce is not None and proof["own_nonce_b64"] == me.nonce
            self._rule(mine, "S3: a proof has the nonce of the session's hello")
            me.proof = proof
            mutual = (
                peer.proof is not None
                and proof["peer_nonce_b64"] == peer.nonce
                and peer.proof["peer_nonce_b64"] == me.nonce
            )
            me.proven, peer.proven = me.proven or mutual, peer.proven or mutual
        elif type_ not in BEFORE_PROOFS:
            self._rule(me.proven, "S5: nothing is said before the proofs")
            self._passage(type_, body)

    # ---- messages: passage.pml

    def _passage(self, type_: str, body: dict[str, Any]) -> None:
        match type_:
            case "request":
                self._request(body)
            case "cancel":
                if body["txn_id"] == self._open:
                    self._open = None
            case "verdict":
                self._verdict(body)
            case "decision":
                self._decision(body)
            case "unknown":
                for ref in body["verdict_refs"]:
                    if (answer := self._answers.get(ref)) is not None:
                        decision = answer.decision
                        acted = decision is not None and decision["decision_obj"]["actuated"]
                        self._rule(not acted, "P8: `unknown` is never said of a verdict that was acted on")
                        answer.disowned = True
            case _:
                pass

    def _request(self, body: dict[str, Any]) -> None:
        txn_id = body["request"]["txn_id"]
        same = self._requests.setdefault(txn_id, body) == body
        self._rule(same, "P4: a txn_id is used for one request")
        self._asked_now.add(txn_id)
        self._open = txn_id

    def _verdict(self, body: dict[str, Any]) -> None:
        verdict, ref = body["verdict"], object_ref(body)
        txn_id = verdict["txn_id"]
        self._rule(txn_id in self._asked_now, "P5: a verdict only in a session in which it was asked for")
        asked = self._requests.get(txn_id)
        fits = asked is not None and all(verdict[name] == asked["request"][name] for name in _AS_ASKED)
        self._rule(fits, "P2: a verdict repeats its request's members")
        self._rule(self._of_txn.setdefault(txn_id, ref) == ref, "P4: one verdict for a request")
        if ref in self._answers:
            return
        self._answers[ref] = _Answer(txn_id, asked_for=self._open == txn_id)
        if self._last is not None:
            seq, before = verdict["verdict_seq"], self._last["verdict"]["verdict_seq"]
            self._rule(seq > before, "P4: verdicts in the order of their numbers, each number once")
            chained = seq != before + 1 or verdict["prev_ref"] == object_ref(self._last)
            self._rule(chained, "P4: prev_ref is that of the verdict before")
        self._last = body

    def _decision(self, body: dict[str, Any]) -> None:
        decision = body["decision_obj"]
        answer = self._answers.get(decision["verdict_ref"])
        self._rule(answer is not None, "P2: a decision is about a verdict that was sent")
        if answer is None:
            return
        self._rule(answer.txn_id == decision["txn_id"], "P2: a decision names its verdict's request")
        if answer.decision is not None:
            self._rule(answer.decision == body, "P7: a verdict has one decision")
            return
        answer.decision = body
        self._rule(decision["decision_seq"] not in self._decision_seqs, "P4: a decision_seq is used once")
        self._decision_seqs.add(decision["decision_seq"])
        if decision["actuated"]:
            self._rule(answer.asked_for, "P1: nothing opens for a request that is over")
            self._rule(not answer.disowned, "P8: nothing opens after `unknown`")


def breaches_of(packets: Iterable[Captured]) -> tuple[list[TraceBreach], int]:
    """The rules that a capture breaks, and the number of its messages. Raises FormatError."""
    reader = CaptureReader()
    for packet in packets:
        reader.feed(packet)
    return reader.breaches, reader.messages


def main() -> None:
    """Judge the captures named on the command line; exit code 1 when one breaks a rule."""
    broken = False
    for name in sys.argv[1:]:
        with Path(name).open("rb") as file:
            breaches, messages = breaches_of(read_pcap(file))
        print(f"{name}: {messages} messages, {len(breaches)} breaches")
        for breach in breaches:
            print(f"  packet {breach.packet}: {breach.rule}")
        broken = broken or bool(breaches)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
