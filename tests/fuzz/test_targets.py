"""Every parser of every boundary with its honest inputs, its corpus, and what lies near them."""

import contextlib
import gc
import random
import time
from collections.abc import Iterator

import pytest

from tests.fuzz.targets import TARGETS, FuzzTarget, every_input

INPUTS = 100
LONGEST_S_A_BYTE = 1e-5
"""Generous: `tests/test_parser_costs.py` finds what grows too fast."""


def _near(rng: random.Random, target: FuzzTarget, given: list[bytes]) -> Iterator[bytes]:
    """Changed inputs; now and then one piece is repeated many times, which finds slow paths."""
    for _ in range(INPUTS):
        data = bytearray(rng.choice(given))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0 if data:
                    data[place % len(data)] ^= 1 << rng.randrange(8)
                case 1:
                    data[place:place] = rng.randbytes(rng.randrange(1, 5))
                case 2:
                    data[place:place] = rng.choice(given)[place : place + rng.randrange(40)]
                case 3 if rng.random() < 0.2:
                    piece = data[place : place + rng.randrange(1, 9)] or b"["
                    data[place:place] = piece * (rng.randrange(target.most_bytes) // len(piece))
                case _:
                    del data[place : place + rng.randrange(12)]
        yield bytes(data[: target.most_bytes])


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """To look through the heap of a test run takes a fifth of a second, whichever parser runs then."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.usefixtures("no_garbage_collection")
def test_a_parser_takes_or_refuses_whatever_comes_in_time(name: str) -> None:
    target, given = TARGETS[name], list(every_input(name))
    for data in [b"", *given, *_near(random.Random(name), target, given)]:
        begun = time.thread_time()
        with contextlib.suppress(*target.refusals):
            target.read(data)
        spent_s = time.thread_time() - begun
        most_s = target.longest_s + LONGEST_S_A_BYTE * len(data)
        assert spent_s < most_s, f"{len(data)} bytes took {spent_s:.2f} s"


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_an_honest_input(name: str) -> None:
    """Else it is fuzzed at its door alone."""
    target, taken = TARGETS[name], 0
    for data in target.seeds():
        with contextlib.suppress(*target.refusals):
            target.read(data)
            taken += 1
    assert taken
