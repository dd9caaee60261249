"""``GET /v1/devices/{device_id}/inbox``: sealed records for the partner to carry to a device."""

import json
from typing import Final

from cloud_client.reference_server.contract.answers import InboxPage
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx
from link1.canonical import JsonObject, b64_encode

MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_RECORD_ROOM: Final = 1024
"""More than the members of a record without its ciphertext take."""


async def list_device_inbox(call: Call, store: AsyncStore) -> ApiAnswer:
    """listDeviceInbox: what follows ``after_seq``, at most ``limit`` records and 8 MiB."""
    return ApiAnswer(200, await store.read_aside(lambda tx: _inbox_page(call, tx)))


def _inbox_page(call: Call, tx: Tx) -> InboxPage:
    device = row_by_id(tx, call.environment, call.path["device_id"])
    after_seq, limit = call.query["after_seq"], call.query["limit"]
    where = {"tenant_id": device["tenant_id"], "device_id": device["device_id"]}
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
    if count:
        rows = tx.all(
            """SELECT record, ct FROM inbox
               WHERE tenant_id = :tenant_id AND device_id = :device_id AND seq BETWEEN :low AND :high
               ORDER BY seq""",
            low=listed[0]["seq"],
            high=listed[count - 1]["seq"],
            **where,
        )
        data = [{**json.loads(row["record"]), "ct_b64": b64_encode(row["ct"])} for row in rows]
    return InboxPage.of(
        device,
        data=data,
        has_more=count < len(listed),
        next_after_seq=listed[count - 1]["seq"] if count else after_seq,
    )
