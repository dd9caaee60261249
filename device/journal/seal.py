"""Sealing of the journal's rows: ChaCha20-Poly1305 under a key of their own (RFC 8439).

The associated data names table, id and seq, so a sealed row opens only in its place: rows cannot be
exchanged, moved to another table or renumbered. The key is derived from the device's data key by HKDF (RFC
5869) with the journal's name, so no other database shares it. Nonces are random.

ChaCha20 instead of AES-GCM, because small boards have no AES instructions.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE_BYTES = 12
_INFO = b"palm-access row seal v1\x00journal"


class SealBroken(Exception):
    """A sealed row was not sealed here, with this key, in this place."""


class RowSeal:
    """Seals and opens the rows of the journal."""

    def __init__(self, data_key: bytes) -> None:
        """`data_key`: the 32 bytes of the key store."""
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_INFO).derive(data_key)
        self._aead = ChaCha20Poly1305(key)

    def seal(self, plaintext: bytes, *, table: str, row_id: str, seq: int) -> bytes:
        """`nonce (12) ‖ ciphertext ‖ tag (16)`."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plaintext, _place(table, row_id, seq))

    def open(self, sealed: bytes, *, table: str, row_id: str, seq: int) -> bytes:
        """The plaintext of a row in its place; raises SealBroken."""
        try:
            return self._aead.decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _place(table, row_id, seq)
            )
        except (InvalidTag, ValueError, TypeError):  # TypeError: a damaged bit made the row text, or nothing
            raise SealBroken(f"a row of {table} does not open") from None


def _place(table: str, row_id: str, seq: int) -> bytes:
    # None of the three contains NUL, so two places never have the same bytes.
    return f"{table}\x00{row_id}\x00{seq}".encode()
