"""Captures as rows of numbers: their components, what comparing them gave, whether that was a rejection."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from models.manifest import ModelManifest, load_manifest, open_embedder
from models.quality import COMPONENTS, components, fine_detail
from models.synthesis.background import Look
from models.training.quality_captures import Lost, probes

LOOKS: Final[tuple[Look, Look]] = ("rgb", "nir")
_PORTION: Final = 10
"""People a worker takes at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Probes of both looks; all arrays have one row for each."""

    parts: NDArray[np.float64]
    """(n, 6), 0..100, columns as ``COMPONENTS``."""
    detail: NDArray[np.float64]
    """0..100, of ``fine_detail``."""
    score: NDArray[np.float64]
    person: NDArray[np.int64]
    nir: NDArray[np.bool_]
    lost: Lost

    def failed(self, manifest: ModelManifest) -> NDArray[np.bool_]:
        """Which probes do not agree with their template, although they are of the right hand."""
        return np.asarray(self.score < manifest.agree_q / 10_000)

    def faults(self) -> NDArray[np.float64]:
        """(n, 12): what every component lacks, 0..1, and its square, as ``Calibration.costs`` has them."""
        lacks = 1.0 - self.parts / 100.0
        return np.hstack([lacks, lacks * lacks])


def measure(model: Path, people: int, *, first: int) -> Measured:
    """Show, find, cut, judge and compare one hand each of ``people`` people from number ``first`` on, in both
    looks, with the model in the folder ``model``. Three seconds a person and core; the same model gives the
    same rows."""
    portions = [
        (look, start, min(_PORTION, first + people - start))
        for look in LOOKS
        for start in range(first, first + people, _PORTION)
    ]
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        told = list(workers.map(partial(_portion, model), portions))
    rows = np.concatenate([rows for rows, _ in told])
    lost = Lost(*(sum(getattr(one, name) for _, one in told) for name in Lost.__slots__))
    six = len(COMPONENTS)
    detail, score, person, nir = rows[:, six:].T
    return Measured(rows[:, :six], detail, score, person.astype(np.int64), nir > 0, lost)


def _portion(model: Path, portion: tuple[Look, int, int]) -> tuple[NDArray[np.float64], Lost]:
    look, first, people = portion
    cv2.setNumThreads(1)
    embedder, lost = open_embedder(load_manifest(model)), Lost()
    rows = []
    for probe in probes(embedder, look, people, first=first, lost=lost):
        parts = components(probe.frame, probe.hand, probe.crop, probe.previous)
        others = fine_detail(probe.crop), probe.score, probe.person, look == "nir"
        rows.append([*(parts[name] for name in COMPONENTS), *others])
    return np.array(rows, dtype=np.float64).reshape(-1, len(COMPONENTS) + 4), lost
