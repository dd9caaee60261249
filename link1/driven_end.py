"""How an end of the cable is driven, whichever end it is: bytes and times in, events out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from link1.link import Link
from link1.session import Session, SessionEvent

EventT = TypeVar("EventT")


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
        reported = self._session.receive(data, now_ms)
        return self._follow(reported) if reported else []

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
