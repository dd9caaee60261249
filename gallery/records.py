"""What the gallery holds apart from templates: its position, what it knows about time, what is staged."""

from dataclasses import asdict, dataclass

from gallery.errors import StoreError
from gallery.freshness import HeldTime
from gallery.stream import Head, head_zero
from link1.canonical import JsonObject


@dataclass(frozen=True, slots=True)
class Position:
    """A point of the stream; `head` is its 32 bytes."""

    stream: str
    epoch: int
    seq: int
    head: bytes

    @property
    def head16(self) -> str:
        """The first 16 hex digits of the head, as verdicts and status name it."""
        return self.head.hex()[:16]

    @classmethod
    def start(cls, stream: str, epoch: int) -> "Position":
        """Before the first delta of an epoch."""
        return cls(stream, epoch, 0, head_zero(stream, epoch))


@dataclass(frozen=True, slots=True)
class Held:
    """The gallery's position; saved in the transaction that moves it.

    `generation` is that of the rows in use, `count` their number, suspended ones included.
    """

    position: Position
    generation: int
    count: int
    time: HeldTime

    def to_obj(self) -> JsonObject:
        """For the store."""
        place = {**asdict(self.position), "head": self.position.head.hex()}
        time = asdict(self.time)
        return {
            "v": 1,
            "position": place,
            "generation": self.generation,
            "count": self.count,
            "ahead_ms": time.pop(
                "ahead_ms"
            ),  # outside: older software refuses a member of time it does not know
            "time": time,
        }

    @classmethod
    def from_obj(cls, obj: JsonObject) -> "Held":
        """Out of the store, whose seal vouches for it. Raises StoreError for another version."""
        try:
            place = {**obj["position"], "head": bytes.fromhex(obj["position"]["head"])}
            time = HeldTime(**obj["time"], ahead_ms=obj.get("ahead_ms"))
            return cls(Position(**place), obj["generation"], obj["count"], time)
        except (KeyError, TypeError, ValueError) as error:
            raise _other_version() from error


@dataclass(frozen=True, slots=True)
class Staging:
    """A snapshot being taken: which point of the stream it is of, and the generation it fills."""

    generation: int
    epoch: int
    seq: int
    head: bytes
    state: bytes
    count: int

    @classmethod
    def of(cls, head: Head, generation: int) -> "Staging":
        """The beginning of a snapshot; `head` is one with a state."""
        return cls(generation, head.epoch, head.seq, head.head, head.state or b"", head.count)

    def is_of(self, head: Head) -> bool:
        """Whether a page with this head belongs to it. (When the head was issued makes no difference.)"""
        return self == Staging.of(head, self.generation)

    def to_obj(self) -> JsonObject:
        """For the store."""
        return {**asdict(self), "head": self.head.hex(), "state": self.state.hex()}

    @classmethod
    def from_obj(cls, obj: JsonObject) -> "Staging":
        """Out of the store. Raises StoreError for another version."""
        try:
            return cls(**{**obj, "head": bytes.fromhex(obj["head"]), "state": bytes.fromhex(obj["state"])})
        except (KeyError, TypeError, ValueError) as error:
            raise _other_version() from error


def _other_version() -> StoreError:
    return StoreError(
        "the gallery store was written by another version of this software; remove the gallery folder, "
        "and the device takes a fresh snapshot"
    )
