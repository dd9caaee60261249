"""Figures of the gallery, measured: `python -m tools.rig.bench.gallery [TEMPLATES [HANDS]]` prints them.

Templates are random directions: for time and memory only their number matters, and separating the best
of N random scores is the hardest question an index can get.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from gallery.codes import Coder
from gallery.freshness import GalleryNow, HeldTime
from gallery.gallery import Gallery
from gallery.index import simd_level
from gallery.population import MOST_ROWS
from gallery.products import exact_products
from gallery.records import Held, Position
from gallery.seal import Sealer, Template
from gallery.store import Store
from gallery.stream import VECTOR_LENGTH
from tools.rig.gallery_scoring import scoring_among

_STREAM = "bench"
_MODEL_ID = "bench-model"
_TEMPLATES_A_PERSON = 2
_SAME_SCORE = 1e-4
_SEARCHES = 200


@dataclass(frozen=True, slots=True)
class GalleryFigures:
    """Times in milliseconds, one thread. `flat_*` is FAISS's IndexFlatIP over the same vectors, same run.

    `open_ms` is reading, opening the seals and building the match set. `memory_bytes` (in memory, grown by
    opening) and `disk_bytes` are for each template. `cosine_error` is the largest difference of a score or a
    margin from the exact search's, and `other_answers` how many of `searches` named another person than the
    exact search did. `many_ms` is one search with 48 probes of one hand, more than a stranger costs it, and
    `one_by_one_ms` 48 searches with one each. `many_other_answers` counts, of `many_searches` with 48 probes,
    those that named another person; `many_cosine_error` is the error of their scores and margins.
    """

    templates: int
    simd_level: str
    open_ms: float
    memory_bytes: float
    disk_bytes: float
    searches: int
    search_p50_ms: float
    search_p99_ms: float
    flat_p50_ms: float
    flat_p99_ms: float
    speedup_p50: float
    many_ms: float
    one_by_one_ms: float
    many_searches: int
    many_other_answers: int
    many_cosine_error: float
    cosine_error: float
    other_answers: int


def random_templates(count: int, seed: int = 1) -> NDArray[np.float32]:
    """(count, 512) float32 of length 1."""
    vectors = np.random.default_rng(seed).standard_normal((count, VECTOR_LENGTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def fill_store(folder: Path, data_key: bytes, vectors: NDArray[np.float32]) -> None:
    """Write a store that holds these vectors, two to a person, as a snapshot would have left it."""
    sealer = Sealer(data_key)
    coder = Coder(sealer.sign_bits)
    store = Store(folder, sealer)
    with store.transaction():
        for start in range(0, len(vectors), 4096):
            codes = coder.encode(vectors[start : start + 4096])
            for number, code in enumerate(codes, start):
                person = (number // _TEMPLATES_A_PERSON).to_bytes(16, "big")
                hand = "LR"[number % 2]
                template_id = number.to_bytes(16, "big")
                store.put(1, Template(template_id, person, hand, _MODEL_ID, None, False, code.tobytes()), 0)
        held = Held(Position.start(_STREAM, 1), 1, len(vectors), HeldTime("", 0))
        store.save_state("held", 0, held.to_obj())
    store.close()


def open_filled(folder: Path, data_key: bytes) -> Gallery:
    """The gallery over a store that `fill_store` wrote."""
    return Gallery(
        folder,
        data_key=data_key,
        model_id=_MODEL_ID,
        stream=_STREAM,
        epoch=1,
        gallery_key=lambda _kid: None,
        now=GalleryNow(0, 0),
    )


def measure(count: int, many: int) -> GalleryFigures:
    """Measure a gallery of `count` templates, 1.4 KiB of disk each, with `many` hands of 48 probes."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "gallery"
        data_key = os.urandom(32)
        vectors = random_templates(count)
        fill_store(place, data_key, vectors)
        exact_products()  # the runtime is in palmd's memory already, whatever the number of templates
        before = own_bytes()
        started = time.perf_counter()
        gallery = open_filled(place, data_key)
        open_ms = (time.perf_counter() - started) * 1e3
        memory_bytes = (own_bytes() - before) / count
        disk_bytes = sum(file.stat().st_size for file in place.iterdir()) / count
        probes = _probes(vectors, _SEARCHES)
        gallery_ms = _times_ms(gallery.search, probes)
        hands = _hands(probes, many)
        many_ms = float(np.median(_times_ms(gallery.search, hands)))
        coder = Coder(Sealer(data_key).sign_bits)
        error, other = _compare(gallery, coder, vectors, probes)
        many_error, many_other = _compare(gallery, coder, vectors, hands)
        gallery.close()
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexFlatIP(VECTOR_LENGTH)
    flat.add(vectors)
    flat_ms = _times_ms(lambda probe: flat.search(probe, 2), probes)
    search_p50, search_p99 = np.percentile(gallery_ms, (50, 99))
    flat_p50, flat_p99 = np.percentile(flat_ms, (50, 99))
    return GalleryFigures(
        templates=count,
        simd_level=simd_level(),
        open_ms=open_ms,
        memory_bytes=memory_bytes,
        disk_bytes=disk_bytes,
        searches=_SEARCHES,
        search_p50_ms=float(search_p50),
        search_p99_ms=float(search_p99),
        flat_p50_ms=float(flat_p50),
        flat_p99_ms=float(flat_p99),
        speedup_p50=float(flat_p50 / search_p50),
        many_ms=many_ms,
        one_by_one_ms=48 * float(search_p50),
        many_searches=len(hands),
        many_other_answers=many_other,
        many_cosine_error=many_error,
        cosine_error=error,
        other_answers=other,
    )


def _probes(vectors: NDArray[np.float32], searches: int) -> list[NDArray[np.float32]]:
    """Half of them near some template (cosine about 0.6, a hard mated case), half near none."""
    strange = random_templates(searches, seed=2)
    mated = vectors[np.random.default_rng(3).integers(0, len(vectors), searches)]
    near = 0.6 * mated + 0.8 * strange
    return [(near if number % 2 else strange)[number : number + 1] for number in range(searches)]


def _hands(probes: list[NDArray[np.float32]], count: int) -> list[NDArray[np.float32]]:
    """48 probes each, as crops of one hand are: near one of `probes`, in directions of their own."""
    hands = []
    for number in range(count):
        crops = probes[number % len(probes)] + 0.75 * random_templates(48, seed=100 + number)
        hands.append(np.asarray(crops / np.linalg.norm(crops, axis=1, keepdims=True), dtype=np.float32))
    return hands


def _times_ms(
    search: Callable[[NDArray[np.float32]], object], probes: list[NDArray[np.float32]]
) -> list[float]:
    for probe in probes[:5]:
        search(probe)
    times = []
    for probe in probes:
        started = time.perf_counter()
        search(probe)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def _compare(
    gallery: Gallery, coder: Coder, vectors: NDArray[np.float32], probes: list[NDArray[np.float32]]
) -> tuple[float, int]:
    """Largest error of a score or margin, and how many answers name a person who is not the nearest by
    exact search.

    Two people whose exact scores are the same in the unit of `score_q` are equally near.
    """
    largest, other = 0.0, 0
    scoring = scoring_among(vectors[:MOST_ROWS], coder)  # the rows of a store in their order
    mapped = scoring.units(vectors)
    for probe in probes:
        match = gallery.search(probe)
        scores = scoring.scores(mapped, scoring.units(probe)).max(axis=1)
        people = np.pad(scores, (0, -len(scores) % _TEMPLATES_A_PERSON), constant_values=-1.0)
        each = people.reshape(-1, _TEMPLATES_A_PERSON).max(axis=1)
        second, first = np.partition(each, -2)[-2:].tolist()
        margin = 0.0 if match.margin is None else match.margin
        largest = max(largest, abs(match.score - first), abs(margin - (first - second)))
        nearest = np.flatnonzero(each > first - _SAME_SCORE)
        other += match.best is None or int(match.best.subject_ref, 16) not in nearest
    return largest, other


def own_bytes() -> int:
    """Memory of this process alone: how much of a library's file is in memory, the kernel decides."""
    resident, shared = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    figures: dict[str, Any] = asdict(
        measure(given[0] if given else 100_000, given[1] if len(given) > 1 else 50)
    )
    print(json.dumps(figures, indent=2))
