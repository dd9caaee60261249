"""Palms that are spoilt on purpose: the program that the scale of sharpness comes from, and what it says."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.training.spoilt_crops import generated_palms, main, spoilt, summary


@pytest.mark.long
def test_what_is_not_sharp_is_rejected_and_what_is_sharp_is_not() -> None:
    manifest = load_manifest(shipped_model_dir())
    captures = list(spoilt(generated_palms(3), open_embedder(manifest)))
    found = summary(captures, manifest.agree_q / 10_000)
    assert found["captures"] == 3 * 2 * 3 * 3
    assert found["area"] < 0.5
    rate = {band["from"]: band["rejected"] for band in found["bands"]}
    assert rate[0] > 0.5
    assert rate[80] < 0.1


def test_crops_of_a_folder_are_read_and_enlarged_as_the_model_needs_them(tmp_path: Path) -> None:
    for i, crops in enumerate(generated_palms(2)):
        for k, crop in enumerate(crops):
            path = tmp_path / str(i) / "left" / "1" / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(path), crop)
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["captures"] == 4 * 3 * 3


def test_a_folder_that_is_no_set_is_refused(tmp_path: Path) -> None:
    assert cv2.imwrite(str(tmp_path / "one.png"), np.zeros((8, 8), np.uint8))
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 1
    assert "person/hand/session/picture" in done.output
