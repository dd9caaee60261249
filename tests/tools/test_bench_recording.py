"""The recorded palms of `palmctl bench`: each can be enrolled, and is recognised as itself alone."""

import cv2
import numpy as np

from models.manifest import load_manifest, open_embedder, shipped_model_dir
from tools.palmctl.bench.recording import FRAMES_HELD, FRAMES_IN, FRAMES_OUT, films_of, read_recording
from tools.palmctl.bench.run import TEMPLATES_A_HAND, enrolled, palm_crop

RECORDING = read_recording()


def test_a_film_holds_a_hand_where_it_says_so() -> None:
    for person in RECORDING.people:
        entering, sudden = films_of(person)
        assert len(entering.pictures) == FRAMES_IN + FRAMES_HELD + FRAMES_OUT
        assert sudden.pictures == entering.pictures[FRAMES_IN:]
        for film in (entering, sudden):
            held = film.pictures[film.steady : film.leaves]
            shown = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in held]
            assert all(palm_crop(np.asarray(picture, np.uint8)) is not None for picture in shown)
    assert palm_crop(RECORDING.empty) is None


def test_each_is_recognised_as_itself_alone() -> None:
    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    known = [enrolled(embedder, str(n), person.enrolment) for n, person in enumerate(RECORDING.people)]
    assert [len(templates) for templates in known] == [TEMPLATES_A_HAND] * len(RECORDING.people)
    templates = np.stack([[one.vector for one in person] for person in known])
    for number, person in enumerate(RECORDING.people):
        crop = palm_crop(person.film[FRAMES_IN + FRAMES_HELD // 2])
        assert crop is not None
        score = (templates @ embedder.embed(crop[np.newaxis])[0]).max(axis=1)
        accepted = score >= manifest.thresholds.accept_q / 10_000
        assert np.flatnonzero(accepted).tolist() == [number]
