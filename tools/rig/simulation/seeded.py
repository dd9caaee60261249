"""Randomness from a seed, for every program in this process."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from nacl import bindings


@contextmanager
def seeded(seed: object) -> Iterator[None]:
    """Inside, what programs draw from the system and new keys come from the seed. HPKE draws in OpenSSL:
    that changes bytes of sealed records, never what happens."""
    chance = random.Random(f"system {seed}")  # noqa: S311
    modules: list[tuple[ModuleType, str, Any]] = [
        (os, "urandom", chance.randbytes),
        (random, "_urandom", chance.randbytes),
        (bindings, "randombytes", chance.randbytes),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in modules]
    for module, name, value in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
