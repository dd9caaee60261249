"""Light and focus of one picture in numbers; the picture never leaves the process that took it."""

from typing import Annotated, Final

import numpy as np

from link1.wire import Between, WireObject
from models.crop import cut_palm
from models.frames import CameraFrame, as_grey
from models.hand import Hand, HandFinder
from models.hand_landmarks import HandLandmarks
from models.quality import assess

PICTURE_OP: Final = "measure_picture"
"""The operation of the control socket that returns it."""

_DARK_BELOW, _BRIGHT_FROM = 25, 250


class MeasuredPicture(WireObject):
    """`mean`: 0..255. `dark_pct`, `bright_pct`: share of pixels without detail. With a hand in view
    `sharpness` and `exposure`, 0..100, as recognition judges them (`models.quality`)."""

    mean: Annotated[int, Between(0, 255)]
    dark_pct: Annotated[int, Between(0, 100)]
    bright_pct: Annotated[int, Between(0, 100)]
    sharpness: Annotated[int, Between(0, 100)] | None
    exposure: Annotated[int, Between(0, 100)] | None


class MeasuredAnswer(WireObject):
    """The answer to `measure_picture`."""

    picture: MeasuredPicture


def measure(frame: CameraFrame, landmarks: HandLandmarks | None) -> MeasuredPicture:
    """Takes about 20 ms, so not for the loop's thread. `landmarks`: those that the device uses; they forget
    the hand, because a device that waits for no one may not ask them for a long time."""
    grey = as_grey(frame)
    hand = HandFinder(landmarks=landmarks).find(frame)
    if landmarks is not None:
        landmarks.forget()
    judged = assess(frame, hand, cut_palm(frame, hand), None) if isinstance(hand, Hand) else None
    return MeasuredPicture(
        mean=round(float(grey.mean())),
        dark_pct=round(100 * float(np.mean(grey < _DARK_BELOW))),
        bright_pct=round(100 * float(np.mean(grey >= _BRIGHT_FROM))),
        sharpness=None if judged is None else round(min(judged.sharpness, judged.detail)),
        exposure=None if judged is None else round(judged.exposure),
    )
