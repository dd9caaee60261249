"""Frames that no camera should give, and some do."""

import numpy as np
from hypothesis import strategies as st

from models.frames import CameraFrame

_SIDES = st.sampled_from([1, 2, 7, 8, 29, 64, 121, 333])


@st.composite
def frames(draw: st.DrawFn) -> CameraFrame:
    """Any size, grey or colour: flat, noise, blocks, a gradient, a disc."""
    height, width, colour = draw(_SIDES), draw(_SIDES), draw(st.booleans())
    kind = draw(st.sampled_from(["flat", "noise", "blocks", "gradient", "disc"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    shape = (height, width, 3) if colour else (height, width)
    y, x = np.mgrid[0:height, 0:width]
    if kind == "flat":
        pixels = np.full(shape, draw(st.sampled_from([0, 1, 128, 254, 255])), dtype=np.uint8)
    elif kind == "noise":
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        if kind == "blocks":
            plane = ((x // 9 + y // 9) % 2 * 255).astype(np.uint8)
        elif kind == "gradient":
            plane = (x * 255 // max(1, width - 1)).astype(np.uint8)
        else:
            radius = min(height, width) / 3
            plane = (np.hypot(x - width / 2, y - height / 2) < radius).astype(np.uint8) * 200
        pixels = np.repeat(plane[:, :, None], 3, axis=2) if colour else plane
    return CameraFrame.from_pixels(pixels, at_ms=draw(st.integers(0, 2**40)))
