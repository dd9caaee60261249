"""A thread that owns one database: everything asked of it is done in the order of asking.

There are two, the journal's and the gallery's: the last page of a large snapshot keeps its thread for a
second, and no verdict may wait for that.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class StoreThread:
    """A queue of one worker. `executor` is for whoever brings its own loop machinery."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread, after all that was asked before; returns or raises what it does."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def close(self) -> None:
        """Finish what was asked, then end the thread."""
        self.executor.shutdown()
