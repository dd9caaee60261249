"""From the modules of a QR code (ISO/IEC 18004:2015) to its text.

Written here rather than taken from OpenCV because anyone in front of the camera can show a code:
OpenCV 5.0's ``QRCodeDetector`` ends the process (heap corruption) on some images without any code. Versions 1
to 20, numeric, alphanumeric and byte segments; that is more than the 512 characters taken.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.reed_solomon import correct

Modules = NDArray[np.bool_]

MAX_TEXT: Final = 512
"""Longest text taken, in characters."""
MAX_VERSION: Final = 20

# ISO/IEC 18004:2015 table 9, versions 1 to 20, by the two bits that name the level in the format information.
_CHECK_PER_BLOCK: Final = {
    0b01: (7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28),
    0b00: (10, 16, 26, 18, 24, 16, 18, 22, 22, 26, 30, 22, 22, 24, 24, 28, 28, 26, 26, 26),
    0b11: (13, 22, 18, 26, 18, 24, 18, 22, 20, 24, 28, 26, 24, 20, 30, 24, 28, 28, 26, 30),
    0b10: (17, 28, 22, 16, 22, 28, 26, 26, 24, 28, 24, 28, 22, 24, 24, 30, 28, 28, 26, 28),
}
_BLOCKS: Final = {
    0b01: (1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8),
    0b00: (1, 1, 1, 2, 2, 4, 4, 4, 5, 5, 5, 8, 9, 9, 10, 10, 11, 13, 14, 16),
    0b11: (1, 1, 2, 2, 4, 4, 6, 6, 8, 8, 8, 10, 12, 16, 12, 17, 16, 18, 21, 20),
    0b10: (1, 1, 2, 4, 4, 4, 5, 6, 8, 8, 11, 11, 16, 16, 18, 16, 19, 21, 25, 25),
}
_ALPHANUMERIC: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ $%*+-./:"


def read_modules(modules: Modules) -> str | None:
    """The text of a square of modules, dark ones True, quiet zone excluded; None when it is no sound code."""
    side = modules.shape[0]
    version, odd = divmod(side - 17, 4)
    if odd or not 1 <= version <= MAX_VERSION or modules.shape != (side, side):
        return None
    named = _format(modules)
    if named is None:
        return None
    level, mask = named
    row, column = np.indices(modules.shape)
    bits = (modules ^ _mask(mask, row, column))[_data_path(version)]
    codewords = np.packbits(bits[: len(bits) // 8 * 8]).tolist()
    data = _corrected(codewords, version, level)
    return None if data is None else _text(data, version)


def _format(modules: Modules) -> tuple[int, int] | None:
    """Error correction level and mask, from whichever copy of the format information has at most 3 errors."""
    side = modules.shape[0]
    one = [(8, i) for i in (0, 1, 2, 3, 4, 5, 7, 8)] + [(i, 8) for i in (7, 5, 4, 3, 2, 1, 0)]
    other = [(side - 1 - i, 8) for i in range(7)] + [(8, side - 8 + i) for i in range(8)]
    best = (4, 0)
    for places in (one, other):
        read = 0
        for place in places:
            read = read << 1 | int(modules[place])
        best = min(best, *((int(read ^ code).bit_count(), five) for five, code in enumerate(_format_codes())))
    return (best[1] >> 3, best[1] & 7) if best[0] <= 3 else None


@lru_cache(maxsize=1)
def _format_codes() -> tuple[int, ...]:
    """The 32 valid words of the (15, 5) BCH code, masked."""
    codes = []
    for five in range(32):
        rest = five << 10
        for bit in range(14, 9, -1):
            if rest >> bit & 1:
                rest ^= 0b10100110111 << (bit - 10)
        codes.append((five << 10 | rest) ^ 0b101010000010010)
    return tuple(codes)


def _mask(mask: int, i: NDArray[np.intp], j: NDArray[np.intp]) -> Modules:
    conditions = (
        (i + j) % 2,
        i % 2,
        j % 3,
        (i + j) % 3,
        (i // 2 + j // 3) % 2,
        i * j % 2 + i * j % 3,
        (i * j % 2 + i * j % 3) % 2,
        ((i + j) % 2 + i * j % 3) % 2,
    )
    return np.asarray(conditions[mask] == 0)


def alignment_centres(version: int) -> list[int]:
    """Row and column numbers of the alignment patterns' centres (annex E)."""
    if version == 1:
        return []
    count = version // 7 + 2
    last = 4 * version + 10
    step = (last - 6 + count - 2) // (count - 1) if count > 2 else last - 6
    step += step % 2
    return [6, *(last - step * k for k in range(count - 2, -1, -1))]


@lru_cache(maxsize=4)
def _data_path(version: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the data modules in reading order: two columns at a time, up and down by turns."""
    side = 4 * version + 17
    used = np.zeros((side, side), dtype=bool)
    used[:9, :9] = used[:9, -8:] = used[-8:, :9] = True
    used[6, :] = used[:, 6] = True
    centres = alignment_centres(version)
    for r in centres:
        for c in centres:
            if (r, c) not in {(6, 6), (6, centres[-1]), (centres[-1], 6)}:
                used[r - 2 : r + 3, c - 2 : c + 3] = True
    if version >= 7:
        used[:6, -11:-8] = used[-11:-8, :6] = True
    rows, columns = [], []
    upward = True
    for right in [*range(side - 1, 6, -2), *range(5, 0, -2)]:
        for r in range(side - 1, -1, -1) if upward else range(side):
            for c in (right, right - 1):
                if not used[r, c]:
                    rows.append(r)
                    columns.append(c)
        upward = not upward
    return np.array(rows), np.array(columns)


def _corrected(codewords: list[int], version: int, level: int) -> list[int] | None:
    """The data codewords in order, after taking the blocks apart and correcting each."""
    blocks, check = _BLOCKS[level][version - 1], _CHECK_PER_BLOCK[level][version - 1]
    length, longer = divmod(len(codewords), blocks)
    shorter = blocks - longer
    sizes = [length - check + (b >= shorter) for b in range(blocks)]
    parts: list[list[int]] = [[] for _ in sizes]
    stream = iter(codewords)
    for k in range(max(sizes)):
        for part, size in zip(parts, sizes, strict=True):
            if k < size:
                part.append(next(stream))
    for _ in range(check):
        for part in parts:
            part.append(next(stream))
    data: list[int] = []
    for part, size in zip(parts, sizes, strict=True):
        sound = correct(part, check)
        if sound is None:
            return None
        data += sound[:size]
    return data


def _text(data: list[int], version: int) -> str | None:
    """The segments' characters; None for a mode that is not taken or data that end early."""
    stream = _Bits(data)
    text = ""
    wide = version >= 10
    try:
        while stream.left >= 4:
            mode = stream.take(4)
            if mode == 0:
                return text
            if mode not in {1, 2, 4}:
                return None
            count = stream.take({1: 12 if wide else 10, 2: 11 if wide else 9, 4: 16 if wide else 8}[mode])
            text += "".join({1: _digits, 2: _letters, 4: _bytes}[mode](stream, count))
    except (EOFError, IndexError):
        return None
    return text


class _Bits:
    """Bits taken from the front of codewords."""

    def __init__(self, data: list[int]) -> None:
        self._value = int.from_bytes(bytes(data), "big")
        self.left = 8 * len(data)

    def take(self, count: int) -> int:
        if count > self.left:
            raise EOFError
        self.left -= count
        return self._value >> self.left & ((1 << count) - 1)


def _digits(stream: _Bits, count: int) -> Iterator[str]:
    while count > 0:
        size = min(3, count)
        yield str(stream.take((4, 7, 10)[size - 1])).zfill(size)
        count -= size


def _letters(stream: _Bits, count: int) -> Iterator[str]:
    for _ in range(count // 2):
        first, second = divmod(stream.take(11), 45)
        yield _ALPHANUMERIC[first] + _ALPHANUMERIC[second]
    if count % 2:
        yield _ALPHANUMERIC[stream.take(6)]


def _bytes(stream: _Bits, count: int) -> Iterator[str]:
    for _ in range(count):
        yield chr(stream.take(8))
