"""The gallery routes: deltas with long-poll, and consistent snapshots (device surface §3, §4)."""

import asyncio
from functools import partial
from typing import Any, Final

from cloud_client.reference_server.contract.problems import Problem, ProblemCode, unauthenticated
from cloud_client.reference_server.contract.words import DeviceStatusWord
from cloud_client.reference_server.contract.written import encode
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery import snapshots
from cloud_client.reference_server.domain.gallery.waiters import Turn, Woken
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Tx

_HASHED_ASIDE: Final = 4
"""How often the gallery may move while it is hashed, until it is made to stand still for that."""


async def list_deltas(call: Call, store: AsyncStore) -> ApiAnswer:
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

    def page(tx: Tx) -> ApiAnswer:
        now_ms = call.service.now_ms()
        found = gallery_log.delta_page(
            tx, call.vault, call.environment, after_seq=after_seq, limit=shown, now_ms=now_ms
        )
        return ApiAnswer(200, found, encoded=encode(found))

    # A thousand devices that one change has woken all ask for the same page.
    same = (call.environment.stream, call.query["epoch"], after_seq, shown, seq)
    return await waiters.pages.made(same, lambda: store.read_aside(page))


def _acknowledge(call: Call, tx: Tx, turn: Turn) -> None:
    """after_seq is what the device has applied; an acknowledgement never falls."""
    if call.query["wait_s"]:
        tx.announce("wait", *turn.who, turn.turn_id)
    _check_history(call, tx)
    position = (call.query["epoch"], call.query["after_seq"])
    gallery_log.acknowledge(tx, call.environment.tenant_id, call.caller.device_id, position, call.now_ms)


def _seq_now(call: Call, tx: Tx) -> int:
    """The stream's position now; reads again everything that a long wait may have changed."""
    device = row_by_id(tx, call.environment, call.caller.device_id)
    if device["status"] != DeviceStatusWord.ACTIVE:
        raise unauthenticated("the device was revoked while it waited")
    return _check_history(call, tx).seq


def _check_history(call: Call, tx: Tx) -> gallery_log.StreamState:
    state = gallery_log.state_of_stream(tx, call.environment)
    after_seq = call.query["after_seq"]
    gone = after_seq < state.seq and gallery_log.oldest_seq(tx, state) > after_seq + 1
    if call.query["epoch"] != state.epoch or after_seq > state.seq or gone:
        raise Problem(ProblemCode.HISTORY_EXPIRED, members={"snapshot_seq": state.seq})
    return state


async def _opened(call: Call, store: AsyncStore) -> str:
    """The id of a snapshot of the gallery as it is."""
    environment, now_ms, lock = call.environment, call.now_ms, call.environment.tenant_id
    found: snapshots.Hashed | None = None
    for _ in range(_HASHED_ASIDE):
        work = partial(snapshots.open_hashed, environment=environment, now_ms=now_ms, found=found)
        opened = await store.write(work, lock=lock)
        if opened is not None:
            return opened
        found = await store.read_aside(lambda tx: snapshots.hashed(tx, environment))
    return await store.write(lambda tx: snapshots.open_snapshot(tx, environment, now_ms), lock=lock)


async def snapshot(call: Call, store: AsyncStore) -> ApiAnswer:
    """``GET /v1/gallery/snapshot``: one page of the state at the seq of the first page."""
    text = call.query["cursor"]
    if text is None:
        snapshot_id, after = await _opened(call, store), ""
    else:
        snapshot_id, after = snapshots.read_cursor(call.vault, call.environment, text)

    def page(tx: Tx) -> dict[str, Any]:
        return snapshots.snapshot_page(
            tx, call.vault, call.environment, snapshot_id, after, now_ms=call.now_ms
        )

    return ApiAnswer(200, await store.read_aside(page))
