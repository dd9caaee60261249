"""From a folder of palm pictures to the similarities of all with all: as a device with these people enrolled
scores them, by the model's vectors alone, and by the untrained code.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop import cut_palm
from models.crop_geometry import CROP_SIZE, Handedness
from models.embedding import Embedder
from models.evaluation.gabor_code import compare_codes, competitive_codes
from models.evaluation.gallery_search import ScoringAmong, Told, search_all
from models.evaluation.generated_people import embed_all
from models.evaluation.groups import GroupRates, Groups, count_errors, group_rates, worst_over_best
from models.evaluation.measures import (
    PUBLISHED_RATES,
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
from models.picture_files import read_picture
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


@dataclass(frozen=True, slots=True)
class HandsFound:
    """What was seen of the hands that the finder found; a crop that the quality refused counts too."""

    qualities: tuple[int, ...]
    """``quality_q`` of each."""
    side_named: int
    """Hands of which the layout says which one it is,"""
    wrong_side: int
    """and those of them that the finder took for the other one."""

    def record(self) -> dict[str, Any]:
        """JSON-ready figures."""
        low, median, high = (int(q) for q in np.quantile(self.qualities, (0.05, 0.5, 0.95)).round())
        return {
            "found": len(self.qualities),
            "side_named": self.side_named,
            "wrong_side": self.wrong_side,
            "quality_q": {"p05": low, "median": median, "p95": high},
        }


@dataclass(frozen=True, slots=True, eq=False)
class Acquired:
    """The crops of a set, whose they are, and what failed."""

    crops: NDArray[np.uint8]
    pictures: tuple[Picture, ...]
    shown: Counter[str]
    """How many pictures of each person, also of those that gave no crop."""
    failures: Failures
    hands: HandsFound | None = None
    """None where the pictures are crops."""


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
    accept: float
    """The score from which a device accepts."""
    at_threshold: tuple[GroupRates, ...]
    """As a device, at ``accept``: everyone, then the groups."""

    def protocols(self) -> tuple[tuple[str, VerificationScores], ...]:
        """What papers publish: a model as it is used, and one vector each, every picture with every other."""
        device, cosines = self.methods[:2]
        return (
            ("as a device (open set)", device.headline()),
            ("one vector, all against all", cosines.verification),
        )

    def record(self) -> dict[str, Any]:
        """JSON-ready figures."""
        acquired, shown = self.acquired, self.acquired.shown.total()
        return {
            "layout": self.layout,
            "kind": self.kind,
            "pictures": shown,
            "failure_to_acquire": round(acquired.failures.total() / shown, 6),
            "failures": asdict(acquired.failures),
            "hands": acquired.hands.record() if acquired.hands else None,
            "methods": [
                {
                    "name": m.name,
                    "all_pairs": as_record(m.verification),
                    "across_sessions": as_record(m.across) if m.across else None,
                    "open_set": asdict(m.search),
                }
                for m in self.methods
            ],
            "protocols": [
                {
                    "name": name,
                    "mated": measured.mated,
                    "non_mated": measured.non_mated,
                    "tar_at_fmr": [
                        {"fmr": rate, "tar": tar.record() if (tar := measured.accepted_at(rate)) else None}
                        for rate in PUBLISHED_RATES
                    ],
                }
                for name, measured in self.protocols()
            ],
            "at_threshold": {
                "score": self.accept,
                "rates": [one.record() for one in self.at_threshold],
                "worst_over_best": worst_over_best(self.at_threshold),
            },
        }


def acquire(found: PalmSet, kind: Kind, quality_q: int, told: Told) -> Acquired:
    """Read every picture and cut its palm as a device would, or take it as a crop."""
    crops: list[NDArray[np.uint8]] = []
    pictures: list[Picture] = []
    hands: list[tuple[Picture, _HandSeen]] = []
    failed: Counter[str] = Counter()
    for done, picture in enumerate(found.pictures):
        seen, hand = _crop_of(picture, kind, quality_q)
        if hand is not None:
            hands.append((picture, hand))
        if isinstance(seen, str):
            failed[seen] += 1
        else:
            crops.append(seen)
            pictures.append(picture)
        told("pictures", done + 1, len(found.pictures))
    if len({picture.person for picture in pictures}) < 2 or len({p.palm for p in pictures}) == len(pictures):
        raise EvaluationSetError(
            f"{len(crops)} of {len(found.pictures)} pictures gave a palm ({dict(failed)}), too few to "
            "compare: two people with two pictures of one palm are needed; pictures that are crops already: "
            "--kind crops"
        )
    return Acquired(
        np.stack(crops),
        tuple(pictures),
        Counter(picture.person for picture in found.pictures),
        Failures(**failed),
        _hands_found(hands) if hands else None,
    )


_Cause = Literal["unreadable", "no_hand", "poor_quality"]


@dataclass(frozen=True, slots=True)
class _HandSeen:
    side: Handedness
    quality_q: int


def _hands_found(seen: Sequence[tuple[Picture, _HandSeen]]) -> HandsFound:
    named = [(picture.side, hand.side) for picture, hand in seen if picture.side is not None]
    return HandsFound(
        tuple(hand.quality_q for _, hand in seen), len(named), sum(says != is_ for says, is_ in named)
    )


def _crop_of(
    picture: Picture, kind: Kind, quality_q: int
) -> tuple[NDArray[np.uint8] | _Cause, _HandSeen | None]:
    """A crop, or why there is none, and the hand that was found on the way."""
    image = read_picture(picture.path, cv2.IMREAD_COLOR if kind == "hands" else cv2.IMREAD_GRAYSCALE)
    if image is None:
        return "unreadable", None
    if kind == "crops":
        small = cv2.resize(image, (CROP_SIZE, CROP_SIZE), interpolation=cv2.INTER_AREA)
        return np.asarray(small, dtype=np.uint8), None
    reduce = _LONGEST_SIDE_PX / max(image.shape[:2])
    if reduce < 1.0:
        size = [max(1, round(side * reduce)) for side in image.shape[1::-1]]  # also of a strip a pixel wide
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    frame = CameraFrame(np.ascontiguousarray(image), 0, 0)
    hand = HandFinder().find(frame)
    if not isinstance(hand, Hand):
        return "no_hand", None
    crop = cut_palm(frame, hand)
    found = _HandSeen(hand.handedness, assess(frame, hand, crop, None).quality_q)
    return (crop if found.quality_q >= quality_q else "poor_quality"), found


def evaluate(
    found: PalmSet,
    acquired: Acquired,
    kind: Kind,
    embedder: Embedder,
    *,
    scoring_among: ScoringAmong,
    accept: float,
    groups: Groups | None,
    told: Told,
) -> Evaluation:
    """Compare everything with everything: as a device does, by one vector each, and by the Gabor code.

    accept: the score from which a device accepts. Raises ``EvaluationSetError`` when ``groups`` names none
    of the people.
    """
    vectors = embed_all(embedder, acquired.crops)
    known, strangers = search_all(
        embedder, acquired.crops, acquired.pictures, vectors, scoring_among=scoring_among, told=told
    )
    cosines, codes = vectors @ vectors.T, _by_code(acquired.crops, told)
    as_a_device = comparisons(acquired, known, strangers)
    methods = (
        _measured("model, as a device", as_a_device),
        _measured("model, plain cosines", comparisons(acquired, cosines, cosines)),
        _measured("Gabor code, untrained", comparisons(acquired, codes, codes)),
    )
    counts = count_errors(
        as_a_device,
        [picture.person for picture in acquired.pictures],
        acquired.shown,
        score=accept,
        across_sessions=methods[0].across is not None,
    )
    return Evaluation(found.layout, kind, acquired, methods, accept, group_rates(counts, groups))


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
