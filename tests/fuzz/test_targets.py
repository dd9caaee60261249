"""Every parser of every boundary with its honest inputs, its corpus, and a bounded share of `make fuzz`."""

import contextlib
import random

import pytest

from tests.fuzz.targets import TARGETS, every_input
from tests.link1.fuzz import mutate

INPUTS = 200
_ANY = bytes(range(256))


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_or_refuses_whatever_comes(name: str) -> None:
    target, given = TARGETS[name], list(every_input(name))
    rng = random.Random(name)
    for data in [b"", *given, *(mutate(rng, given, _ANY)[: target.most_bytes] for _ in range(INPUTS))]:
        with contextlib.suppress(*target.refusals):
            target.read(data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_an_honest_input(name: str) -> None:
    """Else it is fuzzed at its door alone."""
    target, taken = TARGETS[name], 0
    for data in target.seeds():
        with contextlib.suppress(*target.refusals):
            target.read(data)
            taken += 1
    assert taken
