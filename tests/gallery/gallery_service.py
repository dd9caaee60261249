"""A small service in memory: a log of deltas, and the pages, snapshots and heads that it would serve."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud_client.reference_server.domain.gallery.deltas import delta_obj, make_delta
from gallery.codes import Coder
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from gallery.stream import Delta, Entry, Head, Op, entry_sha256, head_zero, next_head, state_of
from link1.canonical import JsonObject
from link1.keys import PublicKey, SigningKey
from link1.signed import Kind, sign_object

STREAM = "t1.live"
MODEL_ID = "palm-1"
DATA_KEY = bytes(range(32))
NOW_MS = 1_800_000_000_000


def palm(number: int) -> NDArray[np.float32]:
    """The (512,) float32 unit vector of a numbered palm."""
    vector = np.random.default_rng(number).standard_normal(512).astype("<f4")
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


def exact_scores(
    coder: Coder, vectors: NDArray[np.float32], probes: NDArray[np.float32]
) -> NDArray[np.float64]:
    """(n, p): every template's score with every probe, where these templates (n, 512) are the match set."""
    n, cut = len(vectors), coder.encode(vectors)[:, :512].astype(float) / 256.0 - 0.5
    mean = cut.sum(axis=0) / (n + 60)
    spread = (cut - mean).T @ (cut - mean) / n
    share = 0.3 * n / (n + 600)
    metric = np.linalg.inv(share * spread * 512 / np.trace(spread) + (1 - share) * np.eye(512))
    held, shown = coder.turn(vectors) - mean, coder.turn(probes) - mean
    lengths = [np.sqrt((some @ metric * some).sum(axis=1)) for some in (held, shown)]
    left = 0.07 * (60 / (n + 60)) ** 2
    scores: NDArray[np.float64] = (held @ metric @ shown.T / np.outer(*lengths) - left) / (1 - left)
    return scores


def template_id(number: int) -> str:
    return f"{number:032x}"


def subject_ref(number: int) -> str:
    return f"5b{number:030x}"


def entry(person: int, number: int, **members: Any) -> Entry:
    """Template `number`, which is palm `number`, of a person."""
    plain = Entry(
        template_id(number), subject_ref(person), "LR"[number % 2], MODEL_ID, palm(number).tobytes()
    )
    return replace(plain, **members)


def at(after_ms: int = 0, wall_ms: int | None = None) -> GalleryNow:
    """A moment: `after_ms` past the start of each test, on both clocks unless the wall clock is given."""
    return GalleryNow(1_000_000 + after_ms, NOW_MS + after_ms if wall_ms is None else wall_ms)


def compacted(delta: Delta) -> Delta:
    """This delta after its person was erased: the digest stays, its content goes."""
    return replace(delta, op=Op.NOOP, salt=None, entry=None, subject_ref=None)


@dataclass
class Service:
    epoch: int = 1
    stream: str = STREAM
    key: SigningKey = field(default_factory=lambda: SigningKey.from_seed(bytes(32)))
    log: list[Delta] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    live: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.heads = [head_zero(self.stream, self.epoch)]
        self._salts = random.Random(7)

    @property
    def seq(self) -> int:
        return len(self.log)

    def key_of(self, kid: str) -> PublicKey | None:
        return self.key.public if kid == self.key.kid else None

    def upsert(self, *entries: Entry) -> None:
        for one in entries:
            self._append(Op.UPSERT, entry=one)
            self.live[one.template_id] = one

    def tombstone(self, person: int) -> None:
        """As an erasure does it: the earlier deltas of the person are compacted."""
        ref = subject_ref(person)
        for place, delta in enumerate(self.log):
            about = delta.entry.subject_ref if delta.entry else delta.subject_ref
            if about == ref and delta.op is not Op.TOMBSTONE:
                self.log[place] = compacted(delta)
        self._append(Op.TOMBSTONE, subject_ref=ref)
        self.live = {key: one for key, one in self.live.items() if one.subject_ref != ref}

    def suspend(self, person: int) -> None:
        self._mark(person, Op.SUSPEND)

    def resume(self, person: int) -> None:
        self._mark(person, Op.RESUME)

    def noop(self) -> None:
        self._append(Op.NOOP)

    def head(self, seq: int | None = None, issued_at_ms: int = NOW_MS, **members: object) -> JsonObject:
        """A signed head; `members` replace its members."""
        seq = self.seq if seq is None else seq
        head = Head(self.stream, self.epoch, seq, self.heads[seq], len(self.live), issued_at_ms)
        return sign_object(Kind.GALLERY_HEAD, {**head.to_obj(), **members}, self.key)

    def deltas_obj(self, after_seq: int = 0, limit: int = 200, issued_at_ms: int = NOW_MS) -> JsonObject:
        deltas = self.log[after_seq : after_seq + limit]
        last = deltas[-1].seq if deltas else self.seq
        return {
            "head": self.head(last, issued_at_ms),
            "data": [delta_obj(delta) for delta in deltas],
            "has_more": last < self.seq,
        }

    def deltas(self, after_seq: int = 0, limit: int = 200, issued_at_ms: int = NOW_MS) -> bytes:
        return encode(self.deltas_obj(after_seq, limit, issued_at_ms))

    def snapshot_objs(self, size: int = 200, issued_at_ms: int = NOW_MS) -> list[JsonObject]:
        entries = [self.live[key].to_obj() for key in sorted(self.live)]
        state = state_of(entry_sha256(one) for one in entries)
        head = self.head(issued_at_ms=issued_at_ms, state=state.hex())
        pages = list(_batches(entries, size)) or [[]]
        return [
            {"head": head, "data": page, "next_cursor": None, "has_more": page is not pages[-1]}
            for page in pages
        ]

    def snapshot(self, size: int = 200, issued_at_ms: int = NOW_MS) -> list[bytes]:
        return [encode(page) for page in self.snapshot_objs(size, issued_at_ms)]

    def open(self, folder: Path, **members: Any) -> Gallery:
        arguments: dict[str, Any] = {
            "data_key": DATA_KEY,
            "model_id": MODEL_ID,
            "stream": self.stream,
            "epoch": 1,
            "gallery_key": self.key_of,
            "now": at(),
            "boot_id": "boot-1",
        }
        return Gallery(folder, **{**arguments, **members})

    def _mark(self, person: int, op: Op) -> None:
        ref = subject_ref(person)
        self._append(op, subject_ref=ref)
        for key, one in self.live.items():
            if one.subject_ref == ref:
                self.live[key] = replace(one, suspended=op is Op.SUSPEND)

    def _append(self, op: Op, entry: Entry | None = None, subject_ref: str | None = None) -> None:
        salt = self._salts.randbytes(16)
        delta = make_delta(self.seq + 1, op, salt=salt, entry=entry, subject_ref=subject_ref)
        self.log.append(delta)
        self.heads.append(next_head(self.heads[-1], delta.digest))


def encode(page: JsonObject) -> bytes:
    return json.dumps(page).encode()


def who(gallery: Gallery, number: int) -> str | None:
    """Whose palm `number` is, at a strict threshold."""
    match = gallery.search(palm(number)[np.newaxis])
    return match.best.subject_ref if match.best is not None and match.score > 0.9 else None


def _batches(items: list[JsonObject], size: int) -> Iterator[list[JsonObject]]:
    return (items[start : start + size] for start in range(0, len(items), size))
