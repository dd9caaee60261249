"""Long runs of small pieces of work, with pauses between them so that urgent work is not delayed."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Pause = Callable[[], object]
"""Called between pieces; may wait."""

T = TypeVar("T")


def at_once() -> None:
    """No pause."""


def paced(items: Iterable[T], pause: Pause, every: int) -> Iterator[T]:
    """The items, with a pause before each `every`-th."""
    for number, item in enumerate(items, 1):
        if number % every == 0:
            pause()
        yield item
