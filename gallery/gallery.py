"""The gallery of one device: takes what the service signed, and answers who a palm belongs to.

A delta's way through it reads top to bottom in `Gallery.apply_deltas`:
`page → signed head → chain from our position → one transaction → index → one reference swapped`.

Invariants

1. What is searched, the position that a verdict names and what is on the disk belong together: the
   transaction commits first, then one reference is swapped. After power loss a page is there whole, or
   not at all. A search that a commit overtakes begins again (`gallery.reader`).
2. The position never moves to a smaller epoch, nor to a smaller seq inside one, and no head is taken that
   was issued before the newest one held. A damaged file may take it back: then no palm is recognised until
   it is where it was (`gallery.witness`).
3. A snapshot is staged next to the gallery in use and takes its place in one transaction, once what was
   staged has the state that its head signs. Interrupted, it goes on where it was.
4. With templates of another model in it, the match set is empty: no palm is recognised.

`apply_*` may be called from any thread and take their turns; `search`, `position` and `freshness` never
wait for them. A search reads the few rows it scores from the disk, and fails where that does.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gallery.changes import carry_out, is_overtaken, is_whole, stage_page
from gallery.codes import Coder
from gallery.errors import Overtaken, PageRefused, RefusalCode, StoreError
from gallery.freshness import MAX_TTL_MS, Freshness, FreshnessReason, GalleryNow, HeldTime
from gallery.index import Index, Match, check_scan, simd_level
from gallery.reader import RowReader
from gallery.records import Held, Position
from gallery.seal import Sealer, Template
from gallery.store import Store
from gallery.stream import (
    Head,
    KeyOf,
    Op,
    Pause,
    SnapshotPage,
    at_once,
    follow_chain,
    read_delta_page,
    read_snapshot_page,
    verify_head,
)
from gallery.view import View, built, resumed

BULK_BYTES: Final = 64 * 1024
"""A page of deltas of this size has some twenty templates and takes a few milliseconds; a tombstone is far
smaller and never waits."""

REMEMBER_TIME_MS: Final = 60_000
"""How much time may pass between two notes of it on the disk: what a power cut can take off the age."""

OVERTAKEN_S: Final = 0.5
"""For so long a search begins again while commits overtake it. One commit is shown to searches microseconds
after it can be read, or when SQLite has brought in its log."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Applied:
    """What taking a page or a head came to.

    `done` is False only for a page of a snapshot that needs more pages. `behind` when the stream is further
    on than this gallery.
    """

    done: bool = True
    behind: bool = False


class Gallery:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        *,
        data_key: bytes,
        model_id: str,
        stream: str,
        epoch: int,
        gallery_key: KeyOf,
        now: GalleryNow,
        boot_id: str = "",
        clock_kept: bool = True,
        pause: Pause = at_once,
    ) -> None:
        """Open the store in `folder`, making it where there is none, and build the match set.

        `data_key` has 32 bytes. `stream` and `epoch` are from the registration; a store that is further
        on keeps its epoch. `boot_id` (/proc/sys/kernel/random/boot_id) distinguishes a restart of the program
        from a reboot; without it, every start counts as a reboot. `clock_kept`: this machine has a clock that
        runs on without power. `pause` is called between the pieces of long work, and may wait, so that urgent
        work is not delayed.
        Raises StoreError (wrong key, damage, another stream), GalleryError when FAISS does not compute
        rightly here.
        """
        check_scan()
        if simd_level() == "NONE":
            _log.warning(
                "FAISS uses no vector instructions on this processor: searches are 13 to 24 times slower"
            )
        sealer = Sealer(data_key)
        self._store = Store(folder, sealer)
        try:
            with self._store.guarded():
                start = Position.start(stream, epoch)
                held, self._staging = resumed(self._store, start, now, boot_id, clock_kept)
                self._view = built(self._store, held, Index(Coder(sealer.sign_bits)), model_id)
                self._rows = RowReader(folder, sealer)
        except BaseException:
            self._store.close()
            raise
        self._unread: tuple[Held, NDArray[np.int64]] | None = None
        """The rows that a search could not read, until `reread` could."""
        self._model_id = model_id
        self._key_of = gallery_key
        self._pause = pause
        self._lock = threading.Lock()
        self._closed = self._interrupted = False
        self._alive_s: float | None = None
        """When the work under way last showed life (monotonic); None while there is none."""

    @property
    def position(self) -> Position:
        """The gallery's position; it acknowledges what was applied."""
        return self._view.held.position

    @property
    def count(self) -> int:
        """Templates held, suspended ones included."""
        return self._view.held.count

    @property
    def match_count(self) -> int:
        """Templates that take part in searches."""
        return len(self._view.index)

    @property
    def model_mismatch(self) -> bool:
        """Whether it holds templates of another model than this device's (health `MODEL_MISMATCH`)."""
        return self._view.foreign_model

    def search(self, probes: NDArray[np.float32]) -> Match:
        """Who the palm of these (n, 512) float32 vectors belongs to.

        Raises ProbeError; StoreError when the disk cannot be read, or the gallery is closed; Overtaken.
        """
        give_up_s = monotonic() + OVERTAKEN_S
        while True:
            view = self._view
            try:
                return view.index.search(probes, partial(self._read, view.held), view.held.position)
            except (Overtaken, StoreError) as error:
                # A store that was destroyed meanwhile cannot be read either: its newest view is empty.
                overtaken = isinstance(error, Overtaken) or self._view.index is not view.index
                if not overtaken or monotonic() > give_up_s:
                    raise
                sleep(0.001)  # the commit that was read is about to be shown

    def reread(self) -> None:
        """Read again what a search could not; does nothing when there is no such thing. Raises StoreError."""
        if (unread := self._unread) is not None:
            with suppress(Overtaken):  # erased or replaced since: no search finds it any more
                self._read(*unread)
            if self._unread is unread:
                self._unread = None

    def freshness(self, now: GalleryNow, ttl_ms: int = MAX_TTL_MS) -> Freshness:
        """Whether it may be used now; `ttl_ms` is the configured one, at most 6 h."""
        view = self._view
        freshness = view.held.time.freshness(now, ttl_ms)
        if view.foreign_model:
            return replace(freshness, fresh=False, reason=FreshnessReason.MODEL_MISMATCH, left_ms=0)
        if not self._closed and self._store.witness.behind(view.held):
            return replace(freshness, fresh=False, reason=FreshnessReason.WENT_BACK, left_ms=0)
        return freshness

    def known_ms(self, now: GalleryNow) -> int:
        """The time (epoch) by all that is known here: the later of the wall clock and the floor."""
        return self._view.held.time.at(now).last_known_ms

    @property
    def newest_head_ms(self) -> int:
        """issued_at_ms (epoch) of the newest head that was verified; 0 before the first."""
        return self._view.held.time.newest_issued_at_ms or 0

    def apply_deltas(self, page_bytes: bytes, now: GalleryNow) -> Applied:
        """Take an answer of the deltas route. Raises PageRefused, StoreError; then nothing has changed."""
        with self._writing() as view:
            if len(page_bytes) > BULK_BYTES:
                self._piece()
            page = read_delta_page(page_bytes, self._key_of)
            held, head = view.held, page.head
            _check_not_older(head, held.position)
            if head.epoch != held.position.epoch:
                raise PageRefused(
                    RefusalCode.WRONG_EPOCH,
                    f"epoch {held.position.epoch} is held; epoch {head.epoch} is taken by snapshot only",
                )
            deltas = follow_chain(page, seq=held.position.seq, head=held.position.head)
            time = held.time.with_head(head.issued_at_ms, now, complete=False)
            if not deltas and head.seq != held.position.seq:
                self._save(replace(held, time=time))
                return Applied(behind=True)
            with self._store.transaction():
                changes = carry_out(self._store, held.generation, held.count, deltas, view.index.coder)
                if not page.has_more:  # else what the head counts is there after further pages
                    if changes.count != head.count:
                        raise PageRefused(
                            RefusalCode.STATE_MISMATCH,
                            f"the head counts {head.count} templates at seq {head.seq}, "
                            f"here are {changes.count}",
                        )
                    time = held.time.with_head(head.issued_at_ms, now, complete=True)
                held = Held(_position(head), held.generation, changes.count, time)
                self._store.save_state("held", head.seq, held.to_obj())
                erased = any(delta.op is Op.TOMBSTONE for delta in deltas)
                staging = self._staging
                overtaken = staging is not None and is_overtaken(staging, held.position, erased=erased)
                if overtaken:  # here: no power cut may leave it there with a palm that was erased
                    self._store.drop_state("staging")
                others = bool(changes.models - {self._model_id})
                foreign = changes.count > 0 and (view.foreign_model or others)
                index = Index(view.index.coder) if foreign else changes.applied_to(view.index, self._model_id)
            self._view = View(held, index, foreign)
            if overtaken:
                self._staging, self._store.rows_due = None, True
            self._store.scrub_due |= changes.scrub  # also where the witness cannot be written
            self._store.keep_witness(held)
            if self._store.scrub_due:
                self._store.scrub()
            if self._store.rows_due:
                self._drop_rows()
        return Applied(behind=page.has_more)

    def apply_snapshot_page(self, page_bytes: bytes, now: GalleryNow) -> Applied:
        """Take a page of a snapshot; the last one switches the gallery over.

        Pages may come again, or from the beginning again, at any time: what was staged is known by its
        hash. Raises PageRefused, StoreError; then the gallery in use has not changed.
        """
        with self._writing() as view:
            self._piece()
            page = read_snapshot_page(page_bytes, self._key_of, self._piece)
            held, head = view.held, page.head
            _check_not_older(head, held.position)
            _check_no_fork(head, held.position)
            if self._is_switched(page, held):
                self._note_head(head, held, now)
                return Applied()
            time = held.time.with_head(head.issued_at_ms, now, complete=False)
            with self._store.transaction():
                staging = stage_page(
                    self._store, view.index.coder, page, self._staging, held.generation, pause=self._piece
                )
                held = replace(held, time=time)
                self._store.save_state("held", held.position.seq, held.to_obj())
                self._piece()  # a megabyte is written and synced now, and a verdict's journal waits behind it
            before, self._staging = self._staging, staging
            self._view = replace(view, held=held)
            self._store.keep_witness(held)
            if before is None or before.generation != staging.generation:
                self._drop_rows()
            if page.has_more:
                return Applied(done=False, behind=True)
            if not is_whole(self._store, staging):
                with self._store.transaction():
                    self._store.drop_state("staging")
                self._staging = None
                self._drop_rows()
                raise PageRefused(
                    RefusalCode.STATE_MISMATCH,
                    f"the snapshot of seq {staging.seq} is not what its head signs; begin it again",
                )
            time = time.with_head(head.issued_at_ms, now, complete=True)
            switched = Held(_position(head), staging.generation, staging.count, time)
            self._piece()
            fresh = built(self._store, switched, Index(view.index.coder), self._model_id, self._piece)
            with self._store.transaction():
                self._store.save_state("held", head.seq, switched.to_obj())
                self._store.drop_state("staging")
            self._staging = None
            self._view = fresh
            self._store.keep_witness(switched)
            self._drop_rows()
        return Applied()

    def apply_head(self, wrapper: object, now: GalleryNow) -> Applied:
        """Take a signed head without a page, for its freshness. Raises PageRefused, StoreError.

        A head ahead of this gallery, or that counts other templates, is noted and makes nothing fresh.
        """
        head = verify_head(wrapper, self._key_of)
        with self._writing() as view:
            held = view.held
            _check_not_older(head, held.position)
            _check_no_fork(head, held.position)
            complete = self._note_head(head, held, now)
            if self._store.rows_due:  # a gate that lives on mail gets heads alone while nothing changes
                self._drop_rows()
        return Applied(behind=not complete)

    def remember_time(self, now: GalleryNow) -> None:
        """Note the time on the disk when the last note is a minute old; to be called about that often, from
        any thread. Does nothing while a page is applied, which notes it too."""
        if self._alive_s is not None or now.boottime_ms - self._view.held.time.boottime_ms < REMEMBER_TIME_MS:
            return
        with self._writing() as view:
            self._save(replace(view.held, time=view.held.time.at(now)))

    def model_of_templates(self) -> str | None:
        """The model_id of the first template held, None while there is none; waits as `apply_*` do."""
        with self._writing() as view:
            return self._store.first_model(view.held.generation)

    @property
    def silent_s(self) -> float:
        """For how long the work on the store that is under way has shown no life; 0 while none is."""
        alive_s = self._alive_s
        return 0.0 if alive_s is None else monotonic() - alive_s

    def interrupt(self) -> None:
        """Give up what is being applied, at its next pause: the end is near. Nothing is lost by it."""
        self._interrupted = True

    def close(self) -> None:
        """Close the store; what was applied stays. Nothing can be searched any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._rows.close()
                self._store.close()

    def destroy(self) -> None:
        """Delete the store and empty the match set; may be repeated, and follow `close`."""
        with self._lock:
            self._closed = True
            start = Position.start(self.position.stream, self.position.epoch)
            time = HeldTime(boot_id="", boottime_ms=0)
            self._view = View(Held(start, 0, 0, time), Index(self._view.index.coder), foreign_model=False)
            self._rows.close()
            self._store.destroy()

    @contextmanager
    def _writing(self) -> Iterator[View]:
        with self._lock, self._store.guarded():
            if self._closed:
                raise StoreError("the gallery is closed; open it again to change it")
            self._alive_s = monotonic()
            try:
                if self._store.scrub_due:
                    self._store.scrub()
                yield self._view
            finally:
                self._alive_s = None

    def _read(self, held: Held, numbers: NDArray[np.int64]) -> list[Template]:
        try:
            return self._rows.read(held.generation, held.position.seq, numbers.tolist())
        except StoreError:
            self._unread = held, numbers
            raise

    def _piece(self) -> None:
        """Between two pieces of what takes long."""
        self._alive_s = monotonic()
        if self._interrupted:
            raise StoreError("the gallery is being closed; the page comes again after the start")
        self._pause()
        self._alive_s = monotonic()

    def _drop_rows(self) -> None:
        """Those that are neither in use nor of the snapshot being taken."""
        staged = None if self._staging is None else self._staging.generation
        self._store.keep_only(self._view.held.generation, staged, pause=self._piece)

    def _is_switched(self, page: SnapshotPage, held: Held) -> bool:
        """Whether it is the last page of several, of a snapshot that is in use. It comes again where a power
        cut or a full disk did not let the carrier know that it was taken."""
        taking = self._staging is not None and self._staging.is_of(page.head)
        alone = not page.has_more and len(page.entries) < page.head.count
        return alone and not taking and _describes(page.head, held)

    def _note_head(self, head: Head, held: Held, now: GalleryNow) -> bool:
        """Whether it describes what is held."""
        complete = _describes(head, held)
        self._save(replace(held, time=held.time.with_head(head.issued_at_ms, now, complete=complete)))
        return complete

    def _save(self, held: Held) -> None:
        with self._store.transaction():
            self._store.save_state("held", held.position.seq, held.to_obj())
        self._view = replace(self._view, held=held)
        self._store.keep_witness(held)


def _position(head: Head) -> Position:
    return Position(head.stream, head.epoch, head.seq, head.head)


def _describes(head: Head, held: Held) -> bool:
    return (head.epoch, head.seq, head.count) == (held.position.epoch, held.position.seq, held.count)


def _check_not_older(head: Head, position: Position) -> None:
    if head.stream != position.stream:
        raise PageRefused(RefusalCode.WRONG_STREAM, "the head is of another stream than this device's")
    if (head.epoch, head.seq) < (position.epoch, position.seq):
        raise PageRefused(
            RefusalCode.ROLLBACK,
            f"epoch {position.epoch} seq {position.seq} is held, the head is of {head.epoch} seq {head.seq}",
        )


def _check_no_fork(head: Head, position: Position) -> None:
    same_place = (head.epoch, head.seq) == (position.epoch, position.seq)
    if same_place and head.head != position.head:
        raise PageRefused(
            RefusalCode.BAD_CHAIN, f"another head than the one held is signed for seq {position.seq}"
        )
