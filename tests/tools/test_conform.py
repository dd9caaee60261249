"""The conformance test: our own ends pass every rule, an end that is broken in one way fails that one."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import link1.channels
import link1.device_end
import link1.envelope
import link1.frames
import link1.handshake
import link1.link
import link1.validator.desk
import link1.validator.end
from device.passage import engine as transactions
from device.passage.effects import SendError
from device.passage.engine import TransactionEngine
from link1.canonical import JsonObject, read_strict
from link1.channels import ChannelReceiver, Taken
from link1.device_end import DeviceEnd
from link1.envelope import Message, MessageType, Role
from link1.frames import Frame, cobs_decode, cobs_encode
from link1.handshake import HandshakeState
from link1.link import Link
from link1.objects import ErrorCode
from link1.session import Session
from link1.signed import Kind
from link1.validator.desk import STALE
from link1.validator.end import ValidatorEnd
from tests.tools.conform_ends import (
    SimulatedDevice,
    SimulatedValidator,
    bench_for,
    device,
    findings_of,
    not_passed,
    validator,
)
from tools.kit.conform.rules import RuleResult
from tools.kit.conform.runner import chosen, rules_for, run_rules

Break = Callable[[pytest.MonkeyPatch], "SimulatedDevice | SimulatedValidator"]


def test_our_own_ends_pass_every_rule() -> None:
    for end in (device(passage_sensor=True), validator(passage_sensor=True)):
        findings = findings_of(end, sensor=True)
        assert not_passed(findings) == {}
        assert len(findings) > 100


def test_without_a_turn_sensor_the_rules_on_it_are_not_tried() -> None:
    for end in (device(), validator()):
        untried = not_passed(findings_of(end))
        assert {id_.split(".")[0] for id_ in untried} <= {"passage", "restart"}
        assert all(text.startswith("NOT TRIED") for text in untried.values())


def test_a_run_is_the_same_every_time() -> None:
    def lines() -> list[JsonObject]:
        return [finding.to_obj() for finding in findings_of(device(), "message", "verdict")]

    assert lines() == lines()


def test_every_rule_says_where_it_comes_from() -> None:
    for role in Role:
        rules = rules_for(role)
        assert len({rule.id for rule in rules}) == len(rules)
        for rule in rules:
            assert rule.section.startswith("§")
            assert rule.sentence
            assert rule.expected


# ---- ends that are broken in one way: bytes, sessions, envelope, handshake


def no_crc(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    sound = link1.frames.decode_frame

    def decode(encoded: bytes) -> Frame:
        raw = cobs_decode(encoded)
        if raw is None or len(raw) < link1.frames.MIN_RAW_BYTES:
            return sound(encoded)
        body = raw[:-4]
        return sound(cobs_encode(body + zlib.crc32(body).to_bytes(4, "big")))

    patch.setattr(link1.frames, "decode_frame", decode)
    return device()


def any_session(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    sound = Link.take

    def take(self: Link, frame: Frame, now_ms: int) -> Any:
        if frame.sess and self._own_tag:
            frame = replace(frame, sess=self._own_tag[0])
        return sound(self, frame, now_ms)

    patch.setattr(Link, "take", take)
    return device()


def delivers_again(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    sound = ChannelReceiver.take

    def take(self: ChannelReceiver, frame: Frame) -> Taken:
        taken = sound(self, frame)
        repeated = taken.acknowledge and taken.message is None and frame.count == 1
        return replace(taken, message=frame.payload) if repeated else taken

    patch.setattr(ChannelReceiver, "take", take)
    return device()


def takes_any_mid(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    sound = ChannelReceiver.take

    def take(self: ChannelReceiver, frame: Frame) -> Taken:
        self.expected_mid = max(self.expected_mid, frame.mid)
        return sound(self, frame)

    patch.setattr(ChannelReceiver, "take", take)
    return device()


def _timers(*after_ms: int) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> SimulatedDevice:
        patch.setattr(link1.channels, "RETRANSMIT_AFTER_MS", after_ms)
        return device()

    return broken


def _link_constant(name: str, value: int) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> SimulatedDevice:
        patch.setattr(link1.link, name, value)
        return device()

    return broken


class AnswersErrors(Session):
    def _read_error(self, body: JsonObject) -> list[Any]:
        self.send_error(ErrorCode.MALFORMED, "error")
        return []


def answers_errors(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    patch.setattr(link1.device_end, "Session", AnswersErrors)
    return device()


def any_depth(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    patch.setattr(
        link1.envelope,
        "read_strict",
        lambda data, max_bytes: read_strict(data, max_bytes=max_bytes, max_depth=99),
    )
    return device()


class ProvesTwice(Session):
    def _read_handshake(self, message: Message, now_ms: int) -> list[Any]:
        handshake = self._handshake
        if message.type is MessageType.HELLO and handshake.state is HandshakeState.PROVING:
            handshake.state = HandshakeState.GREETED
        return super()._read_handshake(message, now_ms)


def proves_twice(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    patch.setattr(link1.device_end, "Session", ProvesTwice)
    return device()


def no_proof_signature(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    patch.setattr(link1.handshake, "verify_object", lambda kind, wrapper, _key: wrapper[kind.member])
    return device()


# ---- devices


class GateFirst(DeviceEnd):
    def _serve_request(self, wrapper: JsonObject) -> list[Any]:
        asked = wrapper.get("request", {})
        if asked.get("gate_id") != self._gate_id:
            self._session.send_error(ErrorCode.WRONG_GATE, MessageType.REQUEST, asked.get("txn_id"))
            return []
        return super()._serve_request(wrapper)


class ComplainsAlways(DeviceEnd):
    def refuse_evidence(self, type_: MessageType, wrapper: JsonObject) -> bool:
        self._complained.clear()
        return super().refuse_evidence(type_, wrapper)


class NeverAsks(TransactionEngine):
    def link_proven(self, last_seq: int) -> list[Any]:
        return super().link_proven(0)


class KnowsNoDifference(TransactionEngine):
    def _request_again(self, txn_id: str, ref: str, memory: Any) -> Any:
        answer = super()._request_again(txn_id, ref, memory)
        conflict = answer and getattr(answer[0], "code", None) is ErrorCode.TXN_CONFLICT
        return [] if conflict else answer


class AnswersCancel(TransactionEngine):
    def cancel(self, txn_id: str, memory: Any) -> Any:
        answer = super().cancel(txn_id, memory)
        return answer or [SendError(ErrorCode.CANCELLED, "cancel", txn_id)]


class Unchained(SimulatedDevice):
    def _journal(self, effect: Any) -> Any:
        kept, self.verdicts = self.verdicts, []
        effects = super()._journal(effect)
        self.verdicts = kept + self.verdicts
        return effects


def unchained(_patch: pytest.MonkeyPatch) -> SimulatedDevice:
    return device(kind=Unchained)


def expires_late(patch: pytest.MonkeyPatch) -> SimulatedDevice:
    patch.setattr(transactions, "EXPIRES_BEFORE_TTL_MS", -1_000)
    return device()


BROKEN_DEVICES: dict[str, tuple[Break, set[str]]] = {
    "no crc": (no_crc, {"frame.bad_crc"}),
    "any session": (any_session, {"frame.other_session"}),
    "delivers repeats": (delivers_again, {"message.repeated"}),
    "any mid": (takes_any_mid, {"message.out_of_turn"}),
    "slow timer": (_timers(900, 900, 900, 900, 900, 900), {"message.sent_again"}),
    "gives up early": (_timers(200, 400, 800), {"message.six_transmissions"}),
    "patient": (_link_constant("SILENCE_MS", 9_000), {"session.silence"}),
    "no heartbeat": (_link_constant("PING_AFTER_MS", 60_000), {"session.heartbeat"}),
    "answers errors": (answers_errors, {"envelope.error_unanswered"}),
    "any depth": (any_depth, {"envelope.depth_17"}),
    "two hellos": (proves_twice, {"handshake.second_hello"}),
    "no proof": (no_proof_signature, {"handshake.wrong_signature"}),
    "gate before signature": (lambda _: device(GateFirst), {"request.bad_signature"}),
    "complains always": (
        lambda _: device(ComplainsAlways),
        {"verdict.wrong_decision_once", "decision.without_verdict"},
    ),
    "never asks": (lambda _: device(engine=NeverAsks), {"verdict.resolve"}),
    "no conflict": (lambda _: device(engine=KnowsNoDifference), {"request.conflict", "verdict.conflict"}),
    "answers a crossed cancel": (lambda _: device(engine=AnswersCancel), {"verdict.cancel"}),
    "no chain": (unchained, {"verdict.chain"}),
    "expires late": (expires_late, {"request.expires"}),
}


@pytest.mark.parametrize("name", BROKEN_DEVICES)
def test_a_broken_device_fails_the_rule_that_is_meant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, meant = BROKEN_DEVICES[name]
    found = findings_of(broken(monkeypatch), *meant)
    assert {f.rule.id for f in found if f.result is RuleResult.FAIL} == meant


# ---- validators


def never_late(patch: pytest.MonkeyPatch) -> SimulatedValidator:
    patch.setattr(link1.validator.desk, "LATE_AFTER_TTL_MS", 60_000)
    return validator()


class ForgetsSeq(SimulatedValidator):
    def _why_not(self, verdict: Any, now_ms: int) -> str | None:
        why = super()._why_not(verdict, now_ms)
        return None if why == "old_seq" else why


class AnyNonce(SimulatedValidator):
    def _why_not(self, verdict: Any, now_ms: int) -> str | None:
        asked = self._open.request if self._open else None
        return super()._why_not(replace(verdict, nonce_b64=asked.nonce_b64) if asked else verdict, now_ms)


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


class SaysUnknownEarly(SimulatedValidator):
    def _resolve(self, verdict_refs: tuple[str, ...]) -> None:
        super()._resolve(verdict_refs)
        unknown = [ref for ref in verdict_refs if self.memory.find(ref) is None]
        if unknown:
            self._end.send_unknown(unknown)


class SkipsSeq(SimulatedValidator):
    def _remember(self, memory: Any) -> None:
        super()._remember(replace(memory, decision_seq=memory.decision_seq + 1))


class SilentWhenStale(SimulatedValidator):
    def _flush(self) -> None:
        for item in list(self._outbox):
            if item[1].get("decision_obj", {}).get("reason") == STALE.reason:
                self._outbox.remove(item)
        super()._flush()


def trusting_validator(patch: pytest.MonkeyPatch) -> SimulatedValidator:
    def trusting(kind: Kind, wrapper: JsonObject, _key: Any) -> JsonObject:
        obj = wrapper[kind.member]
        assert isinstance(obj, dict)
        return obj

    patch.setattr(link1.validator.end, "verify_object", trusting)
    return validator()


BROKEN_VALIDATORS: dict[str, tuple[Break, set[str]]] = {
    "never late": (never_late, {"opens.late"}),
    "forgets verdict_seq": (lambda _: validator(ForgetsSeq), {"opens.old_seq"}),
    "any nonce": (lambda _: validator(AnyNonce), {"opens.wrong_nonce"}),
    "acts on every copy": (lambda _: validator(ActsAgain), {"opens.first_copy"}),
    "asks anew": (lambda _: validator(AsksAnew), {"request.again"}),
    "unknown too early": (lambda _: validator(SaysUnknownEarly), {"resolve.open"}),
    "skips decision_seq": (lambda _: validator(SkipsSeq), {"decision.seq"}),
    "trusts signatures": (trusting_validator, {"opens.wrong_key", "opens.wrong_signature"}),
    "silent when stale": (
        lambda _: validator(SilentWhenStale),
        {
            *("opens.never_asked", "opens.wrong_nonce", "opens.wrong_issued_at", "opens.wrong_ttl"),
            *("opens.old_seq", "opens.once", "opens.late"),
        },
    ),
}


@pytest.mark.parametrize("name", BROKEN_VALIDATORS)
def test_a_broken_validator_fails_the_rule_that_is_meant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, meant = BROKEN_VALIDATORS[name]
    found = findings_of(broken(monkeypatch), *meant)
    assert {f.rule.id for f in found if f.result is RuleResult.FAIL} == meant


class OpensForNobody(SimulatedValidator):
    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        super().__init__(end, decide=lambda _verdict: STALE, **changes)


def test_a_validator_that_opens_for_nobody_is_not_tried_rather_than_passed() -> None:
    findings = findings_of(validator(OpensForNobody), "opens")
    assert {finding.result for finding in findings} == {RuleResult.NOT_TRIED}


def test_without_a_hand_the_rules_on_verdicts_are_not_tried() -> None:
    bench = bench_for(device())
    bench.setup = replace(bench.setup, hand=None)
    found = list(run_rules(bench, chosen(rules_for(Role.DEVICE), ["verdict"])))
    assert {finding.result for finding in found} == {RuleResult.NOT_TRIED}
    assert "--hand" in found[0].found
