"""What may be written to a terminal besides text: colours, QR codes, and lines that are overwritten."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

QUIET_MODULES: Final = 4
"""ISO/IEC 18004: the light margin that readers need."""

_BLACK_ON_WHITE, _PLAIN = "\x1b[30;107m", "\x1b[0m"
_HALVES: Final = {(True, True): "█", (True, False): "▀", (False, True): "▄", (False, False): " "}


def is_plain() -> bool:
    """Whether the user wants text alone: NO_COLOR (https://no-color.org), or a terminal that is `dumb`."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def is_live(stream: TextIO | None) -> bool:
    """Whether lines on `stream` may be written over: a terminal that can do more than text. One that was
    closed before this process began is None."""
    return stream is not None and stream.isatty() and not is_plain()


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


def qr_lines(text: str) -> list[str]:
    """A QR code as text, two rows of modules a line, dark on light with any colours of the terminal."""
    import cv2
    import numpy as np

    dark = cv2.QRCodeEncoder.create().encode(text) < 128
    rows, columns = np.flatnonzero(dark.any(axis=1)), np.flatnonzero(dark.any(axis=0))
    dark = np.pad(dark[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], QUIET_MODULES)
    if dark.shape[0] % 2:
        dark = np.vstack([dark, np.zeros((1, dark.shape[1]), dtype=bool)])
    return [
        _BLACK_ON_WHITE
        + "".join(
            _HALVES[bool(upper), bool(lower)] for upper, lower in zip(dark[row], dark[row + 1], strict=True)
        )
        + _PLAIN
        for row in range(0, dark.shape[0], 2)
    ]
