"""The model of LINK/1 in Spin and the search for an attacker, in small bounds; `make model` runs the rest."""

import shutil

import pytest

from tools.rig.model.attacker import LARGE, SMALL, Flaw, Power, search
from tools.rig.model.spin import FOLDER, MUTANTS, QUICK, ModelRun, searched

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None, reason="spin or gcc is not installed"
)


def named(run: ModelRun) -> str:
    return f"{run.model}-{run.mutant or '-'.join(run.defines)}"


@needs_spin
@pytest.mark.parametrize("run", QUICK, ids=named)
def test_the_model_holds(run: ModelRun) -> None:
    found = searched(run)
    assert found.defect is None
    assert found.states > 10_000


@needs_spin
@pytest.mark.parametrize(
    "run", [run for run in MUTANTS if run.mutant in {"TAG_KEPT", "NO_RESOLVE"}], ids=named
)
def test_a_rule_left_out_is_found(run: ModelRun) -> None:
    assert searched(run).as_expected


def test_every_mutant_has_its_lines() -> None:
    """A mutant whose name is misspelt would be the model itself."""
    for run in MUTANTS:
        assert f"MUTANT_{run.mutant}\n" in (FOLDER / f"{run.model}.pml").read_text(encoding="utf-8"), run


def test_an_attacker_has_the_powers_that_link1_admits_and_no_others() -> None:
    found = search(SMALL)
    assert found.powers == frozenset(Power)
    assert found.breaches == frozenset()


@pytest.mark.parametrize("flaw", Flaw)
def test_what_an_end_leaves_out_is_found(flaw: Flaw) -> None:
    assert search(LARGE, frozenset({flaw}), until_breach=True).breaches
