"""Randomness from a seed, for every program in this process."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nacl import bindings


@contextmanager
def replaced(values: Sequence[tuple[ModuleType | type, str, Any]]) -> Iterator[None]:
    """Inside, these names of modules and classes have other values."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    for owner, name, value in values:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def seeded(seed: object) -> Iterator[None]:
    """Inside, what programs draw from the system and new keys come from the seed. HPKE draws in OpenSSL:
    that changes bytes of sealed records, never what happens."""
    chance = random.Random(f"system {seed}")  # noqa: S311
    drawn = chance.randbytes
    with replaced([(os, "urandom", drawn), (random, "_urandom", drawn), (bindings, "randombytes", drawn)]):
        yield
