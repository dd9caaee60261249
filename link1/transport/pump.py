"""The loop that joins an end to a port: bytes, timers, and opening the port again when it goes away.

    pump = CablePump(end, lambda: open_port(path), on_event=handle)
    await pump.run()          # until cancelled

Everything happens on the event loop's thread. After a command to the end, call `pump.kick()`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from link1.errors import TransportError
from link1.transport.serial_port import Port

READ_BYTES = 16_384
"""Four of the kernel's tty buffers: one read takes what has come, and a flood still lets timers run."""
WRITE_BYTES = 4_096
REOPEN_FIRST_MS = 100
REOPEN_MOST_MS = 1_000
"""A cable plugged in again is served within 2 s, opening, RST and proofs included."""
DRAIN_POLL_MS = 2
"""How often a port that holds frames is asked whether they have left; one takes 11 ms at 921600 baud."""
LINGER_MS = 200
"""How long `run` lets the port send what it holds when it ends."""

EventT_co = TypeVar("EventT_co", covariant=True)
EventT = TypeVar("EventT")


class PumpedEnd(Protocol[EventT_co]):
    """What both ends of LINK/1 offer to be driven by."""

    def port_opened(self, now_ms: int) -> Sequence[EventT_co]: ...
    def port_closed(self, now_ms: int) -> Sequence[EventT_co]: ...
    def receive(self, data: bytes, now_ms: int) -> Sequence[EventT_co]: ...
    def tick(self, now_ms: int) -> Sequence[EventT_co]: ...
    def next_deadline_ms(self) -> int | None: ...
    def data_to_send(self, now_ms: int, max_bytes: int = ...) -> bytes: ...
    def sent(self, count: int, now_ms: int, in_port: int = ...) -> Sequence[EventT_co]: ...
    @property
    def waits_for_port(self) -> bool: ...


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class CablePump(Generic[EventT]):
    """Drives one end over one port, which may go away and come back any number of times."""

    def __init__(
        self,
        end: PumpedEnd[EventT],
        open_port: Callable[[], Port],
        *,
        on_event: Callable[[EventT], None],
        on_port: Callable[[TransportError | None], None] = lambda _error: None,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`on_port` is called with None when the port was opened, and with the error when it is not there."""
        self._end = end
        self._open_port = open_port
        self._on_event = on_event
        self._on_port = on_port
        self._clock_ms = clock_ms
        self._port: Port | None = None
        self._lost: asyncio.Future[TransportError] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._writing = False
        self._busy = False

    async def run(self) -> None:
        """Keep the port open and the end driven until cancelled."""
        backoff_ms = REOPEN_FIRST_MS
        while True:
            try:
                port = self._open_port()
            except TransportError as error:
                self._on_port(error)
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, REOPEN_MOST_MS)
                continue
            backoff_ms = REOPEN_FIRST_MS
            self._on_port(await self._serve(port))
            await asyncio.sleep(backoff_ms / 1000)

    def kick(self) -> None:
        """Send what has been queued since, and set the timer again."""
        if self._port is not None and not self._busy:
            self._guard(lambda: ())

    async def _serve(self, port: Port) -> TransportError:
        """Drive the end over an open port until the port is lost."""
        loop = asyncio.get_running_loop()
        self._port, self._lost = port, loop.create_future()
        loop.add_reader(port.fileno(), self._readable)
        self._on_port(None)
        try:
            self._guard(lambda: self._end.port_opened(self._clock_ms()))
            return await self._lost
        except asyncio.CancelledError:
            await self._linger()
            raise
        finally:
            loop.remove_reader(port.fileno())
            loop.remove_writer(port.fileno())
            self._writing = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._port = None
            port.close()
            self._tell(self._end.port_closed(self._clock_ms()))

    async def _linger(self) -> None:
        """Give the last bytes a moment to leave, so that closing does not cut them."""
        for _ in range(LINGER_MS // DRAIN_POLL_MS):
            if self._port is None or self._port.unsent() == 0:
                return
            await asyncio.sleep(DRAIN_POLL_MS / 1000)

    def _readable(self) -> None:
        self._guard(self._read)

    def _writable(self) -> None:
        self._guard(lambda: ())

    def _time_is_up(self) -> None:
        self._timer = None
        self._guard(lambda: self._end.tick(self._clock_ms()))

    def _read(self) -> Sequence[EventT]:
        if self._port is None:
            return ()
        return self._end.receive(self._port.read(READ_BYTES), self._clock_ms())

    def _guard(self, step: Callable[[], Sequence[EventT]]) -> None:
        """Do one step, then send what it caused and set the timer; a port that fails is lost."""
        self._busy = True
        try:
            self._tell(step())
            self._flush()
        except TransportError as error:
            if self._lost is not None and not self._lost.done():
                self._lost.set_result(error)
        except Exception as error:
            if self._lost is None or self._lost.done():
                raise
            self._lost.set_exception(error)
        finally:
            self._busy = False

    def _tell(self, events: Sequence[EventT]) -> None:
        for event in events:
            self._on_event(event)

    def _flush(self) -> None:
        """Hand the port all it takes now; what it does not take waits for it to become writable."""
        port = self._port
        if port is None or self._lost is None or self._lost.done():
            return
        blocked = False
        if self._end.waits_for_port:
            self._tell(self._end.sent(0, self._clock_ms(), port.unsent()))
        while data := self._end.data_to_send(self._clock_ms(), WRITE_BYTES):
            count = port.write(data)
            self._tell(self._end.sent(count, self._clock_ms(), port.unsent()))
            blocked = count < len(data)
            if blocked:
                break
        self._watch_writing(port, blocked)
        self._set_timer()

    def _watch_writing(self, port: Port, wanted: bool) -> None:
        if wanted == self._writing:
            return
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_writer(port.fileno(), self._writable)
        else:
            loop.remove_writer(port.fileno())
        self._writing = wanted

    def _set_timer(self) -> None:
        """Deadlines mostly move away: a timer that is set for an earlier time is left to find that out."""
        now_ms = self._clock_ms()
        deadline_ms = self._end.next_deadline_ms()
        if self._end.waits_for_port:
            poll_ms = now_ms + DRAIN_POLL_MS
            deadline_ms = poll_ms if deadline_ms is None else min(deadline_ms, poll_ms)
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, deadline_ms - now_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_is_up)
        self._timer_at_ms = deadline_ms
