"""The counters that must never fall, kept in a file next to the key of the conformance test."""

import json
from dataclasses import dataclass
from pathlib import Path

from device.platform.files import replace_synced
from link1 import members
from link1.canonical import read_strict
from link1.errors import FormatError
from link1.members import HEX32
from link1.objects import PREV_REF_OF_FIRST, LastVerdict
from link1.plain_file import read_plain_file

MAX_FILE_BYTES = 4_096


@dataclass
class Counters:
    """The last numbers used, of whichever end is played; `path` None keeps them nowhere."""

    path: Path | None = None
    decision_seq: int = 0
    dbd_event_seq: int = 0
    verdict_seq: int = 0
    prev_ref: str = PREV_REF_OF_FIRST

    @property
    def last(self) -> LastVerdict | None:
        return LastVerdict(self.verdict_seq, self.prev_ref) if self.verdict_seq else None

    def next_decision_seq(self) -> int:
        self.decision_seq += 1
        self._save()
        return self.decision_seq

    def next_event_seq(self) -> int:
        self.dbd_event_seq += 1
        self._save()
        return self.dbd_event_seq

    def verdict_signed(self, ref: str) -> None:
        """A verdict with `verdict_seq` + 1 was signed."""
        self.verdict_seq, self.prev_ref = self.verdict_seq + 1, ref
        self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        obj = {name: value for name, value in vars(self).items() if name != "path"}
        replace_synced(self.path, json.dumps(obj).encode("ascii"), mode=0o600)


def load_counters(path: Path) -> Counters:
    """The counters kept at `path`, or new ones. Raises FormatError for a file that cannot be read."""
    try:
        data = read_plain_file(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return Counters(path)
    try:
        obj = read_strict(data, max_bytes=MAX_FILE_BYTES)
        kept = Counters(
            path,
            decision_seq=members.integer(obj, "decision_seq"),
            dbd_event_seq=members.integer(obj, "dbd_event_seq"),
            verdict_seq=members.integer(obj, "verdict_seq"),
            prev_ref=members.text(obj, "prev_ref", HEX32),
        )
    except FormatError as error:
        raise FormatError(f"{path} is damaged ({error}); remove it together with its key") from None
    return kept
