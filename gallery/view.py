"""What readers of the gallery see, and how it is made from the disk: at a start, and at a switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gallery.changes import is_matchable
from gallery.errors import StoreError
from gallery.freshness import GalleryNow, HeldTime
from gallery.index import Index
from gallery.pace import Pause, at_once, paced
from gallery.records import Held, Position, Staging
from gallery.seal import Sealer, Template
from gallery.store import FILE_NAME, Store

ROWS_A_PIECE: Final = 256
"""Rows read from the store between two pauses: about two milliseconds."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything readers need, replaced as one."""

    held: Held
    index: Index
    foreign_model: bool


def resumed(
    store: Store, start: Position, now: GalleryNow, boot_id: str, clock_kept: bool
) -> tuple[Held, Staging | None]:
    """What the store holds, brought over the restart."""
    obj, staging = store.state("held"), None
    if obj is None:
        held = Held(start, 1, 0, HeldTime(boot_id, now.boottime_ms))
        store.keep_only()  # a store that has lost its place may still have palms in it
        with store.transaction():
            store.save_state("held", start.seq, held.to_obj())
    else:
        held = Held.from_obj(obj)
        if held.position.stream != start.stream:
            raise StoreError(
                "the gallery store belongs to another stream than the one this device is registered for; "
                "remove the gallery folder, and the device takes a fresh snapshot"
            )
        if (staged := store.state("staging")) is not None:
            staging = Staging.from_obj(staged)
        store.keep_only(held.generation, *([] if staging is None else [staging.generation]))
    held = store.witness.brought_up(held)
    return replace(held, time=held.time.after_restart(now, boot_id, clock_kept=clock_kept)), staging


def built(store: Store, held: Held, index: Index, model_id: str, pause: Pause = at_once) -> View:
    """The match set of a generation, out of its rows."""
    count = 0
    foreign = False

    def matchable() -> Iterator[tuple[int, Template]]:
        nonlocal count, foreign
        for number, template in paced(store.templates(held.generation), pause, ROWS_A_PIECE):
            count += 1
            foreign = foreign or template.model_id != model_id
            if is_matchable(template, model_id):
                yield number, template

    index = index.with_templates(matchable())
    if count != held.count:
        raise StoreError(
            f"the gallery store should hold {held.count} templates and holds {count}; "
            "remove the gallery folder, and the device takes a fresh snapshot"
        )
    return View(held, Index(index.coder) if foreign else index, foreign)


def peek(folder: Path, data_key: bytes) -> tuple[int, str | None] | None:
    """The epoch, and the model_id of the first template (None while there is none); None without a store.

    Must not be called while a Gallery has the store open. Raises StoreError.
    """
    if not (folder / FILE_NAME).exists():
        return None
    store = Store(folder, Sealer(data_key))
    try:
        with store.guarded():
            obj = store.state("held")
            if obj is None:
                return None
            held = Held.from_obj(obj)
            for _, template in store.templates(held.generation):
                return held.position.epoch, template.model_id
            return held.position.epoch, None
    finally:
        store.close()
