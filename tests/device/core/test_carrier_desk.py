"""The core's side: what a carrier can bring and take, and that it is believed nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from device.enrolment.outbox import EnrolmentAnswer
from device.errors import IpcRefused, JournalError
from device.platform.clock import SystemClock
from device.platform.ipc import IpcClient, Packet
from link1.canonical import canonical_bytes
from link1.keys import SigningKey
from tests.device.carrier_setting import Core, Service, device_status, running_core

T = TypeVar("T")
STRANGER = SigningKey.from_seed(b"\x07" * 32)


class Carrier:
    """A connection whose requests have time enough."""

    def __init__(self, client: IpcClient) -> None:
        self._client = client

    async def call(self, op: str, payload: bytes = b"", **members: object) -> Packet:
        return await self._client.call(op, payload, timeout_s=25, **members)


@asynccontextmanager
async def serving(folder: Path, **setting: Any) -> AsyncIterator[tuple[Core, Carrier]]:
    async with running_core(folder, **setting) as core:
        with closing(await IpcClient.connect(core.socket)) as client:
            yield core, Carrier(client)


async def refused(call: Awaitable[Packet]) -> str:
    with pytest.raises(IpcRefused) as caught:
        await call
    return caught.value.code


async def test_pages_are_applied_and_the_position_comes_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        service = Service()
        for person in range(5):
            service.enrol(person)
        hello = await carrier.call("hello")
        assert hello.header == {
            "ok": True,
            "gallery": {"epoch": 1, "seq": 0},
            "wipe_id": None,
        }
        taken = await carrier.call("gallery.deltas", service.page(0, limit=3))
        assert (taken.header["epoch"], taken.header["seq"]) == (1, 3)
        taken = await carrier.call("gallery.deltas", service.page(3))
        assert taken.header["seq"] == 5
        service.tombstone(2)
        taken = await carrier.call("gallery.deltas", service.page(5))
        assert taken.header["seq"] == 6
        assert (core.gallery.count, core.heard.gallery_changes) == (4, 3)


async def test_pages_that_do_not_hold_are_refused_by_their_code_and_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        service = Service()
        service.enrol(1)
        service.enrol(2)
        good = service.page(0)
        assert await refused(carrier.call("gallery.deltas", service.page(1))) == "gap"
        stranger = Service(key=STRANGER)
        stranger.enrol(1)
        forged = stranger.page(0)
        assert await refused(carrier.call("gallery.deltas", forged)) == "bad_signature"
        for bad in (b"", b"{}", b"[]", good[:-7], good.replace(b'"seq": 1', b'"seq": 9', 1)):
            assert await refused(carrier.call("gallery.deltas", bad)) in (
                "malformed",
                "gap",
                "bad_chain",
            )
        assert core.gallery.position.seq == 0
        assert core.heard.gallery_changes == 0
        await carrier.call("gallery.deltas", good)


async def test_a_verdict_wakes_the_carrier_that_waits_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        waiting = asyncio.create_task(carrier.call("verdicts.next", wait_ms=20_000, limit=10))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        stored = await core.decide(1)
        begun = asyncio.get_running_loop().time()
        batch = await waiting
        assert asyncio.get_running_loop().time() - begun < 0.5
        assert json.loads(batch.payload) == {"items": [{"signed_verdict": stored.wrapper}]}
        assert batch.header["items"] == 1


async def test_nothing_to_upload_is_told_when_the_time_is_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        for wait_ms in (0, 30):
            batch = await carrier.call("verdicts.next", wait_ms=wait_ms, limit=10)
            assert (batch.header["ticket"], batch.payload) == (0, b"")
        await core.decide(1)
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        assert batch.header["ticket"] > 0


def answer(accepted: list[str], duplicates: list[str], rejected: list[tuple[int, str]]) -> bytes:
    items = [{"index": index, "code": code} for index, code in rejected]
    return json.dumps({"accepted": accepted, "duplicates": duplicates, "rejected": items}).encode()


async def test_an_uploaded_verdict_comes_again_with_what_is_recorded_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        stored = await core.decide(1)
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        obj = {"v": 1, "txn_id": stored.wrapper["verdict"]["txn_id"]}
        decision = {"decision_obj": obj, "alg": "ed25519", "signer_kid": "0" * 32, "sig_b64": ""}
        # Recorded while the batch is on its way: the acknowledgement must not cover it.
        await core.in_store(core.journal.record_decision, stored.ref, decision, awaits_passage=False)
        done = answer([stored.ref], [], [])
        await carrier.call("verdicts.done", done, ticket=batch.header["ticket"], status=200, code="")
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        assert json.loads(batch.payload)["items"] == [
            {"signed_verdict": stored.wrapper, "signed_decision": decision}
        ]
        done = answer([], [stored.ref], [])
        await carrier.call("verdicts.done", done, ticket=batch.header["ticket"], status=200, code="")
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        assert batch.header["ticket"] == 0


async def test_refused_items_are_set_aside_and_items_without_an_answer_are_offered_again(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (core, carrier):
        stored = [await core.decide(number) for number in range(4)]
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        done = answer([stored[0].ref], [stored[1].ref], [(1, "bad_decision"), (2, "seq_conflict")])
        code = await refused(
            carrier.call("verdicts.done", done, ticket=batch.header["ticket"], status=200, code="")
        )
        assert code == "malformed"
        batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
        items = json.loads(batch.payload)["items"]
        assert [item["signed_verdict"] for item in items] == [stored[3].wrapper]
        await carrier.call(
            "verdicts.done", ticket=batch.header["ticket"], status=422, code="validation_failed"
        )
        assert await core.in_store(core.journal.pending_uploads) == 0
        assert core.api.refused_uploads == {"bad_decision": 1, "seq_conflict": 1, "validation_failed": 1}


async def test_a_number_that_the_service_holds_otherwise_is_answered_again_until_the_device_has_halted(
    tmp_path: Path,
) -> None:
    """Between the two the power may fail, or the disk."""

    async def disk_refuses(_why: str) -> None:
        raise JournalError("the disk")

    async with serving(tmp_path) as (core, carrier):

        async def uploaded() -> Packet:
            batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
            done = answer([], [], [(0, "seq_conflict")])
            return await carrier.call(
                "verdicts.done", done, ticket=batch.header["ticket"], status=200, code=""
            )

        await core.decide(1)
        core.api.rolled_back = disk_refuses
        assert await refused(uploaded()) == "store"
        core.api.rolled_back = core.heard.rolled_back
        await uploaded()
        assert len(core.heard.rollbacks) == 1
        assert core.api.refused_uploads == {"seq_conflict": 1}


async def test_an_answer_from_outside_the_contract_loses_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        await core.decide(1)
        for bad in (
            b"",
            b"{}",
            b"[]",
            answer([], [], [(7, "malformed")]),
            answer([], [], [(0, "not a word!")]),
        ):
            batch = await carrier.call("verdicts.next", wait_ms=0, limit=10)
            ticket = batch.header["ticket"]
            call = carrier.call("verdicts.done", bad, ticket=ticket, status=200, code="")
            assert await refused(call) == "malformed"
            again = carrier.call("verdicts.done", bad, ticket=ticket, status=200, code="")
            assert await refused(again) == "unknown_ticket"
        assert await core.in_store(core.journal.pending_uploads) == 1


async def test_an_enrolment_is_offered_with_the_same_key_until_it_is_answered_and_then_overwritten(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (core, carrier):
        answers: list[EnrolmentAnswer] = []
        waiting = asyncio.create_task(carrier.call("enrolment.next", wait_ms=20_000))
        now_ms = SystemClock().monotonic_ms()
        assert core.enrolments.outbox.submit(
            bytearray(canonical_bytes({"token": "t", "vector": "AAAA"})), answers.append, now_ms
        )
        first = await waiting
        second = await carrier.call("enrolment.next", wait_ms=0)
        assert first == second
        assert json.loads(first.payload) == {"token": "t", "vector": "AAAA"}
        held = core.enrolments.outbox.next(now_ms)
        assert held is not None
        body = held.body
        await carrier.call("enrolment.done", b'{"x":1}', ticket=first.header["ticket"], status=201, code="")
        assert answers == [EnrolmentAnswer(201, "", b'{"x":1}')]
        assert set(body) == {0}
        late = carrier.call(
            "enrolment.done", ticket=first.header["ticket"], status=403, code="enrollment_session_invalid"
        )
        assert await refused(late) == "unknown_ticket"


async def test_the_services_word_is_verified_and_never_older_than_the_last(tmp_path: Path) -> None:
    async with serving(tmp_path, newest_status_ms=500) as (core, carrier):
        for bad, code in (
            (device_status(key=STRANGER), "untrusted"),
            (device_status(device_id="another"), "untrusted"),
            (device_status(issued_at_ms=499), "untrusted"),
            (device_status().replace(b"active", b"revoke"), "bad_signature"),
            (device_status(status="odd"), "malformed"),
            (b"{}", "malformed"),
        ):
            assert await refused(carrier.call("status", bad)) == code
        assert core.heard.statuses == []
        assert (await carrier.call("status", device_status(600))).header["wiped"] is None
        assert await refused(carrier.call("status", device_status(599))) == "untrusted"
        order = device_status(700, status="revoked", wipe={"wipe_id": "w-1", "reason": "stolen"})
        assert (await carrier.call("status", order)).header["wiped"] == "w-1"
        await carrier.call("wiped", wipe_id="w-1")
        assert core.heard.wiped == ["w-1"]


async def test_a_wipe_is_obeyed_whose_status_lists_every_validator_of_the_tenant(tmp_path: Path) -> None:
    key = {"kid": STRANGER.kid, "pub_b64": STRANGER.public.b64, "not_before_ms": 0, "not_after_ms": None}
    others = [{"dbd_id": f"dbd-{number}", **key} for number in range(2_000)]
    order = {"wipe_id": "w-1", "reason": "stolen"}

    async with serving(tmp_path) as (_core, carrier):
        status = device_status(status="revoked", wipe=order, dbd_keys=others)
        assert (await carrier.call("status", status)).header["wiped"] == "w-1"
        assert await refused(carrier.call("status", status + b" " * (512 * 1024))) == "malformed"


async def test_small_news_reach_the_core(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        await carrier.call("time", server_time_ms=1_800_000_000_000)
        await carrier.call("link_state", online=False, detail="x" * 1_000)
        assert core.heard.times == [1_800_000_000_000]
        assert (core.heard.links[0].online, len(core.heard.links[0].detail)) == (False, 200)
        assert await refused(carrier.call("no.such")) == "unknown_op"
        assert await refused(carrier.call("verdicts.next", wait_ms=10**9, limit=1)) == "malformed"
        assert await refused(carrier.call("verdicts.next")) == "malformed"


async def test_a_page_half_way_in_is_finished_although_its_carrier_has_died(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, carrier):
        service = Service()
        service.enrol(1)
        gate = asyncio.ensure_future(core.store.do(lambda: time.sleep(0.2)))
        call = asyncio.create_task(carrier.call("gallery.deltas", service.page(0)))
        await asyncio.sleep(0.05)
        call.cancel()
        await gate
        await core.in_store(lambda: None)
        await asyncio.sleep(0)
        assert core.gallery.position.seq == 1
        assert core.heard.gallery_changes == 1
