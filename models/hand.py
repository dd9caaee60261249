"""Find the hand in a frame and say where its palm lies.

There are two methods. By shape: a hand is a region that differs from its background (``hand_mask``), whose
outline shows five fingers in a row (``hand_shape``). Learnt: two networks (``hand_network``) confirm what
was found by its shape, and find hands on any background and at any angle. Either way the finger valleys fix
place, size and direction of the palm, because they move least when fingers do."""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, Handedness, pulled_apart, similarity_from_valleys
from models.frames import CameraFrame
from models.hand_landmarks import HandJoints, HandLandmarks, installed_landmarks, spot_of
from models.hand_mask import FinderView, Silhouette, channels, learnt_region, make_view, silhouette
from models.hand_network import FoundHand, HandNetwork, shipped_network
from models.hand_shape import Blob, OpenHand, read_shape

Hint = Literal["closer", "farther", "center", "open_hand", "hold_still"]
"""What a person should do; the words are those of LINK/1's ``guide`` message."""

WORK_WIDTH_PX: Final = 320
SURE: Final = 0.55
"""A likeness at which no other way of seeing is tried, and the networks are only asked whether they agree."""
LEAST: Final = 0.3
"""A likeness below which five rises in a row are not believed to be a hand."""

LEARNT_SURE: Final = 0.85
"""The networks' chance of an open hand from which on they are believed."""

AGREES: Final = 0.8
DENIES: Final = 0.1
"""The second network's chance for a hand found by its shape, from and below which it has its way."""
SAME_PLACE: Final = 0.07
"""Valleys nearer to each other than this, in palm widths, are the same; the outline's are the steadier."""
SAME_REGION: Final = 0.7
"""Intersection over union of two masks of one hand."""

TRACKED_MS: Final = 300
"""A hand whose joints were read so long ago keeps them while the fine network follows its valleys, and is
looked for where it was before it is searched for in the whole picture."""
MOST_MOVED: Final = 0.2
"""Valleys that move further than this from one frame to the next, in palm widths, are not followed."""
SEARCH_EVERY_MS: Final = 130
"""Pause between searches of the published weights while no hand is in view; own means see the rest."""
NEAR_JOINTS: Final = 0.25
"""Valleys of the fine network further from the joints' than this, in palm widths, are not believed."""
JOINTS_SURE: Final = 0.8
"""The chance of a hand from which on its joints are believed to be those of an open one; chosen on public
pictures of hands."""
CENTRE: Final = (0.47, 0.62)
"""The palm's centre in the crop of a left hand, as outlines have it."""

_CROP_GRID: Final = np.linspace(0.0, CROP_SIZE - 1.0, 9)[np.indices((9, 9)).reshape(2, -1)]
"""(2, 81): points all over the palm crop."""

MIN_PALM_SHARE: Final = 0.17
MAX_PALM_SHARE: Final = 0.6
"""Palm width over the frame's shorter side at which the hint becomes ``closer`` or ``farther``."""


@dataclass(frozen=True, slots=True, eq=False)
class Hand:
    """An open hand with its palm towards the camera.

    ``valleys`` (4, 2) float32 frame pixels (x, y), rows thumb–index, index–middle, middle–ring, ring–little.
    ``centre`` (2,): centre of the largest circle inside the palm.
    ``palm_width_px``: width of the palm below the fingers, which is the side of the palm crop in the frame.
    ``leaning``: how many times longer along the fingers the palm would be if it did not lean away; 1 where
    it is not known to.
    ``angle_deg``: 0 with the fingers up, positive clockwise, -180..180. ``confidence`` 0..1. ``mask``: (h, w)
    of 0 and 255 at the reduced scale ``mask_scale`` (mask pixels per frame pixel). ``at_ms``: the frame's.
    ``hint``: what would make the capture better, or None.
    """

    valleys: NDArray[np.float32]
    centre: NDArray[np.float32]
    palm_width_px: float
    angle_deg: float
    handedness: Handedness
    confidence: float
    mask: NDArray[np.uint8]
    mask_scale: float
    at_ms: int
    hint: Hint | None
    leaning: float = 1.0

    def to_crop(self, size: int = CROP_SIZE) -> NDArray[np.float64]:
        """The 2x3 matrix that takes pixels of the frame to those of the palm crop of this size."""
        matrix = similarity_from_valleys(self.valleys, self.handedness, size)
        return pulled_apart(matrix, self.leaning, size)


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """A hand in a frame: its joints, moved with its valleys since they were read in an earlier frame.
    ``valleys`` (4, 2) in pixels of the frame. ``agreed``: the fine network takes it for an open hand too."""

    joints: HandJoints
    valleys: NDArray[np.float64]
    agreed: bool
    read_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class PartialHand:
    """Something like a hand that cannot be used as it is; ``hint`` says what would help."""

    centre: NDArray[np.float32]
    hint: Hint


class HandFinder:
    """Finds one hand a frame. Remembers which way of seeing worked last, and where the hand was."""

    def __init__(
        self,
        landmarks: HandLandmarks | Literal["installed"] | None = "installed",
        network: HandNetwork | None = None,
    ) -> None:
        """``landmarks`` None: without the published weights, as where an operator does not want them.
        ``network``: others than the shipped ones.

        Raises ``ManifestError`` or ``ModelFileError`` where networks are not what they should be.
        """
        self._network = network or shipped_network()
        self._landmarks = installed_landmarks() if landmarks == "installed" else landmarks
        self._favourite: str | None = None
        self._tracked: _Followed | None = None
        self._searched_ms: int | None = None

    def find(self, frame: CameraFrame) -> Hand | None:
        """The open hand in the frame, if there is a usable one."""
        seen = self.look(frame)
        return seen if isinstance(seen, Hand) else None

    def look(self, frame: CameraFrame) -> Hand | PartialHand | None:
        """The open hand, or a hand that is closed or cut off by the frame, or nothing. Never raises."""
        view = make_view(frame.pixels, WORK_WIDTH_PX)
        landmarks = self._landmarks
        if landmarks is None or view.ycrcb is None:
            if landmarks is not None:
                landmarks.forget()
            return self._by_own_means(frame, view)
        found = self._follow(frame, view) or self._found(frame, view, landmarks)
        seen = _of_joints(frame, view, found) if isinstance(found, _Followed) else found
        self._tracked = found if isinstance(found, _Followed) and isinstance(seen, Hand) else None
        return seen

    def _follow(self, frame: CameraFrame, view: FinderView) -> _Followed | None:
        """The hand of the last frame, where the fine network sees it near where it was."""
        last = self._tracked
        if last is None or not last.agreed or not 0 < frame.at_ms - last.read_ms <= TRACKED_MS:
            return None
        side, before = last.joints.handedness, view.from_frame(last.valleys)
        # From the joints' valleys, as when they were read: looked at from where it ended, it ends elsewhere.
        opinion = self._network.look_at(view.light, view.from_frame(last.joints.valleys), side)
        if opinion is None or opinion[1] < AGREES:
            return None
        if not np.hypot(*(opinion[0] - before).T).max() < MOST_MOVED * _width_of(before, side):
            return None
        valleys = view.to_frame(opinion[0])
        moved = (valleys - last.valleys).mean(axis=0)
        joints = replace(last.joints, points=last.joints.points + moved)
        return _Followed(joints, valleys, True, last.read_ms, frame.at_ms)

    def _found(
        self, frame: CameraFrame, view: FinderView, landmarks: HandLandmarks
    ) -> _Followed | PartialHand | None:
        """The hand by its joints, and where its valleys are exactly, by the fine network."""
        joints = self._search(landmarks, frame)
        if joints is None:
            seen = self._by_own_means(frame, view)
            if not isinstance(seen, Hand):
                return seen
            joints = landmarks.joints(frame.pixels, spot_of(seen.valleys, seen.handedness))
            if joints is None:
                return PartialHand(seen.centre, "open_hand")
        if not _usable(joints):
            return PartialHand(joints.centre.astype(np.float32), "open_hand")
        side, valleys = joints.handedness, view.from_frame(joints.valleys)
        opinion, agreed = self._network.look_at(view.light, valleys, side), False
        near = NEAR_JOINTS * _width_of(valleys, side)
        if opinion is not None and np.hypot(*(opinion[0] - valleys)[1:].T).max() < near:
            valleys, agreed = opinion[0], opinion[1] >= AGREES
        return _Followed(joints, view.to_frame(valleys), agreed, frame.at_ms, frame.at_ms)

    def _search(self, landmarks: HandLandmarks, frame: CameraFrame) -> HandJoints | None:
        """The joints of a hand: first where it was, then, as often as the time allows, anywhere."""
        last = self._tracked
        if last is not None:
            near = 0 < frame.at_ms - last.at_ms <= TRACKED_MS
            joints = landmarks.joints(frame.pixels, last.joints.spot) if near else None
            # No hand changes its side: where its joints say so, the whole picture is searched.
            if joints is not None and _usable(joints) and joints.handedness == last.joints.handedness:
                return joints
        elif self._searched_ms is not None and 0 < frame.at_ms - self._searched_ms < SEARCH_EVERY_MS:
            return None
        self._searched_ms = frame.at_ms
        best: HandJoints | None = None
        for spot in landmarks.spots(frame.pixels):
            joints = landmarks.joints(frame.pixels, spot)
            best = best or joints
            if joints is not None and _usable(joints):
                return joints
        return best

    def _by_own_means(self, frame: CameraFrame, view: FinderView) -> Hand | PartialHand | None:
        seen = self._by_shape(frame, view)
        if isinstance(seen, Hand) and seen.confidence >= SURE:
            seen = self._second_opinion(frame, view, seen)
            if isinstance(seen, Hand):
                return seen
        learnt = self._network.look(view, LEARNT_SURE)
        if learnt is not None:
            return _hand(frame, view, replace(learnt, mask=_finer(view, learnt.mask)))
        if isinstance(seen, Hand):
            return self._second_opinion(frame, view, seen)
        return seen

    def _by_shape(self, frame: CameraFrame, view: FinderView) -> Hand | PartialHand | None:
        best: tuple[OpenHand, Silhouette] | None = None
        blob: Blob | OpenHand | None = None
        ways = channels(view)
        for name in sorted(ways, key=lambda name: name != self._favourite):
            figure = silhouette(ways[name]())
            if figure is None or not _stands_out(figure, 0.45):
                continue
            shape = read_shape(figure.mask, figure.contour)
            if isinstance(shape, OpenHand):
                if shape.likeness >= LEAST:
                    self._favourite = name
                    found = FoundHand(
                        shape.valleys, shape.centre, shape.handedness, shape.likeness, figure.mask
                    )
                    return _hand(frame, view, found)
                if best is None or shape.likeness > best[0].likeness:
                    best = shape, figure
            elif shape is not None and _hand_like(view, figure, shape):
                blob = blob or shape
        if blob is None and best is not None and _hand_like(view, best[1], best[0]):
            blob = best[0]
        return None if blob is None else _partial(view, blob)

    def _second_opinion(self, frame: CameraFrame, view: FinderView, hand: Hand) -> Hand | PartialHand:
        """A hand found by its shape, with the network's valleys where they differ; partial where it denies
        the hand."""
        opinion = self._network.look_at(view.light, view.from_frame(hand.valleys), hand.handedness)
        if opinion is None:
            return hand
        valleys, chance = opinion
        if chance < DENIES:
            # A hand that is too near is often rejected: the advice is to move back, not to spread the
            # fingers.
            return PartialHand(hand.centre, hand.hint or "open_hand")
        better = view.to_frame(valleys).astype(np.float32)
        away = float(np.hypot(*(better[1:] - hand.valleys[1:]).T).max())
        if chance < AGREES or away < SAME_PLACE * hand.palm_width_px:
            return hand
        found = FoundHand(valleys, view.from_frame(hand.centre), hand.handedness, hand.confidence, hand.mask)
        return _hand(frame, view, found)


def _of_joints(frame: CameraFrame, view: FinderView, followed: _Followed) -> Hand | PartialHand:
    """The hand with these joints and valleys."""
    joints, valleys = followed.joints, view.from_frame(followed.valleys)
    mask = replace(joints, points=view.from_frame(joints.points)).drawn(view.light.shape)
    leaning = joints.leaning(frame.width, frame.height)
    centre = _centre_of(valleys, joints.handedness, leaning)
    found = FoundHand(valleys, centre, joints.handedness, joints.chance, _finer(view, mask))
    return _hand(frame, view, found, leaning)


def _width_of(valleys: NDArray[np.float64], handedness: Handedness) -> float:
    """The palm's width, in pixels of its valleys."""
    return CROP_SIZE / math.hypot(*similarity_from_valleys(valleys, handedness)[:, 0])


def _centre_of(valleys: NDArray[np.float64], handedness: Handedness, leaning: float) -> NDArray[np.float64]:
    """Where the largest circle inside the palm has its centre, on average."""
    matrix = pulled_apart(similarity_from_valleys(valleys, handedness, size=1), leaning, size=1)
    across = CENTRE[0] if handedness == "L" else 1.0 - CENTRE[0]
    return np.asarray(np.linalg.solve(matrix[:, :2], np.array([across, CENTRE[1]]) - 0.5 - matrix[:, 2]))


def _usable(joints: HandJoints) -> bool:
    return joints.chance >= JOINTS_SURE and joints.is_open and not joints.shows_back


def _finer(view: FinderView, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A rough mask, its edges redrawn by colours that differ from the ground's where they still fit it."""
    finer = learnt_region(view, mask)
    if finer is None:
        return mask
    both, either = (cv2.countNonZero(way(finer, mask)) for way in (cv2.bitwise_and, cv2.bitwise_or))
    return finer if both / max(1, either) >= SAME_REGION else mask


def _hand(frame: CameraFrame, view: FinderView, found: FoundHand, leaning: float = 1.0) -> Hand | PartialHand:
    """The hand with what its place in the frame says of it."""
    valleys, centre = view.to_frame(found.valleys), view.to_frame(found.centre)
    matrix = similarity_from_valleys(valleys, found.handedness)
    width_px = CROP_SIZE / math.hypot(matrix[0, 0], matrix[1, 0])
    inside = _inside_share(frame, pulled_apart(matrix, leaning))
    if inside < 0.9:
        return PartialHand(centre.astype(np.float32), "center")
    share = width_px / min(frame.width, frame.height)
    hint: Hint | None = None
    if share > MAX_PALM_SHARE:
        hint = "farther"
    elif share < MIN_PALM_SHARE:
        hint = "closer"
    elif inside < 0.99:
        hint = "center"
    return Hand(
        valleys=valleys.astype(np.float32),
        centre=centre.astype(np.float32),
        palm_width_px=width_px,
        angle_deg=-math.degrees(math.atan2(matrix[1, 0], matrix[0, 0])),
        handedness=found.handedness,
        confidence=found.confidence,
        mask=found.mask,
        mask_scale=view.scale,
        at_ms=frame.at_ms,
        hint=hint,
        leaning=leaning,
    )


def _inside_share(frame: CameraFrame, matrix: NDArray[np.float64]) -> float:
    """Share of the palm crop that lies inside the frame, on ``_CROP_GRID``."""
    x, y = np.linalg.solve(matrix[:, :2], _CROP_GRID - matrix[:, 2:])
    return float(((x >= 0) & (y >= 0) & (x <= frame.width - 1) & (y <= frame.height - 1)).mean())


def _stands_out(figure: Silhouette, least_separation: float) -> bool:
    """Whether a silhouette is a thing with an edge, and not one shade of a wall turning into another."""
    return (
        figure.separation >= least_separation
        and figure.contrast >= 7.0
        and figure.edge >= 0.8
        and figure.edge >= 0.06 * figure.contrast
    )


def _hand_like(view: FinderView, figure: Silhouette, blob: Blob | OpenHand) -> bool:
    """Whether a silhouette without five good fingers could still be a hand: no band, no card, of skin."""
    height, width = figure.mask.shape
    if not _stands_out(figure, 0.8) or not 0.04 <= figure.area <= 0.75:
        return False
    if blob.radius < 0.08 * min(height, width):
        return False
    x, y = figure.contour[:, 0, 0], figure.contour[:, 0, 1]
    crosses = (x.min() < 2 and x.max() > width - 3) or (y.min() < 2 and y.max() > height - 3)
    hull = float(cv2.contourArea(cv2.convexHull(figure.contour)))
    if crosses and figure.area * height * width > 0.9 * hull:
        return False
    _, sides, _ = cv2.minAreaRect(figure.contour)
    if figure.area * height * width > 0.92 * sides[0] * sides[1]:
        return False  # a card or a screen
    if view.ycrcb is None:
        return True
    _, red, blue, _ = cv2.mean(view.ycrcb, figure.mask)
    return 132.0 <= red <= 185.0 and 75.0 <= blue <= 126.0


def _partial(view: FinderView, blob: Blob | OpenHand) -> PartialHand:
    height, width = view.light.shape
    x, y = (float(v) for v in blob.centre)
    to_edge = min(x + 1, y + 1, width - x, height - y)
    hint: Hint = "open_hand"
    if to_edge < 1.15 * blob.radius:
        hint = "farther" if blob.radius > 0.3 * min(height, width) else "center"
    elif blob.radius < 0.1 * min(height, width):
        hint = "closer"
    return PartialHand(view.to_frame(blob.centre).astype(np.float32), hint)
