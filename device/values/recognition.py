"""What one camera frame shows of a hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from link1.objects import GalleryMark, GuideHint, Pad

HandName = Literal["L", "R"]


@dataclass(frozen=True, slots=True)
class MatchedPerson:
    """The person whose template is nearest."""

    subject_ref: str
    hand: str
    onboard_ref: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one camera frame showed. `at_ms` is the monotonic time of the frame.

    `good`: the capture reached the quality floor, and was therefore checked for liveness, embedded and
    searched. `score`: best cosine, None when nothing was scored. `margin`: its distance to the best score of
    another person, None when there is none. `gallery`: the state that was searched.
    """

    hand_present: bool
    at_ms: int
    hint: GuideHint | None = None
    quality_q: int = 0
    pad: Pad | None = None
    score: float | None = None
    margin: float | None = None
    candidate: MatchedPerson | None = None
    good: bool = False
    gallery: GalleryMark | None = None
    stage_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PalmCapture:
    """One embedded capture. `vector`: (512,) float32 of unit length, owned by the holder."""

    hand: HandName
    vector: npt.NDArray[np.float32] = field(repr=False)
    quality_q: int
    pad: Pad
    at_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class EnrolmentLook:
    """One examined frame: the hand in view, why it was not captured, or the capture.

    `capture` is present when `enrol_quality_q` was reached; its `pad` holds the liveness result.
    """

    hand_present: bool
    hand: HandName | None = None
    hint: GuideHint | None = None
    capture: PalmCapture | None = None
