"""The signed objects of a passage as typed values (LINK/1 §4).

`from_obj` parses what `verify_object` returned and raises FormatError; members that the contract does
not name are left out (they stay under the signature of the wrapper, which is kept next to the value).
`to_obj` gives the object to sign.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.members import HEX16, HEX32, NAME, ONBOARD_REF, WORD

PREV_REF_OF_FIRST = "0" * 32
"""prev_ref of the verdict with verdict_seq 1."""

NONCE_MIN_BYTES = 16
NONCE_MAX_BYTES = 32
TTL_MIN_MS = 500
TTL_MAX_MS = 60_000
HEALTH_MAX_WORDS = 32
"""Twice as many as the contract knows, so that new words fit and a status stays one frame."""

_MECH = re.compile(r"[A-Za-z0-9_.+:-]{1,64}")
_PAD_RESULTS = frozenset({"pass", "fail", "unknown"})
_VERSION = re.compile(r"[\x21-\x7e]{1,64}")


class VerdictDecision(StrEnum):
    ACCEPT = "accept"
    REJECT = "reject"
    ABSTAIN = "abstain"


class VerdictResult(StrEnum):
    """Why, in one word (LINK/1 §4, What a verdict says)."""

    MATCH = "MATCH"
    NO_MATCH = "NO_MATCH"
    AMBIGUOUS = "AMBIGUOUS"
    SPOOF = "SPOOF"
    POOR_CAPTURE = "POOR_CAPTURE"
    GALLERY_EXPIRED = "GALLERY_EXPIRED"
    NOT_READY = "NOT_READY"

    @property
    def decision(self) -> VerdictDecision:
        """The decision that goes with a result."""
        if self is VerdictResult.MATCH:
            return VerdictDecision.ACCEPT
        if self in (VerdictResult.NO_MATCH, VerdictResult.AMBIGUOUS, VerdictResult.SPOOF):
            return VerdictDecision.REJECT
        return VerdictDecision.ABSTAIN


class GuideHint(StrEnum):
    SHOW_HAND = "show_hand"
    CLOSER = "closer"
    FARTHER = "farther"
    CENTER = "center"
    OPEN_HAND = "open_hand"
    HOLD_STILL = "hold_still"
    REMOVE_HAND = "remove_hand"
    THANKS = "thanks"


class ErrorCode(StrEnum):
    """LINK/1 §4, Error codes."""

    UNSUPPORTED_VERSION = "unsupported_version"
    UNSUPPORTED_TYPE = "unsupported_type"
    MALFORMED = "malformed"
    UNPAIRED = "unpaired"
    BAD_SIGNATURE = "bad_signature"
    WRONG_GATE = "wrong_gate"
    TXN_CONFLICT = "txn_conflict"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    BAD_DECISION = "bad_decision"


@dataclass(frozen=True, slots=True)
class Request:
    """A validator asks for one hand."""

    txn_id: str
    gate_id: str
    dbd_id: str
    nonce_b64: str
    issued_at_ms: int
    ttl_ms: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Request":
        members.version_1(obj)
        return cls(
            txn_id=members.text(obj, "txn_id", HEX32),
            gate_id=members.text(obj, "gate_id", NAME),
            dbd_id=members.text(obj, "dbd_id", NAME),
            nonce_b64=members.base64_text(obj, "nonce_b64", NONCE_MIN_BYTES, NONCE_MAX_BYTES),
            issued_at_ms=members.integer(obj, "issued_at_ms"),
            ttl_ms=members.integer(obj, "ttl_ms", TTL_MIN_MS, TTL_MAX_MS),
        )

    def to_obj(self) -> JsonObject:
        return {
            "v": 1,
            "txn_id": self.txn_id,
            "gate_id": self.gate_id,
            "dbd_id": self.dbd_id,
            "nonce_b64": self.nonce_b64,
            "issued_at_ms": self.issued_at_ms,
            "ttl_ms": self.ttl_ms,
        }


@dataclass(frozen=True, slots=True)
class Pad:
    """Presentation attack detection: what it found, by which cues, and how sure (0..10000)."""

    res: str
    mech: str
    score_q: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Pad":
        return cls(
            res=members.one_of(obj, "res", _PAD_RESULTS),
            mech=members.text(obj, "mech", _MECH),
            score_q=members.integer(obj, "score_q", 0, 10_000),
        )

    def to_obj(self) -> JsonObject:
        return {"res": self.res, "mech": self.mech, "score_q": self.score_q}


@dataclass(frozen=True, slots=True)
class GalleryMark:
    """Which state of the gallery an answer was made with; head16 is the start of its head."""

    stream: str
    epoch: int
    seq: int
    head16: str

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "GalleryMark":
        return cls(
            stream=members.text(obj, "stream", NAME),
            epoch=members.integer(obj, "epoch"),
            seq=members.integer(obj, "seq"),
            head16=members.text(obj, "head16", HEX16),
        )

    def to_obj(self) -> JsonObject:
        return {"stream": self.stream, "epoch": self.epoch, "seq": self.seq, "head16": self.head16}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the device says about one hand. Only accept has subject_ref, onboard_ref and hand."""

    txn_id: str
    gate_id: str
    dbd_id: str
    nonce_b64: str
    issued_at_ms: int
    ttl_ms: int
    decided_at_ms: int
    device_id: str
    result: VerdictResult
    verdict_seq: int
    prev_ref: str
    score_q: int
    margin_q: int
    quality_q: int
    pad: Pad
    attempts: int
    model_id: str
    thr_id: str
    gallery: GalleryMark
    subject_ref: str | None = None
    onboard_ref: str | None = None
    hand: str | None = None

    def __post_init__(self) -> None:
        accepted = self.result is VerdictResult.MATCH
        if accepted != (self.subject_ref is not None) or accepted != (self.hand is not None):
            raise FormatError("an accept verdict has subject_ref and hand, and no other verdict has them")
        if self.onboard_ref is not None and not accepted:
            raise FormatError("only an accept verdict has onboard_ref")

    @property
    def decision(self) -> VerdictDecision:
        return self.result.decision

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Verdict":
        members.version_1(obj)
        result = VerdictResult(members.one_of(obj, "result", frozenset(VerdictResult)))
        if members.one_of(obj, "decision", frozenset(VerdictDecision)) != result.decision:
            raise FormatError("members decision and result do not belong together")
        accepted = result is VerdictResult.MATCH
        if not accepted and not {"subject_ref", "onboard_ref", "hand"}.isdisjoint(obj):
            raise FormatError("only an accept verdict has subject_ref, onboard_ref and hand")
        return cls(
            txn_id=members.text(obj, "txn_id", HEX32),
            gate_id=members.text(obj, "gate_id", NAME),
            dbd_id=members.text(obj, "dbd_id", NAME),
            nonce_b64=members.base64_text(obj, "nonce_b64", NONCE_MIN_BYTES, NONCE_MAX_BYTES),
            issued_at_ms=members.integer(obj, "issued_at_ms"),
            ttl_ms=members.integer(obj, "ttl_ms", TTL_MIN_MS, TTL_MAX_MS),
            decided_at_ms=members.integer(obj, "decided_at_ms"),
            device_id=members.text(obj, "device_id", NAME),
            result=result,
            verdict_seq=members.integer(obj, "verdict_seq", 1),
            prev_ref=members.text(obj, "prev_ref", HEX32),
            score_q=members.integer(obj, "score_q", -10_000, 10_000),
            margin_q=members.integer(obj, "margin_q", 0, 20_000),
            quality_q=members.integer(obj, "quality_q", 0, 100),
            pad=Pad.from_obj(members.nested(obj, "pad")),
            attempts=members.integer(obj, "attempts", 0, 1_000),
            model_id=members.text(obj, "model_id", NAME),
            thr_id=members.text(obj, "thr_id", NAME),
            gallery=GalleryMark.from_obj(members.nested(obj, "gallery")),
            subject_ref=members.text(obj, "subject_ref", HEX32) if accepted else None,
            onboard_ref=members.optional_text(obj, "onboard_ref", ONBOARD_REF),
            hand=members.one_of(obj, "hand", frozenset("LR")) if accepted else None,
        )

    def to_obj(self) -> JsonObject:
        obj: JsonObject = {
            "v": 1,
            "txn_id": self.txn_id,
            "gate_id": self.gate_id,
            "dbd_id": self.dbd_id,
            "nonce_b64": self.nonce_b64,
            "issued_at_ms": self.issued_at_ms,
            "ttl_ms": self.ttl_ms,
            "decided_at_ms": self.decided_at_ms,
            "device_id": self.device_id,
            "decision": str(self.decision),
            "result": str(self.result),
            "verdict_seq": self.verdict_seq,
            "prev_ref": self.prev_ref,
            "score_q": self.score_q,
            "margin_q": self.margin_q,
            "quality_q": self.quality_q,
            "pad": self.pad.to_obj(),
            "attempts": self.attempts,
            "model_id": self.model_id,
            "thr_id": self.thr_id,
            "gallery": self.gallery.to_obj(),
        }
        for name in ("subject_ref", "onboard_ref", "hand"):
            value = getattr(self, name)
            if value is not None:
                obj[name] = value
        return obj


@dataclass(frozen=True, slots=True)
class Decision:
    """What the validator made of a verdict."""

    txn_id: str
    gate_id: str
    dbd_id: str
    nonce_b64: str
    verdict_ref: str
    reason: str
    outcome: str
    actuated: bool
    decision_seq: int
    decided_at_ms: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Decision":
        members.version_1(obj)
        return cls(
            txn_id=members.text(obj, "txn_id", HEX32),
            gate_id=members.text(obj, "gate_id", NAME),
            dbd_id=members.text(obj, "dbd_id", NAME),
            nonce_b64=members.base64_text(obj, "nonce_b64", NONCE_MIN_BYTES, NONCE_MAX_BYTES),
            verdict_ref=members.text(obj, "verdict_ref", HEX32),
            reason=members.text(obj, "reason", WORD),
            outcome=members.text(obj, "outcome", WORD),
            actuated=members.boolean(obj, "actuated"),
            decision_seq=members.integer(obj, "decision_seq", 1),
            decided_at_ms=members.integer(obj, "decided_at_ms"),
        )

    def to_obj(self) -> JsonObject:
        return {
            "v": 1,
            "txn_id": self.txn_id,
            "gate_id": self.gate_id,
            "dbd_id": self.dbd_id,
            "nonce_b64": self.nonce_b64,
            "verdict_ref": self.verdict_ref,
            "reason": self.reason,
            "outcome": self.outcome,
            "actuated": self.actuated,
            "decision_seq": self.decision_seq,
            "decided_at_ms": self.decided_at_ms,
        }


@dataclass(frozen=True, slots=True)
class Passage:
    """Whether a person went through, at a gate with a turn sensor."""

    txn_id: str
    dbd_id: str
    gate_id: str
    verdict_ref: str
    passed: bool
    cause: str
    at_ms: int
    dbd_event_seq: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Passage":
        members.version_1(obj)
        return cls(
            txn_id=members.text(obj, "txn_id", HEX32),
            dbd_id=members.text(obj, "dbd_id", NAME),
            gate_id=members.text(obj, "gate_id", NAME),
            verdict_ref=members.text(obj, "verdict_ref", HEX32),
            passed=members.boolean(obj, "passed"),
            cause=members.text(obj, "cause", WORD),
            at_ms=members.integer(obj, "at_ms"),
            dbd_event_seq=members.integer(obj, "dbd_event_seq", 1),
        )

    def to_obj(self) -> JsonObject:
        return {
            "v": 1,
            "txn_id": self.txn_id,
            "dbd_id": self.dbd_id,
            "gate_id": self.gate_id,
            "verdict_ref": self.verdict_ref,
            "passed": self.passed,
            "cause": self.cause,
            "at_ms": self.at_ms,
            "dbd_event_seq": self.dbd_event_seq,
        }


@dataclass(frozen=True, slots=True)
class LastVerdict:
    verdict_seq: int
    verdict_ref: str


@dataclass(frozen=True, slots=True)
class MailMarks:
    """How far the mail of a device has come, in both directions."""

    in_applied_seq: int
    out_seq: int
    out_acked_seq: int


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """status_obj: the device's report about itself, signed over its validator's nonce."""

    device_id: str
    nonce_b64: str
    serving: bool
    health: tuple[str, ...]
    app_pkg: str
    app_version: str
    model_id: str
    thr_id: str
    gallery: GalleryMark
    last: LastVerdict | None
    mail: MailMarks
    at_ms: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "DeviceStatus":
        members.version_1(obj)
        health = members.array(obj, "health", 0, HEALTH_MAX_WORDS)
        if not all(isinstance(word, str) and WORD.fullmatch(word) for word in health):
            raise FormatError("member health is not an array of words")
        app = members.nested(obj, "app")
        mail = members.nested(obj, "mail")
        last = None if members.member(obj, "last") is None else members.nested(obj, "last")
        return cls(
            device_id=members.text(obj, "device_id", NAME),
            nonce_b64=members.base64_text(obj, "nonce_b64", 32, 32),
            serving=members.boolean(obj, "serving"),
            health=tuple(health),
            app_pkg=members.text(app, "pkg", _VERSION),
            app_version=members.text(app, "version", _VERSION),
            model_id=members.text(obj, "model_id", NAME),
            thr_id=members.text(obj, "thr_id", NAME),
            gallery=GalleryMark.from_obj(members.nested(obj, "gallery")),
            last=None
            if last is None
            else LastVerdict(
                verdict_seq=members.integer(last, "verdict_seq", 1),
                verdict_ref=members.text(last, "verdict_ref", HEX32),
            ),
            mail=MailMarks(
                in_applied_seq=members.integer(mail, "in_applied_seq"),
                out_seq=members.integer(mail, "out_seq"),
                out_acked_seq=members.integer(mail, "out_acked_seq"),
            ),
            at_ms=members.integer(obj, "at_ms"),
        )

    def to_obj(self) -> JsonObject:
        return {
            "v": 1,
            "device_id": self.device_id,
            "nonce_b64": self.nonce_b64,
            "serving": self.serving,
            "health": list(self.health),
            "app": {"pkg": self.app_pkg, "version": self.app_version},
            "model_id": self.model_id,
            "thr_id": self.thr_id,
            "gallery": self.gallery.to_obj(),
            "last": None
            if self.last is None
            else {"verdict_seq": self.last.verdict_seq, "verdict_ref": self.last.verdict_ref},
            "mail": {
                "in_applied_seq": self.mail.in_applied_seq,
                "out_seq": self.mail.out_seq,
                "out_acked_seq": self.mail.out_acked_seq,
            },
            "at_ms": self.at_ms,
        }
