"""The match set against arithmetic done the long way."""

import threading
from collections.abc import Iterator

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gallery import index as index_module
from gallery.codes import Coder, decode
from gallery.errors import GalleryError, ProbeError
from gallery.index import FIRST_K, MAX_PROBES, Index, Match, check_scan, joined
from gallery.products import FROM_PROBES, QUERY_MOST, best_rows, exact_products
from gallery.records import Position
from gallery.seal import Template
from tests.gallery.gallery_service import exact_scores

CODER = Coder(bytes(range(64)))
COSINE_ERROR = 5e-5
"""Half a unit of score_q."""


def unit(rng: np.random.Generator, n: int) -> NDArray[np.float32]:
    vectors = rng.standard_normal((n, 512)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


HERE = Position("s", 1, 1, bytes(32))


class Rows(dict[int, Template]):
    """A store in memory: templates by the number of their row."""

    def put(
        self, vectors: NDArray[np.float32], people: NDArray[np.int64], first: int = 0
    ) -> Iterator[tuple[int, Template]]:
        for number, (person, code) in enumerate(zip(people, CODER.encode(vectors), strict=True), first):
            self[number] = Template(
                bytes(16), int(person).to_bytes(16, "big"), "LR"[number % 2], "m", None, False, code.tobytes()
            )
            yield number, self[number]

    def found(self, index: Index, probes: NDArray[np.float32]) -> Match:
        return index.search(probes, lambda numbers: [self[number] for number in numbers.tolist()], HERE)


def searched(vectors: NDArray[np.float32], people: NDArray[np.int64], probes: NDArray[np.float32]) -> Match:
    rows = Rows()
    return rows.found(Index(CODER).with_templates(rows.put(vectors, people)), probes)


def exact(
    vectors: NDArray[np.float32], people: NDArray[np.int64], probes: NDArray[np.float32]
) -> tuple[int, float, float | None]:
    """Best person, their score, the best other's score."""
    scores = exact_scores(CODER, vectors, probes).max(axis=1)
    best = people[scores.argmax()]
    others = scores[people != best]
    return int(best), float(scores.max()), float(others.max()) if len(others) else None


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 60), st.integers(1, 5))
def test_searches_agree_with_exact_ones(seed: int, n: int, crowd: int, probe_count: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, people = unit(rng, n), rng.integers(0, crowd, n)
    probes = unit(rng, probe_count) * rng.uniform(0.1, 9.0, (probe_count, 1)).astype(np.float32)
    if seed % 2:
        probes[0] = vectors[seed % n] + 0.6 * probes[0] / np.linalg.norm(probes[0])
    found = searched(vectors, people, probes)
    person, score, second = exact(vectors, people, probes)
    assert found.best is not None
    assert abs(found.score - score) < COSINE_ERROR
    if second is None:
        assert found.margin is None
    else:
        assert found.margin is not None
        assert abs(found.score - found.margin - second) < COSINE_ERROR
    if second is None or score - second > 2 * COSINE_ERROR:
        assert int(found.best.subject_ref, 16) == person
    _, by_that_probe, _ = exact(vectors, people, probes[found.probe : found.probe + 1])
    assert abs(by_that_probe - score) < 2 * COSINE_ERROR


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 6000), st.integers(FROM_PROBES, MAX_PROBES))
def test_many_probes_in_one_pass_choose_the_rows_that_arithmetic_chooses(
    seed: int, n: int, probes: int
) -> None:
    """Where two rows at the edge have one score, either may be chosen."""
    rng = np.random.default_rng(seed)
    numbers, codes = rng.permutation(n), rng.integers(1, 256, (n, 512), dtype=np.uint8)
    shared = rng.integers(-QUERY_MOST, QUERY_MOST + 1, 512)
    whole = np.clip(shared + rng.integers(-40, 41, (probes, 512)), -QUERY_MOST, QUERY_MOST).astype(np.float32)
    scale, zero = rng.uniform(0.5, 1.5, probes), rng.integers(-500, 500, probes)
    products = exact_products()
    assert products is not None
    cut = n // 3
    segments = [(numbers[:cut], codes[:cut]), (numbers[cut:], codes[cut:])]
    chosen = best_rows(
        products, segments, whole, scale=scale.astype(np.float32), zero=zero.astype(np.float32), k=FIRST_K
    )
    assert sorted(set(chosen.tolist())) == chosen.tolist()
    exact = ((codes.astype(np.int64) - 128) @ whole.T.astype(np.int64) - zero) * scale.astype(np.float32)
    likeness = np.empty_like(exact)
    likeness[numbers] = exact
    each = np.sort(exact, axis=0)[-FIRST_K:]  # of each query at most this many
    edge = np.sort(each, axis=None)[-8 * FIRST_K :][0]
    tolerance = 1e-3 * abs(edge) + 1e-3
    of_chosen = np.zeros(n, dtype=bool)
    of_chosen[chosen] = True
    entitled = likeness >= each[0]
    assert not (entitled & (likeness > edge + tolerance)).any(axis=1)[~of_chosen].any()
    assert (entitled & (likeness >= edge - tolerance)).any(axis=1)[of_chosen].all()


def test_a_processor_without_exact_8_bit_sums_finds_the_same_person(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    vectors, people = unit(rng, 3_000), np.arange(3_000) // 2
    rows = Rows()
    index = Index(CODER).with_templates(rows.put(vectors, people))
    probes = vectors[rng.integers(0, 3_000, 24)] + 0.02 * unit(rng, 24)
    by_products = rows.found(index, probes)
    monkeypatch.setattr(index_module, "exact_products", lambda: None)
    found = rows.found(index, probes)
    assert (found.best, found.probe) == (by_products.best, by_products.probe)
    assert found.score == pytest.approx(by_products.score, abs=1e-6)  # float32 sums of another pool of rows


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(0, 60),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
)
def test_two_searches_joined_are_one_search(
    seed: int, n: int, crowd: int, first: int, second: int, known: bool
) -> None:
    rng = np.random.default_rng(seed)
    vectors, people, probes = unit(rng, n), rng.integers(0, crowd, n), unit(rng, first + second)
    if known and n:
        probes[seed % len(probes)] = vectors[seed % n]

    def match(part: NDArray[np.float32]) -> Match:
        return searched(vectors, people, part)

    both = joined(match(probes[:first]), match(probes[first:]), first)
    once = match(probes)
    assert (both.best, both.position) == (once.best, once.position)
    assert both.score == pytest.approx(once.score, abs=1e-6)
    assert both.margin == (None if once.margin is None else pytest.approx(once.margin, abs=1e-6))
    assert n == 0 or both.probe == once.probe


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 90), min_size=1, max_size=25))
def test_any_course_of_changes_leaves_what_it_should(seed: int, sizes: list[int]) -> None:
    """With tiny segments, so that all of them are split, joined and emptied many times over."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "SEGMENT_ROWS", 64)
        patch.setattr(index_module, "OPEN_ROWS", 8)
        index, rows, held, number = Index(CODER), Rows(), {}, 0
        for size in sizes:
            vectors = unit(rng, size)
            index = index.with_templates(rows.put(vectors, np.arange(number, number + size), number))
            held.update({number + k: vectors[k] for k in range(size)})
            number += size
            gone = rng.permutation(np.fromiter(held, dtype=np.int64))[: rng.integers(0, len(held) + 1)]
            index = index.without(gone)
            for one in gone:
                del held[int(one)]
            assert len(index) == len(held)
            assert all(len(segment) <= 64 for segment in index.segments)
            assert len(index.segments) <= 3 + len(held) // 8
        assert sorted(int(n) for s in index.segments for n in s.numbers) == sorted(held)
        for one, vector in list(held.items())[:20]:
            found = rows.found(index, vector[np.newaxis])
            assert found.best is not None
            assert int(found.best.subject_ref, 16) == one
            assert found.score > 0.9999


def test_an_old_view_answers_as_before() -> None:
    rng = np.random.default_rng(1)
    vectors = unit(rng, 40)
    rows = Rows()
    old = Index(CODER).with_templates(rows.put(vectors, np.arange(40)))
    new = old.without(np.arange(20)).with_templates(rows.put(unit(rng, 10), np.arange(100, 110), 100))
    assert len(old) == 40
    assert len(new) == 30
    assert rows.found(old, vectors[:1]).score > 0.9999
    assert rows.found(new, vectors[:1]).score < 0.5


def test_a_person_with_very_many_templates_does_not_hide_the_second_one() -> None:
    rng = np.random.default_rng(2)
    near = unit(rng, 1) + 0.01 * unit(rng, 300)
    vectors = np.vstack([near / np.linalg.norm(near, axis=1, keepdims=True), unit(rng, 200)]).astype(
        np.float32
    )
    people = np.r_[np.zeros(300, dtype=int), np.ones(200, dtype=int)]
    found = searched(vectors, people, near[:1].astype(np.float32))
    _, score, second = exact(vectors, people, near[:1])
    assert second is not None
    assert found.margin is not None
    assert abs(found.score - score) < COSINE_ERROR
    assert abs(found.score - found.margin - second) < COSINE_ERROR


def test_of_an_empty_set_nothing_is_found() -> None:
    found = Rows().found(Index(CODER), unit(np.random.default_rng(3), 2))
    assert (found.best, found.score, found.margin) == (None, 0.0, None)


@pytest.mark.parametrize(
    "probes",
    [
        np.zeros((1, 512), np.float32),
        np.full((1, 512), np.nan, np.float32),
        np.full((1, 512), np.inf, np.float32),
        np.ones((0, 512), np.float32),
        np.ones((MAX_PROBES + 1, 512), np.float32),
        np.ones((1, 511), np.float32),
        np.ones(512, np.float32),
    ],
)
def test_probes_that_are_none(probes: NDArray[np.float32]) -> None:
    with pytest.raises(ProbeError):
        Rows().found(Index(CODER), probes)


def test_codes_are_exact_to_a_few_millionths() -> None:
    vectors = unit(np.random.default_rng(4), 200)
    codes = CODER.encode(vectors)
    turned = decode(codes[:, :512], codes[:, 512:].view(np.int8))
    assert np.abs(turned - CODER.turn(vectors)).max() < 1.2e-5
    assert np.abs(turned @ turned.T - vectors @ vectors.T).max() < COSINE_ERROR


def test_vectors_made_of_few_components_are_coded_as_well_as_others() -> None:
    vectors = np.eye(512, dtype=np.float32)[:50]
    codes = CODER.encode(vectors)
    turned = decode(codes[:, :512], codes[:, 512:].view(np.int8))
    assert np.abs(turned @ turned.T - np.eye(50)).max() < COSINE_ERROR


def test_the_scan_is_checked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_scan()

    def wrong(_index: object, _query: object, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return np.zeros((1, k), np.float32), np.arange(k)[np.newaxis]

    monkeypatch.setattr(faiss.IndexScalarQuantizer, "search", wrong)
    with pytest.raises(GalleryError, match="FAISS"):
        check_scan()


def test_long_runs_come_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SEGMENT_ROWS", 64)
    monkeypatch.setattr(index_module, "OPEN_ROWS", 8)
    templates = Rows().put(unit(np.random.default_rng(5), 150), np.arange(150))
    index = Index(CODER).with_templates(templates)
    assert [len(segment) for segment in index.segments] == [64, 64, 22]
    for segment in index.segments:
        assert segment.numbers.base is None  # keeps nothing else alive


def test_searching_while_it_changes_neither_waits_nor_crashes() -> None:
    rng = np.random.default_rng(6)
    vectors = unit(rng, 3000)
    rows = Rows()
    current = [Index(CODER).with_templates(rows.put(vectors, np.arange(3000)))]
    done, wrong = threading.Event(), []

    def search() -> None:
        own = np.random.default_rng(threading.get_ident() % 2**32)
        while not done.is_set():
            number = int(own.integers(0, 1000))  # these are never taken out
            found = rows.found(current[0], vectors[number : number + 1])
            if found.best is None or int(found.best.subject_ref, 16) != number:
                wrong.append(number)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(25):
        gone = np.arange(1000 + turn * 30, 1030 + turn * 30)
        fresh = unit(rng, 20)
        current[0] = (
            current[0]
            .without(gone)
            .with_templates(rows.put(fresh, np.arange(9000 + turn * 20, 9020 + turn * 20), 9000 + turn * 20))
        )
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
