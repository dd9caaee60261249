"""A palm as the directions of its lines, in 512 numbers: fixed filters, and a basis learned from generated
palms.

The front is that of a competitive code (Kong and Zhang 2004): Gabor filters of several directions compete
at every place, here softly, in two widths, weighted by how much of a line there is. What the code leaves to
a search over bit maps, a vector has to hold: the answers are gathered over small overlapping cells, and the
512 directions in which generated palms differ most, each scaled to the same spread, are what remains.
Nothing here is trained by gradient, so nothing in it can fit what a generator gets wrong about skin.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from models.training.network import EMBEDDING_SIZE, ContrastNormalisation

DIRECTIONS: Final = 8
_SIZE: Final = 27
_STEP: Final = 4
_WIDTHS: Final = ((3.6, 14.0), (2.4, 8.5))
"""(sigma, wavelength) in crop pixels: creases, and the finer lines between them."""
_SHARPNESS: Final = 1.5
_STRENGTH: Final = 1.5
CELLS: Final = 14
_GATHERED: Final = 6
"""Answers along one side of a cell; neighbouring cells overlap, so that a crop may slip by some pixels."""
FEATURES: Final = len(_WIDTHS) * DIRECTIONS * CELLS * CELLS


class LineCode(nn.Module):  # type: ignore[misc]
    """(n, 112, 112) uint8 palm crops to (n, size) vectors of length 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.contrast = ContrastNormalisation(floor=0.006)
        self.register_buffer("filters", torch.cat([line_filters(*width) for width in _WIDTHS]))
        self.project = nn.Linear(FEATURES, size)

    def seen(self, crops: torch.Tensor) -> torch.Tensor:
        """Contrast-normalised crops (n, 1, 112, 112) of crops (n, 112, 112) uint8."""
        return self.contrast(crops.unsqueeze(1).to(torch.float32) * (1.0 / 255.0))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Line strengths (n, FEATURES) of contrast-normalised crops, before the basis."""
        answers = functional.conv2d(x, self.filters, stride=_STEP, padding=_SIZE // 2)
        parts = []
        for start in range(0, len(_WIDTHS) * DIRECTIONS, DIRECTIONS):
            answer = answers[:, start : start + DIRECTIONS]
            won = torch.softmax(_SHARPNESS * answer, 1) - 1.0 / DIRECTIONS
            weight = torch.clamp(answer.amax(1, keepdim=True), 0.0, _STRENGTH)
            parts.append(
                functional.avg_pool2d(
                    won * weight, _GATHERED, 2, (_GATHERED - 2) // 2, count_include_pad=False
                )
            )
        gathered = torch.cat(parts, 1).flatten(1)
        # The root keeps one deep crease from saying more than all the fine lines together.
        return gathered.sign() * gathered.abs().sqrt()

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """Unit vectors; see the class."""
        return functional.normalize(self.project(self.features(self.seen(crops))), dim=1)

    def take(self, basis: "Basis") -> None:
        """Use the first directions of a basis."""
        size = self.project.out_features
        with torch.no_grad():
            self.project.weight.copy_(torch.from_numpy(basis.directions[:size]))
            self.project.bias.copy_(torch.from_numpy(basis.offsets[:size]))


@dataclass(frozen=True, slots=True, eq=False)
class Basis:
    """The directions in which generated palms differ, most first."""

    directions: NDArray[np.float32]
    """(512, FEATURES): times the features of a crop, plus the offset, gives unit variance in each."""
    offsets: NDArray[np.float32]
    """(512,)."""


def learn_basis(features: NDArray[np.float32], size: int = EMBEDDING_SIZE) -> Basis:
    """Whitened principal directions of the features (n, FEATURES) of many palms."""
    mean = features.mean(axis=0)
    spread, vectors = np.linalg.eigh(np.cov((features - mean).T))
    chosen = (vectors[:, ::-1][:, :size] / np.sqrt(np.maximum(spread[::-1][:size], 1e-12))).T
    return Basis(np.asarray(chosen, dtype=np.float32), np.asarray(-(chosen @ mean), dtype=np.float32))


def line_filters(sigma: float, wavelength: float) -> torch.Tensor:
    """Even Gabor filters (DIRECTIONS, 1, 27, 27) of unit length that answer to dark lines."""
    half = _SIZE // 2
    axis = torch.arange(-half, half + 1, dtype=torch.float32)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    bank = []
    for i in range(DIRECTIONS):
        angle = math.pi * i / DIRECTIONS
        across = -x * math.sin(angle) + y * math.cos(angle)
        along = x * math.cos(angle) + y * math.sin(angle)
        wave = -torch.cos(2 * math.pi * across / wavelength)
        wave = wave * torch.exp(-(across**2 + 0.35 * along**2) / (2 * sigma**2))
        wave = wave - wave.mean()
        bank.append(wave / wave.norm())
    return torch.stack(bank).unsqueeze(1)
