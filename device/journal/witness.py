"""A second copy of what was promised, next to the database: the newest verdicts, and the mail's numbers.

SQLite takes a damaged frame in its write-ahead log for the end of the log: after a power cut, one flipped bit
returns the journal to an earlier commit, and nothing in the database shows it. So every verdict is also
written to its slot in `journal.db.witness` before it is sent, and a start restores what the database lacks
(`device.journal.restore`). The mail's numbers are in two slots, written alternately.

Every slot is sealed for its number. The database is written first and the witness after it, both before
anything is sent, so after a power cut the witness is at most one step behind, or more if its writes failed.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from device.errors import JournalError
from device.journal.seal import RowSeal, SealBroken
from gallery.slots import Slots
from link1.canonical import JsonObject, canonical_bytes, read_strict

SUFFIX: Final = ".witness"
VERDICTS: Final = 126
"""The journal checkpoints its log before so many verdicts are only in the log."""
_SLOT_BYTES: Final = 2_048
"""A signed verdict has at most 1.4 KB: every name in it at its longest."""
_TURNS: Final = 2
_NUMBER_BYTES: Final = 8
_TABLE: Final = "witness"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromisedVerdict:
    """A verdict with the columns of its row."""

    seq: int
    request_ref: str
    operating_ms: int
    wrapper: JsonObject


@dataclass(frozen=True, slots=True)
class Numbers:
    """The mail's positions. `turn` increases with every change, so that equal turns mean equal numbers.

    `halted`: why no further verdict is numbered; empty while the journal is not halted.
    """

    turn: int
    in_applied_seq: int
    out_seq: int
    out_acked_seq: int
    halted: str


class JournalWitness:
    """The file next to a journal, used only by the journal's thread."""

    def __init__(self, journal: Path, seal: RowSeal) -> None:
        """Open it, or make an empty one. Raises JournalError."""
        self._seal = seal
        path = journal.with_name(journal.name + SUFFIX)
        try:
            self._slots = Slots(path, slot_bytes=_SLOT_BYTES, count=_TURNS + VERDICTS)
            held = self._slots.read()
        except OSError as error:
            raise JournalError(
                f"{path} cannot be opened or made ({error.strerror}); check its owner and the free disk space"
            ) from error
        self._writes = 0
        self.numbers: Numbers | None = None
        """The newest undamaged ones; None when there are none."""
        for slot in held[:_TURNS]:
            if (found := self._opened(slot, "numbers")) is not None and found[0] > self._writes:
                self._writes, self.numbers = found[0], Numbers(**found[1])
        verdicts = [self._opened(slot, "verdict") for slot in held[_TURNS:]]
        self.verdicts = {found[0]: PromisedVerdict(found[0], **found[1]) for found in verdicts if found}
        """The undamaged ones, by number, as they were at the start."""
        if self.numbers is None and any(held):
            _log.error("%s is damaged or of another journal; it is filled again from the journal", path)

    def keep_verdict(self, verdict: PromisedVerdict) -> None:
        """Durable when this returns. Raises JournalError."""
        obj = {
            "request_ref": verdict.request_ref,
            "operating_ms": verdict.operating_ms,
            "wrapper": verdict.wrapper,
        }
        self._write(_TURNS + verdict.seq % VERDICTS, "verdict", verdict.seq, obj)

    def keep_numbers(self, numbers: Numbers) -> None:
        """Durable when this returns. Raises JournalError."""
        obj = {name: getattr(numbers, name) for name in Numbers.__slots__}
        self._write((self._writes + 1) % _TURNS, "numbers", self._writes + 1, obj)
        self._writes += 1
        self.numbers = numbers

    def close(self) -> None:
        self._slots.close()

    def _write(self, index: int, what: str, number: int, obj: JsonObject) -> None:
        sealed = self._seal.seal(canonical_bytes(obj), table=_TABLE, row_id=what, seq=number)
        try:
            self._slots.write(index, number.to_bytes(_NUMBER_BYTES, "big") + sealed)
        except (OSError, ValueError) as error:
            raise JournalError(
                f"the journal's witness cannot be written ({error}); check the disk"
            ) from error

    def _opened(self, slot: bytes, what: str) -> tuple[int, dict[str, Any]] | None:
        """The number and the object of a slot; None when it is empty, torn or damaged."""
        number = int.from_bytes(slot[:_NUMBER_BYTES], "big")
        try:
            plain = self._seal.open(slot[_NUMBER_BYTES:], table=_TABLE, row_id=what, seq=number)
        except SealBroken:
            return None
        return number, read_strict(plain, max_bytes=_SLOT_BYTES)
