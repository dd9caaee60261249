"""The gallery routes: deltas with long-poll, and consistent snapshots (device surface §3, §4)."""

import asyncio
import base64
import hmac
import os
from typing import Any

from cloud_client.contract import SNAPSHOT_PAGE, DeviceStatusWord, ProblemCode
from cloud_client.reference_server import gallery_log
from cloud_client.reference_server.auth import unauthenticated
from cloud_client.reference_server.context import Answer, Call
from cloud_client.reference_server.devices import row_by_id
from cloud_client.reference_server.long_poll import Turn, Woken
from cloud_client.reference_server.pages import cursor_bytes
from cloud_client.reference_server.problems import Problem
from cloud_client.reference_server.store import UNLOCKED, AsyncStore, Row, Tx
from gallery.stream import Head, state_of

SNAPSHOT_MS = 3600 * 1000
_ID_BYTES = 16
_MAC_BYTES = 16


async def list_deltas(call: Call, store: AsyncStore) -> Answer:
    """``GET /v1/gallery/deltas``: what follows ``after_seq``, waiting for it up to ``wait_s``."""
    after_seq, limit = call.query["after_seq"], call.query["limit"]
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + call.query["wait_s"]
    waiters = call.service.waiters
    turn = waiters.enter(call.caller)
    superseded = False
    try:
        await store.write(lambda tx: _acknowledge(call, tx, turn), durable=False, lock=UNLOCKED)
        while True:
            waiters.look(turn)
            seq = await store.read(lambda tx: _seq_now(call, tx))
            left_s = deadline_s - loop.time()
            if seq > after_seq or superseded or left_s <= 0:
                break
            superseded = await waiters.wait(turn, left_s) is Woken.SUPERSEDED
    finally:
        waiters.leave(turn)

    shown = 0 if superseded else limit

    def page(tx: Tx) -> dict[str, Any]:
        now_ms = call.service.now_ms()
        return gallery_log.delta_page(
            tx, call.vault, call.environment, after_seq=after_seq, limit=shown, now_ms=now_ms
        )

    # A thousand devices that one change has woken all ask for the same page.
    same = (call.environment.stream, call.query["epoch"], after_seq, shown, seq)
    return Answer(200, await waiters.pages.made(same, lambda: store.read_aside(page)))


def _acknowledge(call: Call, tx: Tx, turn: Turn) -> None:
    """after_seq is what the device has applied; an acknowledgement never falls."""
    if call.query["wait_s"]:
        tx.announce("wait", *turn.who, turn.turn_id)
    _check_history(call, tx)
    position = (call.query["epoch"], call.query["after_seq"])
    gallery_log.acknowledge(tx, call.environment.tenant_id, call.caller.device_id, position, call.now_ms)


def _seq_now(call: Call, tx: Tx) -> int:
    """Where the stream stands now; looks again at everything that a long wait may have changed."""
    device = row_by_id(tx, call.environment, call.caller.device_id)
    if device["status"] != DeviceStatusWord.ACTIVE:
        raise unauthenticated()
    return _check_history(call, tx).seq


def _check_history(call: Call, tx: Tx) -> gallery_log.StreamState:
    state = gallery_log.state_of_stream(tx, call.environment)
    after_seq = call.query["after_seq"]
    gone = after_seq < state.seq and gallery_log.oldest_seq(tx, state) > after_seq + 1
    if call.query["epoch"] != state.epoch or after_seq > state.seq or gone:
        raise Problem(ProblemCode.HISTORY_EXPIRED, members={"snapshot_seq": state.seq})
    return state


async def snapshot(call: Call, store: AsyncStore) -> Answer:
    """``GET /v1/gallery/snapshot``: one page of the state at the seq of the first page."""
    text = call.query["cursor"]
    if text is None:
        snapshot_id = await store.write(lambda tx: open_snapshot(call, tx), lock=call.environment.tenant_id)
        after = ""
    else:
        snapshot_id, after = _read_cursor(call, text)
    return Answer(200, await store.read_aside(lambda tx: snapshot_page(call, tx, snapshot_id, after)))


def open_snapshot(call: Call, tx: Tx) -> str:
    """Fix the gallery as it is now for an hour of paging; the snapshot's id."""
    state = gallery_log.state_of_stream(tx, call.environment)
    expires_ms = call.now_ms + SNAPSHOT_MS
    same = tx.one(
        """UPDATE snapshots SET expires_ms = :expires_ms
           WHERE stream = :stream AND epoch = :epoch AND seq = :seq AND expires_ms > :now_ms
           RETURNING snapshot_id""",
        stream=state.stream,
        epoch=state.epoch,
        seq=state.seq,
        now_ms=call.now_ms,
        expires_ms=expires_ms,
    )
    if same is not None:
        return str(same["snapshot_id"])
    digests = tx.each(
        """SELECT entry_digest FROM templates WHERE stream = :stream AND removed_seq IS NULL
           ORDER BY template_id""",
        stream=state.stream,
    )
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
        state=state_of(row["entry_digest"] for row in digests),
        expires_ms=expires_ms,
    )
    return snapshot_id


def snapshot_page(
    call: Call, tx: Tx, snapshot_id: str, after: str, page_size: int = SNAPSHOT_PAGE
) -> dict[str, Any]:
    """One page of an open snapshot: the entries behind template_id ``after``. Problem 410."""
    opened = tx.one(
        """SELECT * FROM snapshots
           WHERE snapshot_id = :snapshot_id AND stream = :stream AND expires_ms > :now_ms""",
        snapshot_id=snapshot_id,
        stream=call.environment.stream,
        now_ms=call.now_ms,
    )
    if opened is None:
        raise Problem(ProblemCode.CURSOR_EXPIRED)
    rows = tx.all(
        """SELECT t.*, s.person_key_ct, s.refs_ct, s.subject_ref, s.suspended,
                  EXISTS (SELECT 1 FROM suspensions p
                          WHERE p.stream = t.stream AND p.epoch = t.epoch AND p.subject_id = t.subject_id
                            AND p.from_seq <= :seq
                            AND (p.to_seq IS NULL OR p.to_seq > :seq)) AS suspended_then
           FROM templates t JOIN subjects s ON s.subject_id = t.subject_id
           WHERE t.stream = :stream AND t.epoch = :epoch AND t.template_id > :after AND t.added_seq <= :seq
             AND (t.removed_seq IS NULL OR t.removed_seq > :seq)
           ORDER BY t.template_id LIMIT :rows""",
        stream=opened["stream"],
        epoch=opened["epoch"],
        seq=opened["seq"],
        after=after,
        rows=page_size + 1,
    )
    shown, more = rows[:page_size], len(rows) > page_size
    head = Head(
        opened["stream"],
        opened["epoch"],
        opened["seq"],
        opened["head"],
        opened["count"],
        call.now_ms,
        opened["state"],
    )
    return {
        "head": gallery_log.signed_head(tx, call.vault, head, call.now_ms),
        "data": [_entry(call, row) for row in shown],
        "next_cursor": _make_cursor(call, snapshot_id, shown[-1]["template_id"]) if more else None,
        "has_more": more,
    }


def _entry(call: Call, row: Row) -> dict[str, Any]:
    return gallery_log.entry_of(row, call.vault, suspended=bool(row["suspended_then"]))


def _make_cursor(call: Call, snapshot_id: str, template_id: str) -> str:
    position = bytes.fromhex(snapshot_id) + bytes.fromhex(template_id)
    return base64.urlsafe_b64encode(position + _cursor_mac(call, position)).decode()


def _read_cursor(call: Call, text: str) -> tuple[str, str]:
    raw = cursor_bytes(text)
    position, mac = raw[: 2 * _ID_BYTES], raw[2 * _ID_BYTES :]
    if not hmac.compare_digest(mac, _cursor_mac(call, position)):
        raise Problem(ProblemCode.INVALID_CURSOR)
    return position[:_ID_BYTES].hex(), position[_ID_BYTES:].hex()


def _cursor_mac(call: Call, position: bytes) -> bytes:
    stream = call.environment.stream.encode()
    return call.vault.mac("snapshot-cursor", stream, position)[:_MAC_BYTES]
