"""What a validator's end reports to its owner, next to `Down` and `ErrorReceived`. All are immutable."""

from dataclasses import dataclass

from link1.bodies import MailAck, MailChunk, MailNone, VerdictRefs
from link1.canonical import JsonObject
from link1.envelope import MessageType
from link1.events import Down, ErrorReceived
from link1.objects import DeviceStatus, GuideHint, Verdict
from link1.wire import WireObject


@dataclass(frozen=True, slots=True)
class DeviceProven:
    """The device has proven who it is, and `ready` has been sent; requests may follow."""

    device_id: str
    device_kid: str


@dataclass(frozen=True, slots=True)
class StatusReceived:
    status: DeviceStatus
    wrapper: JsonObject


@dataclass(frozen=True, slots=True)
class GuideReceived:
    """What the person at the gate should do. Not signed, may be lost."""

    txn_id: str
    hint: GuideHint


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """A verdict with the right signature, gate and device; the desk judges whether to act on it."""

    verdict: Verdict
    wrapper: JsonObject
    verdict_ref: str


class ResolveReceived(WireObject):
    """A question for the outcomes of these verdicts. Not signed."""

    verdict_refs: VerdictRefs


@dataclass(frozen=True, slots=True)
class MessageRefusedByUs:
    """Something of the device's that does not hold; the error named has been answered."""

    type: MessageType
    code: str


@dataclass(frozen=True, slots=True)
class MailAckReceived:
    ack: MailAck


@dataclass(frozen=True, slots=True)
class MailChunkReceived:
    """A chunk of an outbox record, asked for by `send_mail_pull`."""

    chunk: MailChunk


@dataclass(frozen=True, slots=True)
class MailNoneReceived:
    none: MailNone


ValidatorEvent = (
    DeviceProven
    | Down
    | StatusReceived
    | GuideReceived
    | VerdictReceived
    | ResolveReceived
    | MessageRefusedByUs
    | MailAckReceived
    | MailChunkReceived
    | MailNoneReceived
    | ErrorReceived
)
