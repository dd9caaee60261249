"""The effects of the transaction engine, which its caller carries out in the order given.

Four of them are answered: JournalVerdict by `verdict_durable` or `verdict_failed`, RememberEnd by
`end_remembered`, RecordEvidence by `evidence_recorded`, and ListOpen by `open_verdicts`.
"""

from dataclasses import dataclass, field

from device.passage.decision import Outcome
from link1.canonical import JsonObject
from link1.events import Backing
from link1.objects import ErrorCode, GuideHint, Request


@dataclass(frozen=True, slots=True)
class StartCapture:
    """Recognise the hand in view, for this request. Until then hands are only detected."""

    txn_id: str


@dataclass(frozen=True, slots=True)
class StopCapture:
    """No request is open: only detect hands."""


@dataclass(frozen=True, slots=True)
class SendGuide:
    txn_id: str
    hint: GuideHint


@dataclass(frozen=True, slots=True)
class JournalVerdict:
    """Number, sign and store the verdict before it is sent. `thr_id`: the thresholds that judged it."""

    request: Request
    request_ref: str
    outcome: Outcome
    thr_id: str


@dataclass(frozen=True, slots=True)
class SendVerdict:
    txn_id: str
    wrapper: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendError:
    """`about`: the message type that is answered. `txn_id`: only when a valid signature covers it."""

    code: ErrorCode
    about: str
    txn_id: str | None


@dataclass(frozen=True, slots=True)
class RememberEnd:
    """Make it durable that the transaction ended without a verdict, before its end is reported."""

    txn_id: str
    request_ref: str
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class RecordDecision:
    verdict_ref: str
    wrapper: JsonObject = field(repr=False)
    awaits_passage: bool


@dataclass(frozen=True, slots=True)
class RecordPassage:
    verdict_ref: str
    wrapper: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class RecordOutcomeUnknown:
    verdict_ref: str


@dataclass(frozen=True, slots=True)
class RecordDisowned:
    """The validator has not acted on these verdicts and never will."""

    verdict_refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """Keep a message that contradicts the device's records.

    `about`: decision or passage. `txn_id`: the one it names, if any. `answer`: whether the validator gets an
    error the first time this same message arrives.
    """

    about: str
    wrapper: JsonObject = field(repr=False)
    txn_id: str | None = None
    answer: bool = True
    backing: Backing = Backing.SIGNED


@dataclass(frozen=True, slots=True)
class ListOpen:
    """Read verdicts that await an answer, numbered after `after_seq` and up to `upto_seq`."""

    after_seq: int
    upto_seq: int
    limit: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask the validator for the outcomes of these verdicts."""

    verdict_refs: tuple[str, ...]


Effect = (
    StartCapture
    | StopCapture
    | SendGuide
    | JournalVerdict
    | SendVerdict
    | SendError
    | RememberEnd
    | RecordDecision
    | RecordPassage
    | RecordOutcomeUnknown
    | RecordDisowned
    | RecordEvidence
    | ListOpen
    | Resolve
)
