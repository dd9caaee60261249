"""The match set in memory: coarse codes scanned by FAISS, and the number of each one's row in the store.

A template's person and its fine code stay on the disk. One search, top to bottom, is `Index.search`: turn
the probes, subtract what all palms have in common (`gallery.population`), scan the segments, pool the
best rows, have these read from the disk, score them with all 16 bits, reduce to distinct people, take the
first two. Of the coarse scores nothing but the choice of rows is used: both bytes of a score come out of one
sealed row, with the person they are of.

Everything here is immutable. A change makes a new `Index` that shares every untouched segment with the
old one; a running search keeps the one it took. (FAISS crashes when one index is added to and searched at
the same time, so nothing is ever added to an index that another thread could hold.)

FAISS's kernels for `QT_8bit_direct_signed` cut the query off to integers on some processors and not on
others (faiss issue 5550). The query is therefore rounded to whole numbers here, scaled to fill −127..127 (or
the range of `gallery.products`): every sum of products is then an integer below 2²⁴, which float32 holds
exactly, and every processor ranks alike. `check_scan` proves it at the start on the processor at hand.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import faiss
import numpy as np
from numpy.typing import NDArray

from gallery.codes import COARSE_UNITS, CODE_BYTES, Coder, decode, rows_of
from gallery.errors import GalleryError, ProbeError
from gallery.population import Likeness, Population
from gallery.products import FROM_PROBES, QUERY_MOST, best_rows, exact_products
from gallery.records import Position
from gallery.seal import Template, coarse_codes
from gallery.stream import VECTOR_LENGTH

CoarseRows = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Row numbers (n,), each once, with their coarse codes (n, 512)."""

ReadRows = Callable[[NDArray[np.int64]], Sequence[Template]]
"""From row numbers, each once, to the templates of all of them in any order; raises where one is missing."""

SEGMENT_ROWS: Final = 16_384
"""Rows of a full segment. Taking one template out copies its segment: 8 MiB, a few milliseconds."""
OPEN_ROWS: Final = 1_024
"""Rows up to which small segments are always joined: a new template copies at most this many, 512 KiB."""
FIRST_K: Final = 16
"""Rows pooled from each probe. Coarse ranks err by a few places; a person has at most six templates."""
MAX_PROBES: Final = 64
"""Vectors of one search: several crops of one hand, never a bulk job."""
_FAISS_QUERY_MOST: Final = 127
"""The whole numbers of a query of FAISS are from −127 to 127."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The person of one template; `subject_ref` is 32 hex digits, `hand` is L or R."""

    subject_ref: str
    hand: str
    onboard_ref: str | None


@dataclass(frozen=True, slots=True)
class Match:
    """The answer to one search, and the position of the gallery that gave it.

    `score` is a cosine, −1..1, and 0.0 when nothing was scored (then `best` is None). `margin` is the lead
    over the best other person, None when there is none. `probe` is the row of the probes that was nearest.
    """

    best: Candidate | None
    score: float
    margin: float | None
    position: Position
    probe: int = 0


def joined(first: Match, second: Match, rows: int) -> Match:
    """The answer to the probes of two searches at one position, where `rows` probes were in the first.

    Nothing is scanned again: the second person of both is the first or the second of one of them.
    """
    ahead, behind = first, replace(second, probe=rows + second.probe)
    if behind.score > ahead.score:
        ahead, behind = behind, ahead
    if ahead.best is None or behind.best is None:
        return behind if ahead.best is None else ahead
    others = [m.score - m.margin for m in (ahead, behind) if m.margin is not None]
    if behind.best.subject_ref != ahead.best.subject_ref:
        others.append(behind.score)
    return replace(ahead, margin=ahead.score - max(others) if others else None)


class Segment:
    """Some rows: their numbers in the store, (n,) int64, and their FAISS index; never changed once made."""

    def __init__(self, numbers: NDArray[np.int64], coarse: NDArray[np.uint8]) -> None:
        """`coarse` is (n, 512) uint8, of which a copy is made."""
        self.numbers = numbers
        self._faiss = _scan_index(coarse)

    @classmethod
    def joined(cls, segments: Sequence["Segment"]) -> "Segment":
        """The rows of several segments in one."""
        return cls(
            np.concatenate([segment.numbers for segment in segments]),
            np.concatenate([segment.coarse for segment in segments]),
        )

    def taking(self, keep: NDArray[np.bool_]) -> "Segment":
        """Only the rows where `keep` is true."""
        with rows_of(self.coarse, keep) as coarse:
            return Segment(self.numbers[keep], coarse)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def coarse(self) -> NDArray[np.uint8]:
        """(n, 512) uint8: a view into the memory of the FAISS index, valid while this segment lives."""
        n = len(self)
        view: NDArray[np.uint8] = faiss.rev_swig_ptr(self._faiss.codes.data(), n * VECTOR_LENGTH)
        return view.reshape(n, VECTOR_LENGTH)

    def scan(self, whole: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Coarse scores and row numbers of the best `k` for each of the probes, (p, 512) of whole numbers."""
        scores, places = self._faiss.search(whole, min(k, len(self)))
        return scores, self.numbers[places]


@dataclass(frozen=True, slots=True)
class Index:
    """A match set as of one moment; search it from any thread."""

    coder: Coder
    segments: tuple[Segment, ...] = ()
    population: Population = field(default_factory=Population)

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def without(self, numbers: NDArray[np.int64]) -> "Index":
        """The index without the rows of these numbers; nothing of them stays in its memory."""
        kept, population = [], self.population
        for segment in self.segments:
            keep = ~np.isin(segment.numbers, numbers)
            if keep.all():
                kept.append(segment)
                continue
            with rows_of(segment.coarse, ~keep) as gone:
                population = population.without_rows(segment.numbers[~keep], gone)
            if keep.any():
                kept.append(segment.taking(keep))
        return Index(self.coder, _tidied(kept), population)

    def with_templates(self, templates: Iterable[tuple[int, Template]]) -> "Index":
        """The index with these (row number, template) as well; the numbers must not be in it yet."""
        added, population = list(templates), self.population
        runs = [added[start : start + SEGMENT_ROWS] for start in range(0, len(added), SEGMENT_ROWS)]
        for segment in (segments := [_segment(run) for run in runs]):
            population = population.with_rows(segment.numbers, segment.coarse)
        return self._with(segments, population)

    def with_rows(self, rows: Iterable[CoarseRows]) -> "Index":
        """The same for rows as they come from the store: a piece is copied before the next is asked for."""
        segments = []
        # Its sums are products of matrices, which hold no lock of Python's: they take no time of the reading.
        with ThreadPoolExecutor(1, "gallery-sums") as thread:
            population = thread.submit(lambda: self.population)
            for segment in _segments(rows):
                segments.append(segment)
                population = thread.submit(_summed, population, segment)
            return self._with(segments, population.result())

    def _with(self, segments: Sequence[Segment], population: Population) -> "Index":
        _ = population.likeness  # worked out by who changes the index, and not by who searches it first
        return Index(self.coder, _tidied([*self.segments, *segments]), population)

    def search(self, probes: NDArray[np.float32], read: ReadRows, position: Position) -> Match:
        """Search with several vectors of one hand; a person's score is the best of any probe and template.

        `probes` is (n, 512) float32, 1 to 64 finite vectors of any length but 0. Scores are those of
        `Likeness`, −1..1. `position` is that of the rows. Raises ProbeError, and what `read` raises.
        """
        likeness = self.population.likeness
        units = likeness.units(self.coder.turn(_checked(probes)))
        queries = likeness.queries(units)
        # Threads are a property of the calling thread in OpenMP, and one query is slower with more.
        faiss.omp_set_num_threads(1)
        k = FIRST_K
        while True:
            numbers = self._pooled(queries, k)
            found = Match(None, 0.0, None, position)
            if len(numbers):
                found = _best(read(numbers), units, likeness, position)
            if found.margin is not None or len(numbers) >= len(self):
                return found
            k *= 4  # One person holds all the rows that were pooled: look further for a second one.

    def _pooled(self, queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """The numbers of the best `k` rows for each query by their coarse codes, each once."""
        if not len(self):
            return np.empty(0, dtype=np.int64)
        products = exact_products() if len(queries) >= FROM_PROBES else None
        most = np.float32(_FAISS_QUERY_MOST if products is None else QUERY_MOST)
        scale = np.abs(queries).max(axis=1) / most
        whole = np.rint(queries / scale[:, np.newaxis]).astype(np.float32)
        if products is not None:
            segments = [(segment.numbers, segment.coarse) for segment in self.segments]
            zero = whole @ (self.population.likeness.mean * np.float32(COARSE_UNITS))
            return best_rows(products, segments, whole, scale=scale, zero=zero, k=k)
        scans = [segment.scan(whole, k) for segment in self.segments]
        scores = np.hstack([scores for scores, _ in scans])
        numbers = np.hstack([numbers for _, numbers in scans])
        if scores.shape[1] > k:
            first = np.argpartition(scores, -k, axis=1)[:, -k:]
            numbers = np.take_along_axis(numbers, first, axis=1)
        return np.unique(numbers)


def simd_level() -> str:
    """The vector instructions FAISS uses here; "NONE" means searches that are 13 to 24 times slower."""
    return str(faiss.SIMDConfig.get_level_name())


def check_scan() -> None:
    """Compare FAISS with plain integer arithmetic on this processor. Raises GalleryError."""
    exact_products()  # made at the start, and not for the first stranger
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


def _best(
    templates: Sequence[Template], units: NDArray[np.float32], likeness: Likeness, position: Position
) -> Match:
    """The first two people among these templates, at least one, by their exact scores with any probe."""
    codes = np.frombuffer(b"".join(template.code for template in templates), dtype=np.uint8)
    codes = codes.reshape(-1, CODE_BYTES)
    held = likeness.units(decode(codes[:, :VECTOR_LENGTH], codes[:, VECTOR_LENGTH:].view(np.int8)))
    each = likeness.scores(held, units)
    probes = each.argmax(axis=1).tolist()
    scores = np.clip(each.max(axis=1), -1.0, 1.0).tolist()
    score, best, probe = max(zip(scores, templates, probes, strict=True), key=lambda scored: scored[0])
    others = [
        other
        for other, template in zip(scores, templates, strict=True)
        if template.subject_ref != best.subject_ref
    ]
    candidate = Candidate(best.subject_ref.hex(), best.hand, best.onboard_ref)
    margin = score - max(others) if others else None
    return Match(candidate, score, margin, position, probe)


def _summed(before: Future[Population], segment: Segment) -> Population:
    return before.result().with_rows(segment.numbers, segment.coarse)


def _segment(templates: Sequence[tuple[int, Template]]) -> Segment:
    numbers = np.array([number for number, _ in templates], dtype=np.int64)
    return Segment(numbers, coarse_codes([template.code for _, template in templates]))


def _segments(rows: Iterable[CoarseRows]) -> Iterator[Segment]:
    """Full segments, and what is left."""
    # Not lists of pieces: memory that is asked for and given back costs as much as the copies themselves.
    held = 0
    numbers = np.empty(SEGMENT_ROWS, dtype=np.int64)
    coarse = np.empty((SEGMENT_ROWS, VECTOR_LENGTH), dtype=np.uint8)
    for new_numbers, new_coarse in rows:
        done = 0
        while done < len(new_numbers):
            taken = min(len(new_numbers) - done, SEGMENT_ROWS - held)
            numbers[held : held + taken] = new_numbers[done : done + taken]
            coarse[held : held + taken] = new_coarse[done : done + taken]
            held, done = held + taken, done + taken
            if held == SEGMENT_ROWS:
                yield Segment(numbers.copy(), coarse)
                held = 0
    if held:
        yield Segment(numbers[:held].copy(), coarse[:held])


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
