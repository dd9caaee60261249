"""Published weights that find hands in colour pictures: MediaPipe's palm detector and hand landmarks.

They were trained by others on photographs of people's hands (docs/reference/MODELS.md), are no part of this
repository, and are used to find a hand and for nothing else: what recognises a person was made from generated
palms alone. ``tools.rig.packaging.hand_weights`` fetches and converts them. A device without them finds hands
with its own networks.

The detector sees the whole picture and names the places of palms; the landmarks are 21 joints of one hand in
a piece that is turned upright. The geometry of both is that of MediaPipe's own graphs.
"""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import Handedness, similarity_from_valleys
from models.errors import ModelFileError
from models.manifest import MANIFEST_NAME, known_numbers, read_pair
from models.onnx_session import open_session, running

WEIGHTS_FOLDER: Final = Path("share/palm-access/hand-weights")
"""Where the weights are, below the environment's prefix."""
SELF_TEST_OFF: Final = 2e-3
"""How far a number of the self test may be from the manifest's, in parts of 1 plus the number."""

DETECTOR_PX: Final = 192
PIECE_PX: Final = 224
SPOT: Final = 0.5
"""Chance of a palm from which the joints are read at a place; MediaPipe's own."""
PRESENT: Final = 0.5
"""Chance of a hand in a piece, from which on its joints are believed; MediaPipe's own."""

_SPOTS: Final = 2
_WRIST, _THUMB_TIP = 0, 4
_KNUCKLES: Final = (5, 9, 13, 17)
_MIDDLE_JOINTS: Final = (6, 10, 14, 18)
_TIPS: Final = (8, 12, 16, 20)
_PALM: Final = (0, 1, 2, 3, 5, 6, 9, 10, 13, 14, 17, 18)
"""Joints whose box is the next piece: what moves little when fingers do."""
_BONES: Final = (
    (0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8), (9, 10), (10, 11), (11, 12), (13, 14), (14, 15),
    (15, 16), (17, 18), (18, 19), (19, 20),
)  # fmt: skip

# These four limits were chosen by trying them on public pictures of hands (docs/lab/HAND.md).
STRETCHED: Final = 1.2
"""A finger is stretched when its tip is this much further from the wrist than its middle joint is."""

THUMB_IN: Final = 0.0
"""A thumb whose tip is further in than this, in rows of knuckles from the index's, crosses the palm."""
APART: Final = 0.4
"""Distance of the thumb's tip from the other tips, in rows of knuckles, below which it touches one."""
BACK: Final = 0.85
"""Chance of the other hand than the thumb's side says, from which on a hand shows its back."""
UPRIGHT: Final = 1.1
"""A palm leans when it is shorter, from wrist to knuckles, in rows of knuckles (docs/lab/QUALITY.md)."""
MOST_LEANING: Final = 1.6
WRIST_ROOM: Final = 0.4
"""Of a palm that may be said to lean the wrist is so far inside the picture, in rows of knuckles."""
VALLEY_OUT: Final = (0.255, 0.378, 0.347)
"""Where the valleys are between knuckles and middle joints; fitted to generated hands."""

Points = NDArray[np.float64]

SPOT_SIDE: Final = 2.7
SPOT_DOWN: Final = 0.2
"""The piece around a hand that was found by other means, in sides of its palm crop: its own side, and where
its middle is below the crop's upper edge; fitted to generated hands."""


@dataclass(frozen=True, slots=True)
class Spot:
    """An upright square of the picture, in its pixels, that holds a hand."""

    x: float
    y: float
    side: float
    up: tuple[float, float]

    def matrix(self, size: int) -> NDArray[np.float64]:
        """The 2x3 matrix from the picture to the piece of ``size`` pixels."""
        scale = size / self.side
        ux, uy = self.up
        turn = scale * np.array([[-uy, ux], [-ux, -uy]])
        middle = (size - 1) / 2
        return np.hstack([turn, (middle - turn @ np.array([self.x, self.y]))[:, None]])


@dataclass(frozen=True, slots=True, eq=False)
class HandJoints:
    """The joints of one hand: ``points`` (21, 2) in the picture's pixels, wrist first, then thumb to little.

    ``chance``: 0..1, that a hand is there. ``right_chance``: 0..1, that it is a right hand, whichever
    side of it is shown.
    """

    points: Points
    chance: float
    right_chance: float

    @property
    def spot(self) -> Spot:
        """Where to look for the same hand in the next picture."""
        up = _upwards(self.points)
        turn = np.array([[-up[1], up[0]], [-up[0], -up[1]]])
        flat = self.points[list(_PALM)] @ turn.T
        low, high = flat.min(axis=0), flat.max(axis=0)
        side = float((high - low).max())
        middle = (low + high) / 2 - np.array([0.0, 0.1 * float(high[1] - low[1])])
        x, y = (float(v) for v in middle @ turn)
        return Spot(x, y, max(2.0 * side, 8.0), (float(up[0]), float(up[1])))

    @property
    def handedness(self) -> Handedness:
        """The side of a hand whose palm is towards the camera, by where its thumb is."""
        ahead, row = self._axes
        return "R" if float(row[0] * ahead[1] - row[1] * ahead[0]) > 0 else "L"

    @property
    def shows_back(self) -> bool:
        """Whether the back of the hand is towards the camera: its thumb is on the wrong side for its hand."""
        return (1.0 - self.right_chance if self.handedness == "R" else self.right_chance) >= BACK

    @property
    def is_open(self) -> bool:
        """Whether four fingers are stretched, together or apart, and the thumb leaves the palm free."""
        reach = np.hypot(*(self.points - self.points[_WRIST]).T)
        if not (reach[list(_TIPS)] > STRETCHED * reach[list(_MIDDLE_JOINTS)]).all():
            return False
        _, row = self._axes
        length = self.row_px
        thumb = self.points[_THUMB_TIP]
        inwards = float((thumb - self.points[_KNUCKLES[0]]) @ row) / length**2
        apart = float(np.hypot(*(self.points[list(_TIPS)] - thumb).T).min()) / length
        return inwards < THUMB_IN and apart > APART

    @property
    def row_px(self) -> float:
        """Length of the row of knuckles, in the picture's pixels."""
        return max(float(np.hypot(*self._axes[1])), 1e-6)

    def leaning(self, width: int, height: int) -> float:
        """How many times longer the palm would be if it did not lean away, in a picture of this size; 1 where
        its wrist is no nearer to its knuckles than with other hands, or not well inside the picture: a wrist
        that is out of it is reported at its edge."""
        room, (x, y) = WRIST_ROOM * self.row_px, self.points[_WRIST]
        if not (room <= x <= width - room and room <= y <= height - room):
            return 1.0
        long = max(float(np.hypot(*self._axes[0])), 1e-6)
        return min(max(1.0, UPRIGHT * self.row_px / long), MOST_LEANING)

    @property
    def valleys(self) -> Points:
        """(4, 2): about where the finger valleys are, thumb–index first, as the average hand has them."""
        base = self.points[list(_KNUCKLES)]
        joint = self.points[list(_MIDDLE_JOINTS)]
        between = (base[:-1] + base[1:]) / 2
        onwards = (joint[:-1] + joint[1:]) / 2 - between
        web = (self.points[2] + base[0]) / 2
        return np.vstack([web, between + np.array(VALLEY_OUT)[:, None] * onwards])

    @property
    def centre(self) -> Points:
        """(2,): the middle of the palm."""
        return np.asarray(0.5 * self.points[_WRIST] + 0.5 * self.points[list(_KNUCKLES)].mean(axis=0))

    def drawn(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A mask (h, w) of 0 and 255: palm, fingers and a piece of the arm, about as thick as they are."""
        mask = np.zeros(shape, np.uint8)
        length = max(self.row_px, 3.0)
        at = np.clip(np.round(self.points), -9999, 9999).astype(np.int32)
        palm = cv2.convexHull(at[[0, 1, 2, 5, 9, 13, 17]])
        finger, arm = max(1, round(length / 3.0)), max(1, round(0.8 * length))
        cv2.fillConvexPoly(mask, palm, 255.0)
        cv2.polylines(mask, [palm], True, 255.0, finger)
        for one, other in _BONES:
            cv2.line(mask, at[one].tolist(), at[other].tolist(), 255.0, finger)
        elbow = np.clip(self.points[_WRIST] + 1.5 * (self.points[_WRIST] - self.centre), -9999, 9999)
        cv2.line(mask, at[_WRIST].tolist(), np.round(elbow).astype(int).tolist(), 255.0, arm)
        return mask

    @property
    def _axes(self) -> tuple[Points, Points]:
        """From the wrist to the knuckles, and from the index's knuckle to the little finger's."""
        knuckles = self.points[list(_KNUCKLES)]
        return knuckles.mean(axis=0) - self.points[_WRIST], knuckles[3] - knuckles[0]


class HandLandmarks:
    """The two networks, loaded and proved; may be asked by several threads, which take turns at the joints:
    two runs at once would take memory twice, and ``forget`` overwrites it once."""

    def __init__(self, detector: Path, landmarks: Path) -> None:
        """Load two ONNX files without their self test; all but the build use ``open_landmarks``."""
        self._detector = open_session(detector)
        # The heap has to grow whenever it has no four MiB in one piece, which each picture takes.
        self._landmarks = open_session(landmarks, keeps_memory=True)
        self._turn = Lock()
        self._keeps_a_hand = False
        self._anchors = _anchors()

    def spots(self, pixels: NDArray[np.uint8], least: float = SPOT) -> list[Spot]:
        """Where palms are in a picture (h, w, 3) BGR, the likeliest first, two at most. Never raises."""
        height, width = pixels.shape[:2]
        scale = DETECTOR_PX / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        # INTER_AREA reads every pixel; a large picture has more of them than the detector needs.
        step = max(1, int(1.0 / scale) // 2)
        left, top = (DETECTOR_PX - size[0]) // 2, (DETECTOR_PX - size[1]) // 2
        square = np.zeros((DETECTOR_PX, DETECTOR_PX, 3), np.uint8)
        small = cv2.resize(
            pixels[::step, ::step], size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        )
        square[top : top + size[1], left : left + size[0]] = small
        boxes, chances = (out[0] for out in self._detector.run(None, {"picture": _as_input(square)}))
        level = math.log(least / (1.0 - least))
        found: list[Spot] = []
        for i in np.argsort(-chances[:, 0])[:20]:
            if not chances[i, 0] >= level or not np.isfinite(boxes[i]).all():
                break
            points = boxes[i].astype(np.float64).reshape(9, 2)
            centre = points[0] + self._anchors[i]
            wrist, middle = (points[k] + self._anchors[i] for k in (2, 4))
            spot = _of_detection(centre, float(np.abs(points[1]).max()), wrist, middle)
            x, y = (spot.x - left + 0.5) / scale - 0.5, (spot.y - top + 0.5) / scale - 0.5
            spot = Spot(x, y, spot.side / scale, spot.up)
            if all(math.hypot(spot.x - one.x, spot.y - one.y) > 0.25 * one.side for one in found):
                found.append(spot)
            if len(found) == _SPOTS:
                break
        if not found:
            self.forget()
        return found

    def forget(self) -> None:
        """Overwrite what the last hand has left in the network's memory; cheap where nothing is left."""
        with self._turn:
            if self._keeps_a_hand:
                self._landmarks.run(None, {"picture": np.zeros((1, PIECE_PX, PIECE_PX, 3), np.float32)})
            self._keeps_a_hand = False

    def joints(self, pixels: NDArray[np.uint8], spot: Spot) -> HandJoints | None:
        """The joints of the hand at a place of a picture (h, w, 3) BGR; None where none is. Never raises."""
        if not spot.side >= 8.0:
            return None
        matrix = spot.matrix(PIECE_PX)
        picture = _as_input(_piece(pixels, matrix))
        with self._turn:
            self._keeps_a_hand = True
            found = self._landmarks.run(None, {"picture": picture})
        points, chance, right, _ = (out[0] for out in found)
        if not np.isfinite(points).all() or not float(chance[0]) >= PRESENT:
            return None
        flat = points.reshape(21, 3)[:, :2].astype(np.float64)
        back = np.linalg.solve(matrix[:, :2], (flat - matrix[:, 2]).T).T
        return HandJoints(back, float(chance[0]), float(right[0]))

    def answer(self) -> NDArray[np.float64]:
        """The known answer (n,) on fixed pictures, made of whole numbers."""
        boxes, chances = self._detector.run(None, {"picture": _as_input(_fixed_picture(DETECTOR_PX))})
        seen = self._landmarks.run(None, {"picture": _as_input(_fixed_picture(PIECE_PX))})
        numbers = [boxes[0].mean(axis=0), chances.mean(keepdims=True), *seen[:3]]
        return np.concatenate([np.asarray(n, dtype=np.float64).ravel() for n in numbers])


def spot_of(valleys: NDArray[np.floating], handedness: Handedness) -> Spot:
    """Where the joints of a hand with these valleys (4, 2) are read."""
    matrix = similarity_from_valleys(valleys, handedness, size=1)
    width = 1.0 / math.hypot(matrix[0, 0], matrix[1, 0])
    up = -width * matrix[1, :2]
    middle = np.linalg.solve(matrix[:, :2], np.array([0.0, SPOT_DOWN - 0.5]) - matrix[:, 2])
    return Spot(float(middle[0]), float(middle[1]), SPOT_SIDE * width, (float(up[0]), float(up[1])))


def open_landmarks(folder: Path) -> HandLandmarks:
    """Load the networks that ``folder``/manifest.json names, and prove them.

    Raises ``ManifestError`` for a wrong manifest, ``ModelFileError`` for a file that is not the one it names,
    that is no model, or that does not give its known answer.
    """
    detector, landmarks, answer = read_pair(folder)
    expected = known_numbers(folder, "self_test", answer)
    networks = HandLandmarks(detector, landmarks)
    with running(folder, "on known pictures"):
        found = networks.answer()
    same = expected.shape == found.shape
    if not same or not float((np.abs(expected - found) / (1.0 + np.abs(expected))).max()) <= SELF_TEST_OFF:
        raise ModelFileError(
            f"the hand weights in {folder} failed their self test; install the package again"
        )
    return networks


@lru_cache(maxsize=1)
def installed_landmarks() -> HandLandmarks | None:
    """The networks of this environment; None where it has none. Raises as ``open_landmarks``."""
    folder = weights_folder()
    return open_landmarks(folder) if (folder / MANIFEST_NAME).exists() else None


def weights_folder() -> Path:
    """Where this environment has the weights, if it has them."""
    return Path(sys.prefix) / WEIGHTS_FOLDER


def _anchors() -> Points:
    """(2016, 2): the middles of the detector's cells, in pixels of its square."""
    cells = []
    for stride, times in ((8, 2), (16, 6)):
        side = DETECTOR_PX // stride
        y, x = np.mgrid[0:side, 0:side]
        middles = (np.stack([x, y], axis=-1).reshape(-1, 2) + 0.5) * stride
        cells.append(np.repeat(middles, times, axis=0))
    return np.concatenate(cells)


def _of_detection(centre: Points, side: float, wrist: Points, middle: Points) -> Spot:
    up = middle - wrist
    up = up / max(float(np.hypot(*up)), 1e-6)
    x, y = (float(v) for v in centre + 0.5 * side * up - 0.5)
    return Spot(x, y, 2.6 * side, (float(up[0]), float(up[1])))


def _upwards(points: Points) -> Points:
    goal = (points[6] + points[14]) / 2
    up = (goal + points[10]) / 2 - points[_WRIST]
    return np.asarray(up / max(float(np.hypot(*up)), 1e-6))


def _as_input(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(1, h, w, 3) RGB, 0 to 1."""
    colours = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), dtype=np.float32)
    return colours[None] * np.float32(1.0 / 255.0)


def _piece(pixels: NDArray[np.uint8], matrix: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The upright piece, of a picture that is halved first as often as the piece shrinks it by two."""
    while math.hypot(matrix[0, 0], matrix[0, 1]) < 0.5 and min(pixels.shape[:2]) > 1:
        height, width = (side // 2 for side in pixels.shape[:2])
        halved = cv2.resize(pixels[: 2 * height, : 2 * width], (width, height), interpolation=cv2.INTER_AREA)
        turn = matrix[:, :2]
        matrix = np.hstack([2.0 * turn, (matrix[:, 2] + turn.sum(axis=1) / 2)[:, None]])
        pixels = np.asarray(halved, dtype=np.uint8)
    piece = cv2.warpAffine(pixels, matrix, (PIECE_PX, PIECE_PX), borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(piece, dtype=np.uint8)


def _fixed_picture(side: int) -> NDArray[np.uint8]:
    """The self test's input: skin-coloured bars on a slope, from whole numbers alone."""
    y, x = np.mgrid[0:side, 0:side]
    bars = ((x // 24) % 2 == 0) & (y > side // 8) & (y < side // 2)
    palm = (np.abs(x - side // 2) < side // 4) & (y >= side // 2)
    grey = 40 + (x + 2 * y) // 8 + 70 * (bars | palm)
    return np.stack([grey, grey + 15 * palm, grey + 40 * (bars | palm)], axis=-1).astype(np.uint8)
