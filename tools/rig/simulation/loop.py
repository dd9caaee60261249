"""An event loop in virtual time: no selector, no thread, no sleep.

Programs under simulation are `SimulatedProcess`es. Each callback belongs to the process in whose context it
was made; a process that is killed runs none of its callbacks any more, as after SIGKILL: no `finally` runs
either. Each process reads its own clock, which may run fast or slow against the loop's; `time`, timers and
deadlines are the process's. Work for executors is done on the loop, in the order given, and takes a time
drawn from the seed.
"""

import asyncio
import contextvars
import heapq
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from link1.errors import TransportError

_PROCESS: Final[contextvars.ContextVar["SimulatedProcess | None"]] = contextvars.ContextVar(
    "process", default=None
)

T = TypeVar("T")


class SimulatedProcess:
    """A program that may be killed after any of its steps. `rate`: its clock's seconds a second of the
    loop."""

    def __init__(self, name: str, rate: float = 1.0) -> None:
        self.name = name
        self.rate = rate
        self.alive = True
        self.steps = 0
        self.kill_at_step: int | None = None
        self.on_death: list[Callable[[], None]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self._tidied_at = 64

    def holds(self, task: "asyncio.Task[Any]") -> None:
        """A task of it. It is held until it is done: what nothing holds is closed, and its `finally` runs."""
        self.tasks.add(task)
        if len(self.tasks) > self._tidied_at:
            self.tasks = {one for one in self.tasks if not one.done()}
            self._tidied_at = 64 + 2 * len(self.tasks)

    def kill(self) -> None:
        """Nothing of it runs from here on."""
        if not self.alive:
            return
        self.alive = False
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        for tell in list(self.on_death):
            tell()


class StuckSimulation(Exception):
    """Nothing is left to run, and what was waited for has not happened."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `work_s` draws how long one piece of an executor's work takes."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._global_s = 0.0
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._free_at: dict[int, float] = {}
        self._waiting: WeakKeyDictionary[Any, list[asyncio.Future[Any]]] = WeakKeyDictionary()
        self.most_waiting = 0
        """The most pieces of work that have waited for one executor at a time."""
        self.works_until_s = 0.0
        """When the last of the work ordered so far is done."""
        self.stride_s = math.inf
        """The furthest that time moves at once while nothing happens; without end: to the next timer."""
        self._readers: dict[int, asyncio.Handle] = {}
        self._writers: dict[int, asyncio.Handle] = {}
        self.work_s: Callable[[SimulatedProcess | None], float] = lambda _process: 0.0
        self.after_step: Callable[[SimulatedProcess | None], None] = lambda _process: None
        self.on_kill: Callable[[SimulatedProcess], None] = lambda process: process.kill()
        self.steps = 0

    # ---- time

    def time(self) -> float:
        """The present process's clock, in seconds since its machine's start."""
        process = _PROCESS.get()
        return self._global_s if process is None else self._global_s * process.rate

    @property
    def now_s(self) -> float:
        """The simulation's own clock."""
        return self._global_s

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        process = _process_in(context)
        return self._set(when, process.rate if process else 1.0, callback, args, context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        process = _process_in(context)
        rate = process.rate if process else 1.0
        return self._set(self._global_s * rate + delay, rate, callback, args, context)

    def _set(self, when: float, rate: float, callback: Any, args: Any, context: Any) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._due, (when / rate, self._numbers, timer))
        return timer

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when they are due."""

    # ---- steps

    def _run_once(self) -> None:
        ready, due = self._ready, self._due  # type: ignore[attr-defined]
        if due and due[0][0] <= self._global_s:
            self._take_due(ready)
        if not ready:
            while due and due[0][2]._cancelled:  # noqa: SLF001
                heapq.heappop(due)
            if not due:
                raise StuckSimulation("nothing is left to run")
            self._global_s = max(self._global_s, min(due[0][0], self._global_s + self.stride_s))
            self._take_due(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                self._step(handle)

    def _take_due(self, ready: Any) -> None:
        """What is due by now."""
        due, now_s = self._due, self._global_s
        while due and due[0][0] <= now_s:
            timer = heapq.heappop(due)[2]
            if not timer._cancelled:  # noqa: SLF001
                ready.append(timer)

    def _step(self, handle: asyncio.Handle) -> None:
        context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
        process = context.get(_PROCESS)
        if process is not None:
            if not process.alive:
                return
            process.steps += 1
            if process.kill_at_step is not None and process.steps >= process.kill_at_step:
                process.kill_at_step = None
                self.on_kill(process)
                return
        self.steps += 1
        try:
            context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]  # noqa: SLF001
        except BaseException as error:  # noqa: BLE001 - as `Handle._run` does
            self.call_exception_handler({"message": "a step failed", "exception": error, "handle": handle})
        self.after_step(process)

    # ---- work of executors, done here

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        process = _PROCESS.get()
        free_s = -1.0 if executor is None else self._free_at.get(id(executor), -1.0)
        begins = max(self._global_s, free_s)
        ends = begins + self.work_s(process)
        self.works_until_s = max(self.works_until_s, ends)
        if executor is not None:
            self._free_at[id(executor)] = ends
            self._count(self._waiting.setdefault(executor, []), future)
        rate = process.rate if process else 1.0

        def done(error: BaseException | None, result: Any) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> tuple[BaseException | None, Any]:
            try:
                return None, func(*args)
            except Exception as raised:  # noqa: BLE001 - the caller's, as from a thread
                return raised, None

        def begin() -> None:
            # Between the two a process may die: what was done is done, and nobody has heard of it.
            self.call_at(ends * rate, done, *work())

        if self._chance.random() < 0.5:
            self.call_at(ends * rate, lambda: done(*work()))  # it is done when it ends
        elif free_s < self._global_s:
            begin()  # a thread that is idle may be done before its caller goes on
        else:
            self.call_at(begins * rate, begin)
        return future

    def _count(self, waiting: list[asyncio.Future[Any]], future: asyncio.Future[Any]) -> None:
        waiting.append(future)
        if len(waiting) > self.most_waiting:  # without what is done, or not waited for any more
            waiting[:] = [one for one in waiting if not one.done()]
            self.most_waiting = max(self.most_waiting, len(waiting))

    # ---- ports

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = asyncio.Handle(callback, args, self, contextvars.copy_context())

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        self._writers[fd] = asyncio.Handle(callback, args, self, contextvars.copy_context())

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """Bytes have come to a simulated port, or it is gone."""
        if (handle := self._readers.get(fd)) is not None:
            self._ready.append(handle)  # type: ignore[attr-defined]

    def writable(self, fd: int) -> None:
        """A simulated port has room again."""
        if (handle := self._writers.get(fd)) is not None:
            self._ready.append(handle)  # type: ignore[attr-defined]

    # ---- processes

    def spawn(self, process: SimulatedProcess, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as part of a process."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, process)
        return self.create_task(work, context=context)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        process = _process_in(context)
        if process is not None:
            process.holds(task)
        return task

    def within(self, process: SimulatedProcess, call: Callable[[], Any]) -> Any:
        """Call something now as if the process did."""
        context = contextvars.copy_context()
        context.run(_PROCESS.set, process)
        return context.run(call)

    def within_world(self, call: Callable[[], Any]) -> Any:
        """Call something as no process: it happens whoever dies, and on the simulation's own clock."""
        return contextvars.Context().run(call)

    # ---- what BaseEventLoop leaves to its heirs

    def _process_events(self, event_list: Any) -> None:
        del event_list

    def _write_to_self(self) -> None:
        """Nothing waits in a selector."""

    def add_signal_handler(self, sig: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        raise TransportError(f"no signals in a simulation ({sig}, {callback}, {args})")


def _process_in(context: contextvars.Context | None) -> SimulatedProcess | None:
    return _PROCESS.get() if context is None else context.get(_PROCESS)


async def called_in(  # noqa: C901 - both ends of one call
    loop: SimulatedLoop, process: SimulatedProcess, work: Callable[[], Awaitable[T]], lost: Exception
) -> T:
    """Have another process do `work`, and wait for it; raises `lost` when that process dies meanwhile. A
    caller that dies or gives up cancels it, as a closed connection does."""
    answered: asyncio.Future[T] = loop.create_future()
    caller, context = _PROCESS.get(), contextvars.copy_context()

    def settle(task: "asyncio.Task[T]") -> None:
        if answered.done():
            return
        if task.cancelled():
            answered.cancel()
        elif (error := task.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(task.result())

    async def do() -> T:
        return await work()

    def died() -> None:
        if not answered.done() and (caller is None or caller.alive):
            context.run(answered.set_exception, lost)

    task = loop.spawn(process, do())
    # In the caller's context: it hears of it as long as it lives, whatever becomes of the other.
    task.add_done_callback(settle, context=context)
    process.on_death.append(died)
    if caller is not None:
        caller.on_death.append(task.cancel)  # type: ignore[arg-type]
    try:
        return await answered
    finally:
        process.on_death.remove(died)
        if caller is not None:
            caller.on_death.remove(task.cancel)  # type: ignore[arg-type]
        if not task.done():
            task.cancel()
