"""Ed25519 and X25519 keys, loaded strictly, so that nothing inside has to doubt them again.

A `PublicKey` is a canonical point of the prime-order subgroup (no small order, no mixed order):
with such a key, a signature with S < L and a canonical R verifies the same way in every strict
implementation (Chalkias, Garillot, Nikolaenko: "Taming the many EdDSAs", 2020).

A kid is the first 32 hexadecimal characters of SHA-256 over the 32 bytes of the public key.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import nacl.exceptions
from nacl import bindings

from link1.canonical import b64_decode, b64_encode
from link1.errors import KeyFormatError, SignatureError

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
"""L, the order of the prime-order subgroup (RFC 8032 §5.1)."""


@dataclass(frozen=True)
class _NamedKey(ABC):
    """The 32 bytes of a public key, their base64 and their kid."""

    raw: bytes

    @classmethod
    @abstractmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Load 32 bytes. Raises KeyFormatError."""

    @classmethod
    def from_b64(cls, text: object) -> Self:
        """Load standard base64 of 32 bytes; raises FormatError or KeyFormatError."""
        return cls.from_bytes(b64_decode(text, length=KEY_BYTES))

    @property
    def b64(self) -> str:
        return b64_encode(self.raw)

    @cached_property
    def kid(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:32]


@dataclass(frozen=True)
class PublicKey(_NamedKey):
    """An Ed25519 public key (RFC 8032). Build it with `from_bytes` or `from_b64`."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Load 32 bytes; raises KeyFormatError unless they are a canonical point of prime order."""
        if len(raw) != KEY_BYTES:
            raise KeyFormatError("an Ed25519 public key has 32 bytes")
        if not bindings.crypto_core_ed25519_is_valid_point(raw):
            raise KeyFormatError("these 32 bytes are not a usable Ed25519 public key")
        return cls(raw)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Raise SignatureError unless `signature` (64 bytes, S < L, canonical R) signs `message`."""
        if len(signature) != SIGNATURE_BYTES:
            raise SignatureError("an Ed25519 signature has 64 bytes")
        if int.from_bytes(signature[32:], "little") >= _GROUP_ORDER:
            raise SignatureError("signature has S outside the group order")
        try:
            bindings.crypto_sign_open(signature + message, self.raw)
        except (
            nacl.exceptions.BadSignatureError,
            nacl.exceptions.ValueError,
            nacl.exceptions.TypeError,
        ):
            raise SignatureError("signature does not hold") from None


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 private key; its seed never appears in a repr."""

    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new key from the operating system's random source."""
        return cls.from_seed(bindings.randombytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> "SigningKey":
        """The key of a 32-byte seed (RFC 8032 §5.1.5); raises KeyFormatError for another length."""
        if len(seed) != KEY_BYTES:
            raise KeyFormatError("an Ed25519 seed has 32 bytes")
        return cls(seed)

    @cached_property
    def _secret(self) -> bytes:
        return bindings.crypto_sign_seed_keypair(self.seed)[1]

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self._secret[32:])

    @property
    def kid(self) -> str:
        return self.public.kid

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over `message`; deterministic."""
        return bindings.crypto_sign(message, self._secret)[:SIGNATURE_BYTES]


@dataclass(frozen=True)
class SealPublicKey(_NamedKey):
    """An X25519 public key (RFC 7748) that mail is sealed to."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Load 32 bytes; raises KeyFormatError for another length or a point of low order."""
        if len(raw) != KEY_BYTES:
            raise KeyFormatError("an X25519 public key has 32 bytes")
        try:
            bindings.crypto_scalarmult(_PROBE_SCALAR, raw)
        except nacl.exceptions.RuntimeError:
            raise KeyFormatError("these 32 bytes are an X25519 point of low order") from None
        return cls(raw)


_PROBE_SCALAR = b"\x08" + bytes(31)
"""Any clamped scalar shows a low-order point: libsodium refuses the all-zero product."""


@dataclass(frozen=True)
class SealKey:
    """An X25519 private key; its bytes never appear in a repr."""

    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> "SealKey":
        """A new key from the operating system's random source."""
        return cls.from_seed(bindings.randombytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> "SealKey":
        """The key of 32 private bytes; raises KeyFormatError for another length."""
        if len(seed) != KEY_BYTES:
            raise KeyFormatError("an X25519 private key has 32 bytes")
        return cls(seed)

    @cached_property
    def public(self) -> SealPublicKey:
        return SealPublicKey(bindings.crypto_scalarmult_base(self.seed))

    @property
    def kid(self) -> str:
        return self.public.kid
