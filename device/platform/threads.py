"""Work away from the caller: a thread that owns a database, tasks that run to their end, turns of bulk work.

A thread does its work in the order of the calls. The journal and the gallery each have one: the last page of
a large snapshot occupies the gallery's for a second, and no verdict may wait for that.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")
LONGEST_WAIT_S: Final = 0.05
"""A snapshot page has about thirty pieces, so 500 pages take a quarter of an hour at a gate that is never
empty."""


class StoreThread:
    """A queue with one worker."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self.finished = 0
        """Pieces of work done, for those who wait behind others."""

    async def do(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread, after all work submitted earlier. Returns its result, raises its
        errors."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._counted, work)

    def _counted(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            self.finished += 1

    def close(self) -> None:
        """Finish the submitted work, then end the thread."""
        self._executor.shutdown()


class RunningTasks:
    """Tasks of the loop that nothing else awaits. `failed` is called with the error of one that fails."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def finish(self) -> None:
        """Wait until none runs."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for `event`; False when the time was over first."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class BulkTurn:
    """When bulk work may do its next piece: not while a frame is examined, nor while a hand is in view.

    A snapshot page takes tens of milliseconds of Python, and Python runs one thread at a time: a hand that
    arrives during that time would wait for it. The thread that applies the page therefore asks before each
    piece of two milliseconds. It never waits longer than LONGEST_WAIT_S, so that the gallery also advances at
    a busy gate. Set by the inference thread and the loop, read by the threads that do bulk work.
    """

    def __init__(self, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        """`longest_wait_s`: 0 where bulk work runs on the loop, which no frame then interrupts."""
        self._longest_wait_s = longest_wait_s
        self._no_hand, self._no_frame = threading.Event(), threading.Event()
        self._no_hand.set()
        self._no_frame.set()

    def hand_seen(self, present: bool) -> None:
        if present:
            self._no_hand.clear()
        else:
            self._no_hand.set()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Encloses the examination of one frame."""
        self._no_frame.clear()
        try:
            yield
        finally:
            self._no_frame.set()

    def wait(self) -> None:
        """Return when a piece may begin."""
        self._no_frame.wait(self._longest_wait_s)
        self._no_hand.wait(self._longest_wait_s)
