"""Fitting and judging quality: on rows made for the purpose, and once on a few generated captures."""

import math

import numpy as np
import pytest

from models.embedding import Embedder
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.quality import COMPONENTS
from models.training.calibrate_quality import knots, record
from models.training.fit_quality import fit
from models.training.measure_quality import Measured
from models.training.quality_captures import Lost, probes
from models.training.quality_curve import SHARES, area, area_with_interval, curve, summary


def rows(people: int = 100) -> Measured:
    """Probes whose sharpness alone decides: rejected more often the less sharp they are."""
    rng = np.random.default_rng(1)
    n = 12 * people
    parts = rng.uniform(0.0, 100.0, (n, len(COMPONENTS)))
    chance = 1.0 / (1.0 + np.exp(4.0 - 8.0 * (1.0 - parts[:, 0] / 100.0)))
    score = np.where(rng.random(n) < chance, 0.0, 1.0)
    person, nir = np.repeat(np.arange(people), 12), rng.random(n) < 0.5
    return Measured(parts, np.full(n, 100.0), score, person, nir, Lost(n, 0, 0))


def test_the_fit_finds_what_decides_and_takes_nothing_for_a_virtue() -> None:
    measured = rows()
    model = fit(measured.faults(), measured.score < 0.5)
    assert model.intercept == pytest.approx(-4.0, abs=0.7)
    by_name = dict(zip(COMPONENTS, model.weights.reshape(2, -1).T, strict=True))
    assert by_name["sharpness"].sum() == pytest.approx(8.0, abs=1.0)
    assert all(by_name[name].sum() < 1.0 for name in COMPONENTS if name != "sharpness")
    assert (model.weights >= 0.0).all()
    again = fit(measured.faults(), measured.score < 0.5)
    assert (again.weights == model.weights).all()


def test_a_model_that_rejects_faultless_captures_is_refused() -> None:
    assert knots(-5.0)[0] == (-5.0, 100.0)
    with pytest.raises(ValueError, match="faultless"):
        knots(math.log(0.2 / 0.8))


def test_the_record_is_what_the_package_reads() -> None:
    made = record(load_manifest(shipped_model_dir()), rows(), 100)
    assert set(made["weights"]) == set(COMPONENTS)
    assert made["fitted"]["probes"] == 1200
    assert [quality for _, quality in made["knots"]] == [100.0, 65.0, 45.0, 0.0]


def test_the_curve_of_a_perfect_a_blind_and_a_useless_measure() -> None:
    failed = np.arange(1000) < 200
    perfect = curve(-failed.astype(float), failed)
    assert perfect[0] == pytest.approx(0.2)
    assert (perfect[SHARES >= 0.2] == 0.0).all()
    assert area(np.zeros(1000), failed) == pytest.approx(1.0)
    assert area(-failed.astype(float), failed) < 0.15 < 1.5 < area(failed.astype(float), failed)
    ready = area_with_interval(-failed.astype(float), failed, np.arange(1000) // 10)
    assert ready.low <= ready.share <= ready.high


def test_the_summary_has_every_figure_of_the_documentation() -> None:
    measured = rows(40)
    told = summary(measured, measured.score < 0.5)
    assert told["area"]["sharpness alone"] < 0.7
    assert told["area"]["random"] == 1.0
    assert sum(band["probes"] for band in told["bands"]) == told["probes"] == 480
    assert [floor["quality_q"] for floor in told["floors"]] == [45, 65]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return open_embedder(load_manifest(shipped_model_dir()))


def test_probes_are_the_same_again(embedder: Embedder) -> None:
    lost = Lost()
    first = list(probes(embedder, "rgb", 1, first=61_000_000, lost=lost))
    assert lost.shown == 12 == len(first) + lost.not_found + lost.wrong_side
    again = list(probes(embedder, "rgb", 1, first=61_000_000, lost=Lost()))
    assert [(p.faults, p.score) for p in first] == [(p.faults, p.score) for p in again]
    plain = [probe.score for probe in first if not probe.faults]
    assert all(score > 0.3 for score in plain)
