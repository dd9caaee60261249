"""A bounded share of `make fuzz-ends`."""

import random

import pytest

from tests.link1.fuzz import PARTS

COUNTS = {
    "decoder": 20_000,
    "envelope": 10_000,
    "session": 1_500,
    "validator": 1_500,
    "both": 3_000,
}


@pytest.mark.parametrize("name", PARTS)
def test_only_declared_errors_come_out_and_the_next_honest_frame_is_served(name: str) -> None:
    PARTS[name](random.Random(f"{name}:test"), COUNTS[name])
