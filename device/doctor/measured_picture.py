"""Light and focus of one picture, in numbers: the picture itself never leaves the process that took it."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from link1 import members
from link1.canonical import JsonObject
from models.crop import cut_palm
from models.frames import Frame, as_grey
from models.hand import Hand, HandFinder
from models.quality import assess

PICTURE_OP: Final = "measure_picture"
"""The operation of the control socket that answers with one."""

_DARK_BELOW, _BRIGHT_FROM = 25, 250


@dataclass(frozen=True, slots=True)
class MeasuredPicture:
    """`mean`: 0..255. `dark_pct`, `bright_pct`: share of pixels without detail. With a hand in view
    `sharpness` and `exposure`, 0..100, as recognition judges them (`models.quality`)."""

    mean: int
    dark_pct: int
    bright_pct: int
    sharpness: int | None
    exposure: int | None

    def to_obj(self) -> JsonObject:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_obj(cls, obj: JsonObject) -> "MeasuredPicture":
        """Raises FormatError."""

        def judged(name: str) -> int | None:
            return None if members.member(obj, name) is None else members.integer(obj, name, 0, 100)

        return cls(
            members.integer(obj, "mean", 0, 255),
            members.integer(obj, "dark_pct", 0, 100),
            members.integer(obj, "bright_pct", 0, 100),
            judged("sharpness"),
            judged("exposure"),
        )


def measure(frame: Frame) -> MeasuredPicture:
    """Takes some 20 ms: for a thread beside the loop."""
    grey = as_grey(frame)
    hand = HandFinder().find(frame)
    judged = assess(frame, hand, cut_palm(frame, hand), None) if isinstance(hand, Hand) else None
    return MeasuredPicture(
        mean=round(float(grey.mean())),
        dark_pct=round(100 * float(np.mean(grey < _DARK_BELOW))),
        bright_pct=round(100 * float(np.mean(grey >= _BRIGHT_FROM))),
        sharpness=None if judged is None else round(judged.sharpness),
        exposure=None if judged is None else round(judged.exposure),
    )
