"""What the two networks of the hand finder are shown: one geometry, shared by the device and training."""

from typing import Final

COARSE_PX: Final = 112
"""Side of the square into which a whole frame is fitted, grey, centred, black around it."""

FINE_PX: Final = 96
"""Side of the straightened piece of the frame: fingers up, as a left hand."""

FINE_PALM_WIDTHS: Final = 1.9
"""That side in widths of the palm; its middle is the palm's centre."""
