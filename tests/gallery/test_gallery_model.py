"""Any course of events against a dictionary, with restarts and power cuts at every commit."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gallery.codes import Coder
from gallery.errors import PageRefused
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from gallery.seal import Sealer
from gallery.store import Store
from gallery.stream import Delta, Entry, Op
from tests.gallery.gallery_service import (
    DATA_KEY,
    NOW_MS,
    Service,
    at,
    entry,
    exact_scores,
    palm,
    subject_ref,
)

people = st.integers(0, 4)


def after_deltas(held: dict[str, Entry], deltas: list[Delta]) -> dict[str, Entry]:
    """What a gallery holds after these deltas, the plain way."""
    held = dict(held)
    for delta in deltas:
        if delta.entry is not None:
            held[delta.entry.template_id] = delta.entry
        for key, one in list(held.items()):
            if one.subject_ref == delta.subject_ref and delta.op is Op.TOMBSTONE:
                del held[key]
            elif one.subject_ref == delta.subject_ref:
                held[key] = replace(one, suspended=delta.op is Op.SUSPEND)
    return held


class GalleryMachine(RuleBasedStateMachine):
    """The service runs ahead; the gallery follows in pages, by snapshots, over restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="gallery-"))
        self.service = Service()
        self.gallery = self.service.open(self.folder)
        self.templates = 0
        self.issued_at_ms = NOW_MS
        self.mirror: dict[str, Entry] = {}  # what the gallery should hold
        self.pages: list[bytes] = []

    def teardown(self) -> None:
        self.gallery.close()
        shutil.rmtree(self.folder)

    @rule(person=people, suspended=st.booleans())
    def upsert(self, person: int, suspended: bool) -> None:
        self.templates += 1
        self.service.upsert(entry(person, self.templates, suspended=suspended))

    @precondition(lambda self: self.service.live)
    @rule(data=st.data())
    def replace_template(self, data: st.DataObject) -> None:
        one = self.service.live[data.draw(st.sampled_from(sorted(self.service.live)))]
        self.templates += 1
        self.service.upsert(replace(one, vector=palm(self.templates).tobytes()))

    @rule(person=people, op=st.sampled_from(["suspend", "resume", "tombstone"]))
    def about_a_person(self, person: int, op: str) -> None:
        getattr(self.service, op)(person)

    @rule()
    def noop(self) -> None:
        self.service.noop()

    @rule(back=st.integers(0, 2), limit=st.integers(1, 6))
    def follow(self, back: int, limit: int) -> None:
        """A page from the gallery's position, or from a little before."""
        after = max(0, self.gallery.position.seq - back)
        page = self.service.deltas(after, limit, self._issued())
        reached = min(after + limit, self.service.seq)
        if reached < self.gallery.position.seq:
            with pytest.raises(PageRefused):
                self.gallery.apply_deltas(page, self._now())
            return
        held = self.gallery.position.seq
        self.gallery.apply_deltas(page, self._now())
        assert self.gallery.position.seq == reached
        self.mirror = after_deltas(self.mirror, self.service.log[held:reached])

    @precondition(lambda self: self.service.seq > self.gallery.position.seq)
    @rule(skip=st.integers(1, 3))
    def skip_some(self, skip: int) -> None:
        after = self.gallery.position.seq + skip
        if after < self.service.seq:
            with pytest.raises(PageRefused):
                self.gallery.apply_deltas(self.service.deltas(after, 5, self._issued()), self._now())

    @rule(size=st.integers(1, 4))
    def begin_snapshot(self, size: int) -> None:
        self.pages = self.service.snapshot(size, self._issued())
        self.snapshot = dict(self.service.live)

    @precondition(lambda self: self.pages)
    @rule()
    def next_page(self) -> None:
        page = self.pages.pop(0)
        try:
            applied = self.gallery.apply_snapshot_page(page, self._now())
        except PageRefused as refused:
            assert refused.superseded  # another page or head overtook it
            self.pages = []
            return
        if applied.done:
            self.mirror = self.snapshot

    @rule(other_boot=st.booleans())
    def restart(self, other_boot: bool) -> None:
        self.gallery.close()
        self.gallery = self.service.open(self.folder, boot_id="boot-2" if other_boot else "boot-1")

    @rule()
    def power_cut(self) -> None:
        """The folder as it is now, without a close, in another place."""
        copy = Path(tempfile.mkdtemp(prefix="gallery-"))
        shutil.copytree(self.folder, copy, dirs_exist_ok=True)
        self.gallery.close()
        shutil.rmtree(self.folder)
        self.folder = copy
        self.gallery = self.service.open(self.folder)

    @invariant()
    def holds_what_it_should(self) -> None:
        gallery = self.gallery
        assert gallery.position.head == self.service.heads[gallery.position.seq]
        assert gallery.count == len(self.mirror)
        live = [one for one in self.mirror.values() if not one.suspended]
        assert gallery.match_count == len(live)
        if not live:
            return
        matrix = np.stack([one.values() for one in live])
        owners = [one.subject_ref for one in live]
        # One palm of a live person, one of the last person mentioned: live, suspended, erased or unknown.
        for probe in (live[-1].values(), palm(max(1, self.templates))):
            scores = exact_scores(Coder(Sealer(DATA_KEY).sign_bits), matrix, probe[np.newaxis])[:, 0]
            best = int(scores.argmax())
            others = [s for s, owner in zip(scores, owners, strict=True) if owner != owners[best]]
            match = gallery.search(np.ascontiguousarray(probe)[np.newaxis])
            assert match.best is not None
            assert match.best.subject_ref == owners[best]
            assert match.score == pytest.approx(float(scores[best]), abs=5e-5)
            assert (match.margin is None) == (not others)
            if match.margin is not None:
                assert match.margin == pytest.approx(float(scores[best] - max(others)), abs=1e-4)

    def _issued(self) -> int:
        self.issued_at_ms += 1
        return self.issued_at_ms

    def _now(self) -> GalleryNow:
        return at(self.issued_at_ms - NOW_MS)


TestGalleryMachine = GalleryMachine.TestCase
TestGalleryMachine.settings = settings(max_examples=20, stateful_step_count=30)


def test_power_cut_at_every_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the folder before and after every transaction open at a position that was applied whole."""
    service = Service()
    service.upsert(*[entry(n // 2, n) for n in range(2, 14)])
    folder = tmp_path / "gallery"
    copies: list[tuple[Path, int]] = []

    def copy() -> None:
        place = tmp_path / f"copy-{len(copies)}"
        shutil.copytree(folder, place)
        copies.append((place, gallery.position.seq))

    plain = Store.transaction

    def watched(store: Store) -> AbstractContextManager[None]:
        @contextmanager
        def around() -> Iterator[None]:
            copy()
            with plain(store):
                yield
                copy()  # written, not committed
            copy()

        return around()

    gallery = service.open(folder)
    monkeypatch.setattr(Store, "transaction", watched)
    expected: dict[int, set[str]] = {0: set()}

    def note() -> None:
        expected[service.seq] = {one.subject_ref for one in service.live.values()}

    note()
    gallery.apply_deltas(service.deltas(limit=5), at())
    expected[5] = {subject_ref(n // 2) for n in range(2, 7)}
    gallery.apply_deltas(service.deltas(5), at())
    service.tombstone(2)
    note()
    gallery.apply_deltas(service.deltas(12), at())
    service.upsert(entry(9, 90), entry(9, 91))
    note()
    for page in service.snapshot(size=4):
        gallery.apply_snapshot_page(page, at())
    service.noop()
    note()
    gallery.apply_deltas(service.deltas(15), at())
    gallery.close()
    monkeypatch.undo()
    assert len(copies) > 15
    for place, before in copies:
        opened = service.open(place)
        assert opened.position.seq >= before
        assert opened.position.head == service.heads[opened.position.seq]
        found = {
            match.best.subject_ref
            for n in (*range(2, 14), 90, 91)
            if (match := opened.search(palm(n)[np.newaxis])).best is not None and match.score > 0.9
        }
        assert found == expected[opened.position.seq]
        # and it goes on from there
        if opened.position.seq < service.seq:
            opened.apply_deltas(service.deltas(opened.position.seq), at())
        assert opened.count == len(service.live)
        opened.close()


def test_a_gallery_is_searched_by_many_while_pages_come(tmp_path: Path) -> None:
    """No search waits, fails, or names a person with a position that did not hold them."""
    service = Service()
    service.upsert(*[entry(1000 + n, n) for n in range(50)])
    gallery: Gallery = service.open(tmp_path)
    gallery.apply_deltas(service.deltas(), at())
    erased_at: dict[str, int] = {}
    done, wrong = threading.Event(), []

    def search() -> None:
        number = 0
        while not done.is_set():
            number = (number + 7) % 50
            match = gallery.search(palm(number)[np.newaxis])
            found = match.best is not None and match.score > 0.9
            gone = erased_at.get(subject_ref(1000 + number))
            if found and gone is not None and match.position.seq >= gone:
                wrong.append(number)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        service.tombstone(1000 + number)
        erased_at[subject_ref(1000 + number)] = service.seq
        gallery.apply_deltas(service.deltas(gallery.position.seq), at())
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    gallery.close()
