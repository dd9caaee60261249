"""Records the palms that `palmctl bench` shows: `python -m tools.rig.bench.record` writes its file again."""

import zipfile
from pathlib import Path
from typing import Final

import cv2

from models.synthesis.scene import empty_scene
from tools.palmctl.bench.recording import (
    FILE,
    FRAMES_IN,
    RecordedPerson,
    Recording,
)
from tools.palmctl.bench.run import TEMPLATES_A_HAND, palm_crop
from tools.palmctl.bench.verdict_latency import Picture
from tools.rig.bench.films import PLACE, enrolment_pictures, film_pictures

PEOPLE: Final = 4
_WEBP_QUALITY: Final = 80
_MADE: Final = (2026, 1, 1, 0, 0, 0)
"""The time of every member, so that the same pictures give the same file."""


def record() -> Recording:
    """The generated people 0 to 3 at the bench's place."""
    (empty,) = empty_scene(PLACE, 1, scene_seed=PLACE)
    return Recording([_person(seed) for seed in range(PEOPLE)], empty)


def _person(seed: int) -> RecordedPerson:
    shown = [picture for picture in enrolment_pictures(seed) if palm_crop(picture) is not None]
    enrolment = shown[:: len(shown) // TEMPLATES_A_HAND][:TEMPLATES_A_HAND]
    return RecordedPerson(film_pictures(seed, FRAMES_IN), enrolment)


def write_recording(recording: Recording, file: Path) -> None:
    """Raises OSError."""
    with zipfile.ZipFile(file, "w") as archive:

        def put(name: str, picture: Picture) -> None:
            data = cv2.imencode(".webp", picture, [cv2.IMWRITE_WEBP_QUALITY, _WEBP_QUALITY])[1].tobytes()
            archive.writestr(zipfile.ZipInfo(name, _MADE), data)

        put("empty.webp", recording.empty)
        for number, person in enumerate(recording.people):
            for kind, pictures in (("film", person.film), ("enrolment", person.enrolment)):
                for place, picture in enumerate(pictures):
                    put(f"{number}/{kind}/{place:02}.webp", picture)


if __name__ == "__main__":
    write_recording(record(), FILE)
    print(f"{FILE} written")
