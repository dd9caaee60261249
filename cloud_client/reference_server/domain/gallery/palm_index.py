"""Is this palm enrolled for another person? The 1:N search at enrolment.

One index for each environment, loaded when first needed and brought up to date before every search, so that
what other processes changed is seen too. A person who is erased is dropped when that is heard of, not only at
the next search. Loading and searching are done in reads, before the transaction that enrols; in it only those
are compared who were enrolled since. Used by the store's threads; the loop never waits for it.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cloud_client.reference_server.contract.words import VECTOR_DIMENSIONS
from cloud_client.reference_server.domain.gallery.log import state_of_stream
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.persons import key_of_row
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, unseal

_Block = NDArray[np.float16]
"""(n, 512); half precision halves the memory and moves a cosine by less than 0.001."""

_BLOCK: Final = 8192
"""Rows of a block, 8 MiB: nothing is copied when the gallery grows, and so many are compared at a time."""
_STEP: Final = 1000
"""Templates that are decrypted in one read: some 0.1 s of a reader's thread."""
_MOST_DELTAS: Final = 1000
"""What changed is looked for in the log up to so many deltas, beyond that by comparing all template ids."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A state of a stream: with the same head the same templates are enrolled."""

    epoch: int
    seq: int
    head: bytes


@dataclass(frozen=True, slots=True)
class PalmProbe:
    """A person's new vectors (2,048 bytes each), and the cosine from which on they are another's."""

    subject_id: str
    vectors: tuple[bytes, ...]
    threshold: float

    def alike(self, block: _Block) -> NDArray[np.intp]:
        """The rows that a vector has at least that cosine to."""
        probes = np.stack([np.frombuffer(vector, "<f4") for vector in self.vectors])
        return np.flatnonzero((block.astype(np.float32) @ probes.T).max(axis=1) >= self.threshold)


@dataclass(frozen=True, slots=True)
class PalmsFound:
    """The templates of other people that a probe is like, and in which state of the stream."""

    mark: _Mark
    template_ids: tuple[str, ...]


@dataclass(slots=True)
class _Palms:
    template_ids: list[str] = field(default_factory=list)
    subject_ids: list[str] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """Where each template is."""
    of_subject: dict[str, set[str]] = field(default_factory=dict)
    mark: _Mark | None = None
    """What the index is whole for."""
    compared: _Mark | None = None
    missing: list[str] = field(default_factory=list)
    """What the last comparison found that is not loaded yet."""
    leaving: set[str] = field(default_factory=set)
    """Who is to be dropped, by the holder of the lock or the next one."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, template_id: str, subject_id: str, vector: _Block) -> None:
        row = len(self.template_ids)
        if row == len(self.blocks) * _BLOCK:
            self.blocks.append(np.empty((_BLOCK, VECTOR_DIMENSIONS), np.float16))
        self.blocks[row // _BLOCK][row % _BLOCK] = vector
        self.template_ids.append(template_id)
        self.subject_ids.append(subject_id)
        self.rows[template_id] = row
        self.of_subject.setdefault(subject_id, set()).add(template_id)

    def remove(self, template_id: str) -> None:
        """The last row takes its place."""
        row, last = self.rows.pop(template_id), len(self.template_ids) - 1
        subject_id = self.subject_ids[row]
        self.of_subject[subject_id].discard(template_id)
        if not self.of_subject[subject_id]:
            del self.of_subject[subject_id]
        moved_id, moved_subject = self.template_ids.pop(), self.subject_ids.pop()
        if row != last:
            self.blocks[row // _BLOCK][row % _BLOCK] = self.blocks[last // _BLOCK][last % _BLOCK]
            self.template_ids[row], self.subject_ids[row] = moved_id, moved_subject
            self.rows[moved_id] = row
        self.blocks[last // _BLOCK][last % _BLOCK] = 0
        if last % _BLOCK == 0:
            self.blocks.pop()

    def drop_leaving(self) -> None:
        while self.leaving:
            gone = self.of_subject.get(self.leaving.pop(), set())
            for template_id in [*gone]:
                self.remove(template_id)
                # Word of it may come late: who has enrolled again meanwhile is loaded again.
                self.mark = self.compared = None

    def drop_if_free(self) -> None:
        while self.leaving and self.lock.acquire(blocking=False):
            try:
                self.drop_leaving()
            finally:
                self.lock.release()

    def advance(self, tx: Tx, vault: Vault, environment: Environment) -> bool:
        """Load some of the templates that are missing; whether there are more."""
        mark = _mark_of(tx, environment)
        if mark == self.mark:
            return False
        if mark != self.compared:
            self._compare(tx, environment, mark)
            self.compared = mark
        for template_id in self.missing[: -_STEP - 1 : -1]:
            row = tx.one(
                """SELECT t.template_id, t.vector_ct, t.subject_id, s.person_key_ct FROM templates t
                   JOIN subjects s ON s.subject_id = t.subject_id WHERE t.template_id = :template_id""",
                template_id=template_id,
            )
            if row is not None:
                self.add(template_id, row["subject_id"], _vector_of(vault, row))
            self.missing.pop()  # one by one: a read that breaks off loads none twice
        if not self.missing:
            self.mark = mark
        return bool(self.missing)

    def _compare(self, tx: Tx, environment: Environment, mark: _Mark) -> None:
        """Drop what is no longer enrolled, and note what is missing."""
        changed = None if self.mark is None else _changed_since(tx, environment, self.mark, mark)
        if changed is None:
            stored = {
                row["template_id"]
                for row in tx.each(
                    """SELECT template_id FROM gallery_templates
                       WHERE stream = :stream AND removed_seq IS NULL""",
                    stream=environment.stream,
                )
            }
            gone = self.rows.keys() - stored
        else:
            stored = {row["template_id"] for row in _enrolled(tx, changed)}
            gone = {name for who in changed for name in self.of_subject.get(who, ())} - stored
        for template_id in gone:
            self.remove(template_id)
        self.missing = [*(stored - self.rows.keys())]


class PalmIndex:
    """The templates of every environment that was asked for."""

    def __init__(self) -> None:
        self._palms: dict[str, _Palms] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, stream: str) -> asyncio.Lock:
        """Held by who searches a stream: others would each block a thread of the store for it."""
        return self._turns.setdefault(stream, asyncio.Lock())

    def catch_up(self, tx: Tx, vault: Vault, environment: Environment) -> bool:
        """Take in some of what has changed; whether there is more."""
        with self._held(environment.stream) as palms:
            return palms.advance(tx, vault, environment)

    def search(self, tx: Tx, vault: Vault, environment: Environment, probe: PalmProbe) -> PalmsFound:
        """Which templates of other people a probe is like; what ``catch_up`` has left is taken in first."""
        found: list[str] = []
        with self._held(environment.stream) as palms:
            while palms.advance(tx, vault, environment):
                pass
            for start, block in zip(range(0, len(palms.rows), _BLOCK), palms.blocks, strict=True):
                alike = (start + row for row in probe.alike(block[: len(palms.rows) - start]))
                others = (row for row in alike if palms.subject_ids[row] != probe.subject_id)
                found += [palms.template_ids[row] for row in others]
            mark = palms.mark or _mark_of(tx, environment)
        return PalmsFound(mark, tuple(found))

    def resembles_another(
        self, tx: Tx, vault: Vault, environment: Environment, probe: PalmProbe, found: PalmsFound | None
    ) -> bool:
        """Whether a probe is like another person's palm now; ``found``: what a search before has found."""
        mark = _mark_of(tx, environment)
        changed = None if found is None else _changed_since(tx, environment, found.mark, mark)
        if found is None or changed is None:
            found, changed = self.search(tx, vault, environment, probe), set()
        new = [_vector_of(vault, row) for row in _enrolled(tx, changed - {probe.subject_id})]
        if new and probe.alike(np.stack(new)).size:
            return True
        return any(
            tx.exists(
                "SELECT 1 FROM gallery_templates WHERE template_id = :template_id AND removed_seq IS NULL",
                template_id=template_id,
            )
            for template_id in found.template_ids
        )

    def forget(self, stream: str, subject_id: str) -> None:
        """Drop a person's vectors from memory at once, or as soon as a read that is under way has ended."""
        palms = self._palms.get(stream)
        if palms is not None:
            palms.leaving.add(subject_id)
            palms.drop_if_free()

    def forget_all(self) -> None:
        """Drop every palm from memory; what is searched next is loaded again."""
        self._palms.clear()

    @contextmanager
    def _held(self, stream: str) -> Iterator[_Palms]:
        """The palms of a stream, taken before the first read: what is forgotten is not read again."""
        palms = self._palms.setdefault(stream, _Palms())
        with palms.lock:
            try:
                yield palms
            finally:
                palms.drop_leaving()
        palms.drop_if_free()  # a person may have been noted between the last two steps


def _mark_of(tx: Tx, environment: Environment) -> _Mark:
    state = state_of_stream(tx, environment)
    return _Mark(state.epoch, state.seq, state.head)


def _changed_since(tx: Tx, environment: Environment, since: _Mark, now: _Mark) -> set[str] | None:
    """Whose palms may have changed between two states; None where the log does not tell."""
    if since.epoch != now.epoch or not 0 <= now.seq - since.seq <= _MOST_DELTAS:
        return None
    rows = tx.all(
        "SELECT op, subject_id FROM deltas WHERE stream = :stream AND epoch = :epoch AND seq > :seq",
        stream=environment.stream,
        epoch=since.epoch,
        seq=since.seq,
    )
    # An erasure leaves no name in the log.
    if len(rows) != now.seq - since.seq or any(row["subject_id"] is None for row in rows):
        return None
    return {row["subject_id"] for row in rows}


def _enrolled(tx: Tx, subject_ids: Iterable[str]) -> list[Row]:
    return [
        row
        for subject_id in subject_ids
        for row in tx.all(
            """SELECT t.template_id, t.vector_ct, t.subject_id, s.person_key_ct FROM gallery_templates t
               JOIN subjects s ON s.subject_id = t.subject_id
               WHERE t.subject_id = :subject_id AND t.removed_seq IS NULL""",
            subject_id=subject_id,
        )
    ]


def _vector_of(vault: Vault, row: Row) -> _Block:
    vector = unseal(key_of_row(vault, row), row["vector_ct"], row["template_id"].encode())
    return np.frombuffer(vector, "<f4").astype(np.float16)
