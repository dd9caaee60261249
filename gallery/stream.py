"""The gallery stream: entries, deltas and heads, and the hash chain that binds them.

Both ends of the stream use these functions: the service to write its log
(`cloud_client.reference_server.domain.gallery.deltas`), the device to check what it is handed. There is no
input or output here, no clock and no store.

Invariants (device surface §4):

1. `digest_n = SHA-256(salt ‖ JCS(delta without salt_b64 and digest))`;
   `head_n = SHA-256("svc.gallery.head.v1" ‖ 0x00 ‖ head_(n−1) ‖ digest_n)`;
   `head_0 = SHA-256("svc.gallery.head.v1" ‖ 0x00 ‖ JCS({"epoch", "stream"}))`.
   Digests and heads enter hashes as 32 raw bytes and are written as 64 lower-case hex digits.
2. A digest covers every member that was received, also those this version does not know: it is
   computed over the received object and never over what was understood of it.
3. A delta whose person was erased is served as `{seq, op: "noop", digest}`. Its digest cannot be
   recomputed, and need not be: the signed head vouches for it.
4. `state = SHA-256(SHA-256(JCS(entry_1)) ‖ SHA-256(JCS(entry_2)) ‖ …)` by rising template_id.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gallery.errors import PageRefused, RefusalCode
from link1 import members
from link1.canonical import JsonObject, b64_decode, b64_encode, canonical_bytes, read_with_fractions
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.signed import Kind, signer_kid_of, verify_object

VECTOR_LENGTH: Final = 512
VECTOR_BYTES: Final = 4 * VECTOR_LENGTH
SALT_BYTES: Final = 16
MAX_DELTAS: Final = 500
MAX_ENTRIES: Final = 200
ENTRIES_A_PIECE: Final = 16
"""Entries read or staged between two pauses: about two milliseconds."""
MAX_DELTA_PAGE_BYTES: Final = 2 << 20
"""500 deltas of at most 3,340 bytes each make 1.6 MiB; the rest is room for members of later versions."""
MAX_SNAPSHOT_PAGE_BYTES: Final = 1 << 20
"""200 entries of at most 3,200 bytes each make 0.6 MiB; the rest is room as above."""

_HEAD_PREFIX: Final = b"svc.gallery.head.v1\x00"
_LENGTH_TOLERANCE: Final = 1e-3

KeyOf = Callable[[str], PublicKey | None]
"""From a signer_kid to the gallery key that is trusted under that name now, or None."""
Pause = Callable[[], object]
"""Called between pieces of long work, so that urgent work is not delayed; may wait."""
T = TypeVar("T")


def at_once() -> None:
    """No pause."""


def paced(items: Iterable[T], pause: Pause, every: int) -> Iterator[T]:
    """The items, with a pause before each `every`-th."""
    for number, item in enumerate(items, 1):
        if number % every == 0:
            pause()
        yield item


class Op(StrEnum):
    """What a delta does."""

    UPSERT = "upsert"
    TOMBSTONE = "tombstone"
    SUSPEND = "suspend"
    RESUME = "resume"
    NOOP = "noop"


_HANDS: Final = frozenset({"L", "R"})
_NOT_IN_DIGEST: Final = frozenset({"salt_b64", "digest"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One template of one person.

    `vector` is 2,048 bytes: 512 little-endian float32, finite, of Euclidean length 1 ± 1e-3.
    `template_id` and `subject_ref` are 32 lower-case hex digits, `hand` is "L" or "R".
    """

    template_id: str
    subject_ref: str
    hand: str
    model_id: str
    vector: bytes
    onboard_ref: str | None = None
    suspended: bool = False

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Entry":
        """Read the entry's members out of `obj`; others are ignored. Raises FormatError."""
        return cls(
            template_id=members.text(obj, "template_id", members.HEX32),
            subject_ref=members.text(obj, "subject_ref", members.HEX32),
            hand=members.one_of(obj, "hand", _HANDS),
            model_id=members.text(obj, "model_id", members.NAME),
            vector=read_vector(members.member(obj, "vector_b64")),
            onboard_ref=members.optional_text(obj, "onboard_ref", members.ONBOARD_REF),
            suspended=members.boolean(obj, "suspended"),
        )

    def to_obj(self) -> JsonObject:
        """The contract's object; `onboard_ref` is left out when there is none."""
        obj: JsonObject = {
            "template_id": self.template_id,
            "subject_ref": self.subject_ref,
            "hand": self.hand,
            "model_id": self.model_id,
            "vector_b64": b64_encode(self.vector),
            "suspended": self.suspended,
        }
        if self.onboard_ref is not None:
            obj["onboard_ref"] = self.onboard_ref
        return obj

    def values(self) -> NDArray[np.float32]:
        """The vector as a read-only (512,) float32 array."""
        return np.frombuffer(self.vector, dtype="<f4")


@dataclass(frozen=True, slots=True)
class Delta:
    """One step of the stream. `salt` is None exactly in a compacted `noop`."""

    seq: int
    op: Op
    digest: bytes
    salt: bytes | None = None
    entry: Entry | None = None
    subject_ref: str | None = None

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Delta":
        """Read one delta and check its digest over every received member.

        Raises FormatError, or PageRefused(bad_chain) when the digest is not that of the contents.
        """
        seq = members.integer(obj, "seq", 1)
        op = Op(members.one_of(obj, "op", frozenset(Op)))
        digest = bytes.fromhex(members.text(obj, "digest", members.HEX64))
        salt = None
        if op is not Op.NOOP or "salt_b64" in obj:
            salt = b64_decode(members.member(obj, "salt_b64"), length=SALT_BYTES)
            fields = {name: value for name, value in obj.items() if name not in _NOT_IN_DIGEST}
            if digest_of(fields, salt) != digest:
                raise PageRefused(
                    RefusalCode.BAD_CHAIN, f"the digest of delta {seq} is not that of its contents"
                )
        entry = Entry.from_obj(obj) if op is Op.UPSERT else None
        by_person = op in (Op.TOMBSTONE, Op.SUSPEND, Op.RESUME)
        subject_ref = members.text(obj, "subject_ref", members.HEX32) if by_person else None
        return cls(seq, op, digest, salt, entry, subject_ref)


@dataclass(frozen=True, slots=True)
class Head:
    """The signed statement about one point of the stream; `state` only in snapshots."""

    stream: str
    epoch: int
    seq: int
    head: bytes
    count: int
    issued_at_ms: int
    state: bytes | None = None

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Head":
        """Read the inner head_obj. Raises FormatError."""
        members.version_1(obj)
        state = members.optional_text(obj, "state", members.HEX64)
        return cls(
            stream=members.text(obj, "stream", members.NAME),
            epoch=members.integer(obj, "epoch"),
            seq=members.integer(obj, "seq"),
            head=bytes.fromhex(members.text(obj, "head", members.HEX64)),
            count=members.integer(obj, "count"),
            issued_at_ms=members.integer(obj, "issued_at_ms"),
            state=None if state is None else bytes.fromhex(state),
        )

    def to_obj(self) -> JsonObject:
        """The inner object, to be signed as `Kind.GALLERY_HEAD`."""
        obj: JsonObject = {
            "v": 1,
            "stream": self.stream,
            "epoch": self.epoch,
            "seq": self.seq,
            "head": self.head.hex(),
            "count": self.count,
            "issued_at_ms": self.issued_at_ms,
        }
        if self.state is not None:
            obj["state"] = self.state.hex()
        return obj


@dataclass(frozen=True, slots=True)
class DeltaPage:
    """The answer of `GET /v1/gallery/deltas`, its head verified, its deltas parsed and consecutive."""

    head: Head
    deltas: tuple[Delta, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """An entry with the SHA-256 over its canonical bytes as received."""

    entry: Entry
    sha256: bytes


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """One page of `GET /v1/gallery/snapshot`, its head verified, its entries by rising template_id."""

    head: Head
    entries: tuple[StagedEntry, ...]
    has_more: bool


def head_zero(stream: str, epoch: int) -> bytes:
    """The head before the first delta of an epoch."""
    return hashlib.sha256(_HEAD_PREFIX + canonical_bytes({"epoch": epoch, "stream": stream})).digest()


def next_head(head: bytes, digest: bytes) -> bytes:
    """The head after one more delta."""
    return hashlib.sha256(_HEAD_PREFIX + head + digest).digest()


def digest_of(delta_fields: JsonObject, salt: bytes) -> bytes:
    """The digest of a delta; `delta_fields` is the flat object without salt_b64 and digest."""
    return hashlib.sha256(salt + canonical_bytes(delta_fields)).digest()


def entry_sha256(entry_obj: Mapping[str, Any]) -> bytes:
    """SHA-256 over the canonical bytes of one entry, all of its members included."""
    return hashlib.sha256(canonical_bytes(dict(entry_obj))).digest()


def state_of(entry_hashes: Iterable[bytes]) -> bytes:
    """The state of a snapshot, from `entry_sha256` of each entry by rising template_id."""
    state = hashlib.sha256()
    for entry_hash in entry_hashes:
        state.update(entry_hash)
    return state.digest()


def read_vector(vector_b64: object) -> bytes:
    """The 2,048 bytes of a template vector. Raises FormatError."""
    raw = b64_decode(vector_b64, length=VECTOR_BYTES)
    values = np.frombuffer(raw, dtype="<f4").astype(np.float64)
    length = float(np.sqrt(values @ values))
    # A NaN or an infinity anywhere makes the length one too, and no comparison with those holds.
    if not abs(length - 1.0) <= _LENGTH_TOLERANCE:
        raise FormatError("member vector_b64 is not 512 finite float32 of length 1 ± 0.001")
    return raw


def verify_head(wrapper: object, key_of: KeyOf) -> Head:
    """A signed head, its signature checked with the key that `key_of` gives for its signer_kid.

    Raises PageRefused: `malformed` or `bad_signature`.
    """
    try:
        key = key_of(signer_kid_of(Kind.GALLERY_HEAD, wrapper))
        if key is None:
            raise PageRefused(RefusalCode.BAD_SIGNATURE, "the head's signer is not a gallery key held here")
        return Head.from_obj(verify_object(Kind.GALLERY_HEAD, wrapper, key))
    except FormatError as error:
        raise PageRefused(RefusalCode.MALFORMED, f"signed head: {error}") from error
    except SignatureError as error:
        raise PageRefused(RefusalCode.BAD_SIGNATURE, "the head's signature does not hold") from error


def read_delta_page(data: bytes, key_of: KeyOf) -> DeltaPage:
    """Parse and check an answer of the deltas route (or the same out of a mail record).

    Checked here: size, shape, the head's signature, every digest, consecutive seqs, and that the head
    is that of the last delta. What depends on the device's position is checked by `follow_chain`.
    Raises PageRefused: `malformed`, `bad_signature`, `gap` or `bad_chain`.
    """
    try:
        head, items, has_more = _parse_page(data, MAX_DELTA_PAGE_BYTES, MAX_DELTAS, key_of)
        deltas = tuple(Delta.from_obj(item) for item in items)
    except FormatError as error:
        raise PageRefused(RefusalCode.MALFORMED, f"page of deltas: {error}") from error
    for before, after in pairwise(deltas):
        if after.seq != before.seq + 1:
            raise PageRefused(RefusalCode.GAP, f"expected delta {before.seq + 1}, found {after.seq}")
    if deltas and deltas[-1].seq != head.seq:
        raise PageRefused(
            RefusalCode.BAD_CHAIN, f"the head is for seq {head.seq}, the last delta is {deltas[-1].seq}"
        )
    return DeltaPage(head, deltas, has_more)


def read_snapshot_page(data: bytes, key_of: KeyOf, pause: Pause = at_once) -> SnapshotPage:
    """Parse and check one page of a snapshot; its `state` can be compared only after the last page.

    Raises PageRefused: `malformed` or `bad_signature`.
    """
    try:
        head, items, has_more = _parse_page(data, MAX_SNAPSHOT_PAGE_BYTES, MAX_ENTRIES, key_of)
        if head.state is None:
            raise FormatError("the head of a snapshot carries no state")
        pause()
        entries = tuple(
            StagedEntry(Entry.from_obj(item), entry_sha256(item))
            for item in paced(items, pause, ENTRIES_A_PIECE)
        )
        if any(b.entry.template_id <= a.entry.template_id for a, b in pairwise(entries)):
            raise FormatError("the entries are not in order of template_id")
    except FormatError as error:
        raise PageRefused(RefusalCode.MALFORMED, f"page of a snapshot: {error}") from error
    return SnapshotPage(head, entries, has_more)


def follow_chain(page: DeltaPage, *, seq: int, head: bytes) -> tuple[Delta, ...]:
    """The deltas of a page that lead on from (seq, head), once the chain to the signed head holds.

    Deltas at or before `seq` were applied before and are passed over. Raises PageRefused: `gap` when
    the page begins too late, `bad_chain` when it does not lead from here to its signed head.
    """
    fresh = tuple(delta for delta in page.deltas if delta.seq > seq)
    if fresh and fresh[0].seq != seq + 1:
        raise PageRefused(RefusalCode.GAP, f"expected delta {seq + 1}, the page begins with {fresh[0].seq}")
    for delta in fresh:
        head = next_head(head, delta.digest)
    reached = fresh[-1].seq if fresh else seq
    if page.head.seq == reached and page.head.head != head:
        raise PageRefused(
            RefusalCode.BAD_CHAIN, f"the deltas up to {reached} do not lead to the head that is signed for it"
        )
    return fresh


def _parse_page(
    data: bytes, max_bytes: int, max_items: int, key_of: KeyOf
) -> tuple[Head, list[JsonObject], bool]:
    page = read_with_fractions(data, max_bytes=max_bytes)
    items = members.array(page, "data", 0, max_items)
    if not all(isinstance(item, dict) for item in items):
        raise FormatError("member data is not an array of objects")
    return verify_head(members.member(page, "head"), key_of), items, members.boolean(page, "has_more")
