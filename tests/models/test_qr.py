"""QR codes: the generator's cards are read, everything else is None, and no image harms the process."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.frames import CameraFrame
from models.qr import read_qr
from models.qr_code import MAX_VERSION, alignment_centres, read_modules
from models.reed_solomon import correct
from models.synthesis.background import Look
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage, show_qr
from tests.models.strange_frames import frames


def modules_of(text: str, version: int, level: int) -> np.ndarray | None:
    settings_ = cv2.QRCodeEncoder.Params()
    settings_.version, settings_.correction_level = version, level
    try:
        code = cv2.QRCodeEncoder.create(settings_).encode(text)
    except cv2.error:  # too long for this version
        return None
    dark = np.asarray(code) < 128
    rows = np.flatnonzero(dark.any(axis=1))
    modules = dark[rows[0] : rows[-1] + 1, rows[0] : rows[-1] + 1]
    return modules if modules.shape[0] == 4 * version + 17 else None


@pytest.mark.parametrize("level", range(4))
def test_reads_what_another_encoder_wrote(level: int) -> None:
    texts = ["7", "0123456789" * 6, "PALM 12:3/A-B", "a palm, {signed}~!" * 4]
    read = 0
    for version in range(1, MAX_VERSION + 1):
        text = texts[(version + level) % len(texts)]
        modules = modules_of(text, version, level)
        if modules is not None:
            assert read_modules(modules) == text
            read += 1
    assert read >= MAX_VERSION - 8


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), version=st.integers(1, 12), flips=st.integers(0, 400))
def test_damaged_modules_give_the_text_or_none(seed: int, version: int, flips: int) -> None:
    modules = modules_of("damaged", version, 3)
    assert modules is not None
    rng = np.random.default_rng(seed)
    damaged = modules.copy()
    damaged.flat[rng.integers(0, modules.size, flips)] ^= True
    assert read_modules(damaged) in {"damaged", None}


@settings(max_examples=60)
@given(
    data=st.lists(st.integers(0, 255), min_size=1, max_size=60), check=st.integers(2, 30), seed=st.integers()
)
def test_correction_mends_half_the_check_words(data: list[int], check: int, seed: int) -> None:
    # The check words of zeros are zeros, and the code is linear: damage to the zero word is damage to any.
    rng = np.random.default_rng(abs(seed))
    block = [0] * (len(data) + check)
    wrong = rng.choice(len(block), size=min(check // 2, len(block)), replace=False)
    for place in wrong:
        block[place] = int(rng.integers(1, 256))
    assert correct(block, check) == [0] * len(block)


@pytest.mark.parametrize(
    ("version", "centres"),
    [(1, []), (2, [6, 18]), (7, [6, 22, 38]), (14, [6, 26, 46, 66]), (20, [6, 34, 62, 90])],
)
def test_alignment_patterns_stand_where_annex_e_says(version: int, centres: list[int]) -> None:
    assert alignment_centres(version) == centres


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_reads_the_generators_cards(look: Look) -> None:
    for seed in range(12):
        text = f"PALM1:{seed:04d}:" + "Ab3xYz_-9" * (1 + seed % 6)
        for pixels in show_qr(text, seed, 1, look=look, scene_seed=seed):
            assert read_qr(CameraFrame.from_pixels(pixels)) == text


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [(240, 320), (480, 640), (1080, 1440)])
def test_reads_at_any_quarter_turn_and_size(turn: int, size: tuple[int, int]) -> None:
    (pixels,) = show_qr("https://example.org/e/1", 3, 1, size=size)
    assert read_qr(CameraFrame.from_pixels(np.rot90(pixels, turn))) == "https://example.org/e/1"


@pytest.mark.parametrize("text", ["x" * 512, "y" * 300])
def test_long_texts_fill_the_frame(text: str) -> None:
    code = np.asarray(cv2.QRCodeEncoder.create().encode(text), np.uint8)
    k = 880 // code.shape[0]
    card = cv2.copyMakeBorder(
        np.kron(code, np.ones((k, k), np.uint8)), 30, 30, 30, 30, cv2.BORDER_CONSTANT, value=(255.0,)
    )
    assert read_qr(CameraFrame.from_pixels(np.asarray(card, np.uint8))) == text


@pytest.mark.parametrize("text", ["z" * 513, "tab\there", "línea", "\u20ac"])
def test_refuses_texts_outside_the_bounds(text: str) -> None:
    code = np.asarray(cv2.QRCodeEncoder.create().encode(text), np.uint8)
    k = max(3, 900 // code.shape[0])
    card = cv2.copyMakeBorder(
        np.kron(code, np.ones((k, k), np.uint8)), 30, 30, 30, 30, cv2.BORDER_CONSTANT, value=(255.0,)
    )
    assert read_qr(CameraFrame.from_pixels(np.asarray(card, np.uint8))) is None


@pytest.mark.parametrize("look", ["rgb", "nir"])
def test_hands_and_empty_scenes_hold_no_code(look: Look) -> None:
    for seed in range(6):
        for pixels in [
            *empty_scene(seed, 1, look=look, scene_seed=seed),
            *passage(make_person(seed), "R", seed, look=look, frames_in=2, frames_held=1, frames_out=0),
        ]:
            assert read_qr(CameraFrame.from_pixels(pixels)) is None


@settings(max_examples=80)
@given(frame=frames())
def test_no_frame_makes_the_reader_raise(frame: CameraFrame) -> None:
    assert read_qr(frame) is None


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31))
def test_mangled_codes_are_read_or_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    code = np.asarray(cv2.QRCodeEncoder.create().encode("mangled"), np.uint8)
    card = np.kron(code, np.ones((6, 6), np.uint8))
    image = np.full((320, 320), 220, np.uint8)
    image[40 : 40 + card.shape[0], 40 : 40 + card.shape[1]] = card
    for _ in range(int(rng.integers(0, 12))):
        y, x = rng.integers(0, 300, 2)
        image[y : y + 25, x : x + 25] = rng.integers(0, 256)
    warp = np.array([[1, rng.normal(0, 0.1), 0], [rng.normal(0, 0.1), 1, 0], [*rng.normal(0, 8e-4, 2), 1]])
    image = np.asarray(cv2.warpPerspective(image, warp, (320, 320)), np.uint8)
    assert read_qr(CameraFrame.from_pixels(image)) in {"mangled", None}
