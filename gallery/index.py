"""The match set in memory: coarse codes scanned by FAISS, the best few scored again exactly.

Everything here is immutable. A change makes a new `Index` that shares every untouched segment with the
old one; whoever searches keeps the one it took. (FAISS crashes when one index is added to and searched at
the same time, so nothing is ever added to an index that another thread could hold.)

One search, top to bottom, is `Index.search`: turn the probes, scan the segments, pool the best rows, score
these again with all 16 bits, reduce to distinct people, take the first two.

FAISS's kernels for `QT_8bit_direct_signed` cut the query off to integers on some processors and not on
others (faiss issue 5550). The query is therefore rounded to whole numbers here, scaled to fill −127..127:
every sum of products is then an integer below 2²⁴, which float32 holds exactly, and every processor ranks
alike. `check_scan` proves it at the start on the processor at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from gallery.codes import CODE_BYTES, Coder, decode
from gallery.errors import GalleryError, ProbeError
from gallery.seal import Template
from gallery.stream import VECTOR_LENGTH

SEGMENT_ROWS: Final = 16_384
"""Rows of a full segment. Taking one template out copies its segment: 16 MiB, a few milliseconds."""
OPEN_ROWS: Final = 1_024
"""Rows up to which small segments are always joined: a new template copies at most this many, 1 MiB."""
FIRST_K: Final = 32
"""Rows pooled from each probe. Coarse ranks err by a few places; a person has at most six templates."""
MAX_PROBES: Final = 64
"""Vectors of one search: several crops of one hand, never a bulk job."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The person of one template; `subject_ref` is 32 hex digits, `hand` is L or R."""

    subject_ref: str
    hand: str
    onboard_ref: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """The best person, their cosine, and the cosine of the best template of any other person."""

    best: Candidate | None
    score: float
    second_score: float | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Templates side by side: `numbers` (n,) int64 of their rows in the store, `people` (n, 16) uint8 of
    subject_ref, `right` (n,) bool, `onboard_refs` (n,) object, `codes` (n, 1024) uint8."""

    numbers: NDArray[np.int64]
    people: NDArray[np.uint8]
    right: NDArray[np.bool_]
    onboard_refs: NDArray[np.object_]
    codes: NDArray[np.uint8]

    @classmethod
    def of(cls, templates: Iterable[tuple[int, Template]]) -> Rows:
        """Rows out of (row number, template) pairs; holds each template only while it is copied."""
        numbers: list[int] = []
        right: list[bool] = []
        onboard_refs: list[str | None] = []
        people, codes = bytearray(), bytearray()
        for number, template in templates:
            numbers.append(number)
            right.append(template.hand == "R")
            onboard_refs.append(template.onboard_ref)
            people += template.subject_ref
            codes += template.code
        n = len(numbers)
        return cls(
            np.array(numbers, dtype=np.int64),
            np.frombuffer(people, dtype=np.uint8).reshape(n, 16),
            np.array(right, dtype=np.bool_),
            np.array(onboard_refs, dtype=object),
            np.frombuffer(codes, dtype=np.uint8).reshape(n, CODE_BYTES),
        )


class Segment:
    """Some rows with their FAISS index; never changed once made."""

    def __init__(
        self,
        *,
        numbers: NDArray[np.int64],
        people: NDArray[np.uint8],
        right: NDArray[np.bool_],
        onboard_refs: NDArray[np.object_],
        coarse: NDArray[np.uint8],
        fine: NDArray[np.int8],
    ) -> None:
        self.numbers = numbers
        self.people = people
        self.right = right
        self.onboard_refs = onboard_refs
        self.fine = fine
        self._faiss = _scan_index(coarse)

    @classmethod
    def of(cls, rows: Rows) -> Segment:
        """A segment of these rows; takes copies of what it keeps."""
        coarse = np.ascontiguousarray(rows.codes[:, :VECTOR_LENGTH])
        fine = rows.codes[:, VECTOR_LENGTH:].copy().view(np.int8)
        return cls(
            numbers=rows.numbers,
            people=rows.people,
            right=rows.right,
            onboard_refs=rows.onboard_refs,
            coarse=coarse,
            fine=fine,
        )

    @classmethod
    def joined(cls, segments: Sequence[Segment]) -> Segment:
        """The rows of several segments in one."""
        return cls(
            numbers=np.concatenate([segment.numbers for segment in segments]),
            people=np.concatenate([segment.people for segment in segments]),
            right=np.concatenate([segment.right for segment in segments]),
            onboard_refs=np.concatenate([segment.onboard_refs for segment in segments]),
            coarse=np.concatenate([segment.coarse for segment in segments]),
            fine=np.concatenate([segment.fine for segment in segments]),
        )

    def taking(self, keep: NDArray[np.bool_]) -> Segment:
        """Only the rows where `keep` is true."""
        return Segment(
            numbers=self.numbers[keep],
            people=self.people[keep],
            right=self.right[keep],
            onboard_refs=self.onboard_refs[keep],
            coarse=self.coarse[keep],
            fine=self.fine[keep],
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def coarse(self) -> NDArray[np.uint8]:
        """(n, 512) uint8: a view into the memory of the FAISS index, valid while this segment lives."""
        n = len(self)
        view: NDArray[np.uint8] = faiss.rev_swig_ptr(self._faiss.codes.data(), n * VECTOR_LENGTH)
        return view.reshape(n, VECTOR_LENGTH)

    def scan(self, whole: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Coarse scores and places of the best `k` rows for each of the probes, (p, 512) of whole numbers."""
        scores, places = self._faiss.search(whole, min(k, len(self)))
        return scores, places

    def exact(self, places: NDArray[np.int64], turned: NDArray[np.float32]) -> NDArray[np.float32]:
        """The best cosine of each of these rows with any of the turned probes."""
        cosines = decode(self.coarse[places], self.fine[places]) @ turned.T
        best: NDArray[np.float32] = np.clip(cosines.max(axis=1), -1.0, 1.0)
        return best

    def candidate(self, place: int) -> Candidate:
        """The person of one row."""
        return Candidate(
            self.people[place].tobytes().hex(),
            "R" if self.right[place] else "L",
            self.onboard_refs[place],
        )


@dataclass(frozen=True, slots=True)
class Index:
    """A match set as of one moment; search it from any thread."""

    coder: Coder
    segments: tuple[Segment, ...] = ()

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def without(self, numbers: NDArray[np.int64]) -> Index:
        """The index without the rows of these numbers; nothing of them stays in its memory."""
        kept = []
        for segment in self.segments:
            keep = ~np.isin(segment.numbers, numbers)
            if keep.all():
                kept.append(segment)
            elif keep.any():
                kept.append(segment.taking(keep))
        return Index(self.coder, _tidied(kept))

    def with_rows(self, rows: Rows) -> Index:
        """The index with these rows as well; their numbers must not be in it yet."""
        segments = list(self.segments)
        for start in range(0, len(rows.numbers), SEGMENT_ROWS):
            cut = slice(start, start + SEGMENT_ROWS)
            fresh = Rows(
                rows.numbers[cut], rows.people[cut], rows.right[cut], rows.onboard_refs[cut], rows.codes[cut]
            )
            segments.append(Segment.of(fresh))
        return Index(self.coder, _tidied(segments))

    def search(self, probes: NDArray[np.float32]) -> Found:
        """Search with several vectors of one hand; a person's score is the best of any probe and template.

        `probes` is (n, 512) float32, 1 to 64 finite vectors of any length but 0. Scores are cosines,
        −1..1. Raises ProbeError.
        """
        turned = self.coder.turn(_checked(probes))
        # Threads are a property of the calling thread in OpenMP, and one query is slower with more.
        faiss.omp_set_num_threads(1)
        k = FIRST_K
        while True:
            found, scored = self._search(turned, k)
            if found.second_score is not None or scored >= len(self):
                return found
            k *= 4  # One person holds all the rows that were pooled: look further for a second one.

    def _search(self, turned: NDArray[np.float32], k: int) -> tuple[Found, int]:
        """One try with `k` rows pooled from each probe; says also how many rows were scored exactly."""
        whole = np.rint(turned * (127.0 / np.abs(turned).max(axis=1, keepdims=True))).astype(np.float32)
        pooled = _pooled([segment.scan(whole, k) for segment in self.segments], k)
        if not pooled:
            return Found(None, 0.0, None), 0
        score = np.concatenate([self.segments[number].exact(places, turned) for number, places in pooled])
        person = np.concatenate([self.segments[number].people[places] for number, places in pooled])
        best = int(score.argmax())
        others = (person != person[best]).any(axis=1)
        second = float(score[others].max()) if others.any() else None
        rows = [(number, int(place)) for number, places in pooled for place in places]
        number, place = rows[best]
        return Found(self.segments[number].candidate(place), float(score[best]), second), len(rows)


def batched(templates: Iterator[tuple[int, Template]], size: int = SEGMENT_ROWS) -> Iterator[Rows]:
    """A long run of templates as rows, at most `size` at a time."""
    while len((rows := Rows.of(islice(templates, size))).numbers):
        yield rows


def simd_level() -> str:
    """The vector instructions FAISS uses here; "NONE" means searches that are 13 to 24 times slower."""
    return str(faiss.SIMDConfig.get_level_name())


def check_scan() -> None:
    """Compare FAISS with plain integer arithmetic on this processor. Raises GalleryError."""
    rng = np.random.default_rng(5)
    codes = rng.integers(1, 256, size=(64, VECTOR_LENGTH), dtype=np.uint8)
    query = rng.integers(-127, 128, size=(1, VECTOR_LENGTH)).astype(np.float32)
    faiss.omp_set_num_threads(1)
    scores, places = _scan_index(codes).search(query, 8)
    exact = (codes.astype(np.int64) - 128) @ query[0].astype(np.int64)
    best = np.argsort(-exact, kind="stable")[:8]
    if places[0].tolist() != best.tolist() or scores[0].tolist() != exact[best].tolist():
        raise GalleryError(
            f"FAISS {faiss.__version__} ({simd_level()}) computes wrong inner products on this processor; "
            "install the pinned version of faiss-cpu, or set FAISS_SIMD_LEVEL to a lower level"
        )


def _scan_index(coarse: NDArray[np.uint8]) -> Any:
    index = faiss.IndexScalarQuantizer(
        VECTOR_LENGTH, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
    )
    index.add_sa_codes(coarse)
    return index


def _pooled(
    scans: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], k: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """The best `k` rows over all segments for each probe: (segment number, places in it, each once)."""
    if not scans:
        return []
    scores = np.hstack([scores for scores, _ in scans])
    places = np.hstack([places for _, places in scans])
    owner = np.repeat(np.arange(len(scans)), [places.shape[1] for _, places in scans])
    if scores.shape[1] > k:
        first = np.argpartition(scores, -k, axis=1)[:, -k:]
        owner, places = owner[first], np.take_along_axis(places, first, axis=1)
    else:
        owner = np.broadcast_to(owner, places.shape)
    return [(int(number), np.unique(places[owner == number])) for number in np.unique(owner)]


def _tidied(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Merge neighbours while that keeps the number of segments low without copying large ones often."""
    tidy: list[Segment] = []
    for segment in segments:
        tidy.append(segment)
        while len(tidy) > 1 and _worth_joining(len(tidy[-2]), len(tidy[-1])):
            last = tidy.pop()
            tidy[-1] = Segment.joined((tidy[-1], last))
    return tuple(tidy)


def _worth_joining(before: int, after: int) -> bool:
    # Sizes fall by half from one neighbour to the next, as in a binary counter: each row is copied a
    # logarithmic number of times, and few segments are ever far from full.
    both = before + after
    return both <= OPEN_ROWS or (both <= SEGMENT_ROWS and before < 2 * after)


def _checked(probes: NDArray[np.float32]) -> NDArray[np.float32]:
    if probes.ndim != 2 or probes.shape[1] != VECTOR_LENGTH or not 1 <= len(probes) <= MAX_PROBES:
        raise ProbeError(f"expected 1 to {MAX_PROBES} probes of 512 values, found shape {probes.shape}")
    lengths = np.linalg.norm(probes.astype(np.float64), axis=1)
    if not (np.isfinite(lengths).all() and lengths.min() > 0.0):
        raise ProbeError("expected finite probe vectors that have a direction")
    return probes.astype(np.float32, copy=False)
