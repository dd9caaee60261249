"""What may be written to a terminal in addition to text: colours, and lines that are overwritten."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


def is_plain() -> bool:
    """Whether the user wants text alone: NO_COLOR (https://no-color.org), or a terminal that is `dumb`."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def is_live(stream: TextIO) -> bool:
    """Whether lines on `stream` may be written over: a terminal that can do more than text."""
    return stream.isatty() and not is_plain()


@contextmanager
def live_line(*, hidden: bool = False) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far the work is: each text replaces the one before, and the line
    is empty afterwards. Where standard error is no live terminal, or `hidden`, nothing is written.
    """

    def tell(text: str) -> None:
        if is_live(sys.stderr) and not hidden:
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        tell("")
