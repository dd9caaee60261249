"""What may be written to a terminal in addition to text: colours, and lines that are overwritten."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO


def is_plain(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants text alone: NO_COLOR (https://no-color.org), or a terminal that is `dumb`."""
    return bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"


def is_live(stream: TextIO) -> bool:
    """Whether lines on `stream` may be written over: a terminal that can do more than text."""
    return stream.isatty() and not is_plain()


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far the work is: each text replaces the one before, and the line
    is empty afterwards. Where standard error is no live terminal nothing is written.
    """

    def tell(text: str) -> None:
        if is_live(sys.stderr):
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        tell("")
