"""Generated people before the camera of a bench: enrolled, and as films of passages."""

from models.embedding import Embedder
from models.synthesis.person import make_person
from models.synthesis.scene import passage
from tools.palmctl.bench.board import Known
from tools.palmctl.bench.recording import FRAMES_HELD, FRAMES_OUT
from tools.palmctl.bench.run import enrolled
from tools.palmctl.bench.verdict_latency import Film, Picture, encode

PLACE = 7
PEOPLE = 12
"""Enough for their palms to differ, few enough to be rendered in seconds."""


def enrol(embedder: Embedder, seed: int) -> list[Known]:
    """Templates of a generated person's left palm, from pictures that no film shows."""
    return enrolled(embedder, f"{seed:032x}", enrolment_pictures(seed))


def enrolment_pictures(seed: int) -> list[Picture]:
    return list(passage(make_person(seed), "L", 5000 + seed, frames_held=6, scene_seed=PLACE))


def film(seed: int) -> Film:
    """A passage of a generated person, whose hand is there at once: held steadily, out."""
    return Film("sudden", encode(film_pictures(seed, 0)), steady=0, leaves=FRAMES_HELD)


def film_pictures(seed: int, frames_in: int) -> list[Picture]:
    return list(
        passage(
            make_person(seed),
            "L",
            9000 + seed,
            frames_in=frames_in,
            frames_held=FRAMES_HELD,
            frames_out=FRAMES_OUT,
            scene_seed=PLACE,
        )
    )
