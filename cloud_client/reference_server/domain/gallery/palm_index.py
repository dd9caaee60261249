"""Is this palm enrolled for another person? The 1:N search at enrolment.

One matrix for each environment, loaded when first needed and brought up to date before every search by
comparing template ids with the database, so that what other processes changed is seen too. A person who is
erased through another process is dropped when that is heard of, not only at the next search. Used by the
store's writer threads and the loop.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloud_client.reference_server.contract.words import VECTOR_DIMENSIONS
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.persons import key_of_row
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault, unseal

Matrix = NDArray[np.float16]
"""(n, 512); half precision halves the memory and moves a cosine by less than 0.001."""


_BLOCK = 8192
"""Rows that are turned to single precision at a time: 16 MiB."""


def _empty() -> Matrix:
    return np.empty((0, VECTOR_DIMENSIONS), np.float16)


@dataclass(slots=True)
class _Palms:
    template_ids: list[str] = field(default_factory=list)
    subject_ids: list[str] = field(default_factory=list)
    matrix: Matrix = field(default_factory=_empty)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, wanted: NDArray[np.bool_]) -> None:
        self.template_ids = [name for name, keep in zip(self.template_ids, wanted, strict=True) if keep]
        self.subject_ids = [name for name, keep in zip(self.subject_ids, wanted, strict=True) if keep]
        self.matrix = self.matrix[wanted]


class PalmIndex:
    """The templates of every environment that was asked for."""

    def __init__(self) -> None:
        self._palms: dict[str, _Palms] = {}

    def resembles_another(
        self,
        tx: Tx,
        vault: Vault,
        environment: Environment,
        *,
        subject_id: str,
        vectors: list[bytes],
        threshold: float,
    ) -> bool:
        """Whether a vector (2,048 bytes each) has a cosine of at least ``threshold`` to another person's."""
        probes = np.stack([np.frombuffer(vector, "<f4") for vector in vectors])
        palms = self._palms.setdefault(environment.stream, _Palms())
        with palms.lock:
            _update(tx, vault, environment, palms)
            for start in range(0, len(palms.subject_ids), _BLOCK):
                block = slice(start, start + _BLOCK)
                best = (palms.matrix[block].astype(np.float32) @ probes.T).max(axis=1)
                for row in np.flatnonzero(best >= threshold):
                    if palms.subject_ids[start + row] != subject_id:
                        return True
        return False

    def forget(self, stream: str, subject_id: str) -> None:
        """Drop a person's vectors from memory at once."""
        palms = self._palms.get(stream)
        if palms is None:
            return
        with palms.lock:
            if subject_id in palms.subject_ids:
                palms.keep(np.array([name != subject_id for name in palms.subject_ids], bool))


def _update(tx: Tx, vault: Vault, environment: Environment, palms: _Palms) -> None:
    stored = {
        row["template_id"]
        for row in tx.each(
            "SELECT template_id FROM gallery_templates WHERE stream = :stream AND removed_seq IS NULL",
            stream=environment.stream,
        )
    }
    palms.keep(np.array([name in stored for name in palms.template_ids], bool))
    added = _Palms()
    vectors = []
    for template_id in stored.difference(palms.template_ids):
        row = tx.one(
            """SELECT t.vector_ct, t.subject_id, s.person_key_ct FROM templates t
               JOIN subjects s ON s.subject_id = t.subject_id WHERE t.template_id = :template_id""",
            template_id=template_id,
        )
        if row is not None:
            added.template_ids.append(template_id)
            added.subject_ids.append(row["subject_id"])
            vector = unseal(key_of_row(vault, row), row["vector_ct"], template_id.encode())
            vectors.append(np.frombuffer(vector, "<f4").astype(np.float16))
    if vectors:
        palms.template_ids += added.template_ids
        palms.subject_ids += added.subject_ids
        palms.matrix = np.concatenate([palms.matrix, np.stack(vectors)])
