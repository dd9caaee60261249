"""An operator's own liveness network: taken when it is what its manifest says, and never passed over."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from link1.objects import Pad
from models.crop import cut_palm
from models.errors import ManifestError, ModelFileError, ModelsError
from models.frames import CameraFrame
from models.hand import Hand, HandFinder
from models.liveness import LivenessCheck
from models.pad_network import PadNetwork, open_pad_network
from models.quality import fine_detail
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.scene import passage
from tests.models.onnx_bytes import mean_network, write_pad_folder


def held(look: Look = "rgb", *, seed: int = 3) -> list[tuple[CameraFrame, Hand]]:
    film = passage(make_person(seed), "L", seed, look=look, frames_in=0, frames_held=3, frames_out=0)
    frames = [CameraFrame.from_pixels(pixels, at_ms=33 * k, number=k) for k, pixels in enumerate(film)]
    hands = [HandFinder().find(frame) for frame in frames]
    return [(frame, hand) for frame, hand in zip(frames, hands, strict=True) if hand is not None]


def judged(network: PadNetwork | None, seen: list[tuple[CameraFrame, Hand]]) -> list[Pad]:
    check = LivenessCheck(network)
    return [check.check(frame, hand, fine_detail(cut_palm(frame, hand))) for frame, hand in seen]


def test_cues_and_network_must_both_say_so(tmp_path: Path) -> None:
    seen = held()
    assert [pad.res for pad in judged(None, seen)] == ["unknown", "pass", "pass"]
    lives = open_pad_network(write_pad_folder(tmp_path / "a"), "rgb")
    found = judged(lives, seen)
    assert [pad.res for pad in found] == ["unknown", "pass", "pass"]
    assert found[-1].mech.endswith("+net-bright-1")
    assert len(found[-1].mech) <= 64
    # The same network asks for a hand brighter than any: not one frame passes.
    dead = open_pad_network(write_pad_folder(tmp_path / "b", input={"mean": [250.0]}), "rgb")
    assert [pad.res for pad in judged(dead, seen)] == ["unknown", "fail", "fail"]
    assert judged(dead, seen)[-1].score_q < 500


def test_the_threshold_is_where_the_score_is_in_the_middle(tmp_path: Path) -> None:
    frame, hand = held()[0]
    half = open_pad_network(write_pad_folder(tmp_path / "a"), "rgb").log_odds(frame, hand)
    strict = open_pad_network(write_pad_folder(tmp_path / "b", threshold=0.99), "rgb").log_odds(frame, hand)
    assert half is not None
    assert strict is not None
    assert half > 0
    assert half - strict == pytest.approx(np.log(99.0), abs=1e-6) or half == 8.0


def test_a_frame_of_another_look_is_not_vouched_for(tmp_path: Path) -> None:
    network = open_pad_network(write_pad_folder(tmp_path), "rgb")
    found = judged(network, held("nir"))
    assert all(pad.res != "pass" for pad in found)
    assert all("net-" not in pad.mech for pad in found)


@pytest.mark.parametrize("channels", ["bgr", "rgb"])
@pytest.mark.parametrize("dtype", ["float32"])
def test_colours_come_in_the_order_asked_for(tmp_path: Path, channels: str, dtype: str) -> None:
    content = mean_network(planes=3)
    folder = write_pad_folder(
        tmp_path,
        input={"channels": channels, "dtype": dtype, "mean": [100.0] * 3, "std": [10.0] * 3},
        output={"live": 0},
    )
    replace_file(folder, content)
    frame, hand = held()[0]
    blue = CameraFrame.from_pixels(np.full_like(frame.pixels, (250, 20, 20)))
    odds = open_pad_network(folder, "rgb").log_odds(blue, hand)
    assert odds is not None
    assert (odds > 0) == (channels == "bgr")


def replace_file(folder: Path, content: bytes) -> None:
    import hashlib
    import json

    (folder / "pad.onnx").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][0] |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"v": 2}, "v must be 1"),
        ({"kind": "palm"}, "kind"),
        ({"model_id": "a-name-that-is-too-long"}, "model_id"),
        ({"look": "uv"}, "look must be one of rgb, nir"),
        ({"look": "nir"}, "made for look nir"),
        ({"files": []}, "files must be a list of one file"),
        ({"input": None}, "input must be an object"),
        ({"input": {"side_px": 0}}, "side_px"),
        ({"input": {"side_px": 64}}, "must have one input"),
        ({"input": {"dtype": "uint8"}}, "must have one input"),
        ({"input": {"std": [0]}}, "std"),
        ({"input": {"mean": []}}, "mean"),
        ({"output": {"live": 1}}, "output.live"),
        ({"output": {"activation": "relu"}}, "activation"),
        ({"output": {"activation": "none"}}, "probabilities"),
        ({"output": {"activation": "softmax"}}, "softmax makes 1 for whatever it is shown"),
        ({"threshold": 1}, "threshold"),
        ({"threshold": True}, "threshold"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelsError, match=says):
        open_pad_network(write_pad_folder(tmp_path, **changed), "rgb")


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no readable .*manifest.json"):
        open_pad_network(tmp_path / "nothing", "rgb")
    folder = write_pad_folder(tmp_path / "a")
    (folder / "pad.onnx").write_bytes(mean_network(planes=1) + b"\0")
    with pytest.raises(ModelFileError, match="is not the file its manifest names"):
        open_pad_network(folder, "rgb")
    replace_file(folder, b"no model at all")
    with pytest.raises(ModelFileError, match="cannot be loaded as an ONNX model"):
        open_pad_network(folder, "rgb")
    (folder / "pad.onnx").unlink()
    with pytest.raises(ModelFileError, match="no readable model file"):
        open_pad_network(folder, "rgb")


def test_a_network_that_cannot_judge_one_hand_is_refused(tmp_path: Path) -> None:
    """Its fault is named at the start, where palmd would end without a word of it."""
    folder = write_pad_folder(tmp_path)
    replace_file(folder, mean_network(batch=2))
    with pytest.raises(ModelFileError, match="cannot be run on one square"):
        open_pad_network(folder, "rgb")


def test_an_answer_that_is_no_probability_is_an_error(tmp_path: Path) -> None:
    """It answers well for the grey square of its first test, and with 2 for a bright hand."""
    folder = write_pad_folder(tmp_path, input={"mean": [128.0], "std": [1.0]}, output={"activation": "none"})
    network = open_pad_network(folder, "rgb")
    frame, hand = held()[0]
    with pytest.raises(ModelFileError, match="probabilities from 0 to 1"):
        network.log_odds(CameraFrame.from_pixels(np.full_like(frame.pixels, 200)), hand)
