"""What may be written to a terminal in addition to text: colours, and lines that are overwritten."""

import os
from collections.abc import Mapping
from typing import TextIO


def is_plain(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user wants text alone: NO_COLOR (https://no-color.org), or a terminal that is `dumb`."""
    return bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"


def is_live(stream: TextIO) -> bool:
    """Whether lines on `stream` may be written over: a terminal that can do more than text."""
    return stream.isatty() and not is_plain()
