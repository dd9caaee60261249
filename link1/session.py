"""What both ends have in common: a link, a handshake on it, and messages in their envelope.

`Session` turns bytes into messages of a proven peer. `link1.device_end` and `link1.validator.end` are each a
`DrivenEnd`, and say what those messages mean to their role. Errors that the contract wants answered here are
answered here: unreadable messages, other versions, unknown types, and whatever comes before both proofs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from link1.bodies import ErrorBody
from link1.canonical import JsonObject
from link1.channels import Outgoing
from link1.envelope import (
    BEFORE_PROOF,
    RULES,
    Message,
    MessageRefused,
    MessageType,
    encode_message,
    read_message,
)
from link1.errors import FormatError
from link1.events import Down, ErrorReceived
from link1.frames import Channel, Frame
from link1.handshake import (
    Handshake,
    HandshakeAction,
    HandshakeInput,
    HandshakeState,
    Identity,
    Peer,
    PeerKeys,
)
from link1.link import Link, RandomSource
from link1.link_states import (
    DownReason,
    HintArrived,
    LinkEvent,
    MessageArrived,
    MessageLeft,
    SessionDown,
    SessionUp,
)
from link1.objects import ErrorCode


@dataclass(frozen=True, slots=True)
class PeerProven:
    peer: Peer


@dataclass(frozen=True, slots=True)
class Served:
    """A readable message of a type that the proven peer may send; its body is not parsed yet."""

    message: Message


SessionEvent = PeerProven | Down | Served | ErrorReceived | MessageLeft
EventT = TypeVar("EventT")

_DROPPABLE = frozenset({MessageType.STATUS, MessageType.ERROR})
"""Types of which only the newest matters when the channel is full."""


class Session:
    """One end of the cable up to readable messages; driven like `link1.link.Link`."""

    def __init__(
        self, identity: Identity, peer_id: str | None, peer_keys: PeerKeys, random: RandomSource
    ) -> None:
        self._identity = identity
        self._peer_keys = peer_keys
        self.link = Link(random)
        self._handshake = Handshake(identity, peer_id, peer_keys, random)

    @property
    def peer(self) -> Peer | None:
        """The other end, once proven."""
        return self._handshake.peer if self._handshake.state is HandshakeState.PROVEN else None

    @property
    def own_nonce_b64(self) -> str:
        """The nonce of our hello in this session."""
        return self._handshake.nonce_b64

    # ---- driving

    def port_opened(self, now_ms: int) -> list[SessionEvent]:
        return self._follow(self.link.port_opened(now_ms), now_ms)

    def port_closed(self, now_ms: int) -> list[SessionEvent]:
        return self._follow(self.link.port_closed(now_ms), now_ms)

    def take(self, frame: Frame, now_ms: int) -> list[SessionEvent]:
        """Deal with one frame of `Link.frames_in`; its events are to be answered before the next."""
        reported = self.link.take(frame, now_ms)
        return self._follow(reported, now_ms) if reported else []

    def sent(self, count: int, now_ms: int, in_port: int) -> list[SessionEvent]:
        reported = self.link.sent(count, now_ms, in_port)
        return self._follow(reported, now_ms) if reported else []

    def tick(self, now_ms: int) -> list[SessionEvent]:
        events = self._follow(self.link.tick(now_ms), now_ms)
        deadline = self._handshake.deadline_ms
        if deadline is not None and now_ms >= deadline:
            events += self._shake(HandshakeInput.TIMEOUT, now_ms)
        return events

    def next_deadline_ms(self) -> int | None:
        deadlines = (self.link.next_deadline_ms(), self._handshake.deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def reset(self, now_ms: int, reason: DownReason) -> list[SessionEvent]:
        return self._follow(self.link.reset(now_ms, reason), now_ms)

    def recheck_peer(self, now_ms: int) -> list[SessionEvent]:
        """After a change of pinned keys: RST when the one in use is no longer good."""
        peer = self.peer
        if peer is None or self._peer_keys(peer.kid, None) == peer.key:
            return []
        return self.reset(now_ms, DownReason.KEY_REVOKED)

    # ---- sending

    def send(self, type_: MessageType, body: Mapping[str, Any], token: str | None = None) -> bool:
        """Queue a message to the proven peer; False when there is none or no room for it.

        Raises FormatError when the body has no canonical form or the message exceeds 4096 bytes.
        """
        return self.peer is not None and self._send(type_, body, token)

    def send_error(self, code: ErrorCode, about: str, txn_id: str | None = None) -> bool:
        """Queue an error; `txn_id` only when the signature over it held."""
        return self._send(MessageType.ERROR, ErrorBody(code.value, about, txn_id).to_obj(), None)

    def _send(self, type_: MessageType, body: Mapping[str, Any], token: str | None) -> bool:
        data = encode_message(type_, body)
        channel = RULES[type_].channel
        if channel is None:
            self.link.send_hint(data)
            return True
        message = Outgoing(
            name=type_.value,
            data=data,
            droppable=type_ in _DROPPABLE,
            urgent=type_ is MessageType.VERDICT,
            token=token,
        )
        return self.link.send(channel, message)

    def withdraw_waiting_mail(self) -> None:
        self.link.withdraw_waiting(Channel.MAIL)

    def withdraw_waiting_status(self) -> bool:
        """Drop a status that has not begun to go out; whether there was one."""
        return self.link.withdraw_waiting(Channel.CONTROL, MessageType.STATUS.value)

    # ---- what the link says

    def _follow(self, link_events: list[LinkEvent], now_ms: int) -> list[SessionEvent]:
        events: list[SessionEvent] = []
        for event in link_events:
            match event:
                case SessionUp():
                    events += self._shake(HandshakeInput.SESSION_UP, now_ms)
                case SessionDown(reason):
                    events.append(Down(reason, proven=self.peer is not None))
                    events += self._shake(HandshakeInput.SESSION_DOWN, now_ms)
                case MessageArrived(channel, data):
                    events += self._read(data, channel, now_ms)
                case HintArrived(data):
                    events += self._read_hint(data)
                case MessageLeft():
                    events.append(event)
        return events

    def _shake(self, trigger: HandshakeInput, now_ms: int) -> list[SessionEvent]:
        events: list[SessionEvent] = []
        was_refused = self._handshake.state is HandshakeState.REFUSED
        for action in self._handshake.step(trigger, now_ms):
            match action:
                case HandshakeAction.SAY_HELLO:
                    self._send(MessageType.HELLO, self._handshake.own_hello().to_obj(), None)
                case HandshakeAction.SAY_PROVE:
                    self._send(MessageType.PROVE, self._handshake.own_proof(), None)
                case HandshakeAction.SAY_UNPAIRED:
                    hello = trigger is HandshakeInput.HELLO_BAD
                    self.send_error(ErrorCode.UNPAIRED, MessageType.HELLO if hello else MessageType.PROVE)
                case HandshakeAction.ANNOUNCE:
                    if self._handshake.peer is not None:
                        events.append(PeerProven(self._handshake.peer))
                case HandshakeAction.RESET:
                    reason = DownReason.UNPAIRED if was_refused else DownReason.HANDSHAKE_TIMEOUT
                    events += self.reset(now_ms, reason)
        return events

    def _read(self, data: bytes, channel: Channel, now_ms: int) -> list[SessionEvent]:
        if self._handshake.state is HandshakeState.REFUSED:
            return []  # one second in which nothing is served
        try:
            message = read_message(data, self._identity.role.peer, channel)
        except MessageRefused as refused:
            # An error is never answered, not even an unreadable one.
            if refused.about != MessageType.ERROR:
                # Before the proofs only unreadable and foreign messages get an answer other than `unpaired`.
                said = self.peer is not None or refused.code is not ErrorCode.UNSUPPORTED_TYPE
                self.send_error(refused.code if said else ErrorCode.UNPAIRED, refused.about)
            return []
        if message.type is MessageType.ERROR:
            return self._read_error(message.body)
        if message.type in BEFORE_PROOF:
            return self._read_handshake(message, now_ms)
        if self.peer is None:
            self.send_error(ErrorCode.UNPAIRED, message.type)
            return []
        return [Served(message)]

    def _read_hint(self, data: bytes) -> list[SessionEvent]:
        """A hint is never answered: what cannot be read or comes too early is gone."""
        try:
            message = read_message(data, self._identity.role.peer, None)
        except MessageRefused:
            return []
        return [Served(message)] if self.peer is not None else []

    def _read_error(self, body: JsonObject) -> list[SessionEvent]:
        try:
            error = ErrorBody.from_obj(body)
        except FormatError:
            return []
        return [ErrorReceived(error.code, error.about, error.txn_id)]

    def _read_handshake(self, message: Message, now_ms: int) -> list[SessionEvent]:
        state = self._handshake.state
        if message.type is MessageType.HELLO:
            if state is not HandshakeState.GREETED:
                return []  # a second hello in a session is ignored
            try:
                return self._shake(self._handshake.judge_hello(message.body), now_ms)
            except FormatError:
                self.send_error(ErrorCode.MALFORMED, MessageType.HELLO)
                return self._shake(HandshakeInput.HELLO_BAD, now_ms)
        if state is HandshakeState.PROVEN:
            return []
        return self._shake(self._handshake.judge_proof(message.body), now_ms)


class DrivenEnd(ABC, Generic[EventT]):
    """Passes everything to the session and what the session says to `_follow`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def link(self) -> Link:
        """State and counters of the cable."""
        return self._session.link

    @property
    def proven(self) -> bool:
        return self._session.peer is not None

    def port_opened(self, now_ms: int) -> list[EventT]:
        return self._follow(self._session.port_opened(now_ms))

    def port_closed(self, now_ms: int) -> list[EventT]:
        return self._follow(self._session.port_closed(now_ms))

    def receive(self, data: bytes, now_ms: int) -> list[EventT]:
        events: list[EventT] = []
        # One by one: what comes before a reset in the same bytes is judged in the session that it came in.
        for frame in self.link.frames_in(data):
            if reported := self._session.take(frame, now_ms):
                events += self._follow(reported)
        return events

    def tick(self, now_ms: int) -> list[EventT]:
        return self._follow(self._session.tick(now_ms))

    def next_deadline_ms(self) -> int | None:
        return self._session.next_deadline_ms()

    @property
    def waits_for_port(self) -> bool:
        """True while the port should be asked again soon whether what it holds has left."""
        return self._session.link.waits_for_port

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        return self._session.link.data_to_send(now_ms, max_bytes)

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[EventT]:
        reported = self._session.sent(count, now_ms, in_port)
        return self._follow(reported) if reported else []

    @abstractmethod
    def _follow(self, session_events: Sequence[SessionEvent]) -> list[EventT]:
        """What these events of the session mean to this end."""
