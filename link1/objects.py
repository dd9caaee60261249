"""The signed objects of a passage as typed values (LINK/1 §4).

`from_obj` parses what `verify_object` returned and raises FormatError; members that the contract does
not name are left out (they stay under the signature of the wrapper, which is kept next to the value).
`to_obj` gives the object to sign.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.members import HEX16, HEX32, NAME, ONBOARD_REF, WORD
from link1.wire import Base64Bytes, Between, WireObject

PREV_REF_OF_FIRST = "0" * 32
"""prev_ref of the verdict with verdict_seq 1."""

HEALTH_MAX_WORDS = 32
"""Twice as many as the contract knows, so that new words fit and a status stays one frame."""

_MECH = re.compile(r"[A-Za-z0-9_.+:-]{1,64}")
_VERSION = re.compile(r"[\x21-\x7e]{1,64}")

Name = Annotated[str, NAME]
Id32 = Annotated[str, HEX32]
"""txn_id, verdict_ref, subject_ref, kid."""
Word = Annotated[str, WORD]
Count = Annotated[int, Between(0)]
"""Also a time, in epoch milliseconds."""
Seq = Annotated[int, Between(1)]
Nonce = Annotated[str, Base64Bytes(16, 32)]
TtlMs = Annotated[int, Between(500, 60_000)]


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


class SignedObject(WireObject):
    """Every signed object has the version of the contract."""

    constants: ClassVar = {"v": 1}


class Request(SignedObject):
    """A validator asks for one hand."""

    txn_id: Id32
    gate_id: Name
    dbd_id: Name
    nonce_b64: Nonce
    issued_at_ms: Count
    ttl_ms: TtlMs


class Pad(WireObject):
    """Presentation attack detection: what it found, by which cues, and how sure (0..10000)."""

    res: Annotated[str, frozenset({"pass", "fail", "unknown"})]
    mech: Annotated[str, _MECH]
    score_q: Annotated[int, Between(0, 10_000)]


class GalleryMark(WireObject):
    """Which state of the gallery an answer was made with; head16 is the start of its head."""

    stream: Name
    epoch: Count
    seq: Count
    head16: Annotated[str, HEX16]


class Verdict(SignedObject):
    """What the device says about one hand. Only accept has subject_ref, onboard_ref and hand."""

    txn_id: Id32
    gate_id: Name
    dbd_id: Name
    nonce_b64: Nonce
    issued_at_ms: Count
    ttl_ms: TtlMs
    decided_at_ms: Count
    device_id: Name
    result: VerdictResult
    verdict_seq: Seq
    prev_ref: Id32
    score_q: Annotated[int, Between(-10_000, 10_000)]
    margin_q: Annotated[int, Between(0, 20_000)]
    quality_q: Annotated[int, Between(0, 100)]
    pad: Pad
    attempts: Annotated[int, Between(0, 1_000)]
    model_id: Name
    thr_id: Name
    gallery: GalleryMark
    subject_ref: Annotated[str | None, HEX32] = None
    onboard_ref: Annotated[str | None, ONBOARD_REF] = None
    hand: Annotated[str | None, frozenset("LR")] = None

    def __post_init__(self) -> None:
        person = (self.subject_ref, self.onboard_ref, self.hand)
        if self.result is not VerdictResult.MATCH:
            if person != (None, None, None):
                raise FormatError("only an accept verdict has subject_ref, onboard_ref and hand")
        elif self.subject_ref is None or self.hand is None:
            raise FormatError("an accept verdict has subject_ref and hand")

    @property
    def decision(self) -> VerdictDecision:
        return self.result.decision

    @classmethod
    def from_obj(cls, obj: Mapping[str, object]) -> Self:
        verdict = super().from_obj(obj)
        if members.member(obj, "decision") != verdict.decision:
            raise FormatError("members decision and result do not belong together")
        return verdict

    def to_obj(self) -> JsonObject:
        return super().to_obj() | {"decision": str(self.decision)}


class Decision(SignedObject):
    """What the validator made of a verdict."""

    txn_id: Id32
    gate_id: Name
    dbd_id: Name
    nonce_b64: Nonce
    verdict_ref: Id32
    reason: Word
    outcome: Word
    actuated: bool
    decision_seq: Seq
    decided_at_ms: Count


class Passage(SignedObject):
    """Whether a person went through, at a gate with a turn sensor."""

    txn_id: Id32
    dbd_id: Name
    gate_id: Name
    verdict_ref: Id32
    passed: bool
    cause: Word
    at_ms: Count
    dbd_event_seq: Seq


class LastVerdict(WireObject):
    verdict_seq: Seq
    verdict_ref: Id32


class MailMarks(WireObject):
    """How far the mail of a device has come, in both directions."""

    in_applied_seq: Count
    out_seq: Count
    out_acked_seq: Count


class AppVersion(WireObject):
    """The software of a device."""

    pkg: Annotated[str, _VERSION]
    version: Annotated[str, _VERSION]


class DeviceStatus(SignedObject):
    """status_obj: the device's report about itself, signed over its validator's nonce."""

    device_id: Name
    nonce_b64: Annotated[str, Base64Bytes(32, 32)]
    serving: bool
    health: Annotated[tuple[Word, ...], Between(0, HEALTH_MAX_WORDS)]
    app: AppVersion
    model_id: Name
    thr_id: Name
    gallery: GalleryMark
    last: LastVerdict | None
    mail: MailMarks
    at_ms: Count
