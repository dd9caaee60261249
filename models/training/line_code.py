"""A palm as the directions of its lines, in 512 numbers: fixed filters, and a basis learned from generated
palms.

The front is that of a competitive code (Kong and Zhang 2004): Gabor filters of several directions compete
at every place, here softly, in four widths, weighted by how much of a line there is. The answers are gathered
over small overlapping cells, and the directions in which generated palms differ most, each scaled to the same
spread, are what remains. A crop may slip by few pixels only before its code is another: the search that a
line code makes when it compares is made with further probes (``models.probes``).
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

from models.crop_geometry import CROP_SIZE
from models.training.network import EMBEDDING_SIZE, ContrastNormalisation

DIRECTIONS: Final = 8
_SIZE: Final = 27
_STEP: Final = 4
_WIDTHS: Final = ((6.0, 26.0), (4.2, 17.0), (3.0, 11.5), (2.1, 7.7))
"""(sigma, wavelength) in crop pixels: from the folds of the hand to the lines between the creases."""
_MARGIN: Final = 9
"""Zeros around the crop that a filter may cover; so the first answer is one step in from the edge."""
_SHARPNESS: Final = 1.0
_STRENGTH: Final = 1.5
_GATHERED: Final = 5
"""Answers along one side of a cell."""
_EVERY: Final = 2
"""Answers from one cell's edge to the next one's, so that cells overlap."""
_ANSWERS: Final = (CROP_SIZE + 2 * _MARGIN - _SIZE) // _STEP + 1
CELLS: Final = (_ANSWERS - _GATHERED) // _EVERY + 1
"""Along one side of the crop: 11."""
_RIM: Final = (0.4, 0.7, 0.9)
"""What the cells count from the edge inwards, further in 1. At the edge every palm of one cutter shows the
same roots of the fingers, and a slipped probe shows its own mirror image.
"""
FEATURES: Final = len(_WIDTHS) * DIRECTIONS * CELLS * CELLS


class LineCode(nn.Module):  # type: ignore[misc]
    """(n, 112, 112) uint8 palm crops to (n, size) vectors of length 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.contrast = ContrastNormalisation(window=13, floor=0.006)
        self.register_buffer("filters", torch.cat([line_filters(*width) for width in _WIDTHS]))
        self.register_buffer("counted", rim_weights())
        self.project = nn.Linear(FEATURES, size)

    def seen(self, crops: torch.Tensor) -> torch.Tensor:
        """Contrast-normalised crops (n, 1, 112, 112) of crops (n, 112, 112) uint8."""
        return self.contrast(crops.unsqueeze(1).to(torch.float32) * (1.0 / 255.0))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Line strengths (n, FEATURES) of contrast-normalised crops, before the basis."""
        answers = functional.conv2d(x, self.filters, stride=_STEP, padding=_MARGIN)
        answers = answers.unflatten(1, (len(_WIDTHS), DIRECTIONS))
        strongest = answers.amax(2, keepdim=True)
        # A softmax; written out, for the runtime's own was a quarter of the line code's time along this axis.
        shares = torch.exp(_SHARPNESS * (answers - strongest))
        shares = shares / shares.sum(2, keepdim=True) - 1.0 / DIRECTIONS
        won = shares * torch.clamp(strongest, 0.0, _STRENGTH)
        gathered = functional.avg_pool2d(won.flatten(1, 2), _GATHERED, _EVERY)
        # The root keeps one deep crease from saying more than all the fine lines together.
        return (gathered.sign() * gathered.abs().sqrt() * self.counted).flatten(1)

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


def rim_weights() -> torch.Tensor:
    """What each cell counts, (CELLS, CELLS)."""
    inward = torch.arange(CELLS).minimum(torch.arange(CELLS - 1, -1, -1))
    weights = torch.tensor(_RIM + (1.0,) * (CELLS - len(_RIM)))
    return weights[torch.minimum(inward[:, None], inward[None, :])]


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
