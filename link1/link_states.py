"""The states of a LINK/1 session as a table (LINK/1 §1, Sessions), and what a link reports.

An end that opens the port or declares the link down takes a fresh tag and says RST until its own RSTACK
comes; an end that is reset by its peer answers and goes on. Both resetting at once, in any order and with
any of these frames lost, end with both tags known to both.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from link1.frames import Channel


class LinkState(Enum):
    CLOSED = "closed"
    RESETTING = "resetting"
    UP = "up"


class LinkInput(Enum):
    PORT_OPENED = "port opened"
    PORT_CLOSED = "port closed"
    LINK_LOST = "link lost"
    RST_NEW = "RST, new tag"
    RST_CURRENT = "RST, current tag"
    RSTACK_OURS = "RSTACK, our tag"


class LinkAction(Enum):
    CLEAR = "clear everything"
    FRESH_TAG = "fresh tag"
    SAY_RST = "RST every 500 ms"
    NOTE_PEER = "note the peer's tag"
    SAY_RSTACK = "RSTACK"
    SESSION_UP = "session begins"


_RESET = (LinkAction.CLEAR, LinkAction.FRESH_TAG, LinkAction.SAY_RST)

SESSION_TABLE: dict[tuple[LinkState, LinkInput], tuple[LinkState, tuple[LinkAction, ...]]] = {
    (LinkState.CLOSED, LinkInput.PORT_OPENED): (LinkState.RESETTING, _RESET),
    (LinkState.RESETTING, LinkInput.PORT_CLOSED): (LinkState.CLOSED, (LinkAction.CLEAR,)),
    (LinkState.RESETTING, LinkInput.LINK_LOST): (LinkState.RESETTING, _RESET),
    (LinkState.RESETTING, LinkInput.RST_NEW): (
        LinkState.RESETTING,
        (LinkAction.NOTE_PEER, LinkAction.SAY_RSTACK),
    ),
    (LinkState.RESETTING, LinkInput.RST_CURRENT): (LinkState.RESETTING, (LinkAction.SAY_RSTACK,)),
    (LinkState.RESETTING, LinkInput.RSTACK_OURS): (
        LinkState.UP,
        (LinkAction.NOTE_PEER, LinkAction.SESSION_UP),
    ),
    (LinkState.UP, LinkInput.PORT_CLOSED): (LinkState.CLOSED, (LinkAction.CLEAR,)),
    (LinkState.UP, LinkInput.LINK_LOST): (LinkState.RESETTING, _RESET),
    (LinkState.UP, LinkInput.RST_NEW): (
        LinkState.UP,
        (
            LinkAction.CLEAR,
            LinkAction.NOTE_PEER,
            LinkAction.FRESH_TAG,
            LinkAction.SAY_RSTACK,
            LinkAction.SESSION_UP,
        ),
    ),
    (LinkState.UP, LinkInput.RST_CURRENT): (LinkState.UP, (LinkAction.SAY_RSTACK,)),
}
"""What is not in the table changes nothing: an RSTACK with another tag, a port closed twice."""


class DownReason(StrEnum):
    """Why a session ended."""

    PORT_CLOSED = "port_closed"
    SILENT = "silent"
    UNANSWERED = "unanswered"
    PEER_RESET = "peer_reset"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    UNPAIRED = "unpaired"
    KEY_REVOKED = "key_revoked"


@dataclass(frozen=True, slots=True)
class SessionUp:
    """Both tags are known to this end; the channels begin at mid 0."""


@dataclass(frozen=True, slots=True)
class SessionDown:
    """A session that was up has ended, and what was queued with it."""

    reason: DownReason


@dataclass(frozen=True, slots=True)
class MessageArrived:
    channel: Channel
    data: bytes


@dataclass(frozen=True, slots=True)
class HintArrived:
    data: bytes


@dataclass(frozen=True, slots=True)
class MessageLeft:
    """The last byte of the first transmission of a message that has a token has left the port, or the peer
    has acknowledged it."""

    token: str


LinkEvent = SessionUp | SessionDown | MessageArrived | HintArrived | MessageLeft
