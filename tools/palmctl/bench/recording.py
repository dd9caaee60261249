"""Generated palms that the bench shows to the camera: recorded, because a device has no generator of palms.

`python -m tools.rig.bench.record` writes the file: a zip archive of WebP pictures, `empty.webp` and, for each
person N, `N/film/NN.webp` (a hand comes in, is held, leaves) and `N/enrolment/NN.webp`.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from tools.palmctl.bench.verdict_latency import Film, Picture, encode

FILE: Final = Path(__file__).with_name("palms.zip")
FRAMES_IN: Final = 6
FRAMES_HELD: Final = 10
FRAMES_OUT: Final = 4


@dataclass(frozen=True, slots=True)
class RecordedPerson:
    """One generated person's left palm. The enrolment pictures are not part of the film."""

    film: Sequence[Picture]
    enrolment: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Recording:
    """People, and the place without a hand. Pictures are (H, W, 3) BGR, uint8, of one size."""

    people: Sequence[RecordedPerson]
    empty: Picture


def read_recording() -> Recording:
    """Raises OSError."""
    with zipfile.ZipFile(FILE) as archive:
        pictures = {name: _decoded(archive.read(name)) for name in sorted(archive.namelist())}
    numbers = sorted({name.partition("/")[0] for name in pictures if "/" in name})

    def pictures_in(folder: str) -> list[Picture]:
        return [picture for name, picture in pictures.items() if name.startswith(folder)]

    people = [RecordedPerson(pictures_in(f"{n}/film/"), pictures_in(f"{n}/enrolment/")) for n in numbers]
    return Recording(people, pictures["empty.webp"])


def films_of(person: RecordedPerson) -> list[Film]:
    """The hand as it comes in, and as if it were there from one picture to the next."""
    pictures = encode(person.film)
    leaves = FRAMES_IN + FRAMES_HELD
    return [
        Film("entering", pictures, steady=FRAMES_IN, leaves=leaves),
        Film("sudden", pictures[FRAMES_IN:], steady=0, leaves=FRAMES_HELD),
    ]


def _decoded(data: bytes) -> Picture:
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), np.uint8)
