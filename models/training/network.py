"""The embedding network: contrast normalisation, a Gabor-started stem, a slim residual trunk, 512 numbers.

Everything after the pixels is in the graph, including the conversion from bytes and the final unit length, so
that the device runs one file and nothing can be prepared differently there.
"""

import math

import torch
from torch import nn
from torch.nn import functional

EMBEDDING_SIZE = 512
STEM_FILTERS = 32
_STEM_SIZE = 13


class ContrastNormalisation(nn.Module):  # type: ignore[misc]
    """Subtract the local mean and divide by the local deviation, so that light and gain hardly matter."""

    def __init__(self, window: int = 17, floor: float = 0.012) -> None:
        super().__init__()
        self.window = window
        self.floor = floor

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        # Two one-dimensional passes; a square window costs eight times as much.
        half = self.window // 2
        x = functional.avg_pool2d(x, (1, self.window), 1, (0, half), count_include_pad=False)
        return functional.avg_pool2d(x, (self.window, 1), 1, (half, 0), count_include_pad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 1, H, W) from 0 to 1, to about -3 to 3."""
        centred = x - self._mean(x)
        deviation = torch.sqrt(self._mean(centred * centred) + self.floor**2)
        return torch.clamp(centred / deviation, -3.0, 3.0)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """A basic residual block (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = None
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, H, W) to (n, outputs, H/stride, W/stride)."""
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return functional.relu(y + (x if self.skip is None else self.skip(x)))


class PalmNet(nn.Module):  # type: ignore[misc]
    """(n, 112, 112) uint8 palm crops to (n, 512) vectors of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.contrast = ContrastNormalisation()
        self.stem = nn.Conv2d(1, STEM_FILTERS, _STEM_SIZE, 2, _STEM_SIZE // 2, bias=False)
        self.stem.weight = nn.Parameter(gabor_bank(STEM_FILTERS, _STEM_SIZE))
        self.stem_norm = nn.BatchNorm2d(STEM_FILTERS)
        self.trunk = nn.Sequential(
            ResidualBlock(STEM_FILTERS, 48, 2),
            ResidualBlock(48, 96, 2),
            ResidualBlock(96, 128, 2),
            ResidualBlock(128, 144, 1),
        )
        # The place of a line in the palm is part of what it says: flatten, do not pool it away.
        self.squeeze = nn.Conv2d(144, 24, 1, bias=False)
        self.squeeze_norm = nn.BatchNorm2d(24)
        self.project = nn.Linear(24 * 7 * 7, EMBEDDING_SIZE, bias=False)
        self.project_norm = nn.BatchNorm1d(EMBEDDING_SIZE)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """Unit vectors; see the class."""
        x = crops.unsqueeze(1).to(torch.float32) * (1.0 / 255.0)
        with torch.no_grad():
            x = self.contrast(x)
        x = functional.relu(self.stem_norm(self.stem(x)))
        x = self.trunk(x)
        x = functional.relu(self.squeeze_norm(self.squeeze(x)))
        x = self.project_norm(self.project(x.flatten(1)))
        return functional.normalize(x.float(), dim=1)


def gabor_bank(filters: int, size: int) -> torch.Tensor:
    """Even Gabor filters (filters, 1, size, size) that answer to dark lines, in three scales."""
    half = size // 2
    y, x = torch.meshgrid(
        torch.arange(-half, half + 1, dtype=torch.float32),
        torch.arange(-half, half + 1, dtype=torch.float32),
        indexing="ij",
    )
    bank = []
    for i in range(filters):
        directions, sigma, wavelength = ((12, 2.6, 9.0), (12, 1.7, 5.5), (8, 3.6, 14.0))[min(2, i // 12)]
        angle = math.pi * (i % 12) / directions
        across = -x * math.sin(angle) + y * math.cos(angle)
        along = x * math.cos(angle) + y * math.sin(angle)
        envelope = torch.exp(-(across**2 + 0.35 * along**2) / (2 * sigma**2))
        wave = -torch.cos(2 * math.pi * across / wavelength) * envelope
        wave = wave - wave.mean()
        bank.append(wave / wave.norm())
    return torch.stack(bank).unsqueeze(1) * 0.35
