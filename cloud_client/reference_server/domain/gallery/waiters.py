"""Waiting devices: who waits for which stream, and what wakes them.

A waiting device costs one future and holds no database handle. What happens between the moment a device has
looked and the moment it waits is not lost: each wait says up to when it has looked (``Turn``).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeVar

from cloud_client.reference_server.domain.tenancy.callers import DeviceCaller

T = TypeVar("T")
AT_WORK: Final = 8
"""Polls that are carried out at once: enough to keep the store's threads busy."""
_WOKEN_AT_ONCE: Final = 8
_Who = tuple[str, str]


class Woken(Enum):
    """Why a wait ended."""

    CHANGED = auto()
    SUPERSEDED = auto()
    TIMED_OUT = auto()


@dataclass(slots=True, eq=False)
class Turn:
    """One request of a device that may wait; a newer one ends it."""

    who: _Who
    stream: str
    seen: int
    turn_id: str = field(default_factory=lambda: secrets.token_hex(8))
    heard: bool = False
    """Whether its own announcement has come back: what comes after is newer than this turn."""
    superseded: bool = False
    future: "asyncio.Future[Woken] | None" = None


class Shared:
    """What several ask for at the same time, made once."""

    def __init__(self) -> None:
        self._being_made: dict[Hashable, asyncio.Future[Any]] = {}

    async def made(self, same: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``make``, or of the call already under way for an equal ``same``."""
        making = self._being_made.get(same)
        if making is None:
            making = self._being_made[same] = asyncio.ensure_future(make())
            making.add_done_callback(lambda _: self._being_made.pop(same))
        # Who goes away does not take it from the others.
        result: T = await asyncio.shield(making)
        return result


class Waiters:
    """The devices that wait in this process, at most one turn a device."""

    def __init__(self) -> None:
        self.pages = Shared()
        self.at_work = asyncio.Semaphore(AT_WORK)
        """Held by each poll, but not while it waits: however many begin, or are woken, at the same moment, a
        few at a time are carried out, and requests of others go between them."""
        self._turns: dict[_Who, Turn] = {}
        self._streams: dict[str, dict[_Who, Turn]] = {}
        self._positions: dict[str, tuple[int, int]] = {}
        self._changes = 0
        """Counts everything that may concern a device that is about to wait."""

    @property
    def count(self) -> int:
        """How many devices wait now."""
        return sum(len(turns) for turns in self._streams.values())

    def enter(self, device: DeviceCaller) -> Turn:
        """Begin a device's turn; ends an older one, which is answered with no data."""
        who = (device.environment.tenant_id, device.device_id)
        older = self._turns.get(who)
        if older is not None:
            self._supersede(older)
        turn = self._turns[who] = Turn(who, device.environment.stream, self._changes)
        return turn

    def look(self, turn: Turn) -> None:
        """The turn looks at the database now: what changes from here on ends its next wait."""
        turn.seen = self._changes

    async def wait(self, turn: Turn, timeout_s: float) -> Woken:
        """Wait for the turn's stream to change since it has looked; others are at work meanwhile."""
        if turn.superseded:
            return Woken.SUPERSEDED
        if turn.seen != self._changes:
            return Woken.CHANGED
        turn.future = asyncio.get_running_loop().create_future()
        stream = self._streams.setdefault(turn.stream, {})
        stream[turn.who] = turn
        async with self.aside():
            try:
                async with asyncio.timeout(timeout_s):
                    return await turn.future
            except TimeoutError:
                return Woken.TIMED_OUT
            finally:
                turn.future = None
                if stream.get(turn.who) is turn:
                    del stream[turn.who]

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Others are at work while this poll waits, for a change or for its client."""
        self.at_work.release()
        try:
            yield
        finally:
            await self.at_work.acquire()

    def leave(self, turn: Turn) -> None:
        """The turn is over."""
        if self._turns.get(turn.who) is turn:
            del self._turns[turn.who]

    def entered_elsewhere(self, tenant_id: str, device_id: str, turn_id: str) -> None:
        """A turn was announced, here or by another process; announcements come in one order to all."""
        turn = self._turns.get((tenant_id, device_id))
        if turn is None:
            return
        if turn.turn_id == turn_id:
            turn.heard = True
        elif turn.heard:
            self._supersede(turn)

    def wake_device(self, tenant_id: str, device_id: str) -> None:
        """Let one device look again (it was revoked, say), if it has begun to wait."""
        turn = self._turns.get((tenant_id, device_id))
        if turn is not None:
            self._changes += 1
            _end(turn, Woken.CHANGED)

    def wake_stream(self, stream: str) -> None:
        """Wake every device that waits for a stream."""
        self._changes += 1
        self._wake([*self._streams.get(stream, {}).values()])

    def wake_all(self) -> None:
        """Let every device look again."""
        self._changes += 1
        self._wake([*self._turns.values()])

    def _wake(self, turns: list[Turn]) -> None:
        """Some now, the others when the loop has done what else there is."""
        for turn in turns[:_WOKEN_AT_ONCE]:
            _end(turn, Woken.CHANGED)
        if len(turns) > _WOKEN_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._wake, turns[_WOKEN_AT_ONCE:])

    def positions(self, found: dict[str, tuple[int, int]]) -> None:
        """Take note of every stream's (epoch, seq); wakes those whose stream has moved."""
        for stream, position in found.items():
            if self._positions.get(stream) != position:
                self._positions[stream] = position
                self.wake_stream(stream)

    def end_all(self) -> None:
        """The server stops: every waiting device is answered."""
        for turn in list(self._turns.values()):
            self._supersede(turn)

    def _supersede(self, turn: Turn) -> None:
        turn.superseded = True
        _end(turn, Woken.SUPERSEDED)


def _end(turn: Turn, reason: Woken) -> None:
    if turn.future is not None and not turn.future.done():
        turn.future.set_result(reason)
