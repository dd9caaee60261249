"""The folder of simulated gates: what each of them remembers, one JSON file a gate.

SIM/                  0700
  gate-1.gate/        one gate
    keys/             its own keys, as a device has them
    validator.key     the seed of its validator's key
    trust.json        what it pinned at its registration
    state.json        gallery, journal, and where its server is
    lock              held while state.json is changed: `run` and `pass` are two processes
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from device.platform.files import replace_synced
from gallery.stream import Delta, Entry, KeyOf, Op, follow_chain, head_zero, read_delta_page
from link1.canonical import JsonObject
from link1.objects import PREV_REF_OF_FIRST, GalleryMark
from tools.cloud.simulation.errors import SimulationError

SUFFIX = ".gate"


@dataclass
class HeldPalms:
    """A gallery without vectors: whose palms a gate would know. `templates` by template_id."""

    stream: str
    epoch: int
    seq: int
    head: str
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def empty(cls, stream: str, epoch: int) -> "HeldPalms":
        """The beginning of an epoch."""
        return cls(stream, epoch, 0, head_zero(stream, epoch).hex())

    @property
    def mark(self) -> GalleryMark:
        return GalleryMark(self.stream, self.epoch, self.seq, self.head[:16])

    def take(self, page: bytes, key_of: KeyOf) -> bool:
        """Verify a page of deltas and apply it; True when more are waiting. Raises PageRefused."""
        read = read_delta_page(page, key_of)
        for delta in follow_chain(read, seq=self.seq, head=bytes.fromhex(self.head)):
            self._apply(delta)
        if read.head.seq == self.seq:
            self.head = read.head.head.hex()
        return read.has_more

    def _apply(self, delta: Delta) -> None:
        self.seq = delta.seq
        of_person = [known for known in self.templates.values() if known["subject_ref"] == delta.subject_ref]
        match delta.op:
            case Op.UPSERT if delta.entry is not None:
                self.put(delta.entry)
            case Op.TOMBSTONE:
                self.templates = {
                    name: known for name, known in self.templates.items() if known not in of_person
                }
            case Op.SUSPEND | Op.RESUME:
                for known in of_person:
                    known["suspended"] = delta.op is Op.SUSPEND

    def put(self, entry: Entry) -> None:
        """Hold a template of the stream."""
        self.templates[entry.template_id] = {
            "subject_ref": entry.subject_ref,
            "hand": entry.hand,
            "onboard_ref": entry.onboard_ref,
            "suspended": entry.suspended,
        }

    def template_of(self, subject_ref: str) -> dict[str, Any] | None:
        """A template by which the gate recognizes this person now; None when it does not."""
        known = [
            template
            for template in self.templates.values()
            if template["subject_ref"] == subject_ref and not template["suspended"]
        ]
        return min(known, key=lambda template: template["hand"], default=None)


@dataclass
class GateState:
    """What a gate remembers between two commands; `unsent` are items of `POST /v1/verdicts/batch`."""

    data: str
    database: str | None
    url: str
    model_id: str
    boot_id: str
    made_at_ms: int
    palms: HeldPalms
    verdict_seq: int = 0
    last_ref: str = PREV_REF_OF_FIRST
    last_verdict: JsonObject | None = None
    last_outcome: str | None = None
    last_passed: bool | None = None
    decision_seq: int = 0
    passage_seq: int = 0
    out_seq: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    unsent: list[JsonObject] = field(default_factory=list)
    ordered: JsonObject | None = None
    """`{wipe_id, reason}` of the wipe that the service ordered."""
    wiped: JsonObject | None = None
    """The same once the service knows that it is obeyed."""


def read_state(place: Path) -> GateState:
    """The state of the gate in `place`. Raises SimulationError."""
    try:
        members = json.loads((place / "state.json").read_bytes())
        return GateState(**members | {"palms": HeldPalms(**members["palms"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SimulationError(
            f"there is no simulated gate in {place}; make one with: palmctl cloud simulate gate"
        ) from error


def write_state(place: Path, state: GateState) -> None:
    """Replace the gate's state."""
    replace_synced(place / "state.json", json.dumps(asdict(state)).encode(), mode=0o600)


@contextmanager
def changing(place: Path) -> Iterator[GateState]:
    """The gate's state, which no other process changes meanwhile; what was changed is kept at the end."""
    if not place.is_dir():
        read_state(place)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read_state(place)
        yield state
        write_state(place, state)


def gates_of(folder: Path) -> list[Path]:
    """The gates of a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))
