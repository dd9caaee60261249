"""A QR code as text: two rows of modules a line, dark on light with any colours of the terminal."""

from typing import Final

QUIET_MODULES: Final = 4
"""ISO/IEC 18004: the light margin that readers need."""

_BLACK_ON_WHITE, _PLAIN = "\x1b[30;107m", "\x1b[0m"
_HALVES: Final = {(True, True): "█", (True, False): "▀", (False, True): "▄", (False, False): " "}


def qr_lines(text: str) -> list[str]:
    """The lines of the code for `text`, to be printed on a terminal that knows colours and Unicode."""
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
