"""Who may be connected: how many, for how long, and who goes when there is no room.

A connection is a stranger's until a request on it is authenticated. Strangers have a share of all places.
When it is full, the address that holds most of it gives up its oldest connection for the newcomer, so an
address that takes many places pushes itself out. An authenticated connection is never pushed out: it lasts
as long as its requests do, and their number has a separate limit.

Strangers also take turns: a few of their requests are begun in each pass of the loop, from one address after
the other. So however many they send at once, a request of an authenticated caller goes between them.

Answers that are not taken cost memory until their time is over. All of them have a bound, those of strangers
a smaller one: beyond it the oldest of them ends, of the address that most of their bytes are for.
"""

import asyncio
import logging
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol

from cloud_client.reference_server.web.http import holder_of

log = logging.getLogger("palm.cloud")

MOST_DESCRIPTORS: Final = 1 << 20
"""What the limit is raised to where the hard limit is larger, or there is none."""
KEPT_BACK: Final = 160
"""Descriptors that connections of the partner surface leave to the store, the admin bind and the log."""
MOST_CONNECTIONS: Final = 16_384
MOST_STRANGERS: Final = 4096
"""A connection costs some 15 KiB. The bound is for memory: descriptors allow more."""
FEWEST: Final = 16
WARN_EVERY_S: Final = 60.0
SWEEPS: Final = 10
"""In so many calls of ``sweep`` every connection is looked at: many that end at once take a while."""
_TURNS_A_PASS: Final = 2
"""The dearest answer to a stranger takes some two milliseconds, and a request of an authenticated caller
waits for five to ten passes of the loop."""


UNSENT_BYTES: Final = 256 * 1024 * 1024
UNSENT_BYTES_OF_STRANGERS: Final = 64 * 1024 * 1024
"""Of answers that are not taken yet. A stranger's largest has 260 KiB, an authenticated caller's 8 MiB."""


class Connected(Protocol):
    """A connection as far as its place goes."""

    def overdue(self, now_s: float) -> bool:
        """Whether its other side has taken too long."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...

    def shutdown(self) -> None:
        """The server stops: end it once what was asked on it is answered."""
        ...

    def turn(self) -> None:
        """Begin the next request."""
        ...


def raise_descriptor_limit() -> int:
    """Take as many descriptors as the system lets this process have; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def places(descriptors: int) -> int:
    """How many connections the partner surface may hold with so many descriptors."""
    return max(FEWEST, min(descriptors - KEPT_BACK, MOST_CONNECTIONS))


class Connections:
    """The connections of one bind; used on the loop."""

    def __init__(self, most: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_strangers = max(FEWEST, min(most // 2, MOST_STRANGERS))
        self._monotonic_s = monotonic_s
        self._known: set[Connected] = set()
        self._strangers: dict[str, dict[Connected, None]] = {}
        self._where: dict[Connected, str] = {}
        """The holder of each stranger's connection."""
        self._turns: dict[str, deque[Connected]] = {}
        """Who waits for a turn, by holder; the holder whose turn is next comes first."""
        self._swept: Iterator[Connected] = iter(())
        self._unsent: dict[Connected, int] = {}
        """Bytes that are not taken, by connection; who has had some for longest comes first."""
        self._unsent_total = self._unsent_of_strangers = 0
        self._warned_s: dict[str, float] = {}
        self._pushed_out = 0

    def __len__(self) -> int:
        return len(self._known) + len(self._where)

    def __iter__(self) -> Iterator[Connected]:
        """All of them; connections may leave meanwhile."""
        return iter([*self._known, *self._where])

    def enter(self, connection: Connected, address: str) -> bool:
        """Give a newcomer a place, an older stranger's if need be. False: there is none."""
        full = len(self) >= self._most
        if (full or len(self._where) >= self._most_strangers) and not self.make_room():
            self.warn("full", "no connection is taken: all %d places are in use", self._most)
            return False
        holder = holder_of(address)
        self._strangers.setdefault(holder, {})[connection] = None
        self._where[connection] = holder
        return True

    def make_room(self) -> bool:
        """End the oldest connection of the address with the most strangers. False: there is no stranger."""
        if not self._strangers:
            return False
        crowd = max(self._strangers, key=lambda holder: len(self._strangers[holder]))
        connection = next(iter(self._strangers[crowd]))
        self.leave(connection)
        connection.abort()
        self._pushed_out += 1
        self.warn(
            "crowded",
            "connections are many: %d that had authenticated no request were ended for newcomers",
            self._pushed_out,
        )
        return True

    def authenticated(self, connection: Connected) -> None:
        """A request of the connection has proved who it comes from."""
        if connection in self._where:
            self._unsent_of_strangers -= self._unsent.get(connection, 0)
            self._forget(connection)
            self._known.add(connection)

    def unsent(self, connection: Connected, size: int) -> None:
        """So much of a connection's answers is not taken yet; ends who has too much, if all have too much."""
        change = size - self._unsent.get(connection, 0)
        if size:
            self._unsent[connection] = size
        else:
            self._unsent.pop(connection, None)
        self._unsent_total += change
        if connection in self._where:
            self._unsent_of_strangers += change
        while self._unsent_of_strangers > UNSENT_BYTES_OF_STRANGERS or self._unsent_total > UNSENT_BYTES:
            self._end_unsent()

    def _end_unsent(self) -> None:
        held: dict[str, int] = {}
        for connection, size in self._unsent.items():
            if (holder := self._where.get(connection)) is not None:
                held[holder] = held.get(holder, 0) + size
        if held:
            crowd = max(held, key=lambda holder: held[holder])
            ended = next(one for one in self._unsent if self._where.get(one) == crowd)
        else:
            ended = max(self._unsent, key=lambda one: self._unsent[one])
        self.leave(ended)
        ended.abort()
        self.warn("unsent", "answers are taken slowly: connections are ended, so that memory is left")

    def leave(self, connection: Connected) -> None:
        """The connection has ended."""
        self.unsent(connection, 0)
        self._known.discard(connection)
        if connection in self._where:
            self._forget(connection)

    def wait_turn(self, connection: Connected) -> None:
        """Have a connection's ``turn`` called, when others have had theirs."""
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._take_turns)
        self._turns.setdefault(self._where.get(connection, ""), deque()).append(connection)

    def _take_turns(self) -> None:
        for _ in range(_TURNS_A_PASS):
            holder = next(iter(self._turns), None)
            if holder is None:
                return
            waiting = self._turns.pop(holder)
            connection = waiting.popleft()
            if waiting:
                self._turns[holder] = waiting
            connection.turn()
        if self._turns:
            asyncio.get_running_loop().call_soon(self._take_turns)

    def sweep(self) -> None:
        """End what is overdue among a part of all connections; called ten times a second."""
        now_s = self._monotonic_s()
        part = [*islice(self._swept, len(self) // SWEEPS + 1)]
        if not part:
            self._swept = iter(self)
        for connection in part:
            if connection.overdue(now_s):
                connection.abort()

    def warn(self, kind: str, text: str, *given: object) -> None:
        """Log a line, at most one of a kind a minute: a flood must not fill the disk."""
        now_s = self._monotonic_s()
        if now_s - self._warned_s.get(kind, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._warned_s[kind] = now_s
            log.warning(text, *given)

    def _forget(self, connection: Connected) -> None:
        holder = self._where.pop(connection)
        of_holder = self._strangers[holder]
        del of_holder[connection]
        if not of_holder:
            del self._strangers[holder]
