"""New deltas of a stream, and their objects; devices read them by `gallery.stream`.

head = head_zero("t1.live", epoch=1)
delta = make_delta(1, Op.TOMBSTONE, salt=os.urandom(16), subject_ref="0f" * 16)
head = next_head(head, delta.digest)
"""

from gallery.stream import Delta, Entry, Op, digest_of
from link1.canonical import JsonObject, b64_encode


def make_delta(
    seq: int, op: Op, *, salt: bytes, entry: Entry | None = None, subject_ref: str | None = None
) -> Delta:
    """A new delta: `entry` for an upsert, `subject_ref` for tombstone, suspend and resume."""
    return Delta(seq, op, digest_of(_fields(seq, op, entry, subject_ref), salt), salt, entry, subject_ref)


def delta_obj(delta: Delta) -> JsonObject:
    """The flat object of the contract."""
    obj = _fields(delta.seq, delta.op, delta.entry, delta.subject_ref)
    obj["digest"] = delta.digest.hex()
    if delta.salt is not None:
        obj["salt_b64"] = b64_encode(delta.salt)
    return obj


def _fields(seq: int, op: Op, entry: Entry | None, subject_ref: str | None) -> JsonObject:
    fields: JsonObject = {"seq": seq, "op": op.value}
    if op is Op.UPSERT:
        if entry is None:
            raise ValueError("an upsert carries an entry")
        fields.update(entry.to_obj())
    elif op is not Op.NOOP:
        if subject_ref is None:
            raise ValueError(f"{op.value} carries a subject_ref")
        fields["subject_ref"] = subject_ref
    return fields
