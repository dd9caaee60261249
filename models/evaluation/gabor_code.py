"""A competitive code (Kong and Zhang 2004): the untrained method any learned embedding has to beat.

For comparison in evaluations only; a device does not use it.
"""

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

_DIRECTIONS: Final = 6
_SIZE: Final = 35
_SIGMA: Final = 5.6
_WAVELENGTH: Final = 14.0
_STEP: Final = 3
"""The code is kept at every third pixel."""
_BORDER: Final = 5
_REACH: Final = 3
"""Shifts tried, in code pixels, either way."""

Codes = NDArray[np.uint8]


def _bank() -> list[NDArray[np.float32]]:
    half = _SIZE // 2
    y, x = np.mgrid[-half : half + 1, -half : half + 1].astype(np.float32)
    bank = []
    for i in range(_DIRECTIONS):
        angle = np.pi * i / _DIRECTIONS
        across = -x * np.sin(angle) + y * np.cos(angle)
        along = x * np.cos(angle) + y * np.sin(angle)
        wave = np.exp(-(across**2 + along**2 / 4) / (2 * _SIGMA**2)) * np.cos(
            2 * np.pi * across / _WAVELENGTH
        )
        bank.append(np.asarray(wave - wave.mean(), dtype=np.float32))
    return bank


def competitive_codes(crops: NDArray[np.uint8]) -> Codes:
    """Direction (0 to 5) of the darkest line through every third pixel: (n, H, W) for crops (n, 112, 112)."""
    bank = _bank()
    codes = []
    for crop in crops:
        grey = np.asarray(crop, dtype=np.float32)
        answers = np.stack([cv2.filter2D(grey, cv2.CV_32F, kernel) for kernel in bank])
        code = np.argmin(answers, axis=0)[_BORDER:-_BORDER:_STEP, _BORDER:-_BORDER:_STEP]
        codes.append(code.astype(np.uint8))
    return np.stack(codes)


def compare_codes(one: Codes, others: Codes) -> NDArray[np.float32]:
    """Similarity (n,) from 0 to 1 of one code (H, W) with others (n, H, W), best over small shifts."""
    height, width = one.shape
    inner = slice(_REACH, height - _REACH), slice(_REACH, width - _REACH)
    probe = one[inner].astype(np.int8)
    best = np.zeros(len(others), dtype=np.float32)
    for dy in range(-_REACH, _REACH + 1):
        for dx in range(-_REACH, _REACH + 1):
            moved = others[:, _REACH + dy : height - _REACH + dy, _REACH + dx : width - _REACH + dx].astype(
                np.int8
            )
            apart = np.abs(moved - probe)
            distance = np.minimum(apart, _DIRECTIONS - apart).mean(axis=(1, 2)) / (_DIRECTIONS / 2)
            best = np.maximum(best, np.asarray(1.0 - distance, dtype=np.float32))
    return best


def compare_all_codes(
    codes: Codes, hands: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Similarities of every pair of captures: (mated, non-mated); two hands of one person are left out."""
    mated, non_mated = [], []
    for i in range(len(codes) - 1):
        similarity = compare_codes(codes[i], codes[i + 1 :])
        later = hands[i + 1 :]
        mated.append(similarity[later == hands[i]])
        non_mated.append(similarity[later // 2 != hands[i] // 2])
    return np.concatenate(mated), np.concatenate(non_mated)
