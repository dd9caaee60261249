"""What the two ends report to their owner. All are immutable; wrappers are the objects as received."""

from dataclasses import dataclass
from enum import StrEnum

from link1.bodies import MailChunk, MailPull, VerdictRefs
from link1.canonical import JsonObject
from link1.envelope import MessageType
from link1.link_states import DownReason
from link1.objects import Decision, Id32, Passage, Request
from link1.wire import WireObject

# ---- either end


@dataclass(frozen=True, slots=True)
class Down:
    """A session has ended, and everything queued with it. `proven`: both ends had proven themselves."""

    reason: DownReason
    proven: bool


@dataclass(frozen=True, slots=True)
class ErrorReceived:
    """The peer's complaint. It is not signed: a hint for people and retries, never a fact."""

    code: str
    about: str
    txn_id: str | None


# ---- the device end


@dataclass(frozen=True, slots=True)
class Proven:
    """The validator has proven who it is; a signed status over `nonce_b64` is due now."""

    validator_kid: str
    nonce_b64: str


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request with a good signature, for our gate."""

    request: Request
    wrapper: JsonObject


class CancelReceived(WireObject):
    txn_id: Id32


@dataclass(frozen=True, slots=True)
class VerdictLeft:
    """The last byte of a verdict has left the port; from here the time for its decision runs."""

    verdict_ref: str


@dataclass(frozen=True, slots=True)
class DecisionReceived:
    """A decision with a good signature; the transaction engine judges whether it fits a verdict."""

    decision: Decision
    wrapper: JsonObject


@dataclass(frozen=True, slots=True)
class PassageReceived:
    """A passage with a good signature; the transaction engine judges whether it fits a verdict."""

    passage: Passage
    wrapper: JsonObject


class Backing(StrEnum):
    """How far a wrong decision or passage is authenticated."""

    SIGNED = "signed"
    """The signature is good, under a key of the validator that is not revoked."""
    REVOKED = "revoked"
    """The signature is good, under a revoked key."""
    UNSIGNED = "unsigned"
    """The signature is wrong: anyone with access to the cable may have made it."""


@dataclass(frozen=True, slots=True)
class WrongEvidence:
    """A decision or passage of which the signature alone says that it completes nothing: to be kept.
    `bad_decision` has been answered."""

    type: MessageType
    wrapper: JsonObject
    backing: Backing


class UnknownReceived(WireObject):
    """Verdicts that the validator has not acted on and never will. Not signed."""

    verdict_refs: VerdictRefs


class ReadyReceived(WireObject):
    passage_sensor: bool


DeviceEvent = (
    Proven
    | Down
    | RequestReceived
    | CancelReceived
    | VerdictLeft
    | DecisionReceived
    | PassageReceived
    | WrongEvidence
    | UnknownReceived
    | ReadyReceived
    | MailChunk
    | MailPull
    | ErrorReceived
)
"""A MailChunk, of an inbox record, is answered with `send_mail_ack`; a MailPull with `send_mail` or
`send_mail_none`."""
