"""A thread that owns one database and does its work in the order of the calls.

The journal and the gallery each have such a thread: the last page of a large snapshot occupies the gallery's
for a second, and no verdict may wait for that.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
