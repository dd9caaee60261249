"""What readers of the gallery see, and how it is made from the disk: at a start, and at a switch."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gallery.errors import StoreError
from gallery.freshness import GalleryNow, HeldTime
from gallery.index import CoarseRows, Index
from gallery.records import Held, Position, Staging
from gallery.seal import Sealer, matchable, models_of
from gallery.store import FILE_NAME, Store
from gallery.stream import VECTOR_LENGTH, Pause, at_once, paced


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
        store.keep_only(0, None)  # a store that has lost its place may still have palms in it
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
        store.keep_only(held.generation, None if staging is None else staging.generation)
    held = store.witness.brought_up(held)
    return replace(held, time=held.time.after_restart(now, boot_id, clock_kept=clock_kept)), staging


def built(store: Store, held: Held, index: Index, model_id: str, pause: Pause = at_once) -> View:
    """The match set of a generation, out of its rows."""
    count, models, own = 0, set[bytes](), model_id.encode("ascii")

    def rows() -> Iterator[CoarseRows]:
        nonlocal count
        for numbers, packed in paced(store.packed(held.generation), pause, 1):
            count += len(numbers)
            models.update(models_of(packed))
            if (live := matchable(packed)).all():
                yield numbers, packed[:, :VECTOR_LENGTH]
            else:
                yield numbers[live], packed[live][:, :VECTOR_LENGTH]

    index = index.with_rows(rows())
    foreign = bool(models - {own})
    if count != held.count:
        raise StoreError(
            f"the gallery store should hold {held.count} templates and holds {count}; "
            "remove the gallery folder, and the device takes a fresh snapshot"
        )
    return View(held, Index(index.coder) if foreign else index, foreign)


def peek(folder: Path, data_key: bytes) -> tuple[int, str | None, HeldTime] | None:
    """The epoch, the model_id of the first template (None while there is none), and what is known about time;
    None without a store.

    Must not be called while a Gallery has the store open. Raises StoreError.
    """
    with suppress(OSError):  # a folder that may not be looked into: opening the store says why
        if not (folder / FILE_NAME).exists():
            return None
    with closing(Store(folder, Sealer(data_key))) as store, store.guarded():
        obj = store.state("held")
        if obj is None:
            return None
        held = store.witness.brought_up(Held.from_obj(obj))
        return held.position.epoch, store.first_model(held.generation), held.time
