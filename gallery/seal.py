"""What is on the disk is sealed: the keys derived from the data key, and the sealed form of one template.

Three keys are derived from the data key (HKDF-SHA256, RFC 5869), so that none serves two purposes: one
seals (ChaCha20-Poly1305, RFC 8439: fast on processors without AES instructions), one turns subject_ref
into the lookup value of its row (HMAC-SHA256), one gives the secret signs of `gallery.codes.Coder`.

Nonces are 96 random bits. A store would have to seal 2³² rows before two of them met with a probability
of 2⁻³³; at a thousand changes a day that is eleven thousand years.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from gallery.codes import CODE_BYTES, SIGN_BYTES
from gallery.errors import StoreError
from gallery.stream import VECTOR_LENGTH

DATA_KEY_BYTES: Final = 32

_NONCE_BYTES: Final = 12
_SUSPENDED: Final = 1
_RIGHT: Final = 2
_FIXED: Final = CODE_BYTES + 16 + 2
_SEAL_BYTES: Final = _NONCE_BYTES + 16
PACKED_MOST: Final = _FIXED + 64 + 128
"""Bytes of the longest `pack_template`: no model_id and no onboard_ref is longer."""


class Template(NamedTuple):
    """One template as it is kept; ids and pseudonyms as 16 raw bytes, `code` the 1,024 bytes of a Coder."""

    template_id: bytes
    subject_ref: bytes
    hand: str
    model_id: str
    onboard_ref: str | None
    suspended: bool
    code: bytes


class Sealer:
    """Seals and opens what the store writes; built from the 32 bytes of the device's data key."""

    def __init__(self, data_key: bytes) -> None:
        if len(data_key) != DATA_KEY_BYTES:
            raise ValueError(f"a data key has {DATA_KEY_BYTES} bytes, found {len(data_key)}")
        self._cipher = ChaCha20Poly1305(_derive(data_key, b"gallery seal v1", 32))
        self._lookup_key = _derive(data_key, b"gallery lookup v1", 32)
        self.sign_bits = _derive(data_key, b"gallery signs v1", SIGN_BYTES)

    def person(self, subject_ref: bytes) -> bytes:
        """The 16 bytes under which the rows of a person are found; useless without the data key."""
        return hmac.new(self._lookup_key, subject_ref, hashlib.sha256).digest()[:16]

    def seal(self, table: bytes, row_id: bytes, seq: int, plain: bytes) -> bytes:
        """nonce ‖ ciphertext ‖ tag, bound to table, id and seq."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, table + row_id + seq.to_bytes(8, "big"))

    def open(self, table: bytes, row_id: bytes, seq: int, sealed: bytes) -> bytes:
        """The plain bytes. Raises StoreError unless they were sealed for this place with this key."""
        with _opening():
            return self._cipher.decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], table + row_id + seq.to_bytes(8, "big")
            )

    def open_templates(
        self, table: bytes, rows: Iterable[tuple[int, bytes, int, bytes]], into: NDArray[np.uint8]
    ) -> None:
        """`open` for (number, id, seq, sealed), each into the beginning of a row of `into`, (n, PACKED_MOST).

        Without the cost of `open` for each, as a start opens a million."""
        decrypt, places = self._cipher.decrypt_into, into.data.cast("B")
        place = 0
        with _opening():
            for _, row_id, seq, sealed in rows:
                decrypt(
                    sealed[:_NONCE_BYTES],
                    sealed[_NONCE_BYTES:],
                    table + row_id + seq.to_bytes(8, "big"),
                    places[place : place + len(sealed) - _SEAL_BYTES],
                )
                place += PACKED_MOST


@contextmanager
def _opening() -> Iterator[None]:
    try:
        yield
    except (InvalidTag, ValueError, TypeError, AttributeError, OverflowError) as error:
        # A damaged bit can give a column another type or sign.
        raise StoreError(
            "a row of the gallery store does not open: it was damaged, or belongs to another data key; "
            "remove the gallery folder, and the device takes a fresh snapshot"
        ) from error


def template_table(generation: int) -> bytes:
    """The name that a template's seal is bound to: rows of one generation do not open in another."""
    return b"template\x00" + generation.to_bytes(8, "big")


def pack_template(template: Template) -> bytes:
    """code ‖ subject_ref ‖ flags ‖ length of model_id ‖ model_id ‖ onboard_ref."""
    model_id = template.model_id.encode("ascii")
    flags = _SUSPENDED * template.suspended + _RIGHT * (template.hand == "R")
    onboard_ref = (template.onboard_ref or "").encode("ascii")
    return template.code + template.subject_ref + bytes((flags, len(model_id))) + model_id + onboard_ref


def unpack_template(template_id: bytes, plain: bytes) -> Template:
    """The inverse of `pack_template`; the bytes come out of a seal and are ours."""
    flags = plain[CODE_BYTES + 16]
    model_end = _FIXED + plain[_FIXED - 1]
    return Template(
        template_id,
        plain[CODE_BYTES : CODE_BYTES + 16],
        "R" if flags & _RIGHT else "L",
        plain[_FIXED:model_end].decode("ascii"),
        plain[model_end:].decode("ascii") or None,
        bool(flags & _SUSPENDED),
        plain[:CODE_BYTES],
    )


def coarse_codes(codes: Sequence[bytes]) -> NDArray[np.uint8]:
    """(n, 512): the coarse halves of a Coder's codes, a view of bytes (`gallery.codes.rows_of` says why)."""
    # Bytes objects of half a kilobyte would stay in the C library's cache of small pieces, not overwritten.
    joined = b"".join([memoryview(code)[:VECTOR_LENGTH] for code in codes])
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, VECTOR_LENGTH)


def matchable(packed: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """(n,): which of these packed templates, (n, PACKED_MOST), take part in searches."""
    found: NDArray[np.bool_] = packed[:, _FIXED - 2] & _SUSPENDED == 0
    return found


def models_of(packed: NDArray[np.uint8]) -> set[bytes]:
    """The model_ids of packed templates, (n, PACKED_MOST), in ASCII."""
    named = packed[:, _FIXED - 1 : _FIXED + int(packed[0, _FIXED - 1])]
    different = packed[:1] if (named == named[0]).all() else packed
    return {bytes(row[_FIXED : _FIXED + int(row[_FIXED - 1])]) for row in different}


def _derive(data_key: bytes, info: bytes, length: int) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=length, info=info).derive(data_key)
