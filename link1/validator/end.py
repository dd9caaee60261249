"""The validator's end of the cable: the other half of `link1.device_end`.

It sends `ready` as soon as the device has proven who it is. Verdicts and statuses are checked in
the order wrapper (`malformed`), signature (`bad_signature`), contract (`malformed`), ids (`wrong_gate`);
what passes becomes an event. Whether a verdict may move a turnstile is for `link1.validator.desk`.
"""

from collections.abc import Callable, Iterable, Sequence

from link1.bodies import (
    MAX_REFS,
    Box,
    Guide,
    MailAck,
    MailChunk,
    MailNone,
    MailPull,
)
from link1.canonical import JsonObject
from link1.envelope import Message, MessageType, Role
from link1.errors import FormatError, SignatureError
from link1.events import Down, ErrorReceived
from link1.handshake import Identity, PeerKeys
from link1.keys import SigningKey
from link1.link import RandomSource
from link1.link_states import DownReason
from link1.objects import DeviceStatus, ErrorCode, Verdict
from link1.session import DrivenEnd, PeerProven, Served, Session, SessionEvent
from link1.signed import Kind, object_ref, verify_object
from link1.validator.events import (
    DeviceProven,
    GuideReceived,
    MailAckReceived,
    MailChunkReceived,
    MailNoneReceived,
    MessageRefusedByUs,
    ResolveReceived,
    StatusReceived,
    ValidatorEvent,
    VerdictReceived,
)


class ValidatorEnd(DrivenEnd[ValidatorEvent]):
    """Driven with bytes and times like `link1.link.Link`; every `send_*` returns False when nothing was
    queued, because there is no proven device or no room."""

    def __init__(
        self,
        *,
        dbd_id: str,
        gate_id: str,
        key: SigningKey,
        device_keys: PeerKeys,
        passage_sensor: bool,
        random: RandomSource,
        device_id: str | None = None,
    ) -> None:
        """`device_keys(kid, at_ms)` gives the pinned verdict key; `device_id` None takes the id it proves."""
        self.identity = Identity(Role.VALIDATOR, dbd_id, gate_id, key)
        self._passage_sensor = passage_sensor
        super().__init__(Session(self.identity, device_id, device_keys, random))

    def reset(self, now_ms: int, reason: DownReason) -> list[ValidatorEvent]:
        """End the session and begin another."""
        return self._follow(self._session.reset(now_ms, reason))

    # ---- commands

    def send_request(self, wrapper: JsonObject) -> bool:
        return self._session.send(MessageType.REQUEST, wrapper)

    def send_cancel(self, txn_id: str) -> bool:
        return self._session.send(MessageType.CANCEL, {"txn_id": txn_id})

    def send_decision(self, wrapper: JsonObject) -> bool:
        return self._session.send(MessageType.DECISION, wrapper)

    def send_passage(self, wrapper: JsonObject) -> bool:
        return self._session.send(MessageType.PASSAGE, wrapper)

    def send_unknown(self, verdict_refs: Iterable[str]) -> bool:
        """Say of 1 to 32 verdicts that they have not been acted on and never will be."""
        refs = list(verdict_refs)
        if not 1 <= len(refs) <= MAX_REFS:
            raise FormatError(f"unknown names 1 to {MAX_REFS} verdicts")
        return self._session.send(MessageType.UNKNOWN, {"verdict_refs": refs})

    def send_mail(self, chunk: MailChunk) -> bool:
        """Offer a chunk of an inbox record; keep one mail or pull unanswered at a time."""
        return self._session.send(MessageType.MAIL, chunk.to_obj())

    def send_mail_pull(self, pull: MailPull) -> bool:
        return self._session.send(MessageType.MAIL_PULL, pull.to_obj())

    # ---- what comes in

    def _follow(self, session_events: Sequence[SessionEvent]) -> list[ValidatorEvent]:
        events: list[ValidatorEvent] = []
        for event in session_events:
            match event:
                case PeerProven(peer):
                    self._session.send(MessageType.READY, {"passage_sensor": self._passage_sensor})
                    events.append(DeviceProven(peer.id, peer.kid))
                case Down() | ErrorReceived():
                    events.append(event)
                case Served(message):
                    events += self._serve(message)
                case _:
                    pass  # nothing that a validator sends is asked after
        return events

    def _serve(self, message: Message) -> list[ValidatorEvent]:
        readers: dict[MessageType, _Reader] = {
            MessageType.STATUS: self._read_status,
            MessageType.VERDICT: self._read_verdict,
        }
        reader = readers.get(message.type) or _PLAIN_READERS.get(message.type)
        if reader is None:
            return []
        try:
            return [reader(message.body)]
        except SignatureError:
            return self._refuse(ErrorCode.BAD_SIGNATURE, message.type)
        except _WrongIdsError:
            return self._refuse(ErrorCode.WRONG_GATE, message.type)
        except FormatError:
            if message.type is MessageType.GUIDE:
                return []  # a hint is never answered, whatever is wrong with it
            return self._refuse(ErrorCode.MALFORMED, message.type)

    def _refuse(self, code: ErrorCode, type_: MessageType) -> list[ValidatorEvent]:
        self._session.send_error(code, type_)
        return [MessageRefusedByUs(type_, code.value)]

    def _read_status(self, wrapper: JsonObject) -> StatusReceived:
        peer = self._session.peer
        if peer is None:
            raise SignatureError("no proven device")
        status = DeviceStatus.from_obj(verify_object(Kind.STATUS, wrapper, peer.key))
        if status.device_id != peer.id:
            raise _WrongIdsError("status of another device")
        if status.nonce_b64 != self._session.own_nonce_b64:
            raise FormatError("status does not answer the nonce of this session")
        return StatusReceived(status, wrapper)

    def _read_verdict(self, wrapper: JsonObject) -> VerdictReceived:
        peer = self._session.peer
        if peer is None:
            raise SignatureError("no proven device")
        verdict = Verdict.from_obj(verify_object(Kind.VERDICT, wrapper, peer.key))
        own = self.identity
        if (verdict.gate_id, verdict.dbd_id, verdict.device_id) != (own.gate_id, own.id, peer.id):
            raise _WrongIdsError("verdict for another gate")
        return VerdictReceived(verdict, wrapper, object_ref(wrapper))


class _WrongIdsError(FormatError):
    """A signed object of the device's that names another gate, validator or device."""


def _guide(body: JsonObject) -> GuideReceived:
    guide = Guide.from_obj(body)
    return GuideReceived(guide.txn_id, guide.hint)


_Reader = Callable[[JsonObject], ValidatorEvent]

_PLAIN_READERS: dict[MessageType, _Reader] = {
    MessageType.GUIDE: _guide,
    MessageType.RESOLVE: ResolveReceived.from_obj,
    MessageType.MAIL: lambda body: MailChunkReceived(MailChunk.from_obj(body, Box.OUT)),
    MessageType.MAIL_ACK: lambda body: MailAckReceived(MailAck.from_obj(body)),
    MessageType.MAIL_NONE: lambda body: MailNoneReceived(MailNone.from_obj(body)),
}
