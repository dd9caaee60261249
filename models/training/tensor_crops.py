"""The crops of ``models.training.crops``, a batch at a time in tensors: what feeds a GPU.

Every step has the same name, order and ranges as there. Two things are drawn in another way: folds are soft
lines by their distance instead of blurred strokes, and all samples of a batch go through every step, which
does nothing to those that the lot passes over.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from models.crop_geometry import CROP_SIZE
from models.training.canvases import MASK, RELIEF, RELIEF_STEP, VISIBLE, PalmCanvases
from models.training.crops import Variation

_HALF: Final = (CROP_SIZE - 1) / 2.0
_WIDEST_BLUR_PX: Final = 4
_SMOOTH_NOISE_CELLS: Final = int(CROP_SIZE / 2.5) + 2
_MOST_FOLDS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class TensorCanvases:
    """Drawn palms on a device, and the lots that are drawn there."""

    planes: torch.Tensor
    """(n, H, W, 4) uint8, as ``PalmCanvases`` has them."""
    to_canvas: torch.Tensor
    """(n, 2, 3) float32."""
    lots: torch.Generator

    @classmethod
    def on(cls, device: torch.device, canvases: PalmCanvases, seed: int) -> "TensorCanvases":
        """All palms, moved there: 230 kB a hand."""
        return cls(
            torch.from_numpy(canvases.planes).to(device),
            torch.from_numpy(canvases.to_canvas).to(device, torch.float32),
            torch.Generator(device).manual_seed(seed),
        )

    def crops(self, hands: torch.Tensor, infrared: torch.Tensor, variation: Variation) -> torch.Tensor:
        """Crops (n, 112, 112) uint8 of the ``hands`` (n,), seen under an infrared lamp where that is true."""
        n = len(hands)
        reach = torch.where(self._chance(n, variation.wide), 1.0, 1.0 / 3.0)
        planes = self._warped(hands, self._coordinates(hands, reach, variation))
        grey = planes[torch.arange(n, device=hands.device), VISIBLE + infrared.to(torch.int64)]
        grey = grey * self._shade(planes[:, RELIEF] * RELIEF_STEP)
        grey = grey * (1.0 + self._slow(n, 3) * self._uniform(0.02, 0.18, n, 1, 1))
        grey = grey * (1.0 - 0.35 * self._folds(n))
        cover = planes[:, MASK] / 255.0
        cover = torch.where(cover.amin((1, 2), keepdim=True) < 0.99, cover, torch.ones_like(cover))
        dark, bright = self._uniform(5.0, 60.0, n, 1, 1), self._uniform(60.0, 230.0, n, 1, 1)
        grey = grey * cover + torch.where(self._chance(n, 0.5)[:, None, None], dark, bright) * (1.0 - cover)
        return self._sensor(self._occluded(grey)).clamp(0.0, 255.0).to(torch.uint8)

    def _coordinates(
        self, hands: torch.Tensor, reach: torch.Tensor, variation: Variation
    ) -> tuple[torch.Tensor, torch.Tensor]:
        n, sides = len(hands), self._uniform(-1.0, 1.0, 6, len(hands)) * reach
        angle = torch.deg2rad(variation.rotation_deg * sides[0])
        scale = torch.exp(torch.log1p(torch.tensor(variation.scale)) * sides[1])
        shift = sides[2:4, :, None, None] * variation.shift * CROP_SIZE
        tilt = sides[4:6, :, None, None] * variation.perspective / CROP_SIZE
        x, y = self._pixels()
        depth = 1.0 + tilt[0] * (x - _HALF) + tilt[1] * (y - _HALF)
        x, y = (x - _HALF) / depth, (y - _HALF) / depth
        c, s = (angle.cos() * scale)[:, None, None], (angle.sin() * scale)[:, None, None]
        bend = _resized(self._normal(n, 2, 6, 6) * variation.elastic_px)
        u = c * x - s * y + (_HALF + shift[0]) + bend[:, 0]
        v = s * x + c * y + (_HALF + shift[1]) + bend[:, 1]
        m = self.to_canvas[hands][:, :, :, None, None]
        return m[:, 0, 0] * u + m[:, 0, 1] * v + m[:, 0, 2], m[:, 1, 0] * u + m[:, 1, 1] * v + m[:, 1, 2]

    def _warped(self, hands: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        planes = self.planes[hands].permute(0, 3, 1, 2).to(torch.float32)
        height, width = planes.shape[2:]
        grid = torch.stack([at[0] * (2.0 / (width - 1)) - 1.0, at[1] * (2.0 / (height - 1)) - 1.0], 3)
        return functional.grid_sample(planes, grid, padding_mode="border", align_corners=True)

    def _shade(self, relief: torch.Tensor) -> torch.Tensor:
        sobel = (
            torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=relief.device) / 8.0
        )
        padded = functional.pad(relief[:, None], (1, 1, 1, 1), mode="reflect")
        slope = functional.conv2d(padded, torch.stack([sobel, sobel.T])[:, None])
        toward = self._normal(len(relief), 2, 1, 1) * 0.35
        lit = 1.0 - (toward * slope).sum(1)
        return (lit / torch.sqrt(1.0 + 0.6 * (slope * slope).sum(1))).clamp(0.2, 1.8)

    def _slow(self, n: int, cells: int) -> torch.Tensor:
        return _resized(self._normal(n, 1, cells, cells))[:, 0]

    def _folds(self, n: int) -> torch.Tensor:
        """(n, 112, 112) of 0..1: up to three dark soft lines of the moment in a third of the samples."""
        start = self._uniform(0.0, float(CROP_SIZE), n, _MOST_FOLDS, 2)
        middle = start + 18.0 * self._normal(n, _MOST_FOLDS, 2)
        end = 2.0 * middle - start + 6.0 * self._normal(n, _MOST_FOLDS, 2)
        wide = torch.where(self._chance(n * _MOST_FOLDS, 0.5), 0.5, 1.0).reshape(n, _MOST_FOLDS, 1, 1)
        soft = self._uniform(0.6, 1.4, n, 1, 1, 1)
        near = torch.minimum(self._distance(start, middle), self._distance(middle, end))
        deep = self._uniform(60.0 / 255.0, 1.0, n, _MOST_FOLDS, 1, 1)
        lines = deep * torch.exp(-near / (2.0 * (soft * soft + wide * wide)))
        drawn = torch.where(self._chance(n, 0.35), 1.0 + 3.0 * self._uniform(0.0, 1.0, n), 0.0).floor()
        counted = torch.arange(_MOST_FOLDS, device=lines.device)[None] < drawn[:, None]
        return (lines * counted[:, :, None, None]).amax(1)

    def _distance(self, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Squared, of every pixel from the stretches (n, k, 2) to (n, k, 2): (n, k, 112, 112)."""
        x, y = self._pixels()
        across, down = (end - start)[..., 0, None, None], (end - start)[..., 1, None, None]
        dx, dy = x - start[..., 0, None, None], y - start[..., 1, None, None]
        length = (across * across + down * down).clamp(min=1e-6)
        part = ((dx * across + dy * down) / length).clamp(0.0, 1.0)
        return (dx - part * across) ** 2 + (dy - part * down) ** 2

    def _occluded(self, grey: torch.Tensor) -> torch.Tensor:
        n = len(grey)
        x, y = self._pixels()
        left, top = self._uniform(0.0, float(CROP_SIZE), 2, n, 1, 1).floor()
        wide, high = self._uniform(10.0, 45.0, 2, n, 1, 1).floor()
        inside = (x >= left) & (x < left + wide) & (y >= top) & (y < top + high)
        inside &= self._chance(n, 0.06)[:, None, None]
        return torch.where(inside, self._uniform(10.0, 240.0, n, 1, 1), grey)

    def _sensor(self, grey: torch.Tensor) -> torch.Tensor:
        n = len(grey)
        grey = grey * self._uniform(0.45, 1.15, n, 1, 1) + self._uniform(-8.0, 12.0, n, 1, 1)
        sigma = torch.where(self._chance(n, 0.7), self._uniform(0.3, 1.5, n), 1e-3)
        steps = torch.arange(-_WIDEST_BLUR_PX, _WIDEST_BLUR_PX + 1, device=grey.device, dtype=torch.float32)
        focus = torch.exp(-0.5 * (steps / sigma[:, None]) ** 2)
        length = torch.where(self._chance(n, 0.12), self._uniform(2.0, 6.0, n).floor(), 1.0)[:, None]
        moved = ((steps >= -(length / 2).floor()) & (steps < length - (length / 2).floor())).to(torch.float32)
        upright = self._chance(n, 0.6)[:, None]
        still = (steps == 0).to(torch.float32).expand(n, -1)
        for across, down in (
            (focus, focus),
            (torch.where(upright, still, moved), torch.where(upright, moved, still)),
        ):
            grey = _convolved(grey, across / across.sum(1, keepdim=True), down / down.sum(1, keepdim=True))
        fine = self._normal(n, CROP_SIZE, CROP_SIZE) * self._uniform(0.5, 5.0, n, 1, 1)
        coarse = self._slow(n, _SMOOTH_NOISE_CELLS) * self._uniform(0.0, 4.0, n, 1, 1)
        return grey + fine + torch.where(self._chance(n, 0.3)[:, None, None], coarse, 0.0)

    def _pixels(self) -> tuple[torch.Tensor, torch.Tensor]:
        axis = torch.arange(CROP_SIZE, device=self.planes.device, dtype=torch.float32)
        return axis[None, :], axis[:, None]

    def _uniform(self, low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.lots, device=self.planes.device)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.lots, device=self.planes.device)

    def _chance(self, n: int, part: float) -> torch.Tensor:
        return torch.rand(n, generator=self.lots, device=self.planes.device) < part


def _resized(small: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(small, (CROP_SIZE, CROP_SIZE), mode="bicubic", align_corners=False)


def _convolved(grey: torch.Tensor, across: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """(n, 112, 112), every sample with its own kernels (n, 2 * _WIDEST_BLUR_PX + 1)."""
    n, edge = len(grey), _WIDEST_BLUR_PX
    padded = functional.pad(grey[None], (edge, edge, edge, edge), mode="reflect")
    padded = functional.conv2d(padded, across[:, None, None, :], groups=n)
    return functional.conv2d(padded, down[:, None, :, None], groups=n)[0]
