"""The back office's side of the mail, against a partner API that answers what the test says."""

import asyncio
import json
import ssl
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from link1.bodies import Box, MailChunk, MailPull, MailState
from link1.canonical import canonical_bytes
from link1.objects import MailMarks
from link1.validator.events import DeviceProven, MailChunkReceived, StatusReceived
from link1.validator.mail import ANSWER_WITHIN_MS, InboxSettled, OutboxCollected, ValidatorMail
from tests.link1.cable import device_status
from tests.until import until_async
from tools.kit.simulate import mail_carrier
from tools.kit.simulate.mail_carrier import MAX_WAITING, MailCarrier, OfficeAccess

STATUS = device_status()


class SilentEnd:
    """A cable on which nothing is answered."""

    proven = True

    def __init__(self) -> None:
        self.pulls: list[MailPull] = []

    def send_mail(self, _chunk: MailChunk) -> bool:
        return True

    def send_mail_pull(self, pull: MailPull) -> bool:
        self.pulls.append(pull)
        return True


@dataclass
class Api:
    """listDeviceInbox and submitDeviceOutbox in memory."""

    inbox: dict[int, dict[str, Any]] = field(default_factory=dict)
    submitted: list[int] = field(default_factory=list)
    asked: list[httpx.Request] = field(default_factory=list)
    failing: int | None = None
    rejecting: bool = False

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.failing is not None:
            return httpx.Response(self.failing, json={"code": "unavailable"})
        if request.method == "GET":
            after, limit = int(request.url.params["after_seq"]), int(request.url.params["limit"])
            data = [record for seq, record in sorted(self.inbox.items()) if seq > after][:limit]
            return httpx.Response(
                200, json={"device_id": "dev-1", "data": data, "has_more": False, "next_after_seq": 0}
            )
        records = json.loads(request.content)["records"]
        if not all("post" in record for record in records):
            return httpx.Response(422, json={"code": "validation_failed"})
        self.submitted += [record["post"]["seq"] for record in records]
        rejected = [{"seq": 1, "rid": "0" * 32, "code": "bad_signature"}] if self.rejecting else []
        body = {
            "device_id": "dev-1",
            "accepted": [],
            "duplicates": [],
            "rejected": rejected,
            "acked_upto_seq": max(self.submitted),
        }
        return httpx.Response(200, json=body)


def a_record(seq: int, ct: str = "x") -> dict[str, Any]:
    return {"post": {"seq": seq}, "ct_b64": ct}


@dataclass
class Office:
    api: Api
    mail: ValidatorMail
    carrier: MailCarrier
    lines: list[dict[str, Any]]
    end: SilentEnd
    now_ms: int = 0

    def collects(self, seq: int, data: bytes) -> None:
        """A record of one chunk comes out of the cable."""
        chunk = MailChunk(Box.OUT, seq, 0, len(data), data)
        for event in self.mail.follow(MailChunkReceived(chunk), self.now_ms):
            self.carrier.follow(event)

    def asks_after(self) -> int:
        """The record after which the device is asked now, when its answer did not come."""
        self.now_ms += ANSWER_WITHIN_MS
        self.mail.tick(self.now_ms)
        return self.end.pulls[-1].after_seq


@asynccontextmanager
async def office(api: Api, answer: Callable[[httpx.Request], Any] | None = None) -> Any:
    lines: list[dict[str, Any]] = []
    end = SilentEnd()
    mail = ValidatorMail(end)
    carrier = MailCarrier(
        OfficeAccess("http://partner.example", "svc_test_key"),
        mail,
        report=lines.append,
        kick=lambda: None,
        transport=httpx.MockTransport(answer or api.answer),
    )
    task = asyncio.create_task(carrier.run())
    carrier.device_met("dev-1")
    mail.follow(DeviceProven("dev-1", "a" * 32), 0)
    mail.follow(StatusReceived(STATUS, {}), 0)
    try:
        yield Office(api, mail, carrier, lines, end)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_carrier, "POLL_S", 0.01)
    monkeypatch.setattr(mail_carrier, "RETRY_S", 0.02)


async def test_what_waits_in_the_inbox_is_offered_from_where_the_device_stands() -> None:
    api = Api({seq: a_record(seq) for seq in range(1, 20)})
    async with office(api) as here:
        await until_async(lambda: here.mail.last_offered_seq == 8)
        here.mail.follow(StatusReceived(STATUS_AT_8, {}), 0)
        await until_async(lambda: here.mail.last_offered_seq == 16)
    first = api.asked[0]
    assert first.url.path == "/v1/devices/dev-1/inbox"
    assert first.headers["Authorization"] == "Bearer svc_test_key"


STATUS_AT_8 = replace(STATUS, mail=MailMarks(8, 0, 0))


async def test_a_refused_record_is_looked_up_again_until_there_is_another() -> None:
    api = Api({1: a_record(1, "bad"), 2: a_record(2)})
    async with office(api) as here:
        await until_async(lambda: here.mail.last_offered_seq == 2)
        here.carrier.follow(InboxSettled(1, MailState.REFUSED, 0, "malformed"))
        assert here.lines[-1] == {
            "event": "mail_in", "seq": 1, "state": "refused", "applied_seq": 0, "code": "malformed",
        }  # fmt: skip
        asked = len(api.asked)
        await until_async(lambda: len(api.asked) > asked + 2)
        assert api.asked[-1].url.params["after_seq"] == "0"
        assert api.asked[-1].url.params["limit"] == "1"
        here.carrier.follow(InboxSettled(1, MailState.APPLIED, 1))
        asked = len(api.asked)
        await until_async(lambda: len(api.asked) > asked + 2)
        assert api.asked[-1].url.params["after_seq"] == "2"


async def test_another_device_gets_its_mail_where_the_one_before_it_refused_a_record() -> None:
    api = Api({1: a_record(1, "bad"), 2: a_record(2)})
    async with office(api) as here:
        await until_async(lambda: here.mail.last_offered_seq == 2)
        here.carrier.follow(InboxSettled(1, MailState.REFUSED, 0, "malformed"))
        api.inbox = {seq: a_record(seq) for seq in range(1, 10)}
        here.carrier.device_met("dev-2")
        here.mail.follow(DeviceProven("dev-2", "b" * 32), 0)
        here.mail.follow(StatusReceived(STATUS_AT_8, {}), 0)
        await until_async(lambda: here.mail.last_offered_seq == 9)


async def test_a_device_with_new_keys_gets_its_mail_where_it_had_refused_a_record() -> None:
    """Both boxes start again."""
    api = Api({seq: a_record(seq) for seq in range(1, 9)})
    async with office(api) as here:
        await until_async(lambda: here.mail.last_offered_seq == 8)
        here.carrier.follow(InboxSettled(8, MailState.REFUSED, 7, "malformed"))
        api.inbox = {1: a_record(1)}
        here.carrier.device_met("dev-1")
        here.mail.follow(DeviceProven("dev-1", "b" * 32), 0)
        here.mail.follow(StatusReceived(STATUS, {}), 0)
        await until_async(lambda: here.mail.last_offered_seq == 1)


async def test_outbox_records_go_out_in_batches_and_rejections_are_told() -> None:
    api = Api(rejecting=True)
    async with office(api) as here:
        for seq in range(1, 41):
            here.carrier.follow(OutboxCollected(seq, canonical_bytes(a_record(seq))))
        await until_async(lambda: len(api.submitted) == 40)
        posts = [request for request in api.asked if request.method == "POST"]
        assert [len(json.loads(request.content)["records"]) for request in posts] == [32, 8]
        assert len({request.headers["Idempotency-Key"] for request in posts}) == 2
        line = next(line for line in here.lines if line["event"] == "mail_out")
        assert (line["seqs"][-1], line["acked_upto_seq"], line["rejected"][0]["code"]) == (
            32, 32, "bad_signature",
        )  # fmt: skip


async def test_a_service_that_is_away_is_told_once_and_nothing_is_lost() -> None:
    api = Api(failing=503)
    async with office(api) as here:
        here.carrier.follow(OutboxCollected(1, canonical_bytes(a_record(1))))
        await until_async(lambda: len(api.asked) > 3)
        assert len([line for line in here.lines if line["event"] == "mail_error"]) == 1
        api.failing = None
        await until_async(lambda: api.submitted == [1])


@pytest.mark.parametrize("fault", ["redirection", "TLS"])
async def test_no_fault_of_the_network_ends_it(fault: str) -> None:
    class Faulty(Api):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if self.failing is None:
                return super().answer(request)
            self.asked.append(request)
            if fault == "TLS":
                raise ssl.SSLError("decryption failed or bad record mac")
            return httpx.Response(302, headers={"Location": "about:blank"})

    api = Faulty(failing=302)
    async with office(api) as here:
        here.carrier.follow(OutboxCollected(1, canonical_bytes(a_record(1))))
        await until_async(lambda: len(api.asked) > 1)
        api.failing = None
        await until_async(lambda: api.submitted == [1])


async def test_more_than_it_can_hold_is_collected_again_later() -> None:
    api = Api(failing=503)
    async with office(api) as here:
        for seq in range(1, MAX_WAITING + 2):
            here.carrier.follow(OutboxCollected(seq, canonical_bytes(a_record(seq))))
        api.failing = None
        await until_async(lambda: len(api.asked) > 2)
        assert len(api.submitted) <= MAX_WAITING


async def test_the_outbox_is_not_collected_over_and_over_while_the_service_is_away() -> None:
    api = Api(failing=503)
    async with office(api) as here:
        for seq in range(1, MAX_WAITING + 3):
            here.collects(seq, canonical_bytes(a_record(seq)))
        assert here.asks_after() == MAX_WAITING + 2
        api.failing = None
        await until_async(lambda: len(api.submitted) == MAX_WAITING)
        await until_async(lambda: here.asks_after() == 0)  # the device has the rest


@dataclass
class SlowApi(Api):
    """The service takes its time with what it is given."""

    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer_later(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.asked.append(request)
            await self.may_answer.wait()
        return self.answer(request)


async def test_a_queue_that_fills_while_the_service_is_at_work_loses_nothing() -> None:
    api = SlowApi()
    async with office(api, api.answer_later) as here:
        here.carrier.follow(OutboxCollected(1, canonical_bytes(a_record(1))))
        await until_async(lambda: any(request.method == "POST" for request in api.asked))
        for seq in range(2, MAX_WAITING + 2):  # the last one finds no room
            here.carrier.follow(OutboxCollected(seq, canonical_bytes(a_record(seq))))
        api.may_answer.set()
        await until_async(lambda: api.submitted == [*range(1, MAX_WAITING + 1)])
        await until_async(lambda: here.asks_after() == 0)  # and the device is asked for everything again


@pytest.mark.parametrize("forged", [b"\x00", b"{}"], ids=["no object", "no record"])
async def test_what_was_forged_in_the_place_of_a_record_holds_up_no_mail(forged: bytes) -> None:
    """The service refuses a batch whole for the sake of one item."""
    api = Api()
    async with office(api) as here:
        here.collects(1, canonical_bytes(a_record(1)))
        here.collects(2, forged)
        here.collects(3, canonical_bytes(a_record(3)))
        await until_async(lambda: sorted(api.submitted) == [1, 3])
        await until_async(lambda: api.asked[-1].method == "GET")
        await until_async(lambda: here.asks_after() == 0)  # record 2 is still with the device
    assert [line["event"] for line in here.lines].count("mail_error") == 1


async def test_bytes_that_are_no_record_are_told_and_dropped() -> None:
    async with office(Api()) as here:
        here.carrier.follow(OutboxCollected(1, b"\x00"))
        assert here.lines[-1]["event"] == "mail_error"
