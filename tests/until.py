"""Waiting for something that happens elsewhere: in another thread, in another process, on the disk."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], object], within_s: float = 20.0, every_s: float = 0.005) -> None:
    """Return as soon as ``condition()`` is true; AssertionError when it is not within ``within_s``."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, f"not within {within_s:g} s"
        time.sleep(every_s)


async def until_async(condition: Callable[[], object], within_s: float = 20.0) -> float:
    """The same while a loop runs; how long it took."""
    begun = asyncio.get_running_loop().time()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)
    return asyncio.get_running_loop().time() - begun


def run(work: Callable[[], Awaitable[T]], within_s: float = 40.0) -> T:
    """Run it to its end in a loop of its own; TimeoutError when it takes longer."""

    async def limited() -> T:
        async with asyncio.timeout(within_s):
            return await work()

    return asyncio.run(limited())
