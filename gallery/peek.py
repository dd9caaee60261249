"""The stream and the model of a gallery on the disk, without building its match set."""

from pathlib import Path

from gallery.records import Held
from gallery.seal import Sealer
from gallery.store import FILE_NAME, Store


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
