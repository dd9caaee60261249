"""What the camera of the rig sees: generated people's palms as raw pictures for a V4L2 output."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage

Picture = NDArray[np.uint8]

PLACE = 7
KNOWN_PERSON, STRANGER = 3, 40
"""Seeds of a person in the gallery and of a stranger."""
FRAMES_HELD = 24
"""The hand is there from one picture to the next and held: an emulated board looks at so few pictures a
second that a hand on its way in would be all it sees."""


def write_films(folder: Path) -> None:
    """`known`, `stranger` and `empty` as the concatenation of their pictures, in a folder for each format."""
    empty = list(empty_scene(PLACE, 3, scene_seed=PLACE))
    films: dict[str, list[Picture]] = {"empty": empty}
    for name, seed in (("known", KNOWN_PERSON), ("stranger", STRANGER)):
        films[name] = list(
            passage(
                make_person(seed),
                "L",
                9_000 + seed,
                frames_in=0,
                frames_held=FRAMES_HELD,
                frames_out=0,
                scene_seed=PLACE,
            )
        )
    for pixels, pack in _PACKERS.items():
        (folder / pixels).mkdir(parents=True)
        for name, pictures in films.items():
            (folder / pixels / name).write_bytes(b"".join(pack(picture) for picture in pictures))


def yuyv(picture: Picture) -> bytes:
    """A BGR picture as 4:2:2, luma first, in the ranges of ITU-R BT.601 that V4L2 expects of a camera."""
    ycrcb = cv2.cvtColor(picture, cv2.COLOR_BGR2YCrCb).astype(np.float32)
    luma = 16 + ycrcb[..., 0] * (219 / 255)
    red, blue = ((_halved(ycrcb[..., plane]) - 128) * (224 / 255) + 128 for plane in (1, 2))
    packed = np.empty((*picture.shape[:2], 2), np.uint8)
    packed[..., 0] = _bytes(luma)
    packed[:, 0::2, 1] = _bytes(blue)
    packed[:, 1::2, 1] = _bytes(red)
    return packed.tobytes()


def _halved(plane: NDArray[np.float32]) -> NDArray[np.float32]:
    """Two neighbours share a colour."""
    return np.asarray((plane[:, 0::2] + plane[:, 1::2]) / 2, np.float32)


def _bytes(values: NDArray[np.float32]) -> Picture:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


BYTES_A_PIXEL = {"YUYV": 2, "BGR3": 3}
"""The formats there are films in, by V4L2's names: what OpenCV chooses of those that vivid offers."""
_PACKERS: dict[str, Callable[[Picture], bytes]] = {"YUYV": yuyv, "BGR3": np.ndarray.tobytes}
