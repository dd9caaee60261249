"""Deltas carried out on the store, and what they change in the match set."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gallery.codes import Coder
from gallery.index import Index
from gallery.seal import Template
from gallery.store import Store
from gallery.stream import Delta, Entry, Op


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
