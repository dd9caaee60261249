"""A snapshot being taken: its pages go into a separate generation of rows, next to the gallery in use.

What is staged is a set of entries known by their hashes, so pages may come again, or all over again from the
first, before and after a restart. A page of another point of the stream, or one that contradicts what is
staged, begins a new staging. Whether everything is there, and nothing else, is for the signed `state` to say
after the last page. All functions work inside a transaction of their caller.
"""

from gallery.changes import templates_of
from gallery.codes import Coder
from gallery.pace import Pause, at_once, paced
from gallery.records import Position, Staging
from gallery.store import Store
from gallery.stream import ENTRIES_A_PIECE, SnapshotPage, StagedEntry, state_of


def stage_page(
    store: Store,
    coder: Coder,
    page: SnapshotPage,
    staging: Staging | None,
    generation_in_use: int,
    *,
    pause: Pause = at_once,
) -> Staging:
    """Stage the entries of a page that are not staged yet; what it became part of."""
    fresh = None
    if staging is not None and staging.is_of(page.head):
        fresh = _not_staged_yet(store, page.entries)
    if staging is None or fresh is None:
        taken = generation_in_use if staging is None else max(generation_in_use, staging.generation)
        staging, fresh = Staging.of(page.head, taken + 1), page.entries
        store.drop_staged()
        store.save_state("staging", page.head.seq, staging.to_obj())
    templates = templates_of([one.entry for one in fresh], coder)
    for template, one in paced(zip(templates, fresh, strict=True), pause, ENTRIES_A_PIECE):
        store.put(staging.generation, template, page.head.seq)
        store.stage(template.template_id, one.sha256)
    return staging


def is_whole(store: Store, staging: Staging) -> bool:
    """Whether what is staged is what the head signs."""
    hashes = store.staged_hashes()
    return len(hashes) == staging.count and state_of(hashes) == staging.state


def is_overtaken(staging: Staging, position: Position, *, erased: bool) -> bool:
    """Whether deltas have made it useless: by reaching its point, or by an erasure, which ends every open
    snapshot and must not leave a palm in what is staged."""
    return erased or (position.epoch, position.seq) >= (staging.epoch, staging.seq)


def forget_staging(store: Store) -> None:
    """Forget that a snapshot was being taken; its rows go with `Store.keep_only`."""
    store.drop_state("staging")
    store.drop_staged()


def _not_staged_yet(store: Store, entries: tuple[StagedEntry, ...]) -> tuple[StagedEntry, ...] | None:
    """The entries after the last staged one; None when those before it are not the ones that are staged."""
    if not entries:
        return entries
    ids = [bytes.fromhex(one.entry.template_id) for one in entries]
    last, known = store.last_staged(), store.staged_between(ids[0], ids[-1])
    again = [one for one in entries if bytes.fromhex(one.entry.template_id) <= last]
    if any(known.get(bytes.fromhex(one.entry.template_id)) != one.sha256 for one in again):
        return None
    return entries[len(again) :]
