import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.evaluation.generated_people import capture_people
from models.evaluation.report import acquisition, write_report
from models.evaluation.run import Acquired, Failures, acquire, evaluate
from models.evaluation.sets import EvaluationSetError, PalmSet, Picture, read_set
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.person import make_person
from models.synthesis.render import Pose, render_frame
from tools.rig.gallery_scoring import Scoring, scoring_among

FIRST_PERSON = 30_500_000
SVG = "{http://www.w3.org/2000/svg}"


def silent(_stage: str, _done: int, _of: int) -> None:
    pass


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four generated people, both palms, three captures each in two sessions, as crops on disk."""
    root = tmp_path_factory.mktemp("crops")
    shown = capture_people(4, 3, "rgb", first=FIRST_PERSON)
    for number, (crop, hand) in enumerate(zip(shown.crops, shown.hands, strict=True)):
        folder = root / f"p{hand // 2}" / ("L" if hand % 2 == 0 else "R") / f"day{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), crop)
    return root


@pytest.mark.long
def test_a_folder_of_crops_becomes_a_page_with_its_plots(crops: Path, tmp_path: Path) -> None:
    found = read_set(crops)
    acquired = acquire(found, "crops", 0, silent)
    embedder = open_embedder(load_manifest(shipped_model_dir()))
    done = evaluate(
        found, acquired, "crops", embedder, scoring_among=scoring_among, accept=0.36, groups=None, told=silent
    )
    names = [m.name for m in done.methods]
    assert names == ["model, as a device", "model, plain cosines", "Gabor code, untrained"]
    assert done.methods[0].verification.eer.value < 0.05
    assert done.methods[0].across is not None

    page = write_report(done, tmp_path / "out", "palm-test")
    text = page.read_text("utf-8")
    assert "palm-test" in text
    assert "http" not in text  # it needs no other file and no network
    assert text.count("data:image/svg+xml;base64,") == 4
    record = json.loads((page.parent / "report.json").read_text("utf-8"))
    assert record["pictures"] == len(found.pictures)
    det = ET.parse(page.parent / "det.svg").getroot()
    assert [line.attrib["class"] for line in det.iter(f"{SVG}polyline")].count("curve") == 2  # and its key
    scores = ET.parse(page.parent / "scores-code.svg").getroot()
    assert {"one palm", "two people"} <= {word.text for word in scores.iter(f"{SVG}text")}


def test_one_comparison_of_two_people_is_enough_for_a_page(tmp_path: Path) -> None:
    shown = [("a", "day1"), ("a", "day2"), ("b", "day1")]
    pictures = tuple(Picture(tmp_path, person, person, session) for person, session in shown)
    crops = np.random.default_rng(0).integers(0, 255, (len(shown), 112, 112), dtype=np.uint8)
    done = evaluate(
        PalmSet("plain", "crops", pictures),
        Acquired(crops, pictures, Counter(who for who, _ in shown), Failures()),
        "crops",
        open_embedder(load_manifest(shipped_model_dir())),
        scoring_among=scoring_among,
        accept=0.36,
        groups=None,
        told=silent,
    )
    assert done.methods[0].headline().non_mated == 1
    assert "1 comparisons of one palm, 1 of two" in write_report(done, tmp_path, "palm-test").read_text(
        "utf-8"
    )


def test_enrolled_are_the_first_three_of_a_palms_first_session(tmp_path: Path) -> None:
    """A picture more of a later day, or of a fourth try, would be known to the score that judges it."""
    shown = [("a", "day1"), ("b", "day2"), ("a", "day0"), *[("b", "day3")] * 2, *[("a", "day0")] * 4]
    pictures = [Picture(tmp_path, person, person, session) for person, session in shown]
    crops = np.random.default_rng(0).integers(0, 255, (len(shown), 112, 112), dtype=np.uint8)
    embedder = open_embedder(load_manifest(shipped_model_dir()))
    vectors, enrolled = embedder.embed(crops), []

    def scoring(some: NDArray[np.float32]) -> Scoring:
        enrolled.append(some)
        return scoring_among(some)

    acquired = Acquired(crops, tuple(pictures), Counter(who for who, _ in shown), Failures())
    evaluate(
        PalmSet("plain", "crops", tuple(pictures)),
        acquired,
        "crops",
        embedder,
        scoring_among=scoring,
        accept=0.36,
        groups=None,
        told=silent,
    )
    assert np.abs(enrolled[0] - vectors[[1, 2, 5, 6]]).max() < 1e-6


def test_whole_hands_are_found_and_cut_and_failures_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for who in range(2):
        for number in range(2):
            frame = render_frame(make_person(FIRST_PERSON + 50 + who), "R", Pose(), "rgb", rng)
            folder = tmp_path / f"{who}" / "R" / "1"
            folder.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / f"{number}.png"), frame)
    cv2.imwrite(str(tmp_path / "0" / "R" / "1" / "black.png"), np.zeros((480, 640, 3), dtype=np.uint8))
    for name, shape in (("column", (2000, 1)), ("row", (1, 2000))):
        cv2.imwrite(str(tmp_path / "0" / "R" / "1" / f"{name}.png"), np.zeros(shape, dtype=np.uint8))
    (tmp_path / "0" / "R" / "1" / "broken.jpg").write_bytes(b"no picture")
    found = read_set(tmp_path)
    assert found.kind == "hands"
    acquired = acquire(found, "hands", 1, silent)
    assert acquired.crops.shape == (4, 112, 112)
    assert (acquired.failures.no_hand, acquired.failures.unreadable) == (3, 1)
    assert acquired.shown == {"0": 6, "1": 2}
    assert acquired.hands is not None
    assert (len(acquired.hands.qualities), acquired.hands.side_named, acquired.hands.wrong_side) == (4, 4, 0)
    for picture in [p for p in found.pictures if p.person == "1"]:
        shown = cv2.imread(str(picture.path))
        assert shown is not None
        cv2.imwrite(str(picture.path), cv2.flip(shown, 1))  # now a left hand
    mirrored = acquire(found, "hands", 1, silent)
    assert mirrored.hands is not None
    assert mirrored.hands.wrong_side == 2
    assert "Of 4 hands whose side the set names, 2 were taken" in acquisition(mirrored)


def test_too_little_to_compare_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "0" / "R" / "1"
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "a.png"), np.zeros((64, 64), dtype=np.uint8))
    with pytest.raises(EvaluationSetError, match="too few to compare"):
        acquire(read_set(tmp_path), "crops", 0, silent)
