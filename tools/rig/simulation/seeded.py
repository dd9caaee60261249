"""Randomness from a seed, for every program in this process."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from nacl import bindings
from pyhpke import KEMKeyPair
from pyhpke.kem_primitives.x25519 import X25519
from pyhpke.keys.x25519_key import X25519Key


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
    """Inside, what programs draw from the system, new keys and HPKE's ephemeral ones come from the seed.
    HPKE's would be drawn in OpenSSL, and a bit that is flipped in a sealed record is found out by another
    check if the record's bytes are others."""
    chance = random.Random(f"system {seed}")  # noqa: S311
    drawn = chance.randbytes

    def ephemeral(_: X25519) -> KEMKeyPair:
        key = X25519PrivateKey.from_private_bytes(drawn(32))
        return KEMKeyPair(X25519Key(key), X25519Key(key.public_key()))

    sources = [(os, "urandom"), (random, "_urandom"), (bindings, "randombytes")]
    with replaced([*((*source, drawn) for source in sources), (X25519, "generate_key_pair", ephemeral)]):
        yield
