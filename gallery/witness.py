"""The furthest position of the gallery, kept outside its database: a damaged log takes that back unseen.

SQLite takes a damaged frame for the end of its log, so after a power cut the store may be at an earlier page,
consistent but with a person in it who was erased since. The committed position is therefore also kept in
a separate file, in two sealed slots that take turns, with what was known about time. It is written after the
database and before the page is acknowledged. A gallery behind it recognises no palm until the stream has
brought it there again.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from gallery.errors import StoreError
from gallery.records import Held
from gallery.seal import Sealer
from gallery.slots import Slots
from link1.canonical import canonical_bytes, read_strict

FILE_NAME: Final = "gallery.witness"

_SLOT_BYTES: Final = 1_024
_TURNS: Final = 2
_NUMBER_BYTES: Final = 8
_TABLE: Final = b"witness\x00"

_log = logging.getLogger(__name__)


class Witness:
    """The file in a gallery's folder; used by one thread at a time."""

    def __init__(self, folder: Path, sealer: Sealer) -> None:
        """Open it, or make an empty one. Raises OSError, and StoreError for another version."""
        self._sealer = sealer
        self._slots = Slots(folder / FILE_NAME, slot_bytes=_SLOT_BYTES, count=_TURNS)
        try:
            slots = self._slots.read()
            self._writes, self._held = self._newest(slots)
        except BaseException:
            self._slots.close()
            raise
        if self._held is None and any(slots):
            _log.error("%s is damaged or of another gallery; it is filled again", folder / FILE_NAME)

    def _newest(self, slots: list[bytes]) -> tuple[int, Held | None]:
        """The number and the contents of the newest undamaged slot; 0 and None when there is none."""
        writes, newest = 0, None
        for slot in slots:
            number = int.from_bytes(slot[:_NUMBER_BYTES], "big")
            try:
                plain = self._sealer.open(_TABLE, b"", number, slot[_NUMBER_BYTES:])
            except StoreError:
                continue
            if number > writes:
                writes, newest = number, Held.from_obj(read_strict(plain, max_bytes=_SLOT_BYTES))
        return writes, newest

    def behind(self, held: Held) -> bool:
        """Whether the gallery has been further on than `held`."""
        return self._held is not None and _place(held) < _place(self._held)

    def brought_up(self, held: Held) -> Held:
        """`held` with what was known about time. Where its contents went back, no age counts for them."""
        known = self._held
        if known is None or known.position.stream != held.position.stream or _place(held) > _place(known):
            return held
        if self.behind(held):
            return replace(held, time=replace(known.time, age_ms=None, counted_from_ms=None))
        return replace(held, time=known.time) if known.time.floor_ms > held.time.floor_ms else held

    def keep(self, held: Held) -> None:
        """Durable when this returns; a gallery that is behind stays so. Raises OSError."""
        if self._held is not None and self.behind(held):
            held = replace(self._held, time=held.time)
        if held == self._held:
            return
        plain = canonical_bytes(held.to_obj())
        number = self._writes + 1
        sealed = self._sealer.seal(_TABLE, b"", number, plain)
        self._slots.write(number % _TURNS, number.to_bytes(_NUMBER_BYTES, "big") + sealed)
        self._writes, self._held = number, held

    def close(self) -> None:
        self._slots.close()


def _place(held: Held) -> tuple[int, int]:
    return held.position.epoch, held.position.seq
