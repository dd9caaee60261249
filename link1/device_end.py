"""The device's end of the cable: signed messages in and out, without ports, clocks or memory of passages.

What comes in is checked in the order of LINK/1 §4: wrapper (`malformed`), signature (`bad_signature`, for
decisions and passages `bad_decision`), contract (`malformed`), and for a request the gate (`wrong_gate`).
What fails is answered here and reaches the owner only when it is evidence. What passes becomes an event;
whether it fits a transaction is for the transaction engine.

    end = DeviceEnd(identity, validator_id=dbd_id, validator_keys=keys, random=os.urandom)
    for event in end.receive(data, now_ms): ...
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from link1 import members
from link1.bodies import (
    MAX_REFS,
    Box,
    Guide,
    MailAck,
    MailChunk,
    MailNone,
    MailPull,
)
from link1.canonical import CARRYING_DEPTH, MAX_DEPTH, JsonObject, nesting
from link1.envelope import RULES, Message, MessageType, Role
from link1.errors import FormatError, SignatureError
from link1.events import (
    Backing,
    CancelReceived,
    DecisionReceived,
    DeviceEvent,
    Down,
    ErrorReceived,
    PassageReceived,
    Proven,
    ReadyReceived,
    RequestReceived,
    UnknownReceived,
    VerdictLeft,
    WrongEvidence,
)
from link1.handshake import Identity, OncePinned, PeerKeys
from link1.keys import PublicKey, SigningKey
from link1.link import RandomSource
from link1.link_states import MessageLeft
from link1.members import HEX32
from link1.objects import Decision, DeviceStatus, ErrorCode, GuideHint, LastVerdict, Passage, Request
from link1.session import DrivenEnd, PeerProven, Served, Session, SessionEvent
from link1.signed import Kind, object_ref, sign_object, signer_kid_of, verify_object

MAX_REMEMBERED_EVIDENCE = 4096
"""`bad_decision` is said once for each distinct message; beyond so many the oldest may be said again."""
MAX_HELD_VERDICTS = 16
"""A hand makes one every second or two, and an ACK that is missing for longer ends the session."""
_UNSIGNED_DEPTH = MAX_DEPTH - (CARRYING_DEPTH - MAX_DEPTH) - 1
"""Inside a sealed batch it then stays within MAX_DEPTH. Decisions and passages of the contract have 2."""


class DeviceEnd(DrivenEnd[DeviceEvent]):
    """Driven with bytes and times like `link1.link.Link`; every `send_*` returns False when nothing was
    queued, because there is no proven validator or no room. A verdict, a status and a resolve need no room:
    they wait here, and go out in this session as soon as an ACK makes some."""

    def __init__(
        self,
        *,
        device_id: str,
        gate_id: str,
        dbd_id: str,
        verdict_key: SigningKey,
        validator_keys: PeerKeys,
        random: RandomSource,
        once_pinned: Callable[[str], OncePinned | None] | None = None,
    ) -> None:
        """`validator_keys(kid, at_ms)` gives the validator key pinned under `kid` and valid at epoch
        `at_ms`, or now when `at_ms` is None. `once_pinned(kid)` gives it whenever it was valid; without it
        only a key that counts now is known."""
        self._device_id = device_id
        self._gate_id = gate_id
        self._dbd_id = dbd_id
        self._key = verdict_key
        self._validator_keys = validator_keys
        self._once_pinned = once_pinned or self._pinned_now
        self.bad_signatures = 0
        """Decisions and passages with a wrong signature, since this end was made."""
        identity = Identity(Role.DEVICE, device_id, gate_id, verdict_key)
        super().__init__(Session(identity, dbd_id, validator_keys, random))
        self._complained: OrderedDict[str, None] = OrderedDict()
        self._held_verdicts: OrderedDict[str, JsonObject] = OrderedDict()
        self._held_status: DeviceStatus | None = None
        self._newest_status: DeviceStatus | None = None
        self._held_resolve: list[str] = []

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        self._send_held()  # before what waits on the channel, as far as it is a verdict
        data = super().data_to_send(now_ms, max_bytes)
        self._send_held()  # a message that has begun to go out made room
        return data

    def keys_changed(self, now_ms: int) -> list[DeviceEvent]:
        """Call when pinned keys have changed: revoking the one in use forces RST."""
        return self._follow(self._session.recheck_peer(now_ms))

    # ---- commands

    def send_status(self, status: DeviceStatus) -> bool:
        """Sign and send a status; its nonce and device_id are those of this session, whatever it holds.

        Of several that find no room the newest goes out.
        """
        peer = self._session.peer
        if peer is None:
            return False
        self._newest_status = status
        signed = replace(status, nonce_b64=peer.nonce_b64, device_id=self._device_id)
        sent = self._session.send(MessageType.STATUS, sign_object(Kind.STATUS, signed.to_obj(), self._key))
        self._held_status = None if sent else status
        return True

    def send_verdict(self, wrapper: JsonObject) -> bool:
        """Send a signed verdict that is durable already, before everything that waits.

        Where there is no room, repeats count once, and the newest MAX_HELD_VERDICTS are kept.
        """
        if not self.proven:
            return False
        ref = object_ref(wrapper)
        if self._queue_verdict(ref, wrapper):
            self._held_verdicts.pop(ref, None)
            return True
        self._held_verdicts[ref] = wrapper
        if len(self._held_verdicts) > MAX_HELD_VERDICTS:
            self._held_verdicts.popitem(last=False)
        return True

    def _queue_verdict(self, ref: str, wrapper: JsonObject) -> bool:
        """Queue a verdict; a status that it overtakes is signed again, or it would arrive after the verdict
        and name an older one as the last."""
        if not self._session.send(MessageType.VERDICT, wrapper, token=ref):
            return False
        status, seq = self._newest_status, wrapper["verdict"]["verdict_seq"]
        if status is not None and (status.last is None or status.last.verdict_seq < seq):
            self._newest_status = replace(status, last=LastVerdict(seq, ref))
        waited = self._session.withdraw_waiting_status() or self._held_status is not None
        if waited and self._newest_status is not None:
            self.send_status(self._newest_status)
        return True

    def _send_held(self) -> None:
        """Send what found no room, as far as there is some now."""
        while self._held_verdicts:
            ref, wrapper = next(iter(self._held_verdicts.items()))
            if not self._queue_verdict(ref, wrapper):
                return
            del self._held_verdicts[ref]
        if self._held_status is not None:
            self.send_status(self._held_status)
        if self._held_resolve:
            self.send_resolve(self._held_resolve)

    def send_guide(self, txn_id: str, hint: GuideHint) -> bool:
        """Say once what the person should do; of hints that come faster than five a second the newest."""
        return self._session.send(MessageType.GUIDE, Guide(txn_id, hint).to_obj())

    def send_resolve(self, verdict_refs: Iterable[str]) -> bool:
        """Ask for the outcomes of 1 to 32 verdicts. Where there is no room, the newest question is kept."""
        refs = list(verdict_refs)
        if not 1 <= len(refs) <= MAX_REFS:
            raise FormatError(f"resolve asks about 1 to {MAX_REFS} verdicts")
        sent = self._session.send(MessageType.RESOLVE, {"verdict_refs": refs})
        self._held_resolve = refs if self.proven and not sent else []
        return self.proven

    def send_error(self, code: ErrorCode, about: MessageType, txn_id: str | None = None) -> bool:
        """`txn_id` only when the signature over it held."""
        return self.proven and self._session.send_error(code, about, txn_id)

    def refuse_evidence(self, type_: MessageType, wrapper: JsonObject) -> bool:
        """Answer `bad_decision`, once for each distinct message. True the first time: keep the message."""
        first = self.first_copy(wrapper)
        if first:
            self._session.send_error(ErrorCode.BAD_DECISION, type_)
        return first

    def first_copy(self, wrapper: JsonObject) -> bool:
        """Whether this very message was not asked about before, among the last MAX_REMEMBERED_EVIDENCE."""
        digest = object_ref(wrapper)
        if digest in self._complained:
            self._complained.move_to_end(digest)
            return False
        self._complained[digest] = None
        if len(self._complained) > MAX_REMEMBERED_EVIDENCE:
            self._complained.popitem(last=False)
        return True

    def send_mail_ack(self, ack: MailAck) -> bool:
        return self._answer_mail(MessageType.MAIL_ACK, ack.to_obj())

    def send_mail(self, chunk: MailChunk) -> bool:
        """Answer a pull with a chunk of the outbox record that it asked for."""
        return self._answer_mail(MessageType.MAIL, chunk.to_obj())

    def send_mail_none(self, none: MailNone) -> bool:
        return self._answer_mail(MessageType.MAIL_NONE, none.to_obj())

    def _answer_mail(self, type_: MessageType, body: JsonObject) -> bool:
        # The validator has one question open: an answer that has not begun to go out is to an older one.
        self._session.withdraw_waiting_mail()
        return self._session.send(type_, body)

    # ---- what comes in

    def _follow(self, session_events: Sequence[SessionEvent]) -> list[DeviceEvent]:
        events: list[DeviceEvent] = []
        for event in session_events:
            match event:
                case PeerProven(peer):
                    events.append(Proven(peer.kid, peer.nonce_b64))
                case Down():
                    self._held_verdicts.clear()
                    self._held_status = self._newest_status = None
                    self._held_resolve = []
                    events.append(event)
                case ErrorReceived():
                    events.append(event)
                case MessageLeft(token):
                    events.append(VerdictLeft(token))
                case Served(message):
                    events += self._serve(message)
        return events

    def _serve(self, message: Message) -> list[DeviceEvent]:
        if message.type is MessageType.REQUEST:
            return self._serve_request(message.body)
        if message.type in (MessageType.DECISION, MessageType.PASSAGE):
            return self._serve_evidence(message)
        reader = _PLAIN_READERS.get(message.type)
        if reader is None:
            return []
        try:
            return [reader(message.body)]
        except FormatError:
            self._session.send_error(ErrorCode.MALFORMED, message.type)
            return []

    def _serve_request(self, wrapper: JsonObject) -> list[DeviceEvent]:
        peer = self._session.peer
        if peer is None:
            return []
        try:
            obj = verify_object(Kind.REQUEST, wrapper, peer.key)
        except SignatureError:
            self._session.send_error(ErrorCode.BAD_SIGNATURE, MessageType.REQUEST)
            return []
        except FormatError:
            self._session.send_error(ErrorCode.MALFORMED, MessageType.REQUEST)
            return []
        txn_id = _txn_id_of(obj)
        try:
            request = Request.from_obj(obj)
        except FormatError:
            self._session.send_error(ErrorCode.MALFORMED, MessageType.REQUEST, txn_id)
            return []
        if (request.gate_id, request.dbd_id) != (self._gate_id, self._dbd_id):
            self._session.send_error(ErrorCode.WRONG_GATE, MessageType.REQUEST, txn_id)
            return []
        return [RequestReceived(request, wrapper)]

    def _serve_evidence(self, message: Message) -> list[DeviceEvent]:
        """A decision or passage. It completes something under the key that proved itself in this session,
        whatever time it names, or under another one of the validator's that counted at that time.

        An unsigned one is counted alone where it is nested deeper than every service reads in a batch."""
        kind = RULES[message.type].signed
        wrapper = message.body
        if kind is None:
            return []
        try:
            wrong, obj = self._weigh(kind, wrapper)
            if wrong is not None:
                self.bad_signatures += wrong is Backing.UNSIGNED
                kept = self.refuse_evidence(message.type, wrapper) and (
                    wrong is not Backing.UNSIGNED or nesting(wrapper) <= _UNSIGNED_DEPTH
                )
                return [WrongEvidence(message.type, wrapper, wrong)] if kept else []
            if kind is Kind.DECISION:
                return [DecisionReceived(Decision.from_obj(obj), wrapper)]
            return [PassageReceived(Passage.from_obj(obj), wrapper)]
        except FormatError:
            self._session.send_error(ErrorCode.MALFORMED, message.type)
            return []

    def _weigh(self, kind: Kind, wrapper: JsonObject) -> tuple[Backing | None, JsonObject]:
        """The backing of a decision or passage that completes nothing, None when it may complete one; and the
        signed object. Raises FormatError for a wrapper outside the contract."""
        kid, peer = signer_kid_of(kind, wrapper), self._session.peer
        known = self._once_pinned(kid)
        key: PublicKey | None = None if known is None else known.public
        if peer is not None and peer.kid == kid:
            key, wrong = peer.key, None
        elif known is not None and known.revoked:
            wrong = Backing.REVOKED
        else:
            at_ms = _evidence_time(kind, wrapper)
            counted = at_ms is not None and self._validator_keys(kid, at_ms) is not None
            wrong = None if counted else Backing.SIGNED
        try:
            if key is None:
                raise SignatureError("signed by a key that was never pinned")
            return wrong, verify_object(kind, wrapper, key)
        except SignatureError:
            return Backing.UNSIGNED, {}

    def _pinned_now(self, kid: str) -> OncePinned | None:
        key = self._validator_keys(kid, None)
        return None if key is None else OncePinned(key, revoked=False)


def _txn_id_of(obj: Mapping[str, Any]) -> str | None:
    """The txn_id of a request with a good signature, whatever its other members."""
    txn_id = obj.get("txn_id")
    return txn_id if isinstance(txn_id, str) and HEX32.fullmatch(txn_id) else None


def _evidence_time(kind: Kind, wrapper: JsonObject) -> int | None:
    """When a decision or passage says it was made; None when it says nothing that can be read."""
    try:
        obj = members.nested(wrapper, kind.member)
        return members.integer(obj, "decided_at_ms" if kind is Kind.DECISION else "at_ms")
    except FormatError:
        return None


_PLAIN_READERS: dict[MessageType, Callable[[JsonObject], DeviceEvent]] = {
    MessageType.CANCEL: CancelReceived.from_obj,
    MessageType.READY: ReadyReceived.from_obj,
    MessageType.UNKNOWN: UnknownReceived.from_obj,
    MessageType.MAIL: lambda body: MailChunk.from_obj(body, Box.IN),
    MessageType.MAIL_PULL: MailPull.from_obj,
}
"""Unsigned messages: what only a cable can carry, and what an attacker in it may forge."""
