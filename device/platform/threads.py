"""Work away from the caller: a thread that owns one database, and tasks that run to their end.

A thread does its work in the order of the calls. The journal and the gallery each have one: the last page of
a large snapshot occupies the gallery's for a second, and no verdict may wait for that.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class StoreThread:
    """A queue with one worker."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread, after all work submitted earlier. Returns its result, raises its
        errors."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Finish the submitted work, then end the thread."""
        self._executor.shutdown()


class RunningTasks:
    """Tasks of the loop that nothing else awaits. `failed` is called with the error of one that fails."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def finish(self) -> None:
        """Wait until none runs."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
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
