"""Consistent snapshots of a gallery, page by page (device surface §4)."""

import base64
import hmac
import os
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.contract.parameters import cursor_bytes
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.words import SNAPSHOT_PAGE
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault
from gallery.stream import Head, state_of

SNAPSHOT_MS: Final = 3600 * 1000
_ID_BYTES: Final = 16
_MAC_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Hashed:
    """The hash over a gallery, and the position it is of."""

    position: gallery_log.StreamState
    state: bytes


def hashed(tx: Tx, environment: Environment) -> Hashed:
    """The hash over the gallery as it is now; a hundred thousand palms take a third of a second."""
    position = gallery_log.state_of_stream(tx, environment)
    digests = tx.each(
        """SELECT entry_digest FROM gallery_templates WHERE stream = :stream AND removed_seq IS NULL
           ORDER BY template_id""",
        stream=position.stream,
    )
    return Hashed(position, state_of(row["entry_digest"] for row in digests))


def open_snapshot(tx: Tx, environment: Environment, now_ms: int) -> str:
    """Fix the gallery as it is now for an hour of paging; the snapshot's id."""
    opened = open_hashed(tx, environment, now_ms, None) or open_hashed(
        tx, environment, now_ms, hashed(tx, environment)
    )
    if opened is None:
        raise LookupError("the gallery moved within a transaction")
    return opened


def open_hashed(tx: Tx, environment: Environment, now_ms: int, found: Hashed | None) -> str | None:
    """As ``open_snapshot``, with a hash that was made before, while others could write.

    None where there is none of the gallery as it is now.
    """
    state = gallery_log.state_of_stream(tx, environment)
    expires_ms = now_ms + SNAPSHOT_MS
    same = tx.one(
        """UPDATE snapshots SET expires_ms = :expires_ms
           WHERE stream = :stream AND epoch = :epoch AND seq = :seq AND expires_ms > :now_ms
           RETURNING snapshot_id""",
        stream=state.stream,
        epoch=state.epoch,
        seq=state.seq,
        now_ms=now_ms,
        expires_ms=expires_ms,
    )
    if same is not None:
        return str(same["snapshot_id"])
    if found is None or found.position != state:
        return None
    snapshot_id = os.urandom(_ID_BYTES).hex()
    tx.run(
        """INSERT INTO snapshots (snapshot_id, stream, epoch, seq, head, count, state, expires_ms)
           VALUES (:snapshot_id, :stream, :epoch, :seq, :head, :count, :state, :expires_ms)""",
        snapshot_id=snapshot_id,
        stream=state.stream,
        epoch=state.epoch,
        seq=state.seq,
        head=state.head,
        count=state.count,
        state=found.state,
        expires_ms=expires_ms,
    )
    return snapshot_id


def snapshot_page(
    tx: Tx,
    vault: Vault,
    environment: Environment,
    snapshot_id: str,
    after: str,
    *,
    now_ms: int,
    page_size: int = SNAPSHOT_PAGE,
) -> dict[str, Any]:
    """One page of an open snapshot: the entries behind template_id ``after``. Problem 410."""
    opened = tx.one(
        """SELECT * FROM snapshots
           WHERE snapshot_id = :snapshot_id AND stream = :stream AND expires_ms > :now_ms""",
        snapshot_id=snapshot_id,
        stream=environment.stream,
        now_ms=now_ms,
    )
    if opened is None:
        raise Problem(ProblemCode.CURSOR_EXPIRED)
    rows = tx.all(
        """SELECT t.*, s.person_key_ct, s.refs_ct, s.subject_ref, s.suspended,
                  EXISTS (SELECT 1 FROM suspensions p
                          WHERE p.stream = t.stream AND p.epoch = :epoch AND p.subject_id = t.subject_id
                            AND p.from_seq <= :seq
                            AND (p.to_seq IS NULL OR p.to_seq > :seq)) AS suspended_then
           FROM gallery_templates t JOIN subjects s ON s.subject_id = t.subject_id
           WHERE t.stream = :stream AND t.template_id > :after AND t.added_seq <= :seq
             AND (t.removed_seq IS NULL OR t.removed_seq > :seq)
           ORDER BY t.template_id LIMIT :rows""",
        stream=opened["stream"],
        epoch=opened["epoch"],
        seq=opened["seq"],
        after=after,
        rows=page_size + 1,
    )
    shown, more = rows[:page_size], len(rows) > page_size
    cursor = _make_cursor(vault, environment, snapshot_id, shown[-1]["template_id"]) if more else None
    head = Head(
        opened["stream"],
        opened["epoch"],
        opened["seq"],
        opened["head"],
        opened["count"],
        now_ms,
        opened["state"],
    )
    return {
        "head": gallery_log.signed_head(tx, vault, head, now_ms),
        "data": [gallery_log.entry_of(row, vault, suspended=bool(row["suspended_then"])) for row in shown],
        "next_cursor": cursor,
        "has_more": more,
    }


def _make_cursor(vault: Vault, environment: Environment, snapshot_id: str, template_id: str) -> str:
    position = bytes.fromhex(snapshot_id) + bytes.fromhex(template_id)
    return base64.urlsafe_b64encode(position + _cursor_mac(vault, environment, position)).decode()


def read_cursor(vault: Vault, environment: Environment, text: str) -> tuple[str, str]:
    """(snapshot id, template_id to go on behind). Problem 400 ``invalid_cursor``."""
    raw = cursor_bytes(text)
    position, mac = raw[: 2 * _ID_BYTES], raw[2 * _ID_BYTES :]
    if not hmac.compare_digest(mac, _cursor_mac(vault, environment, position)):
        raise Problem(ProblemCode.INVALID_CURSOR)
    return position[:_ID_BYTES].hex(), position[_ID_BYTES:].hex()


def _cursor_mac(vault: Vault, environment: Environment, position: bytes) -> bytes:
    stream = environment.stream.encode()
    return vault.mac("snapshot-cursor", stream, position)[:_MAC_BYTES]
