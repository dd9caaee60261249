"""The gallery stream of an environment: its log, its templates, its head (device surface §4).

Everything of a person in these tables is sealed under the person's key, but for what a tombstone has to
say after the key is gone: the pseudonym subject_ref, for the seven days of the log.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cloud_client.reference_server.contract.words import MAX_DELTA_PAGE
from cloud_client.reference_server.domain.gallery.deltas import delta_obj, make_delta
from cloud_client.reference_server.domain.tenancy import persons, signers
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.persons import SubjectIdentity, key_of_row
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault, seal, unseal
from gallery.stream import SALT_BYTES, Delta, Entry, Head, Op, entry_sha256, head_zero, next_head
from link1.canonical import JsonObject
from link1.signed import Kind

KEEP_DELTAS_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class StreamState:
    """The present state of a stream."""

    stream: str
    epoch: int
    seq: int
    head: bytes
    count: int
    model_id: str | None


def state_of_stream(tx: Tx, environment: Environment) -> StreamState:
    """The present state of the environment's stream."""
    row = tx.row(
        "SELECT stream, epoch, seq, head, count, model_id FROM streams WHERE stream = :stream",
        stream=environment.stream,
    )
    return StreamState(**dict(row))


def acknowledge(tx: Tx, tenant_id: str, device_id: str, position: tuple[int, int], now_ms: int) -> None:
    """A device says that it has applied everything up to (epoch, seq); that never falls."""
    epoch, seq = position
    tx.run(
        """UPDATE devices SET acked_epoch = :epoch, acked_seq = :seq, synced_ms = :now_ms
           WHERE tenant_id = :tenant_id AND device_id = :device_id
             AND (acked_epoch, acked_seq) <= (:epoch, :seq)""",
        epoch=epoch,
        seq=seq,
        now_ms=now_ms,
        tenant_id=tenant_id,
        device_id=device_id,
    )


def adopt_model(tx: Tx, environment: Environment, model_id: str) -> None:
    """The first access device says which model the stream is made with."""
    tx.run(
        "UPDATE streams SET model_id = :model_id WHERE stream = :stream AND model_id IS NULL",
        model_id=model_id,
        stream=environment.stream,
    )


def append(
    tx: Tx,
    environment: Environment,
    op: Op,
    person: SubjectIdentity,
    now_ms: int,
    *,
    entry: Entry | None = None,
) -> int:
    """Add one delta about a person to the log; its seq."""
    state = state_of_stream(tx, environment)
    # No delta is dated before the one that it follows, wherever the clock was then: the sweep, which goes by
    # these dates, would make a gap in the log.
    before_ms = tx.scalar(
        "SELECT created_ms FROM deltas WHERE stream = :stream AND epoch = :epoch AND seq = :seq",
        stream=state.stream,
        epoch=state.epoch,
        seq=state.seq,
    )
    subject_ref = None if entry else person.subject_ref
    delta = make_delta(state.seq + 1, op, salt=os.urandom(SALT_BYTES), entry=entry, subject_ref=subject_ref)
    head = next_head(state.head, delta.digest)
    tx.run(
        """INSERT INTO deltas (stream, epoch, seq, op, digest, head, salt, subject_id, subject_ref, entry_ct,
                               created_ms)
           VALUES (:stream, :epoch, :seq, :op, :digest, :head, :salt, :subject_id, :subject_ref, :entry_ct,
                   :created_ms)""",
        stream=state.stream,
        epoch=state.epoch,
        seq=delta.seq,
        op=op.value,
        digest=delta.digest,
        head=head,
        salt=delta.salt,
        subject_id=person.subject_id,
        subject_ref=subject_ref,
        entry_ct=None
        if entry is None
        else seal(
            person.key,
            json.dumps(entry.to_obj()).encode(),
            _delta_context(state.stream, state.epoch, delta.seq),
        ),
        created_ms=max(now_ms, before_ms or 0),
    )
    tx.run(
        "UPDATE streams SET seq = :seq, head = :head WHERE stream = :stream",
        seq=delta.seq,
        head=head,
        stream=state.stream,
    )
    tx.announce("stream", state.stream)
    tx.run(
        "UPDATE subjects SET gallery_seq = :seq WHERE subject_id = :subject_id",
        seq=delta.seq,
        subject_id=person.subject_id,
    )
    return delta.seq


def add_templates(
    tx: Tx,
    environment: Environment,
    person: SubjectIdentity,
    model_id: str,
    vectors: Iterable[tuple[str, bytes]],
    *,
    now_ms: int,
) -> None:
    """Upsert (hand, vector) pairs of a person."""
    first_seq = state_of_stream(tx, environment).seq + 1
    added = 0
    for hand, vector in vectors:
        entry = Entry(
            template_id=os.urandom(16).hex(),
            subject_ref=person.subject_ref,
            hand=hand,
            model_id=model_id,
            vector=vector,
            onboard_ref=person.onboard_ref,
            suspended=person.suspended,
        )
        seq = append(tx, environment, Op.UPSERT, person, now_ms, entry=entry)
        tx.run(
            """INSERT INTO templates (template_id, stream, epoch, subject_id, hand, model_id, vector_ct,
                                      entry_digest, added_seq)
               SELECT :template_id, stream, epoch, :subject_id, :hand, :model_id, :vector_ct, :entry_digest,
                      :seq
               FROM streams WHERE stream = :stream""",
            template_id=entry.template_id,
            subject_id=person.subject_id,
            hand=hand,
            model_id=model_id,
            vector_ct=seal(person.key, vector, entry.template_id.encode()),
            entry_digest=entry_sha256(entry.to_obj()),
            seq=seq,
            stream=environment.stream,
        )
        added += 1
    if person.suspended:
        _open_suspension(tx, environment, person.subject_id, first_seq)
    _count(tx, environment, added)


def remove_templates(
    tx: Tx, environment: Environment, person: SubjectIdentity, now_ms: int, *, destroy: bool
) -> int | None:
    """Tombstone a person; None when the log holds nothing of them, else the tombstone's seq.

    ``destroy`` deletes the templates and compacts the log at once. Otherwise (another enrolment follows)
    snapshots that are open keep what they have begun to show.
    """
    live = int(
        tx.scalar(
            """SELECT count(*) FROM gallery_templates
               WHERE subject_id = :subject_id AND removed_seq IS NULL""",
            subject_id=person.subject_id,
        )
    )
    # Compaction takes an earlier tombstone away as well, so another one has to follow it.
    logged = tx.exists("SELECT 1 FROM deltas WHERE subject_id = :subject_id", subject_id=person.subject_id)
    if destroy:
        compact(tx, environment, person.subject_id)
        # With those of a former model, which the sweep has not reached yet.
        tx.run("DELETE FROM templates WHERE subject_id = :subject_id", subject_id=person.subject_id)
    if not live and not (destroy and logged):
        return None
    seq = append(tx, environment, Op.TOMBSTONE, person, now_ms)
    tx.run(
        """UPDATE templates SET removed_seq = :seq
           WHERE subject_id = :subject_id AND removed_seq IS NULL""",
        seq=seq,
        subject_id=person.subject_id,
    )
    tx.run(
        "UPDATE suspensions SET to_seq = :seq WHERE subject_id = :subject_id AND to_seq IS NULL",
        seq=seq,
        subject_id=person.subject_id,
    )
    if not destroy and not tx.exists(
        "SELECT 1 FROM snapshots WHERE stream = :stream AND expires_ms > :now_ms",
        stream=environment.stream,
        now_ms=now_ms,
    ):
        tx.run("DELETE FROM templates WHERE subject_id = :subject_id", subject_id=person.subject_id)
    _count(tx, environment, -live)
    return seq


def compact(tx: Tx, environment: Environment, subject_id: str) -> None:
    """Turn every delta about a person into a noop that only keeps the chain; open snapshots end."""
    tx.run(
        """UPDATE deltas SET op = 'noop', salt = NULL, entry_ct = NULL, subject_ref = NULL, subject_id = NULL
           WHERE subject_id = :subject_id""",
        subject_id=subject_id,
    )
    tx.run("DELETE FROM snapshots WHERE stream = :stream", stream=environment.stream)
    tx.run("DELETE FROM suspensions WHERE subject_id = :subject_id", subject_id=subject_id)
    tx.purge_after_commit = True
    tx.announce("palm", environment.stream, subject_id)


def set_suspended(
    tx: Tx, environment: Environment, person: SubjectIdentity, suspended: bool, now_ms: int
) -> int | None:
    """Take an enrolled person out of the match set, or put them back; None without templates."""
    templates = tx.all(
        """SELECT template_id, hand, model_id, vector_ct FROM gallery_templates
           WHERE subject_id = :subject_id AND removed_seq IS NULL""",
        subject_id=person.subject_id,
    )
    if not templates:
        return None
    seq = append(tx, environment, Op.SUSPEND if suspended else Op.RESUME, person, now_ms)
    if suspended:
        _open_suspension(tx, environment, person.subject_id, seq)
    else:
        tx.run(
            """UPDATE suspensions SET to_seq = :seq
               WHERE subject_id = :subject_id AND to_seq IS NULL""",
            seq=seq,
            subject_id=person.subject_id,
        )
    for row in templates:
        entry = _entry(row, person, suspended=suspended)
        tx.run(
            "UPDATE templates SET entry_digest = :digest WHERE template_id = :template_id",
            digest=entry_sha256(entry.to_obj()),
            template_id=row["template_id"],
        )
    return seq


def _open_suspension(tx: Tx, environment: Environment, subject_id: str, seq: int) -> None:
    tx.run(
        """INSERT INTO suspensions (stream, epoch, subject_id, from_seq)
           SELECT stream, epoch, :subject_id, :seq FROM streams WHERE stream = :stream""",
        subject_id=subject_id,
        seq=seq,
        stream=environment.stream,
    )


def new_epoch(tx: Tx, environment: Environment, model_id: str, now_ms: int) -> StreamState:
    """Begin an epoch made with ``model_id``, at a cost that the size of the gallery hardly changes.

    Templates of the same model move into the new epoch (a rebuild). Where it is another, persons must be
    enrolled again. The sweep deletes the old log, and the templates that are no longer part of the gallery.
    """
    state = state_of_stream(tx, environment)
    epoch = state.epoch + 1
    kept = state.model_id == model_id
    tx.run("DELETE FROM snapshots WHERE stream = :stream", stream=state.stream)
    if kept:
        # Only snapshots that were open could still show them.
        tx.run(
            "DELETE FROM templates WHERE stream = :stream AND removed_seq IS NOT NULL", stream=state.stream
        )
        tx.run("DELETE FROM suspensions WHERE stream = :stream AND to_seq IS NOT NULL", stream=state.stream)
        tx.run(
            "UPDATE suspensions SET epoch = :epoch, from_seq = 0 WHERE stream = :stream",
            epoch=epoch,
            stream=state.stream,
        )
    else:
        tx.run(
            """UPDATE subjects SET model_id = NULL, hands = NULL, enrolled_ms = NULL, suspended = 0,
                      status = CASE WHEN operator_blocked_ms IS NULL THEN 'pending_enrollment'
                                    ELSE 'blocked' END,
                      updated_ms = CASE WHEN enrolled_ms IS NULL THEN updated_ms ELSE :now_ms END
               WHERE tenant_id = :tenant_id AND livemode = :livemode""",
            now_ms=now_ms,
            **environment.params,
        )
        tx.run("DELETE FROM suspensions WHERE stream = :stream", stream=state.stream)
        tx.run(
            "UPDATE streams SET kept_epoch = :epoch, count = 0 WHERE stream = :stream",
            epoch=epoch,
            stream=state.stream,
        )
    tx.run(
        """UPDATE streams SET epoch = :epoch, seq = 0, head = :head, model_id = :model_id
           WHERE stream = :stream""",
        epoch=epoch,
        head=head_zero(state.stream, epoch),
        model_id=model_id,
        stream=state.stream,
    )
    tx.announce("stream", state.stream)
    tx.purge_after_commit = True
    return state_of_stream(tx, environment)


def signed_head(tx: Tx, vault: Vault, head: Head, now_ms: int) -> JsonObject:
    """A head, signed by the gallery key in force."""
    return signers.sign(tx, vault, "gallery", Kind.GALLERY_HEAD, head.to_obj(), now_ms=now_ms)


def delta_page(
    tx: Tx, vault: Vault, environment: Environment, *, after_seq: int, limit: int, now_ms: int
) -> dict[str, Any]:
    """The answer of the deltas route: what follows ``after_seq``, with a head signed for its last delta."""
    state = state_of_stream(tx, environment)
    rows = tx.all(
        """SELECT d.*, s.person_key_ct FROM deltas d LEFT JOIN subjects s ON s.subject_id = d.subject_id
           WHERE d.stream = :stream AND d.epoch = :epoch AND d.seq > :after_seq
           ORDER BY d.seq LIMIT :limit""",
        stream=state.stream,
        epoch=state.epoch,
        after_seq=after_seq,
        limit=min(limit, MAX_DELTA_PAGE),
    )
    seq, chain = (rows[-1]["seq"], rows[-1]["head"]) if rows else (state.seq, state.head)
    head = Head(state.stream, state.epoch, seq, chain, state.count, now_ms)
    return {
        "head": signed_head(tx, vault, head, now_ms),
        "data": [_delta_obj(vault, row) for row in rows],
        "has_more": (seq if limit else after_seq) < state.seq,
    }


def oldest_seq(tx: Tx, state: StreamState) -> int:
    """The first seq whose delta is still kept; seq + 1 when there is none."""
    oldest = tx.scalar(
        "SELECT min(seq) FROM deltas WHERE stream = :stream AND epoch = :epoch",
        stream=state.stream,
        epoch=state.epoch,
    )
    return state.seq + 1 if oldest is None else int(oldest)


def entry_of(row: Row, vault: Vault, *, suspended: bool) -> JsonObject:
    """The entry of a template row that carries its person's sealed columns too."""
    return _entry(row, persons.load(vault, row), suspended=suspended).to_obj()


def _entry(row: Row, person: SubjectIdentity, *, suspended: bool) -> Entry:
    return Entry(
        template_id=row["template_id"],
        subject_ref=person.subject_ref,
        hand=row["hand"],
        model_id=row["model_id"],
        vector=unseal(person.key, row["vector_ct"], row["template_id"].encode()),
        onboard_ref=person.onboard_ref,
        suspended=suspended,
    )


def _delta_obj(vault: Vault, row: Row) -> JsonObject:
    op = Op(row["op"])
    entry = None
    if row["entry_ct"] is not None:
        context = _delta_context(row["stream"], row["epoch"], row["seq"])
        entry = Entry.from_obj(json.loads(unseal(key_of_row(vault, row), row["entry_ct"], context)))
    return delta_obj(Delta(row["seq"], op, row["digest"], row["salt"], entry, row["subject_ref"]))


def _delta_context(stream: str, epoch: int, seq: int) -> bytes:
    return f"delta {stream} {epoch} {seq}".encode()


def _count(tx: Tx, environment: Environment, change: int) -> None:
    tx.run(
        "UPDATE streams SET count = count + :change WHERE stream = :stream",
        change=change,
        stream=environment.stream,
    )
