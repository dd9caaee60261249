"""How often a palm is rejected that is blurred, faint, noisy, dark or small, by its sharpness.

    python -m models.training.spoilt_crops            # generated palms
    python -m models.training.spoilt_crops FOLDER     # crops of real ones, laid out as for `palmctl evaluate`

Cut well and spoilt by nothing else, so that the rate says what sharpness alone has to say: 25 % at 15 and
10 % at 35, if `quality.CLEAR` is right. Spoilt evenly over what cameras do, which is worse than any one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import cv2
import numpy as np
from numpy.typing import NDArray

from models.crop_geometry import CROP_SIZE, Handedness, similarity_from_valleys
from models.embedding import Embedder
from models.evaluation.sets import EvaluationSetError, read_set
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.picture_files import read_picture
from models.quality import sharpness
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.render import render_frame_with_truth
from models.synthesis.scene import random_pose, random_setting
from models.template_choice import MOST_TEMPLATES
from models.training.quality_curve import area, rejected

FIRST_PERSON: Final = 53_000_000
"""People from this number on are used for this and nothing else."""
SIDE_PX: Final = 150
"""Of a crop before it is spoilt: larger than what the model gets."""
SIZES_PX: Final = (50, 60, 70, 80, 95, 112, 150)
"""Of the palm in the camera's picture."""
BLUR_PX: Final = (0.3, 5.0)
"""Defocus, standard deviation in pixels of the crop that the model gets; evenly by its logarithm."""
FAINTEST: Final = 0.2
"""The least part of their contrast that lines keep; half of the captures keep all of it."""
DARKEST: Final = 0.2
NOISE: Final = (0.7, 5.0)
JPEG: Final = (60, 95)
PROBES: Final = 3
"""Pictures of a palm that are spoilt, each as many times."""
BANDS: Final = (0, 5, 15, 25, 35, 50, 65, 80, 101)
_SLIP: Final = 0.012
"""What a finder's valleys are off by, in palm widths."""
_DOMAIN: Final = 0x5BAD

Crop = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SpoiltCapture:
    palm_px: int
    sharpness: float
    score: float
    """Best cosine with the palm's unspoilt references."""


def generated_palms(people: int) -> Iterator[list[Crop]]:
    """Crops (150, 150) of one hand of each person, in colour and in infrared: references, then probes."""
    looks: tuple[Look, ...] = ("rgb", "nir")
    for number in range(FIRST_PERSON, FIRST_PERSON + people):
        person = make_person(number)
        side: Handedness = "L" if number % 2 else "R"
        for look in looks:
            rng = np.random.default_rng([_DOMAIN, number, look == "nir"])
            crops = []
            for _ in range(MOST_TEMPLATES + PROBES):
                usual = random_setting(rng, int(rng.integers(1 << 30)))
                setting = replace(usual, gain=1.0, noise=0.5, blur_px=0.3)
                pixels, truth = render_frame_with_truth(
                    person, side, random_pose(rng), look, rng, setting=setting
                )
                if truth is None:
                    continue  # not where a hand is asked for
                slipped = truth.valleys + rng.normal(0.0, _SLIP * truth.palm_width_px, truth.valleys.shape)
                grey = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
                matrix = similarity_from_valleys(slipped, side, size=SIDE_PX)
                cut = cv2.warpAffine(grey, matrix, (SIDE_PX, SIDE_PX), borderMode=cv2.BORDER_REPLICATE)
                crops.append(np.asarray(cut, dtype=np.uint8))
            yield crops


def real_palms(folder: Path) -> Iterator[list[Crop]]:
    """Crops (150, 150) of each palm that has enough of them. Raises ``EvaluationSetError``."""
    of_palm: dict[str, list[Path]] = {}
    for picture in read_set(folder).pictures:
        of_palm.setdefault(picture.palm, []).append(picture.path)
    for paths in of_palm.values():
        read = [read_picture(path, cv2.IMREAD_GRAYSCALE) for path in paths[: MOST_TEMPLATES + PROBES]]
        crops = [_resized(np.asarray(grey, dtype=np.uint8), SIDE_PX) for grey in read if grey is not None]
        if len(crops) > MOST_TEMPLATES:
            yield crops


def spoilt(palms: Iterator[list[Crop]], embedder: Embedder) -> Iterator[SpoiltCapture]:
    """Captures of palms, each a list of references and then of what is spoilt; 20 ms each."""
    rng = np.random.default_rng(_DOMAIN)
    for crops in palms:
        enrolled = np.stack([_resized(crop, CROP_SIZE) for crop in crops[:MOST_TEMPLATES]])
        references = embedder.embed(enrolled)
        for crop in crops[MOST_TEMPLATES:]:
            for k in range(PROBES):
                seen = _as_seen(crop, rng, faint=k % 2 == 1)
                given = _resized(seen, CROP_SIZE)
                score = float((references @ embedder.embed(given[None])[0]).max())
                yield SpoiltCapture(len(seen), sharpness(given, len(seen)), score)


def _as_seen(crop: Crop, rng: np.random.Generator, *, faint: bool) -> Crop:
    """The palm as a poor camera has it in its picture."""
    size, light = int(rng.choice(SIZES_PX)), crop.astype(np.float32)
    if faint:
        skin = cv2.GaussianBlur(light, (0, 0), 0.09 * SIDE_PX)
        light = skin + float(FAINTEST ** rng.random()) * (light - skin)
    small = cv2.resize(light, (size, size), interpolation=cv2.INTER_AREA)
    low, high = np.log(BLUR_PX)
    blurred = cv2.GaussianBlur(small, (0, 0), float(np.exp(rng.uniform(low, high))) * size / CROP_SIZE)
    noise = rng.normal(0.0, rng.uniform(*NOISE), blurred.shape)
    picture: Crop = np.clip(blurred * float(DARKEST ** rng.random()) + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.5:
        _, coded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(*JPEG))])
        picture = np.asarray(cv2.imdecode(coded, cv2.IMREAD_GRAYSCALE), dtype=np.uint8)
    return picture


def _resized(crop: Crop, side: int) -> Crop:
    way = cv2.INTER_AREA if len(crop) > side else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(crop, (side, side), interpolation=way), dtype=np.uint8)


def summary(captures: list[SpoiltCapture], agree: float) -> dict[str, Any]:
    """JSON-ready: rejected at the cosine ``agree``, by sharpness; the error-versus-discard area."""
    failed = np.array([one.score < agree for one in captures])
    clear = np.array([one.sharpness for one in captures])
    small = np.array([one.palm_px <= 70 for one in captures])

    bands = [(low, high, (clear >= low) & (clear < high)) for low, high in pairwise(BANDS)]
    return {
        "captures": len(captures),
        "rejected": round(float(failed.mean()), 3),
        "area": round(area(np.round(clear), failed), 3),
        "area_up_to_70_px": round(area(np.round(clear[small]), failed[small]), 3),
        "best_possible_area": round(area(-failed.astype(np.float64), failed), 3),
        "bands": [
            {
                "from": low,
                "to": min(high, 100),
                "captures": int(rows.sum()),
                "rejected": rejected(failed, rows),
            }
            for low, high, rows in bands
            if rows.any()
        ],
    }


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--people", default=60, show_default=True, help="Generated people, without FOLDER.")
def main(*, folder: Path | None, people: int) -> None:
    """How often a spoilt palm is rejected, by its sharpness; prints JSON."""
    manifest = load_manifest(shipped_model_dir())
    palms = generated_palms(people) if folder is None else real_palms(folder)
    try:
        captures = list(spoilt(palms, open_embedder(manifest)))
    except EvaluationSetError as e:
        raise click.ClickException(str(e)) from e
    if not any(one.score < manifest.agree_q / 10_000 for one in captures):
        raise click.ClickException("no capture was rejected, so nothing can be predicted")
    click.echo(json.dumps(summary(captures, manifest.agree_q / 10_000), indent=2))


if __name__ == "__main__":
    main()
