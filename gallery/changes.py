"""What pages do in the store: deltas, with what they change in the match set; and snapshots, whose pages go
into a separate generation of rows, next to the gallery in use.

What is staged is a set of entries known by their hashes, so pages may come again, or all over again from the
first, before and after a restart. A page of another point of the stream, or one that contradicts what is
staged, begins a new staging. Whether everything is there, and nothing else, is for the signed `state` to say
after the last page. All functions that get a store work inside a transaction of their caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gallery.codes import Coder
from gallery.index import Index
from gallery.records import Position, Staging
from gallery.seal import Template
from gallery.store import Store
from gallery.stream import (
    ENTRIES_A_PIECE,
    Delta,
    Entry,
    Op,
    Pause,
    SnapshotPage,
    StagedEntry,
    at_once,
    paced,
    state_of,
)


@dataclass(slots=True)
class Changes:
    """What a page did. `rows` maps each touched row to what it now holds, None where it is gone;
    `scrub` when something that was on the disk must not be found there any more."""

    count: int
    rows: dict[int, Template | None] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    scrub: bool = False

    def applied_to(self, index: Index, model_id: str) -> Index:
        """The match set after the page: no suspended templates, none of another model."""
        if not self.rows:
            return index
        index = index.without(np.fromiter(self.rows, dtype=np.int64, count=len(self.rows)))
        live = [
            (number, template)
            for number, template in self.rows.items()
            if template is not None and is_matchable(template, model_id)
        ]
        return index.with_templates(live)


def is_matchable(template: Template, model_id: str) -> bool:
    """Whether a template takes part in searches."""
    return not template.suspended and template.model_id == model_id


def templates_of(entries: Sequence[Entry], coder: Coder) -> list[Template]:
    """Entries as they are kept; all vectors are coded in one go."""
    if not entries:
        return []
    codes = coder.encode(np.stack([entry.values() for entry in entries]))
    return [
        Template(
            bytes.fromhex(entry.template_id),
            bytes.fromhex(entry.subject_ref),
            entry.hand,
            entry.model_id,
            entry.onboard_ref,
            entry.suspended,
            code.tobytes(),
        )
        for entry, code in zip(entries, codes, strict=True)
    ]


def carry_out(store: Store, generation: int, count: int, deltas: Sequence[Delta], coder: Coder) -> Changes:
    """Write what the deltas say, in their order, inside the caller's transaction.

    `count` is the number of templates before. A delta about a person without templates here (their
    earlier deltas were compacted) changes nothing.
    """
    changes = Changes(count)
    upserts = iter(templates_of([delta.entry for delta in deltas if delta.entry is not None], coder))
    for delta in deltas:
        if delta.op is Op.UPSERT:
            changes.scrub |= _put(changes, store, generation, next(upserts), delta.seq)
        elif delta.subject_ref is not None:
            held = store.of_person(generation, bytes.fromhex(delta.subject_ref))
            if delta.op is Op.TOMBSTONE:
                for number, _ in held:
                    store.remove(number)
                    changes.rows[number] = None
                    changes.count -= 1
                    changes.scrub = True
            else:
                suspended = delta.op is Op.SUSPEND
                for _, template in held:
                    _put(changes, store, generation, template._replace(suspended=suspended), delta.seq)
    return changes


def _put(changes: Changes, store: Store, generation: int, template: Template, seq: int) -> bool:
    """Whether it replaced a template."""
    number, replaced = store.put(generation, template, seq)
    changes.rows[number] = template
    changes.models.add(template.model_id)
    changes.count += not replaced
    return replaced


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
        # Rows of an earlier staging are still there where a full disk did not let them be deleted.
        taken = max(generation_in_use, store.newest_generation())
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
