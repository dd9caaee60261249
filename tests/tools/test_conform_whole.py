"""The conformance test is whole and just: every rule has an end that breaks it, and lawful ends pass.

Ends are the real ones with one thing changed, in simulated time. A faulty end is tried with the rules that it
has to fail; a lawful one with every rule, and has to pass them all.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import link1.channels
import link1.device_end
import link1.envelope
import link1.handshake
import link1.link
import link1.session
import link1.validator.end
from device.passage.decision import build_verdict
from device.passage.effects import SendError, SendVerdict
from device.passage.engine import TransactionEngine
from link1.bodies import Hello
from link1.canonical import JsonObject, b64_decode, b64_encode, canonical_bytes
from link1.channels import ChannelReceiver, ChannelSender, Outgoing, Taken
from link1.device_end import DeviceEnd
from link1.envelope import Message, MessageRefused, MessageType, Role
from link1.errors import FormatError
from link1.events import ErrorReceived, Proven, RequestReceived
from link1.frames import Channel, Frame, FrameDecoder, FrameKind, cobs_decode, encode_frame
from link1.handshake import Handshake, HandshakeInput, HandshakeState
from link1.keys import PublicKey
from link1.link import Link
from link1.objects import DeviceStatus, ErrorCode, Verdict
from link1.session import Session
from link1.signed import Kind, object_ref, sign_object, verify_object
from link1.validator.desk import TurnDue
from link1.validator.end import ValidatorEnd
from link1.validator.events import StatusReceived, VerdictReceived
from link1.validator.memory import DeskMemory
from tests.tools import conform_ends
from tests.tools.conform_ends import (
    DEVICE_KEY,
    VALIDATOR_KEY,
    SimulatedDevice,
    SimulatedValidator,
    bench_for,
    findings_of,
    not_passed,
    validator,
)
from tools.kit.conform.common_sessions import GROUP_ORDER
from tools.kit.conform.rules import RuleFinding, RuleResult
from tools.kit.conform.runner import rules_for, run_rules
from tools.kit.golden.values import status_of
from tools.kit.raw_frames import raw_frame

Patch = pytest.MonkeyPatch
End = SimulatedDevice | SimulatedValidator
Said = list[tuple[MessageType, Mapping[str, Any]]]
DEVICE, VALIDATOR = Role.DEVICE, Role.VALIDATOR
WALL_MS = conform_ends.WALL_MS


def tried(end: End, ids: set[str], *, sensor: bool = False) -> dict[str, RuleFinding]:
    role = DEVICE if isinstance(end, SimulatedDevice) else VALIDATOR
    rules = [rule for rule in rules_for(role) if rule.id in ids]
    return {f.rule.id: f for f in run_rules(bench_for(end, sensor=sensor), rules)}


# ---- ends that say something else than they should


def session(kind: type[Session]) -> Callable[[Patch], None]:
    def change(patch: Patch) -> None:
        patch.setattr(link1.device_end, "Session", kind)
        patch.setattr(link1.validator.end, "Session", kind)

    return change


def saying(rewrite: Callable[[MessageType, Mapping[str, Any]], Said]) -> Callable[[Patch], None]:
    """An end whose every message goes through `rewrite`."""

    class Rewriting(Session):
        def _send(self, type_: MessageType, body: Mapping[str, Any], token: str | None) -> bool:
            say = super()._send
            sent = [say(*said, token) for said in rewrite(type_, body)]
            return all(sent)

    return session(Rewriting)


def without(type_: str, **members: Any) -> Callable[[Patch], None]:
    """An end that never says this type with these members."""

    def rewrite(said: MessageType, body: Mapping[str, Any]) -> Said:
        silent = said == type_ and all(body.get(name) == value for name, value in members.items())
        return [] if silent else [(said, body)]

    return saying(rewrite)


def with_members(type_: str, when: Mapping[str, Any] = {}, **members: Any) -> Callable[[Patch], None]:
    """An end that says these members in every message of a type, where it would say those of `when`."""

    def rewrite(said: MessageType, body: Mapping[str, Any]) -> Said:
        meant = said == type_ and all(body.get(name) == value for name, value in when.items())
        return [(said, {**body, **members} if meant else body)]

    return saying(rewrite)


def instead_of_error(code: str, about: str, type_: str, body: JsonObject) -> Callable[[Patch], None]:
    def rewrite(said: MessageType, its: Mapping[str, Any]) -> Said:
        meant = said == "error" and (its["code"], its["about"]) == (code, about)
        return [(MessageType(type_), body) if meant else (said, its)]

    return saying(rewrite)


def twice(type_: str) -> Callable[[Patch], None]:
    return saying(lambda said, body: [(said, body)] * (2 if said.startswith(type_) else 1))


def spoilt(type_: str) -> Callable[[Patch], None]:
    """An end whose signature over this type does not hold."""

    def rewrite(said: MessageType, body: Mapping[str, Any]) -> Said:
        return [(said, {**body, "sig_b64": "A" * 86 + "=="} if said == type_ else body)]

    return saying(rewrite)


def resigned(type_: str, change: Callable[[JsonObject], JsonObject]) -> Callable[[Patch], None]:
    """An end that signs something else than it should in messages of this type."""
    keys = {key.kid: key for key in (DEVICE_KEY, VALIDATOR_KEY)}

    def rewrite(said: MessageType, body: Mapping[str, Any]) -> Said:
        kind = link1.envelope.RULES[said].signed
        if said != type_ or kind is None:
            return [(said, body)]
        return [(said, sign_object(kind, change(body[kind.member]), keys[body["signer_kid"]]))]

    return saying(rewrite)


def lacking(name: str) -> Callable[[JsonObject], JsonObject]:
    return lambda obj: {member: value for member, value in obj.items() if member != name}


def envelope_with_true(patch: Patch) -> None:
    def encode(type_: MessageType, body: Mapping[str, Any]) -> bytes:
        return canonical_bytes({"v": True, "type": type_.value, "body": dict(body)})

    patch.setattr(link1.session, "encode_message", encode)


# ---- ends that take frames which they should drop


class Eager(SimulatedDevice):
    """Answers by the header of whatever comes, before it looks at the rest."""

    injected: bytes = b""
    peer_tag: bytes = bytes(8)

    def receive(self, data: bytes, now_ms: int) -> None:
        super().receive(data, now_ms)
        for piece in data.split(b"\x00"):
            raw = cobs_decode(piece) if piece else None
            if raw is not None and len(raw) > 8:
                self.peer_tag = raw[8:16] if raw[1] == FrameKind.RST else self.peer_tag
                self.injected += self.answer(raw)

    def answer(self, raw: bytes) -> bytes:
        sess, mid = self.peer_tag[0], raw[4] << 8 | raw[5]
        if raw[1] in (FrameKind.DATA, 3) and len(raw) > 12:
            return raw_frame(FrameKind.ACK, sess=sess, mid=mid)
        if raw[1] == FrameKind.PING and (mid or len(raw) > 12):
            return raw_frame(FrameKind.PONG, sess=sess)
        return raw_frame(FrameKind.RSTACK, payload=bytes(16)) if raw[1] == FrameKind.RST else b""

    def data_to_send(self, now_ms: int) -> bytes:
        return self.injected or super().data_to_send(now_ms)

    def sent(self, count: int, now_ms: int) -> None:
        if self.injected:
            self.injected = b""
        else:
            super().sent(count, now_ms)


class TakesAnyAck(SimulatedDevice):
    def receive(self, data: bytes, now_ms: int) -> None:
        mended = b""
        for piece in data.split(b"\x00"):
            raw = cobs_decode(piece) if piece else None
            if raw is not None and len(raw) > 12 and raw[1] == FrameKind.ACK:
                mended += raw_frame(FrameKind.ACK, sess=raw[3], mid=raw[4] << 8 | raw[5])
        super().receive(data + mended, now_ms)


class LosesItsPlace(SimulatedDevice):
    """After bytes that are no frame it drops the next frame too, and all after 8 KiB without a 0x00."""

    lost: bool = False
    run: int = 0

    def receive(self, data: bytes, now_ms: int) -> None:
        for piece in data.split(b"\x00"):
            self.run += len(piece)
            raw = cobs_decode(piece) if piece else None
            if piece and not self.lost and self.run < 8_192:
                super().receive(piece + b"\x00", now_ms)
            if piece:
                self.lost = raw is None or len(raw) < 12
        if self.run < 8_192 and b"\x00" in data:
            self.run = 0


class ResetsInAFlood(SimulatedDevice):
    def receive(self, data: bytes, now_ms: int) -> None:
        super().receive(data, now_ms)
        if data.count(b"\x00") > 100:
            self.port_opened(now_ms)


class ResetsAtRstack(SimulatedDevice):
    def receive(self, data: bytes, now_ms: int) -> None:
        super().receive(data, now_ms)
        if b"\x66" * 8 in data:
            self.port_opened(now_ms)


def of_kind(kind: type[SimulatedDevice]) -> Callable[[Patch], SimulatedDevice]:
    return lambda _: conform_ends.device(kind=kind)


def patched(change: Callable[[Patch], None], role: Role = DEVICE, **options: Any) -> Callable[[Patch], End]:
    def make(patch: Patch) -> End:
        change(patch)
        return conform_ends.device(**options) if role is DEVICE else validator(**options)

    return make


def constant(module: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, value)


def receiver(judge: Callable[[ChannelReceiver, Frame], bool]) -> Callable[[Patch], None]:
    """An end that drops the fragments which `judge` says."""

    def change(patch: Patch) -> None:
        sound = ChannelReceiver.take

        def take(self: ChannelReceiver, frame: Frame) -> Taken:
            return Taken() if judge(self, frame) else sound(self, frame)

        patch.setattr(ChannelReceiver, "take", take)

    return change


def delivers_again(patch: Patch) -> None:
    sound = ChannelReceiver.take

    def take(self: ChannelReceiver, frame: Frame) -> Taken:
        taken = sound(self, frame)
        repeated = taken.acknowledge and taken.message is None and frame.count == 1
        return replace(taken, message=frame.payload) if repeated else taken

    patch.setattr(ChannelReceiver, "take", take)


class ProvesTwice(Session):
    def _read_handshake(self, message: Message, now_ms: int) -> list[Any]:
        handshake = self._handshake
        if message.type is MessageType.HELLO and handshake.state is HandshakeState.PROVING:
            handshake.state = HandshakeState.GREETED
        return super()._read_handshake(message, now_ms)


def no_proof_signature(patch: Patch) -> None:
    patch.setattr(link1.handshake, "verify_object", lambda kind, wrapper, _key: wrapper[kind.member])


def takes_any_ack(patch: Patch) -> None:
    sound = ChannelSender.acknowledged

    def acknowledged(self: ChannelSender, mid: int) -> Outgoing | None:
        return sound(self, mid if self.in_flight is None else self.in_flight.mid)

    patch.setattr(ChannelSender, "acknowledged", acknowledged)


def reduces_s(patch: Patch) -> None:
    """Takes S modulo L, as a reader of signatures that is not strict does."""

    def verify(kind: Kind, wrapper: Any, key: PublicKey) -> JsonObject:
        signature = b64_decode(wrapper["sig_b64"])
        s = int.from_bytes(signature[32:], "little") % GROUP_ORDER
        reduced = b64_encode(signature[:32] + s.to_bytes(32, "little"))
        return verify_object(kind, {**wrapper, "sig_b64": reduced}, key)

    patch.setattr(link1.handshake, "verify_object", verify)


def believes_the_proof(patch: Patch) -> None:
    """Takes role and nonce of the peer from its proof, whatever its hello said."""
    sound = Handshake.judge_proof

    def judge(self: Handshake, body: JsonObject) -> HandshakeInput:
        said = body.get("hello_obj", {})
        if self._hello is not None:
            self._hello = replace(self._hello, role=Role(said["role"]), nonce_b64=said["own_nonce_b64"])
        return sound(self, body)

    patch.setattr(Handshake, "judge_proof", judge)


def knows_all_of_a_hello(patch: Patch) -> None:
    sound = Hello.from_obj

    def read(obj: JsonObject) -> Hello:
        if len(obj) > 5:
            raise FormatError("a member that is not known")
        return sound(obj)

    patch.setattr(Hello, "from_obj", read)


class MergesPongs(Link):
    def take(self, frame: Frame, now_ms: int) -> Any:
        events = super().take(frame, now_ms)
        self._pongs_due = min(self._pongs_due, 1)
        return events


class OneTag(Link):
    def _fresh_tag(self) -> bytes:
        return b"12345678"


def always_resets(patch: Patch) -> None:
    sound = Link.take

    def take(self: Link, frame: Frame, now_ms: int) -> Any:
        if frame.kind is FrameKind.RST:
            self._peer_tag = b"\x00" * 8
        return sound(self, frame, now_ms)

    patch.setattr(Link, "take", take)


def library_json(patch: Patch) -> None:
    """Reads JSON as a library does that nobody told to be strict."""

    def read(data: bytes, max_bytes: int) -> JsonObject:
        try:
            obj, _ = json.JSONDecoder().raw_decode(data.decode(errors="replace"))
        except ValueError as error:
            raise FormatError(str(error)) from None
        if not isinstance(obj, dict):
            raise FormatError("no object")
        return obj

    patch.setattr(link1.envelope, "read_strict", read)


def wide_json(patch: Patch) -> None:
    patch.setattr(
        link1.session, "encode_message", lambda t, b: json.dumps({"v": 1, "type": t, "body": b}).encode()
    )


# ---- devices


class GateFirst(DeviceEnd):
    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        asked = wrapper.get("request", {})
        if asked.get("gate_id") != self._gate_id:
            self._session.send_error(ErrorCode.WRONG_GATE, MessageType.REQUEST, asked.get("txn_id"))
            return []
        return super()._serve_request(wrapper)


class Clockwise(DeviceEnd):
    """Holds what others say of the time against its own clock."""

    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        if abs(wrapper.get("request", {}).get("issued_at_ms", WALL_MS) - WALL_MS) > 10**9:
            self._session.send_error(ErrorCode.MALFORMED, MessageType.REQUEST)
            return []
        return super()._serve_request(wrapper)

    def _serve_evidence(self, message: Any) -> list[Any]:
        if abs(message.body.get("decision_obj", {}).get("decided_at_ms", WALL_MS) - WALL_MS) > 10**9:
            self._session.send_error(ErrorCode.BAD_DECISION, message.type)
            return []
        return super()._serve_evidence(message)


class KnowsAllMembers(DeviceEnd):
    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        if len(wrapper.get("request", {})) > 7:
            self._session.send_error(ErrorCode.MALFORMED, MessageType.REQUEST)
            return []
        return super()._serve_request(wrapper)


class BoundsOfItsOwn(DeviceEnd):
    """Refuses the largest request, and lets larger ones be."""

    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        ttl_ms, nonce = wrapper["request"]["ttl_ms"], b64_decode(wrapper["request"]["nonce_b64"])
        if ttl_ms == 60_000:
            self._session.send_error(ErrorCode.MALFORMED, MessageType.REQUEST)
        elif ttl_ms < 60_000 and len(nonce) <= 32:
            return super()._serve_request(wrapper)
        return []


class KnowsAllWords(DeviceEnd):
    def _serve_evidence(self, message: Any) -> list[Any]:
        if message.body.get("decision_obj", {}).get("reason") not in ("ok", "stale"):
            self._session.send_error(ErrorCode.MALFORMED, message.type)
            return []
        return super()._serve_evidence(message)


class NeedsItsClock(SimulatedDevice):
    def receive(self, data: bytes, now_ms: int) -> None:
        super().receive(data if self.clock_right else b"", now_ms)


class Amnesiac(SimulatedDevice):
    """Keeps nothing over a restart."""

    def restarted(self) -> SimulatedDevice:
        assert self.remake is not None
        return self.remake()


class KeepsMail(SimulatedDevice):
    """Goes on after a restart at an offset whose bytes are gone."""

    def restarted(self) -> SimulatedDevice:
        fresh = super().restarted()
        fresh.inbox = self.inbox
        return fresh


class Pushes(SimulatedDevice):
    def _events(self, events: Any, now_ms: int) -> None:
        events = list(events)
        super()._events(events, now_ms)
        if self.verdicts and any(isinstance(event, Proven) for event in events):
            self.end.send_verdict(self.verdicts[-1].wrapper)


def loses_verdicts(patch: Patch) -> None:
    """A verdict that finds no room is lost."""
    patch.setattr(link1.device_end, "MAX_HELD_VERDICTS", 0)


class AsksOnce(SimulatedDevice):
    """Asks about 32 verdicts and leaves it at that."""

    def _carry_out(self, effect: Any) -> list[Any]:
        if type(effect).__name__ == "ListOpen" and effect.after_seq:
            return self.engine.open_verdicts(effect, [], self.now_ms)
        return super()._carry_out(effect)


class SpeaksUnasked(SimulatedDevice):
    def hand_comes(self, now_ms: int, stays_ms: int = 800) -> None:
        super().hand_comes(now_ms, stays_ms)
        if self.verdicts and self.engine.open_txn_id is None:
            self.end.send_verdict(self.verdicts[-1].wrapper)


class ForgetsPassages(SimulatedDevice):
    def _carry_out(self, effect: Any) -> list[Any]:
        return [] if type(effect).__name__ == "RecordPassage" else super()._carry_out(effect)


class KeepsRevoked(SimulatedDevice):
    def revoke(self, now_ms: int) -> None:
        pass


class TakesBack(SimulatedDevice):
    def add_again(self) -> None:
        self.revoked.clear()


class AnswersArmed(TransactionEngine):
    def _request_again(self, txn_id: str, ref: str, memory: Any) -> Any:
        answer = super()._request_again(txn_id, ref, memory)
        return [SendError(ErrorCode.TXN_CONFLICT, "request", txn_id)] if answer == [] else answer


class RepeatsTwice(TransactionEngine):
    def _request_again(self, txn_id: str, ref: str, memory: Any) -> Any:
        answer = super()._request_again(txn_id, ref, memory)
        return answer * 2 if answer and isinstance(answer[0], SendVerdict) else answer


class KeepsArmed(TransactionEngine):
    def _end_session(self) -> list[Any]:
        kept, self._current = self._current, None
        effects = super()._end_session()
        self._current = kept
        return effects


class RemembersCancels(TransactionEngine):
    def cancel(self, txn_id: str, memory: Any) -> Any:
        self.early = {*getattr(self, "early", ()), txn_id}
        return super().cancel(txn_id, memory)

    def request(self, request: Any, wrapper: Any, memory: Any, now_ms: int) -> Any:
        if request.txn_id in getattr(self, "early", ()):
            return [SendError(ErrorCode.CANCELLED, "request", request.txn_id)]
        return super().request(request, wrapper, memory, now_ms)


class NamesUnknown(TransactionEngine):
    def cancel(self, txn_id: str, memory: Any) -> Any:
        return super().cancel(txn_id, memory) or [SendError(ErrorCode.CANCELLED, "cancel", txn_id)]


class HandsAnswerTwice(TransactionEngine):
    def _decide(self, txn: Any, outcome: Any) -> Any:
        effects = super()._decide(txn, outcome)
        self._hand_spent = False
        return effects


def names_any_txn(patch: Patch) -> None:
    with_members("error", {"about": "cancel"}, txn_id="0" * 32)(patch)


def verdict_of_another(patch: Patch) -> None:
    sound = build_verdict
    patch.setattr(
        conform_ends, "build_verdict", lambda *a, **k: sound(*a, **(k | {"device_id": "another-device"}))
    )


# ---- validators


class ActsAgain(SimulatedValidator):
    def _answer(self, verdict: Any, verdict_ref: str, now_ms: int) -> list[Any]:
        if self.memory.find(verdict_ref) is not None:
            forgotten = tuple(item for item in self.memory.answered if item.verdict_ref != verdict_ref)
            self.memory = replace(self.memory, answered=forgotten, highest_verdict_seq=0)
            self._why_not = lambda *_: None  # type: ignore[method-assign] # for this one answer
            try:
                return super()._answer(verdict, verdict_ref, now_ms)
            finally:
                del self._why_not
        return super()._answer(verdict, verdict_ref, now_ms)


class AsksAnew(SimulatedValidator):
    def _send_request(self, now_ms: int) -> list[Any]:
        if self._open is not None and self._open.sent_ms is not None:
            self._open = None
            return self.arm(3_000, now_ms)
        return super()._send_request(now_ms)


class OpensAlways(SimulatedValidator):
    def _why_not(self, verdict: Any, now_ms: int) -> str | None:
        return None


class TakesItsTime(SimulatedValidator):
    """Saves for two seconds before a decision goes out."""

    time_ms = 0

    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        self.late: list[tuple[int, MessageType, JsonObject]] = []
        super().__init__(end, **changes)

    def _say(self, type_: MessageType, body: JsonObject) -> None:
        if type_ is MessageType.DECISION:
            self.late.append((self.time_ms + 2_000, type_, body))
        else:
            super()._say(type_, body)

    def receive(self, data: bytes, now_ms: int) -> list[Any]:
        self.time_ms = now_ms
        return super().receive(data, now_ms)

    def tick(self, now_ms: int) -> list[Any]:
        while self.late and self.late[0][0] <= now_ms:
            super()._say(*self.late.pop(0)[1:])
        return super().tick(now_ms)

    def next_deadline_ms(self) -> int:
        return min([super().next_deadline_ms() or 2**53, *(at_ms for at_ms, _, _ in self.late)])


class AnyIds(ValidatorEnd):
    def _read_verdict(self, wrapper: JsonObject) -> VerdictReceived:
        verdict = Verdict.from_obj(verify_object(Kind.VERDICT, wrapper, DEVICE_KEY.public))
        return VerdictReceived(verdict, wrapper, object_ref(wrapper))


class TakesAnyStatus(ValidatorEnd):
    def _read_status(self, wrapper: JsonObject) -> StatusReceived:
        return StatusReceived(DeviceStatus.from_obj(wrapper["status_obj"]), wrapper)


class KnowsAllOfItsTime(ValidatorEnd):
    """Refuses words and members that this version of the page does not name."""

    def _read_status(self, wrapper: JsonObject) -> StatusReceived:
        if wrapper["status_obj"]["health"]:
            raise FormatError("a word that is not known")
        return super()._read_status(wrapper)

    def _read_verdict(self, wrapper: JsonObject) -> VerdictReceived:
        received = super()._read_verdict(wrapper)
        if "onboard_ref" in wrapper["verdict"] or received.verdict.to_obj() != wrapper["verdict"]:
            raise FormatError("a member that is not known")
        return received


class CountsFromTheFirst(SimulatedValidator):
    """Its ttl runs from the first sending of a request."""

    def _send_request(self, now_ms: int) -> list[Any]:
        first_ms = None if self._open is None else self._open.sent_ms
        events = super()._send_request(now_ms)
        if self._open is not None and first_ms is not None:
            self._open.sent_ms = first_ms
        return events


class HasSensor(SimulatedValidator):
    """Says after every decision that somebody went through."""

    def _answer(self, verdict: Any, verdict_ref: str, now_ms: int) -> list[Any]:
        events = super()._answer(verdict, verdict_ref, now_ms)
        self._turns.append(TurnDue(now_ms, verdict.txn_id, verdict_ref))
        return events


class TakesAnyEnd(SimulatedValidator):
    def _follow(self, end_events: list[Any], now_ms: int) -> list[Any]:
        changed = [replace(e, txn_id=None) if isinstance(e, ErrorReceived) else e for e in end_events]
        return super()._follow(changed, now_ms)


class AsksTheSame(SimulatedValidator):
    def _close_request(self, why: str) -> list[Any]:
        if why == "expired" and self._open is not None:
            self._end.send_request(self._open.wrapper)
            return []
        return super()._close_request(why)


class OneSeq(SimulatedValidator):
    def _remember(self, memory: DeskMemory) -> None:
        super()._remember(replace(memory, decision_seq=0))


class SkipsEvents(SimulatedValidator):
    def _remember(self, memory: DeskMemory) -> None:
        super()._remember(replace(memory, dbd_event_seq=memory.dbd_event_seq * 2))


class LosesAnswers(SimulatedValidator):
    def _flush(self) -> None:
        super()._flush()
        self._outbox.clear()


class NeverSaysAgain(SimulatedValidator):
    def _resolve(self, verdict_refs: tuple[str, ...]) -> None:
        pass


class ForgetsPassage(SimulatedValidator):
    def _say_again(self, verdict_ref: str) -> None:
        known = self.memory.find(verdict_ref)
        if known is not None:
            self._say(MessageType.DECISION, known.decision)


class DisownsForgotten(SimulatedValidator):
    """Says unknown about everything that it does not find, forgotten or not, at once."""

    def _resolve(self, verdict_refs: tuple[str, ...]) -> None:
        super()._resolve(verdict_refs)
        unknown = [ref for ref in verdict_refs if self.memory.find(ref) is None]
        if unknown:
            self._end.send_unknown(unknown)


class DisownsDecided(SimulatedValidator):
    """Says unknown about all that it did not know when it was asked, as soon as a request ends without a
    verdict."""

    def _answer_unknown(self) -> None:
        pass

    def _close_request(self, why: str) -> list[Any]:
        if self._unresolved:
            self._end.send_unknown(self._unresolved)
            self._unresolved = ()
        return super()._close_request(why)


class ForgetfulValidator(DisownsForgotten):
    def restarted(self) -> SimulatedValidator:
        return self.remake(DeskMemory())


class ByTheClock(SimulatedValidator):
    def _why_not(self, verdict: Any, now_ms: int) -> str | None:
        return "late" if abs(verdict.decided_at_ms - WALL_MS) > 10**9 else super()._why_not(verdict, now_ms)


class OwnClock(SimulatedValidator):
    def _why_not(self, verdict: Any, now_ms: int) -> str | None:
        return super()._why_not(verdict, now_ms) if self.clock_right else "late"


class AnswersErrors(Session):
    def _read_error(self, body: JsonObject) -> list[Any]:
        self.send_error(ErrorCode.MALFORMED, "error")
        return []


def knows_no_unreadable_error(patch: Patch) -> None:
    sound = link1.envelope.read_message

    def read(data: bytes, sender: Role, channel: Channel | None) -> Message:
        try:
            return sound(data, sender, channel)
        except MessageRefused as refused:
            raise MessageRefused(refused.code, "message", "") from None

    patch.setattr(link1.session, "read_message", read)


class AnswersHints(Session):
    def _read_hint(self, data: bytes) -> list[Any]:
        self.send_error(ErrorCode.MALFORMED, "guide")
        return []


def trusting(patch: Patch) -> None:
    patch.setattr(link1.validator.end, "verify_object", lambda kind, wrapper, _key: wrapper[kind.member])


def late_reset(patch: Patch) -> None:
    patch.setitem(link1.handshake.STATE_LASTS_MS, HandshakeState.GREETED, 20_000)


def early_reset(patch: Patch) -> None:
    patch.setitem(link1.handshake.STATE_LASTS_MS, HandshakeState.REFUSED, 0)


_UNREADABLE = {
    *("envelope.a_member_twice", "envelope.a_fraction", "envelope.an_exponent", "envelope.minus_zero"),
    *("envelope.an_integer_beyond_253_minus_1", "envelope.a_lone_surrogate", "envelope.bad_UTFminus8"),
    *("envelope.NaN", "envelope.depth_17", "envelope.something_behind_the_object"),
}
_UNPAIRED = {
    *("handshake.unknown_key", "handshake.wrong_gate", "handshake.reflection", "handshake.wrong_key"),
    *(
        "handshake.wrong_signature",
        "handshake.wrong_peer_id",
        "handshake.wrong_id",
        "handshake.wrong_proof_gate",
    ),
    *("handshake.replayed_proof", "key.revoked"),
}
_WRONG_ACK = with_members("mail_ack", next_offset=7, state="more")

COMMON: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "no message of four fragments": (receiver(lambda _r, f: f.count == 4), {"message.largest"}),
    "fragments in order only": (receiver(lambda r, f: f.index != len(r.slices)), {"message.fragments"}),
    "a long queue": (constant(link1.channels, "MAX_WAITING", 999), {"message.sixteen_wait"}),
    "a quick timer": (constant(link1.channels, "RETRANSMIT_AFTER_MS", (50,) * 6), {"message.sent_again"}),
    "four transmissions": (
        constant(link1.channels, "RETRANSMIT_AFTER_MS", (200, 400, 800, 1600)),
        {"message.six_transmissions"},
    ),
    "merged PONGs": (constant(link1.session, "Link", MergesPongs), {"session.pong_each"}),
    "takes any ACK of a message": (takes_any_ack, {"message.foreign_ack"}),
    "reduces S": (reduces_s, {"handshake.malleable"}),
    "believes the proof": (believes_the_proof, {"handshake.wrong_role", "handshake.wrong_nonce"}),
    "knows every member of a hello": (knows_all_of_a_hello, {"handshake.later_members"}),
    "every RST is new": (always_resets, {"session.rst_current"}),
    "one tag for ever": (constant(link1.session, "Link", OneTag), {"session.rst_new"}),
    "no heartbeat": (constant(link1.link, "PING_AFTER_MS", 60_000), {"session.heartbeat"}),
    "patient": (constant(link1.link, "SILENCE_MS", 9_000), {"session.silence"}),
    "a lenient reader": (library_json, _UNREADABLE),
    "silent about unreadable messages": (
        saying(lambda t, b: [] if t == "error" and b["about"] == "message" else [(t, b)]),
        {
            *("envelope.v_is_true", "envelope.no_body", "envelope.not_an_object"),
            *("envelope.another_version", "envelope.an_unknown_type"),
        },
    ),
    "answers errors": (
        session(AnswersErrors),
        {"envelope.error_unanswered"},
    ),
    "answers errors that it cannot read": (knows_no_unreadable_error, {"envelope.error_unanswered"}),
    "spaces in its JSON": (wide_json, {"handshake.hello", "envelope.canonical"}),
    "a hello of another gate": (with_members("hello", gate_id="elsewhere"), {"handshake.hello"}),
    "true for 1 in its envelope": (envelope_with_true, {"handshake.hello", "envelope.canonical"}),
    "a proof that does not hold": (spoilt("prove"), {"handshake.prove"}),
    "true for 1 in its proof": (resigned("prove", lambda obj: obj | {"v": True}), {"handshake.prove"}),
    "never says unpaired": (without("error", code="unpaired"), _UNPAIRED),
    "no second of silence": (early_reset, {"handshake.wrong_key"}),
    "answers early": (
        saying(
            lambda t, b: [
                (t, {"code": "malformed", "about": "message"} if b.get("code") == "unpaired" else b)
            ]
        ),
        {"handshake.early"},
    ),
    "endless handshake": (late_reset, {"handshake.timeout"}),
}
"""What either end may do wrong: the name, the change, the rules that have to fail."""

DEVICES: dict[str, tuple[Callable[[Patch], End], set[str]]] = {
    "acknowledges before it looks": (
        of_kind(Eager),
        {
            *("frame.bad_crc", "frame.version", "frame.kind", "frame.channel", "frame.other_session"),
            *("frame.index", "frame.count", "frame.short_slice", "frame.empty_last", "frame.too_long"),
            *("frame.ping_payload", "frame.ping_members", "frame.rst_payload"),
            *("message.count_changes", "message.out_of_turn"),
        },
    ),
    "delivers repeats": (patched(delivers_again), {"message.repeated"}),
    "two hellos": (patched(constant(link1.device_end, "Session", ProvesTwice)), {"handshake.second_hello"}),
    "no proof": (patched(no_proof_signature), {"handshake.wrong_signature"}),
    "gate before signature": (patched(lambda _: None, end=GateFirst), {"request.bad_signature"}),
    "takes any ACK": (of_kind(TakesAnyAck), {"frame.ack_payload"}),
    "loses its place": (of_kind(LosesItsPlace), {"frame.resynchronises", "frame.never_holds_more"}),
    "resets in a flood": (of_kind(ResetsInAFlood), {"message.flood"}),
    "resets at a foreign RSTACK": (of_kind(ResetsAtRstack), {"session.foreign_rstack"}),
    "serves its own types": (
        patched(instead_of_error("unsupported_type", "resolve", "unknown", {"verdict_refs": ["0" * 32]})),
        {"envelope.wrong_way"},
    ),
    "an unsigned status": (patched(spoilt("status")), {"status.signed"}),
    "never says expired": (
        patched(without("error", code="expired")),
        {"request.expires", "request.expired_again", "cancel.ended", "restart.ended"},
    ),
    "never says cancelled": (
        patched(without("error", code="cancelled")),
        {"request.replaced", "cancel.armed", "cancel.request_again", "cancel.unknown"},
    ),
    "never says txn_conflict": (
        patched(without("error", code="txn_conflict")),
        {"request.conflict", "verdict.conflict"},
    ),
    "says bad_signature as malformed": (
        patched(with_members("error", {"code": "bad_signature"}, code="wrong_gate")),
        {"request.bad_signature", "request.unknown_signer", "request.other_prefix"},
    ),
    "never says malformed": (
        patched(without("error", code="malformed")),
        {
            *("request.extra_member", "request.base64", "request.base64_spelling", "request.ttl_range"),
            *("request.nonce_length", "request.object_version", "mail.chunk_too_long", "mail.past_the_end"),
        },
    ),
    "never says wrong_gate": (
        patched(without("error", code="wrong_gate")),
        {"request.wrong_gate", "request.wrong_dbd"},
    ),
    "answers while armed": (patched(lambda _: None, engine=AnswersArmed), {"request.armed_again"}),
    "stays armed over a reset": (patched(lambda _: None, engine=KeepsArmed), {"request.reset_drops_armed"}),
    "remembers cancels": (patched(lambda _: None, engine=RemembersCancels), {"cancel.not_remembered"}),
    "answers a crossed cancel": (patched(lambda _: None, engine=NamesUnknown), {"verdict.cancel"}),
    "names what nobody signed": (patched(names_any_txn), {"error.txn_id", "cancel.unknown"}),
    "knows every member": (patched(lambda _: None, end=KnowsAllMembers), {"request.unknown_member"}),
    "bounds of its own": (
        patched(lambda _: None, end=BoundsOfItsOwn),
        {"request.largest", "request.ttl_range", "request.nonce_length"},
    ),
    "knows every word": (patched(lambda _: None, end=KnowsAllWords), {"decision.later_words"}),
    "goes by the clock": (
        patched(lambda _: None, end=Clockwise),
        {"clock.request_past", "clock.request_future", "clock.decision"},
    ),
    "needs its own clock": (of_kind(NeedsItsClock), {"clock.own_behind", "clock.own_ahead"}),
    "forgets over a restart": (
        of_kind(Amnesiac),
        {"restart.ended", "restart.resolve", "restart.again", "restart.chain", "verdict.chain"},
    ),
    "never says bad_decision": (
        patched(without("error", code="bad_decision")),
        {
            *(
                "verdict.wrong_decision_signature",
                "verdict.wrong_decision_ref",
                "verdict.wrong_decision_nonce",
            ),
            *("verdict.wrong_decision_ids", "verdict.revoked_decision", "decision.without_verdict"),
        },
    ),
    "complains always": (
        patched(constant(link1.device_end, "MAX_REMEMBERED_EVIDENCE", 0)),
        {"verdict.wrong_decision_once"},
    ),
    "never answers a hand": (patched(without("verdict")), {"verdict.comes"}),
    "a verdict on nothing": (patched(resigned("verdict", lacking("txn_id"))), {"verdict.comes"}),
    "another's verdict": (patched(verdict_of_another), {"verdict.fits"}),
    "guides for another": (patched(with_members("guide", txn_id="0" * 32)), {"verdict.guides"}),
    "guides without a word": (patched(with_members("guide", hint=7)), {"verdict.guides"}),
    "answers a repeat twice": (patched(lambda _: None, engine=RepeatsTwice), {"verdict.again"}),
    "never asks": (patched(without("resolve")), {"verdict.resolve"}),
    "asks about nothing": (
        patched(with_members("resolve", verdict_refs=None)),
        {"verdict.comes", "resolve.many"},
    ),
    "asks about no refs": (
        patched(with_members("resolve", verdict_refs=[[]])),
        {"verdict.comes", "resolve.many"},
    ),
    "an error about no txn_id": (
        patched(with_members("error", txn_id=[])),
        {"error.txn_id", "cancel.unknown"},
    ),
    "pushes": (of_kind(Pushes), {"verdict.not_pushed"}),
    "hands answer twice": (patched(lambda _: None, engine=HandsAnswerTwice), {"verdict.one_hand"}),
    "loses verdicts": (patched(loses_verdicts), {"verdict.full_queue"}),
    "asks once": (of_kind(AsksOnce), {"resolve.many"}),
    "speaks unasked": (of_kind(SpeaksUnasked), {"verdict.only_asked", "verdict.comes"}),
    "keeps a revoked key": (of_kind(KeepsRevoked), {"key.revoked_in_use"}),
    "takes a revoked key back": (of_kind(TakesBack), {"key.revoked_in_use", "key.revoked_for_good"}),
    "wrong mail_acks": (
        patched(_WRONG_ACK),
        {"mail.offset", "mail.resumes", "mail.other_total", "mail.gap", "mail.applied", "mail.refused"},
    ),
    "goes on after a restart": (of_kind(KeepsMail), {"mail.restart"}),
    "mail_none about another": (
        patched(with_members("mail_none", after_seq=0)),
        {"mail.nothing", "mail.newest"},
    ),
    "mail_none of no box": (patched(with_members("mail_none", box="in")), {"mail.nothing", "mail.newest"}),
    "mail from another offset": (patched(with_members("mail", offset=0)), {"mail.collects"}),
}
_NOT_ALONE = {
    "envelope.canonical": "handshake.hello",
    "verdict.only_asked": "verdict.comes",
    "key.revoked_for_good": "key.revoked_in_use",
}
"""Rules that build on another one, which the end passes."""
SENSOR_DEVICES: dict[str, tuple[Callable[[Patch], End], set[str]]] = {
    "never says bad_decision": (
        patched(without("error", code="bad_decision"), passage_sensor=True),
        {"passage.wrong_signature", "passage.wrong_ref", "passage.wrong_ids"},
    ),
    "forgets passages": (
        lambda _: conform_ends.device(kind=ForgetsPassages, passage_sensor=True),
        {"passage.completes"},
    ),
}
_ALWAYS = {
    *("opens.never_asked", "opens.wrong_nonce", "opens.wrong_issued_at", "opens.wrong_ttl", "opens.old_seq"),
    *("opens.once", "opens.late", "cancel.crossed", "replace.crossed", "restart.verdict_seq"),
}


def desk(kind: type[SimulatedValidator], **options: Any) -> Callable[[Patch], End]:
    return lambda _: validator(kind, **options)


def says(change: Callable[[Patch], None], **options: Any) -> Callable[[Patch], End]:
    return patched(change, VALIDATOR, **options)


VALIDATORS: dict[str, tuple[Callable[[Patch], End], set[str]]] = {
    "serves its own types": (
        says(
            instead_of_error("unsupported_type", "cancel", "error", {"code": "cancelled", "about": "cancel"})
        ),
        {"envelope.wrong_way"},
    ),
    "never ready": (says(without("ready")), {"ready.after_proof"}),
    "an unsigned request": (says(spoilt("request")), {"request.signed"}),
    "a request with an empty txn_id": (
        says(resigned("request", lambda obj: obj | {"txn_id": ""})),
        {"request.signed"},
    ),
    "a request without a txn_id": (says(resigned("request", lacking("txn_id"))), {"request.signed"}),
    "asks the same": (desk(AsksTheSame), {"request.after_expired"}),
    "takes any end": (desk(TakesAnyEnd), {"request.other_end"}),
    "never decides": (says(without("decision")), {"decision.answers"}),
    "one decision_seq": (desk(OneSeq), {"decision.seq", "decision.seq_once"}),
    "loses answers": (desk(LosesAnswers), {"decision.full_queue"}),
    "opens always": (desk(OpensAlways), _ALWAYS),
    "trusts signatures": (says(trusting), {"opens.wrong_key", "opens.wrong_signature"}),
    "any ids": (
        lambda _: validator(OpensAlways, AnyIds),
        {"opens.wrong_gate", "opens.wrong_dbd", "opens.wrong_device"},
    ),
    "trusts signatures, and takes its time": (
        says(trusting, desk=TakesItsTime),
        {"opens.wrong_key", "opens.wrong_signature"},
    ),
    "any ids, and takes its time": (
        lambda _: validator(TakesItsTime, AnyIds),
        {"opens.wrong_gate", "opens.wrong_dbd", "opens.wrong_device"},
    ),
    "takes any status": (
        lambda _: validator(end=TakesAnyStatus),
        {"status.other_nonce", "status.bad_signature"},
    ),
    "knows words and members of its time only": (
        lambda _: validator(end=KnowsAllOfItsTime),
        {"status.later_words", "opens.later_members", "opens.onboard_ref"},
    ),
    "counts from the first sending": (desk(CountsFromTheFirst), {"opens.ttl_again"}),
    "never says again": (desk(NeverSaysAgain), {"resolve.known"}),
    "disowns what it forgot": (desk(DisownsForgotten), {"resolve.open", "resolve.many"}),
    "decides again about no verdict": (
        says(resigned("decision", lambda obj: obj | {"verdict_ref": []})),
        {"decision.answers"},
    ),
    "disowns no refs": (
        says(with_members("unknown", verdict_refs=[[]]), desk=DisownsForgotten),
        {"resolve.many"},
    ),
    "disowns what it decided": (desk(DisownsDecided), {"resolve.then_verdict"}),
    "answers hints": (says(session(AnswersHints)), {"guide.unknown"}),
    "goes by the device's clock": (
        desk(ByTheClock),
        {"clock.status_and_verdict_past", "clock.status_and_verdict_future"},
    ),
    "goes by its own clock": (desk(OwnClock), {"clock.own_behind", "clock.own_ahead"}),
    "forgets over a restart": (
        desk(ForgetfulValidator),
        {"restart.decision_seq", "restart.verdict_seq", "restart.resolve"},
    ),
    "mail from elsewhere": (says(with_members("mail", offset=5)), {"mail.offers"}),
    "pulls from the beginning": (says(with_members("mail_pull", offset=0)), {"mail.collects"}),
    "pulls from elsewhere": (says(with_members("mail_pull", offset=5)), {"mail.resumes"}),
    "asks twice": (says(twice("mail")), {"mail.one_question"}),
    "acts on every copy": (desk(ActsAgain), {"opens.first_copy"}),
    "asks anew": (desk(AsksAnew), {"request.again"}),
    "a passage without opening": (desk(HasSensor), {"passage.only_after_opening"}),
}
SENSOR_VALIDATORS: dict[str, tuple[Callable[[Patch], End], set[str]]] = {
    "no passage": (says(without("passage"), passage_sensor=True), {"passage.signed"}),
    "skips events": (desk(SkipsEvents, passage_sensor=True), {"passage.seq"}),
    "forgets its passages": (desk(ForgetsPassage, passage_sensor=True), {"passage.resolve"}),
    "forgets over a restart": (desk(ForgetfulValidator, passage_sensor=True), {"restart.dbd_event_seq"}),
}
ONE_DECODER = {
    *(rule.id for rule in rules_for(VALIDATOR) if rule.id.startswith(("frame.", "message.", "session."))),
    "handshake.second_hello",
}
"""Rules that look at what both ends have from one class: their broken end is a device."""


def table(role: Role, *, sensor: bool) -> dict[str, tuple[Callable[[Patch], End], set[str]]]:
    if sensor:
        return SENSOR_DEVICES if role is DEVICE else SENSOR_VALIDATORS
    common = {name: (patched(change, role), ids) for name, (change, ids) in COMMON.items()}
    return common | (DEVICES if role is DEVICE else VALIDATORS)


FAULTS = [
    (role, sensor, name) for role in Role for sensor in (False, True) for name in table(role, sensor=sensor)
]


@pytest.mark.parametrize(("role", "sensor", "name"), FAULTS)
def test_a_faulty_end_fails_its_rules(role: Role, sensor: bool, name: str, monkeypatch: Patch) -> None:
    make, ids = table(role, sensor=sensor)[name]
    found = tried(make(monkeypatch), ids, sensor=sensor)
    passed = {id_ for id_, f in found.items() if f.result is not RuleResult.FAIL}
    assert {id_: str(found[id_]) for id_ in passed - set(_NOT_ALONE.values())} == {}
    assert set(found) == ids


@pytest.mark.parametrize("role", Role)
def test_an_end_whose_hello_has_half_a_nonce_fails(role: Role, monkeypatch: Patch) -> None:
    end = patched(with_members("hello", nonce_b64=b64_encode(bytes(16))), role)(monkeypatch)
    (finding,) = tried(end, {"handshake.hello"}).values()
    assert (finding.result, finding.found[:22]) == (RuleResult.FAIL, "hello: member nonce_b6")


@pytest.mark.parametrize("role", Role)
def test_every_rule_has_an_end_that_fails_it(role: Role) -> None:
    failed = set().union(*(ids for s in (False, True) for _, ids in table(role, sensor=s).values()))
    assert {rule.id for rule in rules_for(role)} == failed | (ONE_DECODER if role is VALIDATOR else set())


# ---- lawful ends of other makers: what the contract leaves open they do the other way


def about_message(patch: Patch) -> None:
    """Says of every error that it is about a message."""
    with_members("error", about="message")(patch)


def names_fewer(patch: Patch) -> None:
    """Names a txn_id only where it has to."""
    must = ("expired", "cancelled", "txn_conflict")

    def rewrite(type_: MessageType, body: Mapping[str, Any]) -> Said:
        spare = type_ == "error" and body["code"] not in must
        return [(type_, {n: v for n, v in body.items() if n != "txn_id"} if spare else body)]

    saying(rewrite)(patch)


class CallsItsErrorsOtherwise(DeviceEnd):
    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        if len(str(wrapper.get("sig_b64"))) != 88:
            self._session.send_error(ErrorCode.BAD_SIGNATURE, "request")
            return []
        if wrapper["request"].get("v") == 2:
            self._session.send_error(ErrorCode.UNSUPPORTED_VERSION, "request")
            return []
        return super()._serve_request(wrapper)


def other_words(patch: Patch) -> None:
    """Where something is wrong in two ways, or no code is laid down, it says the other one."""

    def rewrite(type_: MessageType, body: Mapping[str, Any]) -> Said:
        if type_ == "error" and body["code"] == "unsupported_type" and body["about"] != "message":
            return []  # a type that only it sends is let go
        return [(type_, body)]

    saying(rewrite)(patch)


def first_copy(patch: Patch) -> None:
    """Of a fragment that comes twice it keeps the first copy."""
    receiver(lambda r, f: f.mid == r.expected_mid and f.index in r.slices)(patch)


def judges_with_the_proof(patch: Patch) -> None:
    """Answers every hello with its proof, and judges hello and proof together."""
    sound = Handshake.judge_hello

    def judge(self: Handshake, body: JsonObject) -> HandshakeInput:
        if sound(self, body) is HandshakeInput.HELLO_BAD:
            self._hello, self._hello_key = Hello.from_obj(body), None
        return HandshakeInput.HELLO_GOOD

    patch.setattr(Handshake, "judge_hello", judge)


class SaysAll(SimulatedDevice):
    """Says a status whenever it can, and at once that a request has been replaced."""

    open_txn: str | None = None

    def _events(self, events: Any, now_ms: int) -> None:
        events = list(events)
        super()._events(events, now_ms)
        for event in events:
            if isinstance(event, RequestReceived):
                self.end.send_status(status_of("", WALL_MS))
                txn_id = event.request.txn_id
                if self.open_txn is not None and self.engine.open_txn_id == txn_id != self.open_txn:
                    self.end.send_error(ErrorCode.CANCELLED, MessageType.REQUEST, self.open_txn)
                self.open_txn = self.engine.open_txn_id


class WaitsForStatus(ValidatorEnd):
    """Is ready only when it has seen a status."""

    def _follow(self, session_events: Any) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._session, "send", lambda *_: True)
            events = super()._follow(session_events)
        if any(isinstance(event, StatusReceived) for event in events):
            self._session.send(MessageType.READY, {"passage_sensor": True})
        return events


class PingsOften(SimulatedValidator):
    """Says PING every 20 ms, whatever else it says."""

    _frames = FrameDecoder()
    _sess = 0
    _pinged_ms = 0
    _is_ping = False

    def next_deadline_ms(self) -> int | None:
        due = [super().next_deadline_ms(), self._pinged_ms + 20]
        return min(time for time in due if time is not None)

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        data = super().data_to_send(now_ms, max_bytes)
        for frame in self._frames.feed(data):
            self._sess = frame.sess
        self._is_ping = not data and self._sess != 0 and now_ms >= self._pinged_ms + 20
        if not self._is_ping:
            return data
        self._pinged_ms = now_ms
        return raw_frame(FrameKind.PING, sess=self._sess)

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[Any]:
        return [] if self._is_ping else super().sent(count, now_ms, in_port)


class AcksLate(SimulatedValidator):
    """Each of its ACKs takes 250 ms."""

    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        super().__init__(end, **changes)
        self._frames = FrameDecoder()
        self._held: deque[tuple[int, bytes]] = deque()

    def next_deadline_ms(self) -> int | None:
        due = [super().next_deadline_ms(), self._held[0][0] if self._held else None]
        return min((time for time in due if time is not None), default=None)

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        out = b""
        while data := super().data_to_send(now_ms, max_bytes):
            super().sent(len(data), now_ms)
            for frame in self._frames.feed(data):
                if frame.kind is FrameKind.ACK:
                    self._held.append((now_ms + 250, encode_frame(frame)))
                else:
                    out += encode_frame(frame)
        while self._held and self._held[0][0] <= now_ms:
            out += self._held.popleft()[1]
        return out

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[Any]:
        return []


LAWFUL: dict[str, Callable[[Patch], End]] = {
    "a device that talks": lambda _: conform_ends.device(kind=SaysAll, passage_sensor=True),
    "a validator that waits": lambda _: validator(end=WaitsForStatus, passage_sensor=True),
    "a validator that pings often": lambda _: validator(PingsOften, passage_sensor=True),
    "a validator whose ACKs come late": lambda _: validator(AcksLate, passage_sensor=True),
    "a validator that takes its time": lambda _: validator(TakesItsTime, passage_sensor=True),
    **{
        f"{role}: {change.__name__}": patched(change, role, passage_sensor=True)
        for change in (about_message, names_fewer, first_copy, judges_with_the_proof)
        for role in Role
    },
    "device: other_words": patched(other_words, end=CallsItsErrorsOtherwise, passage_sensor=True),
    "validator: other_words": patched(other_words, VALIDATOR, passage_sensor=True),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_a_lawful_end_of_another_maker_passes_every_rule(name: str, monkeypatch: Patch) -> None:
    findings = findings_of(LAWFUL[name](monkeypatch), sensor=True)
    assert not_passed(findings) == {}
