"""What a validator must remember across a restart (LINK/1 §4): its counters, and what it has answered."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.keys import PublicKey
from link1.members import HEX32
from link1.objects import Decision, Passage
from link1.signed import Kind, signer_kid_of, verify_object

MAX_ANSWERED = 32
"""As many verdicts as one `resolve` asks about; older answers are forgotten, and silence is the answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A verdict that has its decision, and its passage where one was reported; both as signed."""

    verdict_ref: str
    decision: JsonObject
    passage: JsonObject | None = None

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Answered":
        """Raises FormatError, also where decision or passage is about another verdict."""
        passage = None if members.member(obj, "passage") is None else members.nested(obj, "passage")
        found = cls(members.text(obj, "verdict_ref", HEX32), members.nested(obj, "decision"), passage)
        signer_kid_of(Kind.DECISION, found.decision)
        about = {Decision.from_obj(found.decision["decision_obj"]).verdict_ref}
        if passage is not None:
            signer_kid_of(Kind.PASSAGE, passage)
            about.add(Passage.from_obj(passage["passage"]).verdict_ref)
        if about != {found.verdict_ref}:
            raise FormatError("an answer is kept under another verdict than it names")
        return found

    def verify(self, key: PublicKey) -> None:
        """Raises FormatError or SignatureError unless `key` signed what names it as its signer."""
        for kind, wrapper in ((Kind.DECISION, self.decision), (Kind.PASSAGE, self.passage)):
            if wrapper is not None and wrapper["signer_kid"] == key.kid:
                verify_object(kind, wrapper, key)

    def to_obj(self) -> JsonObject:
        return {"verdict_ref": self.verdict_ref, "decision": self.decision, "passage": self.passage}


@dataclass(frozen=True, slots=True)
class DeskMemory:
    """`decision_seq` and `dbd_event_seq` are the last ones used, `highest_verdict_seq` the highest acted on
    of the device with the key `device_kid`. To be kept durably before anything is sent or actuated."""

    decision_seq: int = 0
    dbd_event_seq: int = 0
    device_kid: str | None = None
    highest_verdict_seq: int = 0
    answered: tuple[Answered, ...] = ()
    forgot: bool = False
    """Answers may be missing that `decision_seq` does not count: those of another key of this validator."""

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "DeskMemory":
        """Raises FormatError."""
        kid = None if members.member(obj, "device_kid") is None else members.text(obj, "device_kid", HEX32)
        items = members.array(obj, "answered", 0, MAX_ANSWERED)
        return cls(
            decision_seq=members.integer(obj, "decision_seq"),
            dbd_event_seq=members.integer(obj, "dbd_event_seq"),
            device_kid=kid,
            highest_verdict_seq=members.integer(obj, "highest_verdict_seq"),
            answered=tuple(Answered.from_obj(members.nested({"item": item}, "item")) for item in items),
            forgot="forgot" in obj and members.boolean(obj, "forgot"),
        )

    def to_obj(self) -> JsonObject:
        return {
            "decision_seq": self.decision_seq,
            "dbd_event_seq": self.dbd_event_seq,
            "device_kid": self.device_kid,
            "highest_verdict_seq": self.highest_verdict_seq,
            "answered": [item.to_obj() for item in self.answered],
            "forgot": self.forgot,
        }

    @property
    def complete(self) -> bool:
        """True when no answer has been forgotten, so that a verdict not found was never answered."""
        return not self.forgot and len(self.answered) == self.decision_seq

    def find(self, verdict_ref: str) -> Answered | None:
        return next((item for item in self.answered if item.verdict_ref == verdict_ref), None)

    def for_device(self, kid: str) -> "DeskMemory":
        """A device with new keys restarts its verdict_seq."""
        if kid == self.device_kid:
            return self
        return replace(self, device_kid=kid, highest_verdict_seq=0)

    def under_key(self, kid: str) -> "DeskMemory":
        """When the validator has another key: that one's counters start, and what was acted on stays so."""
        decision_seq, dbd_event_seq = self.last_kept(kid)
        return replace(
            self,
            decision_seq=decision_seq,
            dbd_event_seq=dbd_event_seq,
            forgot=self.forgot or self.decision_seq > 0,
        )

    def last_kept(self, kid: str) -> tuple[int, int]:
        """The highest decision_seq and dbd_event_seq among the answers that the key `kid` signed."""
        decisions = [a.decision for a in self.answered if a.decision["signer_kid"] == kid]
        passages = [a.passage for a in self.answered if a.passage and a.passage["signer_kid"] == kid]
        return (
            max((d["decision_obj"]["decision_seq"] for d in decisions), default=0),
            max((p["passage"]["dbd_event_seq"] for p in passages), default=0),
        )

    def with_decision(self, verdict_ref: str, wrapper: JsonObject, acted_on_seq: int | None) -> "DeskMemory":
        """After the next decision; `acted_on_seq` is the verdict_seq when it was acted on."""
        return replace(
            self,
            decision_seq=self.decision_seq + 1,
            highest_verdict_seq=max(self.highest_verdict_seq, acted_on_seq or 0),
            answered=(*self.answered, Answered(verdict_ref, wrapper))[-MAX_ANSWERED:],
        )

    def with_passage(self, verdict_ref: str, wrapper: JsonObject) -> "DeskMemory":
        """After the next passage."""
        return replace(
            self,
            dbd_event_seq=self.dbd_event_seq + 1,
            answered=tuple(
                replace(item, passage=wrapper) if item.verdict_ref == verdict_ref else item
                for item in self.answered
            ),
        )
