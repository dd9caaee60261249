"""From a folder of palm pictures to the similarities of all with all: as a device with these people enrolled
scores them, by the model's vectors alone, and by the untrained code.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import CROP_SIZE
from models.embedding import Embedder
from models.evaluation.gabor_code import compare_codes, competitive_codes
from models.evaluation.gallery_search import ScoringAmong, Told, search_all
from models.evaluation.generated_people import embed_all
from models.evaluation.measures import (
    Comparisons,
    Identification,
    Scores,
    VerificationScores,
    as_record,
    identification,
    verification,
)
from models.evaluation.sets import EvaluationSetError, Kind, PalmSet, Picture
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.quality import assess

_LONGEST_SIDE_PX: Final = 800
"""Larger photographs are reduced to this before the hand is looked for."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Pictures that gave no capture, by the stage that refused them."""

    unreadable: int = 0
    no_hand: int = 0
    poor_quality: int = 0

    def total(self) -> int:
        """All of them."""
        return self.unreadable + self.no_hand + self.poor_quality


@dataclass(frozen=True, slots=True, eq=False)
class Acquired:
    """The crops of a set, whose they are, and what failed."""

    crops: NDArray[np.uint8]
    pictures: tuple[Picture, ...]
    shown: int
    failures: Failures


@dataclass(frozen=True, slots=True, eq=False)
class MethodResult:
    """What one way of comparing palms reached on a set."""

    name: str
    verification: VerificationScores
    across: VerificationScores | None
    """Only pictures of different sessions; None where the set has one."""
    search: Identification
    mated: NDArray[np.float32]
    non_mated: NDArray[np.float32]

    def headline(self) -> VerificationScores:
        """Across sessions where the set has several: that is what a gate sees."""
        return self.across or self.verification


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A set and every method tried on it."""

    layout: str
    kind: Kind
    acquired: Acquired
    methods: tuple[MethodResult, ...]

    def record(self) -> dict[str, Any]:
        """JSON-ready figures."""
        shown = self.acquired.shown
        return {
            "layout": self.layout,
            "kind": self.kind,
            "pictures": shown,
            "failure_to_acquire": round(self.acquired.failures.total() / shown, 6),
            "failures": asdict(self.acquired.failures),
            "methods": [
                {
                    "name": m.name,
                    "all_pairs": as_record(m.verification),
                    "across_sessions": as_record(m.across) if m.across else None,
                    "open_set": asdict(m.search),
                }
                for m in self.methods
            ],
        }


def acquire(found: PalmSet, kind: Kind, quality_q: int, told: Told) -> Acquired:
    """Read every picture and cut its palm as a device would, or take it as a crop."""
    crops: list[NDArray[np.uint8]] = []
    pictures: list[Picture] = []
    failed = {"unreadable": 0, "no_hand": 0, "poor_quality": 0}
    for done, picture in enumerate(found.pictures):
        seen = _crop_of(picture, kind, quality_q)
        if isinstance(seen, str):
            failed[seen] += 1
        else:
            crops.append(seen)
            pictures.append(picture)
        told("pictures", done + 1, len(found.pictures))
    if len({picture.person for picture in pictures}) < 2 or len({p.palm for p in pictures}) == len(pictures):
        raise EvaluationSetError(
            f"{len(crops)} of {len(found.pictures)} pictures gave a palm ({failed}), too few to compare: two "
            "people with two pictures of one palm are needed; pictures that are crops already: --kind crops"
        )
    return Acquired(np.stack(crops), tuple(pictures), len(found.pictures), Failures(**failed))


def _crop_of(picture: Picture, kind: Kind, quality_q: int) -> NDArray[np.uint8] | str:
    try:
        image = cv2.imread(str(picture.path), cv2.IMREAD_COLOR if kind == "hands" else cv2.IMREAD_GRAYSCALE)
    except cv2.error:  # more than MOST_PIXELS
        image = None
    if image is None:
        return "unreadable"
    if kind == "crops":
        small = cv2.resize(image, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_AREA)
        return np.asarray(small, dtype=np.uint8)
    reduce = _LONGEST_SIDE_PX / max(image.shape[:2])
    if reduce < 1.0:
        image = cv2.resize(image, None, fx=reduce, fy=reduce, interpolation=cv2.INTER_AREA)
    frame = CameraFrame(np.ascontiguousarray(image, dtype=np.uint8), 0, 0)
    hand = HandFinder().find(frame)
    if not isinstance(hand, Hand):
        return "no_hand"
    crop = cut_palm(frame, hand)
    return crop if assess(frame, hand, crop, None).quality_q >= quality_q else "poor_quality"


def evaluate(
    found: PalmSet,
    acquired: Acquired,
    kind: Kind,
    embedder: Embedder,
    *,
    scoring_among: ScoringAmong,
    told: Told,
) -> Evaluation:
    """Compare everything with everything: as a device does, by one vector each, and by the Gabor code."""
    vectors = embed_all(embedder, acquired.crops)
    known, strangers = search_all(
        embedder, acquired.crops, acquired.pictures, vectors, scoring_among=scoring_among, told=told
    )
    cosines, codes = vectors @ vectors.T, _by_code(acquired.crops, told)
    methods = [
        _measured("model, as a device", comparisons(acquired, known, strangers)),
        _measured("model, plain cosines", comparisons(acquired, cosines, cosines)),
        _measured("Gabor code, untrained", comparisons(acquired, codes, codes)),
    ]
    return Evaluation(found.layout, kind, acquired, tuple(methods))


def _by_code(crops: NDArray[np.uint8], told: Told) -> NDArray[np.float32]:
    codes = competitive_codes(crops)
    table = np.ones((len(codes), len(codes)), dtype=np.float32)
    for i in range(len(codes) - 1):
        table[i, i + 1 :] = compare_codes(codes[i], codes[i + 1 :])
        table[i + 1 :, i] = table[i, i + 1 :]
        told("Gabor code", i + 1, len(codes) - 1)
    return table


def comparisons(acquired: Acquired, known: Scores, strangers: Scores) -> Comparisons:
    """The scores (n, n) of the pictures with each other, and whose they are; twice one table where nothing is
    searched.
    """

    def numbers(values: list[str]) -> NDArray[np.int64]:
        return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)

    return Comparisons(
        known,
        strangers,
        numbers([p.person for p in acquired.pictures]),
        numbers([p.palm for p in acquired.pictures]),
        numbers([p.session for p in acquired.pictures]),
    )


def _measured(name: str, found: Comparisons) -> MethodResult:
    several = len(np.unique(found.sessions)) > 1 and bool(found.masks(across_sessions=True)[0].any())
    mated, non_mated = found.masks(across_sessions=several)
    return MethodResult(
        name,
        verification(found, across_sessions=False),
        verification(found, across_sessions=True) if several else None,
        identification(found),
        found.known[mated],
        found.strangers[non_mated],
    )
