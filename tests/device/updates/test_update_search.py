"""Every course of events around the device's models, up to a small bound; planted faults are found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from device.updates import state as update_state
from device.updates.state import ModelTrial, UpdateState
from tests.device.updates import update_search
from tests.device.updates.update_search import search


def test_no_course_of_events_leaves_a_device_without_a_model_that_serves() -> None:
    result = search(8)
    assert result.found == {}
    assert result.worlds > 5_000


def starts_that_count_for_nothing(real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    def starting(state: UpdateState, *facts: Any) -> UpdateState:
        after = real(state, *facts)
        return after if after.trial is None else replace(after, trial=replace(after.trial, starts=0))

    return starting


def no_trial(real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    return lambda *arguments: replace(real(*arguments), trial=None)


def the_way_back_is_the_one_before(real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    """Whether that has proved itself or not: as it was."""

    def starting(state: UpdateState, *facts: Any) -> UpdateState:
        after = real(state, *facts)
        if after.trial is None or after.model == state.model:
            return after
        return replace(after, trial=ModelTrial(after.model, state.model, after.trial.starts))

    return starting


def what_failed_stays(real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    return lambda state, code: replace(real(state, code), slots=state.slots)


def it_does_not_give_way(_real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    return lambda state, _code: replace(state, trial=None)


def one_slot(real: Callable[..., UpdateState]) -> Callable[..., UpdateState]:
    def tested(*arguments: Any) -> UpdateState:
        after = real(*arguments)
        return replace(after, slots=after.slots[-1:])

    return tested


def the_present_one(_real: Callable[..., int]) -> Callable[..., int]:
    return lambda state, *_facts: state.model


def never(_real: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *_facts: False


def always(_real: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *_facts: True


def the_package_is_copied(real: Callable[..., tuple[str, str]]) -> Callable[..., tuple[str, str]]:
    """Also where an empty gallery says nothing of its model: as it was."""

    def shipped_at_start(*arguments: Any) -> tuple[str, str]:
        model_id, _ = real(*arguments)
        return model_id, model_id

    return shipped_at_start


@pytest.mark.parametrize(
    ("name", "planted", "found"),
    [
        ("starting", starts_that_count_for_nothing, "it never comes to a model that is not on trial"),
        ("starting", no_trial, "what has not proved itself is in force without a trial"),
        pytest.param(
            "starting",
            the_way_back_is_the_one_before,
            "the way back leads to a model that has not proved itself",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "returned",
            what_failed_stays,
            "it never comes to a model that is not on trial",
            marks=pytest.mark.long,
        ),
        ("returned", it_does_not_give_way, "a model that failed is in force again"),
        ("model_tested", one_slot, "the model in force is not on the disk"),
        ("model_for", the_present_one, "a model that fits the gallery is here and not in force"),
        pytest.param(
            "shipped_stays",
            never,
            "a model that fits the gallery is here and not in force",
            marks=pytest.mark.long,
        ),
        ("shipped_stays", always, "a model that fits the gallery is here and not in force"),
        ("shipped_at_start", the_package_is_copied, "a copy is given up whose gallery may still come"),
    ],
)
def test_a_planted_fault_is_found(
    name: str, planted: Callable[[Any], Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = planted(getattr(update_state, name))
    monkeypatch.setattr(update_state, name, fault)
    if hasattr(update_search, name):
        monkeypatch.setattr(update_search, name, fault)
    assert found in search(8).found
