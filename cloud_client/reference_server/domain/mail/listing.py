"""``GET /v1/devices/{device_id}/inbox``: sealed records for the partner to carry to a device."""

import json
from typing import Final

from cloud_client.reference_server.contract.answers import InboxPage
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.tenancy.rows import device_params
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Row, Tx
from link1.canonical import JsonObject, b64_encode

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_RECORD_ROOM: Final = 1024
"""More than the members of a record without its ciphertext take."""


async def list_device_inbox(call: Call, store: AsyncStore) -> ApiAnswer:
    """listDeviceInbox: what follows ``after_seq``, at most ``limit`` records and 8 MiB."""
    page, resealed = await store.read_aside(lambda tx: _inbox_page(call, tx))
    if resealed:
        # A read waits for no other tenant's writes, nor has others wait: each statement is right by itself.
        await store.write(lambda tx: _note_listed(tx, resealed), lock=UNLOCKED)
    return ApiAnswer(200, page)


def _inbox_page(call: Call, tx: Tx) -> tuple[InboxPage, list[Row]]:
    """The page, and the records on it that were sealed again and not listed since."""
    device = row_by_id(tx, call.environment, call.path["device_id"])
    after_seq, limit = call.query["after_seq"], call.query["limit"]
    where = device_params(device)
    # Which records go into the answer is decided by their lengths, before any of them is read.
    listed = tx.all(
        """SELECT seq, length(ct) AS ct_len FROM inbox
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq > :after_seq
           ORDER BY seq LIMIT :rows""",
        after_seq=after_seq,
        rows=limit + 1,
        **where,
    )
    size, count = 0, 0
    for row in listed[:limit]:
        size += row["ct_len"] * 4 // 3 + _RECORD_ROOM
        if count and size > MAX_ANSWER_BYTES:
            break
        count += 1
    data: list[JsonObject] = []
    resealed: list[Row] = []
    if count:
        rows = tx.all(
            """SELECT tenant_id, device_id, seq, reissues, listed, record, ct FROM inbox
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq BETWEEN :low AND :high
               ORDER BY seq""",
            low=listed[0]["seq"],
            high=listed[count - 1]["seq"],
            **where,
        )
        data = [{**json.loads(row["record"]), "ct_b64": b64_encode(row["ct"])} for row in rows]
        resealed = [row for row in rows if not row["listed"]]
    page = InboxPage.of(
        device,
        data=data,
        has_more=count < len(listed),
        next_after_seq=listed[count - 1]["seq"] if count else after_seq,
    )
    return page, resealed


def _note_listed(tx: Tx, resealed: list[Row]) -> None:
    """Note that records were given out, as far as they were not sealed again meanwhile."""
    for row in resealed:
        tx.run(
            """UPDATE inbox SET listed = 1
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq = :seq
                 AND reissues = :reissues""",
            **device_params(row),
            seq=row["seq"],
            reissues=row["reissues"],
        )
