"""A LINK/1 session over bytes that may be lost, repeated or damaged (LINK/1 §1).

Two rules:
1. A frame counts only when it carries the first byte of our current tag, and our tag is fresh after
   every reset, so nothing of an earlier session is ever taken for something of this one.
2. Nothing here is taken for true about the peer beyond its tag: who it is, is for `link1.handshake`.

The object is fed with bytes and times and answers with events; it reads no clock and owns no port:

    link = Link(random)
    link.port_opened(now_ms)
    while data := link.data_to_send():
        events = link.sent(port.write(data), now_ms)
    events = link.receive(port.read(), now_ms)
    events = link.tick(now_ms)               # not later than link.next_deadline_ms()

`link1.link_states.SESSION_TABLE` is the whole state machine of sessions.
"""

from collections import Counter, deque
from collections.abc import Callable

from link1.channels import ChannelReceiver, ChannelSender, InFlight, Outgoing
from link1.errors import FormatError
from link1.frames import (
    MAX_PAYLOAD_BYTES,
    TAG_BYTES,
    Channel,
    DropReason,
    Frame,
    FrameDecoder,
    FrameKind,
    encode_frame,
)
from link1.link_states import (
    SESSION_TABLE,
    DownReason,
    HintArrived,
    LinkAction,
    LinkEvent,
    LinkInput,
    LinkState,
    MessageArrived,
    MessageLeft,
    SessionDown,
    SessionUp,
)
from link1.port_queue import PortQueue

RandomSource = Callable[[int], bytes]
"""Gives n unpredictable bytes, as `os.urandom` does."""

RST_EVERY_MS = 500
PING_AFTER_MS = 500
SILENCE_MS = 2_000
"""An end that has received no valid frame for so long declares the link down."""
HINT_SPACING_MS = 200
"""At most five hints a second; of faster ones the newest is sent."""
MAX_PENDING_REPLIES = 16
"""ACKs and PONGs not yet sent. A peer has at most one message a channel unanswered; more is a flood."""
MAX_FRAMES_AHEAD_OF_MAIL = 1
"""Mail waits while more frames than this are unsent, so that it delays a verdict by at most two."""


class Link:
    """One end of the cable, without its port. See the module's docstring for how it is driven."""

    def __init__(self, random: RandomSource) -> None:
        self._random = random
        self._decoder = FrameDecoder()
        self.state = LinkState.CLOSED
        self._own_tag = b""
        self._peer_tag = b""
        self._senders = {channel: ChannelSender(channel) for channel in Channel}
        self._receivers = {channel: ChannelReceiver() for channel in Channel}
        self._last_received_ms = 0
        self._last_sent_ms = 0
        self._next_rst_ms: int | None = None
        self._rstack_due = False
        self._rst_due = False
        self._ping_due = False
        self._pongs_due = 0
        self._acks_due: deque[tuple[Channel, int]] = deque()
        self._hint: bytes | None = None
        self._hint_not_before_ms = 0
        self._last_asked_ms = 0
        self._port = PortQueue()
        self._ending: InFlight | None = None

    # ---- what the owner may look at

    @property
    def idle(self) -> bool:
        """True when no message waits and none is unacknowledged."""
        return all(sender.idle for sender in self._senders.values())

    @property
    def dropped(self) -> Counter[DropReason]:
        """Frames dropped since this end was made, by reason."""
        return self._decoder.dropped

    @property
    def waiting(self) -> dict[Channel, int]:
        """Messages that wait behind the one in flight, at most MAX_WAITING a channel."""
        return {channel: len(sender.waiting) for channel, sender in self._senders.items()}

    # ---- the port

    def port_opened(self, now_ms: int) -> list[LinkEvent]:
        """The port is there, with nothing of ours in it. A port opened twice was closed in between."""
        events = self.port_closed(now_ms)
        self._decoder.clear()
        self._port.opened()
        return events + self._enter(LinkInput.PORT_OPENED, now_ms)

    def port_closed(self, now_ms: int) -> list[LinkEvent]:
        return self._enter(LinkInput.PORT_CLOSED, now_ms, reason=DownReason.PORT_CLOSED)

    def reset(self, now_ms: int, reason: DownReason) -> list[LinkEvent]:
        """Declare the link down: the session ends and RST goes out."""
        return self._enter(LinkInput.LINK_LOST, now_ms, reason=reason)

    # ---- bytes in

    def receive(self, data: bytes, now_ms: int) -> list[LinkEvent]:
        """Take what the port gave, whole or in pieces."""
        return [event for frame in self.frames_in(data) for event in self.take(frame, now_ms)]

    def frames_in(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, each of which is then to be given to `take`.

        For an owner that answers events: what it says to one frame must be queued before the next is taken,
        because a reset in the same bytes would send an answer into the session after it.
        """
        if self.state is LinkState.CLOSED:
            return []
        return self._decoder.feed(data)

    def take(self, frame: Frame, now_ms: int) -> list[LinkEvent]:
        """Deal with one frame of `frames_in`."""
        if frame.kind is FrameKind.RST:
            self._last_received_ms = now_ms
            current = frame.payload == self._peer_tag
            trigger = LinkInput.RST_CURRENT if current else LinkInput.RST_NEW
            return self._enter(trigger, now_ms, DownReason.PEER_RESET, frame.payload)
        if frame.kind is FrameKind.RSTACK:
            own, peer = frame.payload[:TAG_BYTES], frame.payload[TAG_BYTES:]
            if self.state is not LinkState.RESETTING or own != self._own_tag:
                self.dropped[DropReason.OTHER_SESSION] += 1
                return []
            self._last_received_ms = now_ms
            return self._enter(LinkInput.RSTACK_OURS, now_ms, peer_tag=peer)
        if self.state is not LinkState.UP:
            self.dropped[DropReason.NO_SESSION] += 1
            return []
        if frame.sess != self._own_tag[0]:
            self.dropped[DropReason.OTHER_SESSION] += 1
            return []
        return self._take_in_session(frame, now_ms)

    def _take_in_session(self, frame: Frame, now_ms: int) -> list[LinkEvent]:
        events: list[LinkEvent] = []
        if frame.kind is FrameKind.DATA:
            taken = self._receivers[frame.chan].take(frame)
            if taken.dropped is not None:
                self.dropped[taken.dropped] += 1
                return []
            if taken.acknowledge:
                self._owe_ack(frame.chan, frame.mid)
            if taken.message is not None:
                events.append(MessageArrived(frame.chan, taken.message))
        elif frame.kind is FrameKind.ACK:
            left = self._senders[frame.chan].acknowledged(frame.mid)
            if left is not None and left.token is not None:
                events.append(MessageLeft(left.token))
        elif frame.kind is FrameKind.PING:
            self._pongs_due = min(self._pongs_due + 1, MAX_PENDING_REPLIES)
        elif frame.kind is FrameKind.HINT:
            events.append(HintArrived(frame.payload))
        self._last_received_ms = now_ms
        return events

    def _owe_ack(self, channel: Channel, mid: int) -> None:
        if (channel, mid) in self._acks_due:
            return
        if len(self._acks_due) >= MAX_PENDING_REPLIES:
            self._acks_due.popleft()  # the sender of a flood can ask again
        self._acks_due.append((channel, mid))

    # ---- messages out

    def send(self, channel: Channel, message: Outgoing) -> bool:
        """Queue a message of 1..4096 bytes; False without a session or without room."""
        return self.state is LinkState.UP and self._senders[channel].queue(message)

    def withdraw_waiting(self, channel: Channel, name: str | None = None) -> bool:
        """Drop what waits on a channel and has not begun to go out, of all or of one name; whether there was
        any."""
        return self._senders[channel].withdraw_waiting(name)

    def send_hint(self, data: bytes) -> None:
        """Let one hint go out; a newer one takes the place of one still here. Raises FormatError."""
        if len(data) > MAX_PAYLOAD_BYTES:
            raise FormatError(f"a hint is one frame of at most {MAX_PAYLOAD_BYTES} bytes")
        if self.state is LinkState.UP:
            self._hint = data

    # ---- time

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due at the latest; None while only bytes can change anything."""
        if self.state is LinkState.RESETTING:
            return self._next_rst_ms
        if self.state is LinkState.CLOSED:
            return None
        deadline_ms = self._last_received_ms + SILENCE_MS
        if not self._ping_due:
            deadline_ms = min(deadline_ms, self._last_sent_ms + PING_AFTER_MS)
        for sender in self._senders.values():
            if sender.deadline_ms is not None:
                deadline_ms = min(deadline_ms, sender.deadline_ms)
        if self._hint is not None and self._hint_not_before_ms > self._last_asked_ms:
            deadline_ms = min(deadline_ms, self._hint_not_before_ms)
        return deadline_ms

    def tick(self, now_ms: int) -> list[LinkEvent]:
        """Do what time has made due."""
        if self.state is LinkState.RESETTING:
            if self._next_rst_ms is not None and now_ms >= self._next_rst_ms:
                self._rst_due = True
                self._next_rst_ms = now_ms + RST_EVERY_MS
            return []
        if self.state is LinkState.CLOSED:
            return []
        if now_ms - self._last_received_ms >= SILENCE_MS:
            return self.reset(now_ms, DownReason.SILENT)
        if now_ms - self._last_sent_ms >= PING_AFTER_MS:
            self._ping_due = True
        if not all(sender.expire(now_ms) for sender in self._senders.values()):
            return self.reset(now_ms, DownReason.UNANSWERED)
        return []

    # ---- bytes out

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        """The next bytes for the port: the rest of what was begun, else the most urgent frames.

        They stay here until `sent` says how many the port took. Frames go in one write as far as they fit
        and may: of mail never more than two, so that what becomes urgent meanwhile waits no longer.
        """
        self._last_asked_ms = now_ms
        port = self._port
        if not port.unwritten:
            while len(port.unwritten) < max_bytes and (frame := self._next_frame(now_ms)) is not None:
                port.put(encode_frame(frame), self._ending)
                self._ending = None
        return port.unwritten[:max_bytes]

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[LinkEvent]:
        """The port took `count` bytes more and now holds `in_port` bytes that have not left it.

        Ports without this figure say 0. With `count` 0 it only reports that the port has drained further.
        """
        if count:
            self._last_sent_ms = now_ms
            self._port.wrote(count)
        events: list[LinkEvent] = []
        for flight in self._port.departed(in_port):
            is_settled, token = self._senders[flight.channel].in_flight is not flight, flight.message.token
            if not is_settled and flight.left(now_ms) and token is not None:
                events.append(MessageLeft(token))
        return events

    @property
    def waits_for_port(self) -> bool:
        """True while the port holds a frame that blocks what goes next."""
        port = self._port
        return port.frames_inside > 0 and (self._senders[Channel.MAIL].has_frame or port.message_inside)

    def _next_frame(self, now_ms: int) -> Frame | None:
        """The most urgent frame: answers and resets, then control, then a hint, then mail."""
        reply = self._next_reply()
        if reply is not None:
            return reply
        if self.state is not LinkState.UP:
            return None
        sess = self._peer_tag[0]
        control, mail = self._senders[Channel.CONTROL], self._senders[Channel.MAIL]
        if control.has_frame:
            return self._take_from(control, sess)
        if self._hint is not None and now_ms >= self._hint_not_before_ms:
            data, self._hint = self._hint, None
            self._hint_not_before_ms = now_ms + HINT_SPACING_MS
            return Frame(FrameKind.HINT, sess=sess, payload=data)
        if mail.has_frame and self._port.frames_unsent <= MAX_FRAMES_AHEAD_OF_MAIL:
            return self._take_from(mail, sess)
        return None

    def _next_reply(self) -> Frame | None:
        if self._rstack_due:
            self._rstack_due = False
            return Frame(FrameKind.RSTACK, payload=self._peer_tag + self._own_tag)
        if self._rst_due:
            self._rst_due = False
            return Frame(FrameKind.RST, payload=self._own_tag)
        return self._next_answer(self._peer_tag[0]) if self.state is LinkState.UP else None

    def _next_answer(self, sess: int) -> Frame | None:
        if self._acks_due:
            channel, mid = self._acks_due.popleft()
            return Frame(FrameKind.ACK, channel, sess, mid)
        if self._pongs_due:
            self._pongs_due -= 1
            return Frame(FrameKind.PONG, sess=sess)
        if self._ping_due:
            self._ping_due = False
            return Frame(FrameKind.PING, sess=sess)
        return None

    def _take_from(self, sender: ChannelSender, sess: int) -> Frame:
        frame, last = sender.take_frame(sess)
        self._ending = sender.in_flight if last else None
        return frame

    # ---- the state machine

    def _enter(
        self,
        trigger: LinkInput,
        now_ms: int,
        reason: DownReason = DownReason.PEER_RESET,
        peer_tag: bytes = b"",
    ) -> list[LinkEvent]:
        """Follow the table. `reason` names the end of a session, `peer_tag` is what a frame brought."""
        entry = SESSION_TABLE.get((self.state, trigger))
        if entry is None:
            return []
        events: list[LinkEvent] = []
        next_state, actions = entry
        for action in actions:
            match action:
                case LinkAction.CLEAR:
                    if self.state is LinkState.UP:
                        events.append(SessionDown(reason))
                    self._clear()
                case LinkAction.FRESH_TAG:
                    self._own_tag = self._fresh_tag()
                case LinkAction.SAY_RST:
                    self._rst_due = True
                    self._next_rst_ms = now_ms + RST_EVERY_MS
                case LinkAction.NOTE_PEER:
                    self._peer_tag = peer_tag
                case LinkAction.SAY_RSTACK:
                    self._rstack_due = True
                case LinkAction.SESSION_UP:
                    self._rst_due = False
                    self._next_rst_ms = None
                    self._last_received_ms = self._last_sent_ms = now_ms
                    events.append(SessionUp())
        self.state = next_state
        return events

    def _clear(self) -> None:
        """Forget the session. A frame that the port has begun to take is given up: a 0x00 ends it."""
        self._peer_tag = b""
        for sender in self._senders.values():
            sender.clear()
        for receiver in self._receivers.values():
            receiver.clear()
        self._rstack_due = self._rst_due = self._ping_due = False
        self._pongs_due = 0
        self._acks_due.clear()
        self._hint = None
        self._port.give_up()

    def _fresh_tag(self) -> bytes:
        """Eight random bytes whose first differs from the last tag's."""
        tag = self._random(TAG_BYTES)
        if self._own_tag and tag[0] == self._own_tag[0]:
            # Any of the other 255 values, so that a fixed random source cannot hold us up.
            tag = bytes(((tag[0] + 1 + tag[1] % 255) % 256,)) + tag[1:]
        return tag
