"""Records the palms that `palmctl bench` shows: `python -m tools.rig.bench.record` writes its file again."""

from models.synthesis.scene import empty_scene
from tools.palmctl.bench.recording import (
    FILE,
    FRAMES_IN,
    RecordedPerson,
    Recording,
    write_recording,
)
from tools.palmctl.bench.run import TEMPLATES_A_HAND, palm_crop
from tools.rig.bench.films import PLACE, enrolment_pictures, film_pictures

PEOPLE = 4


def record() -> Recording:
    """The generated people 0 to 3 at the bench's place."""
    (empty,) = empty_scene(PLACE, 1, scene_seed=PLACE)
    return Recording([_person(seed) for seed in range(PEOPLE)], empty)


def _person(seed: int) -> RecordedPerson:
    shown = [
        picture
        for number, picture in enumerate(enrolment_pictures(seed))
        if palm_crop(picture, number) is not None
    ]
    enrolment = shown[:: len(shown) // TEMPLATES_A_HAND][:TEMPLATES_A_HAND]
    return RecordedPerson(film_pictures(seed, FRAMES_IN), enrolment)


if __name__ == "__main__":
    write_recording(record())
    print(f"{FILE} written")
