"""How often a hand is taken for a picture: ``python -m models.training.bona_fide``.

The bona fide presentation classification error rate (BPCER, ISO/IEC 30107-3) of the built-in cues, counted
on generated passages: in colour, in near infrared, and in both at once as a module with two sensors gives
them, its lenses a little apart. Each is one presentation, a hand that comes in and is held, half of them sent
as JPEG like a webcam's pictures. It counts as rejected when a frame good enough for a passage fails, for a
device ends there; as not judged when none passes. Nothing is said about attacks: there are none to show.
"""

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final, Literal

import click
import cv2
import numpy as np

from models.crop import cut_palm
from models.frames import CameraFrame, NirHalf
from models.hand import HandFinder
from models.liveness import LivenessCheck
from models.manifest import load_manifest, shipped_model_dir
from models.quality import assess
from models.synthesis.background import Look, Pixels
from models.synthesis.person import make_person
from models.synthesis.scene import passage

FIRST_PERSON: Final = 70_000_000
"""People from this number on are shown; no limit of a cue was chosen on them."""
LOOKS: Final = ("rgb", "nir", "both")
_LENSES_APART_PX: Final = 12
_FRAMES_IN: Final = 6
_FRAMES_HELD: Final = 8
_JPEG_QUALITY: Final = 70
_MS_A_FRAME: Final = 33

Outcome = Literal["passed", "rejected", "not judged"]


def presented(look: Literal["rgb", "nir", "both"], quality_q: int, number: int) -> Outcome:
    """What becomes of one passage of the person ``number``."""
    finder, check, before, passed = HandFinder(), LivenessCheck(), None, False
    for k, pixels in enumerate(_both(number) if look == "both" else _film(look, number)):
        half: NirHalf = "right" if look == "both" else "none"
        frame = CameraFrame.from_pixels(pixels, at_ms=_MS_A_FRAME * k, number=k, nir=half)
        hand = finder.find(frame)
        if hand is not None:
            crop = cut_palm(frame, hand)
            quality = assess(frame, hand, crop, before)
            good = quality.quality_q >= quality_q
            pad = check.check(frame, hand, quality.detail)
            if good and pad.res == "fail":
                return "rejected"
            passed = passed or (good and pad.res == "pass")
        before = hand
    return "passed" if passed else "not judged"


def wilson_interval(count: int, of: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927)."""
    z = 1.959964
    share, spread = count / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _both(number: int) -> Iterator[Pixels]:
    """Colour left, near infrared right; the hand up to 24 pixels further along there, by person."""
    apart = _LENSES_APART_PX * (number % 3)
    for colour, infrared in zip(_film("rgb", number), _film("nir", number), strict=True):
        yield np.hstack([colour, cv2.cvtColor(np.roll(infrared, apart, axis=1), cv2.COLOR_GRAY2BGR)])


def _film(look: Look, number: int) -> Iterator[Pixels]:
    film = passage(
        make_person(number),
        "L" if number % 2 else "R",
        number,
        look=look,
        scene_seed=number,
        frames_in=_FRAMES_IN,
        frames_held=_FRAMES_HELD,
        frames_out=0,
    )
    for pixels in film:
        if number % 4 < 2:
            yield pixels
            continue
        _, coded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
        yield np.asarray(cv2.imdecode(coded, cv2.IMREAD_UNCHANGED), dtype=np.uint8)


@click.command()
@click.option("--people", default=100, show_default=True, help="Generated people; one passage in each look.")
def main(*, people: int) -> None:
    """BPCER of the built-in liveness cues on generated passages, with its 95 % interval; prints JSON."""
    quality_q = load_manifest(shipped_model_dir()).thresholds.quality_q
    told = {}
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        for look in LOOKS:
            numbers = range(FIRST_PERSON, FIRST_PERSON + people)
            found = list(workers.map(partial(presented, look, quality_q), numbers, chunksize=5))
            rejected = found.count("rejected")
            low, high = wilson_interval(rejected, people)
            told[look] = {
                "presentations": people,
                "rejected": rejected,
                "not_judged": found.count("not judged"),
                "bpcer": round(rejected / people, 4),
                "bpcer_95": [round(low, 4), round(high, 4)],
            }
    click.echo(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
