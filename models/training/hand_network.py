"""The two small networks that find a hand: one sees the whole picture, one the straightened palm.

Both are the same hourglass. Everything from bytes to coordinates is in the graph, so that a device cannot
prepare or read anything differently.
"""

import torch
from torch import nn
from torch.nn import functional

COARSE_PX = 112
FINE_PX = 96
FINE_CELL_PX = 4
POINTS = 5
"""Four valleys and the wrist."""
COARSE_CHANNELS = 8
"""Hand, open, right, centre x and y within the cell, log2 of palm width over 28 px, up x and y."""


def _conv(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class SameWidthBlock(nn.Module):  # type: ignore[misc]
    """A residual block (He et al. 2016) of one width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _conv(width, width)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape."""
        return functional.relu(x + self.second(self.first(x)))


class Hourglass(nn.Module):  # type: ignore[misc]
    """(n, H, W) uint8 to features at a quarter (24), an eighth (40) and a sixteenth (64) of the size."""

    def __init__(self) -> None:
        super().__init__()
        self.quarter = nn.Sequential(_conv(1, 12, 2, 5), _conv(12, 24, 2), SameWidthBlock(24))
        self.eighth = nn.Sequential(_conv(24, 40, 2), SameWidthBlock(40))
        self.sixteenth = nn.Sequential(_conv(40, 64, 2), SameWidthBlock(64), SameWidthBlock(64))
        self.to_eighth = _conv(64, 40, size=1)
        self.join_eighth = _conv(40, 40)
        self.to_quarter = _conv(40, 24, size=1)
        self.join_quarter = _conv(24, 24)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features, finest first."""
        x = pixels.unsqueeze(1).to(torch.float32) * (1.0 / 255.0)
        # Exposure must not matter: mean 0, deviation 1 over the picture.
        x = x - x.mean((2, 3), keepdim=True)
        x = x / torch.sqrt((x * x).mean((2, 3), keepdim=True) + 4e-4)
        fine = self.quarter(x)
        middle = self.eighth(fine)
        deep = self.sixteenth(middle)
        middle = self.join_eighth(middle + _twice(self.to_eighth(deep)))
        return self.join_quarter(fine + _twice(self.to_quarter(middle))), middle, deep


def _twice(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class CoarseNet(nn.Module):  # type: ignore[misc]
    """Where in a letterboxed picture a hand is, how large, which way up, and which pixels are hand."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Hourglass()
        self.cells = nn.Sequential(_conv(40, 40), nn.Conv2d(40, COARSE_CHANNELS, 1))
        self.cover = nn.Conv2d(24, 1, 1)
        with torch.no_grad():
            self.cells[1].bias[0] = -4.0

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, 112, 112) uint8 to cells (n, 8, 14, 14) and cover (n, 28, 28), all before any sigmoid."""
        fine, middle, _ = self.body(pictures)
        return self.cells(middle), self.cover(fine).squeeze(1)


class FineNet(nn.Module):  # type: ignore[misc]
    """The valleys and the wrist of a straightened left hand, and whether it is one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Hourglass()
        self.maps = nn.Sequential(_conv(24, 24), nn.Conv2d(24, POINTS, 1))
        self.judge = nn.Sequential(nn.Flatten(), nn.Linear(64 * 4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(n, 96, 96) uint8 to maps (n, 5, 24, 24) before the softmax, points (n, 5, 2) px, judgement (n, 2).

        Judgement, before the sigmoid: an open hand lies here; it is mirrored (a right hand).
        """
        fine, _, deep = self.body(crops)
        maps = self.maps(fine)
        return maps, expected_points(maps), self.judge(functional.avg_pool2d(deep, 3))


def expected_points(maps: torch.Tensor) -> torch.Tensor:
    """The mean place under the softmax of each map (Sun et al. 2018), (n, points, 2) as x and y in pixels."""
    n, points, height, width = maps.shape
    chance = torch.softmax(maps.flatten(2), 2).reshape(n, points, height, width)
    at = torch.arange(width, dtype=torch.float32) * FINE_CELL_PX + (FINE_CELL_PX - 1) / 2
    return torch.stack([(chance.sum(2) * at).sum(2), (chance.sum(3) * at).sum(2)], 2)
