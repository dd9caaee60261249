"""A whole hand in one posture, lit and coloured, ready to be warped into frames."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness
from models.synthesis.anatomy import PALM_CENTRE, PALM_WIDTH, Posture, outline_of, valleys_of
from models.synthesis.background import Look, Pixels
from models.synthesis.palm import CANVAS_PX_PER_UNIT, HAND_WINDOW, SkinLayers, draw_skin
from models.synthesis.person import SyntheticPerson
from models.synthesis.raster import Plane, Points

# Palm colour (B, G, R) of light, medium and dark people under white light.
_TONES: Final = np.array(
    [[165.0, 190.0, 236.0], [128.0, 160.0, 216.0], [98.0, 124.0, 178.0]], dtype=np.float32
)


@dataclass(frozen=True, slots=True)
class Light:
    """Where the light comes from; (0, 0) is straight from the camera."""

    across: float = -0.25
    """Positive: from the image's right."""
    along: float = -0.35
    """Positive: from below."""

    def toward(self) -> NDArray[np.float32]:
        """Unit vector towards the light: x right, y down, z to the camera."""
        v = np.array([self.across, self.along, 1.0], dtype=np.float32)
        return np.asarray(v / np.linalg.norm(v), dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class HandCanvas:
    """Pixels of one hand, with what is needed to place them; never mirror it, it already is the right way."""

    pixels: Pixels
    """Premultiplied BGRA (H, W, 4) for the rgb look, premultiplied (H, W, 2) grey and alpha for nir."""
    valleys: Points
    """(4, 2) in canvas pixels: thumb–index, index–middle, middle–ring, ring–little."""
    centre: Points
    """(2,) palm centre in canvas pixels."""
    palm_width_px: float


@lru_cache(maxsize=2)
def _layers(person: SyntheticPerson, handedness: Handedness, posture: Posture) -> tuple[SkinLayers, Points]:
    identity = person.hand(handedness)
    outline = outline_of(identity.shape, posture)
    layers = draw_skin(identity, posture, outline, HAND_WINDOW)
    return layers, HAND_WINDOW.to_px(valleys_of(outline))


@lru_cache(maxsize=32)
def hand_canvas(
    person: SyntheticPerson, handedness: Handedness, posture: Posture, look: Look, light: Light
) -> HandCanvas:
    """Draw (about 60 ms) or recall a hand; do not write into its arrays."""
    layers, valleys = _layers(person, handedness, posture)
    # The light is fixed to the scene, so a hand that will be flipped is lit from the other side first.
    toward = light.toward() * np.array([1.0 if handedness == "L" else -1.0, 1.0, 1.0], dtype=np.float32)
    shade = shading(layers.relief, toward)
    colour = _colour(layers, person.tone) if look == "rgb" else infrared(layers)[:, :, None]
    lit = np.clip(colour * shade[:, :, None], 0.0, 255.0) * layers.mask[:, :, None]
    pixels = np.dstack([lit, layers.mask * np.float32(255.0)]).astype(np.uint8)
    centre = HAND_WINDOW.to_px(np.array([PALM_CENTRE]))[0]
    valleys = valleys.copy()
    if handedness == "R":
        pixels = np.ascontiguousarray(pixels[:, ::-1])
        valleys[:, 0] = HAND_WINDOW.width - 1 - valleys[:, 0]
        centre = np.array([HAND_WINDOW.width - 1 - centre[0], centre[1]])
    stretch = person.hand(handedness).shape.palm_stretch[0]
    return HandCanvas(pixels, valleys, centre, PALM_WIDTH * stretch * CANVAS_PX_PER_UNIT)


def shading(relief: Plane, toward: NDArray[np.float32]) -> Plane:
    """Lambert's law with some light from everywhere; about 1 where the skin faces the camera."""
    gx = np.asarray(cv2.Sobel(relief, cv2.CV_32F, 1, 0, scale=0.125), dtype=np.float32)
    gy = np.asarray(cv2.Sobel(relief, cv2.CV_32F, 0, 1, scale=0.125), dtype=np.float32)
    facing = toward[2] - toward[0] * gx - toward[1] * gy
    facing /= np.sqrt(np.float32(1.0) + gx * gx + gy * gy)
    lit = np.float32(0.36) + np.float32(0.68) * np.maximum(facing, np.float32(0.0))
    return np.asarray(lit, dtype=np.float32)


def _colour(layers: SkinLayers, tone: float) -> NDArray[np.float32]:
    at = tone * (len(_TONES) - 1)
    i = min(int(at), len(_TONES) - 2)
    base = _TONES[i] * np.float32(1 - (at - i)) + _TONES[i + 1] * np.float32(at - i)
    # Folds and blood take away green and blue before red.
    fold = np.array([0.50, 0.46, 0.30], dtype=np.float32)
    blood = np.array([0.030, 0.040, 0.012], dtype=np.float32)
    vein = np.array([0.04, 0.06, 0.09], dtype=np.float32)
    keep = (
        np.float32(1.0)
        - layers.creases[:, :, None] * fold
        - layers.mottle[:, :, None] * blood
        - layers.veins[:, :, None] * vein
        + layers.grain[:, :, None] * np.float32(0.022)
    )
    return np.asarray(base * np.maximum(keep, np.float32(0.0)), dtype=np.float32)


def visible_grey(layers: SkinLayers) -> Plane:
    """Reflectance (about 0 to 1) of the rgb look as a grey camera sees it."""
    grey: Plane = (
        np.float32(0.70)
        - layers.creases * np.float32(0.30)
        - layers.mottle * np.float32(0.020)
        - layers.veins * np.float32(0.045)
        + layers.grain * np.float32(0.015)
    )
    return grey


def infrared(layers: SkinLayers) -> Plane:
    """Brightness (0 to 255) under an 850 nm lamp: bright even skin, dark veins, weaker folds."""
    grey: Plane = np.float32(178.0) * (
        np.float32(1.0)
        - layers.veins * np.float32(0.30)
        - layers.creases * np.float32(0.24)
        - layers.mottle * np.float32(0.010)
        + layers.grain * np.float32(0.014)
    )
    return grey
