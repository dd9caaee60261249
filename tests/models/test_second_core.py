"""Where the helper of a thread runs."""

import os
import threading
from collections.abc import Callable

import pytest

from models.second_core import second_core

CORES = os.sched_getaffinity(0)


def on_a_thread(bound_to: set[int], work: Callable[[], object]) -> object:
    found: list[object] = []

    def run() -> None:
        os.sched_setaffinity(0, bound_to)
        found.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def cores_of_a_helper() -> set[int]:
    with second_core("helper") as helper:
        return helper.submit(os.sched_getaffinity, 0).result()


def test_a_helper_keeps_off_the_core_to_which_its_caller_is_bound() -> None:
    if len(CORES) < 2:
        pytest.skip("one core")
    for core in CORES:
        assert on_a_thread({core}, cores_of_a_helper) == CORES - {core}


def test_a_helper_that_may_not_choose_its_core_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: int, _cores: set[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    assert cores_of_a_helper() == CORES


def test_a_helper_of_a_caller_that_may_run_anywhere_may_too() -> None:
    assert cores_of_a_helper() == CORES
