"""The carrier between a real core and a service that fails in ways the reference server cannot.

The service is a function inside httpx; what a real one does over a real network is in
`test_carrier_with_server`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from cloud_client.client import CloudClient, ServerAddress
from device.core.wiped_device import WipedDevice
from device.enrolment.outbox import EnrolmentAnswer
from device.platform.clock import SystemClock
from device.platform.ipc import IpcServer
from device.syncd.main import carry
from device.syncd.tasks import CoreLine
from device.wipe.wipe import Wipe, WipeStage
from link1.canonical import canonical_bytes
from link1.keys import SigningKey
from link1.signed import object_ref
from tests.device.carrier_setting import Core, Service, device_status, running_core
from tests.device.provisioning.provisioning_setting import settings
from tests.until import until_async

T = TypeVar("T")
HTTP_KEY = SigningKey.from_seed(bytes([21]) * 32)


def respond(status: int, body: Any = None, **headers: str) -> httpx.Response:
    media_type = "application/json" if status < 400 else "application/problem+json"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.Response(
        status, stream=httpx.ByteStream(content), headers={"Content-Type": media_type} | headers
    )


def problem(status: int, code: str, *, retryable: bool = False) -> httpx.Response:
    return respond(status, {"code": code, "retryable": retryable, "instance": "r"})


@dataclass
class Cloud:
    """The service. `faults` of a path are what its next requests come to instead of the answer."""

    stream: Service = field(default_factory=Service)
    asked: list[tuple[float, str, httpx.Request]] = field(default_factory=list)
    faults: dict[str, list[Callable[[httpx.Request], httpx.Response]]] = field(default_factory=dict)
    away: bool = False
    unreadable: str = ""
    stored: list[Any] = field(default_factory=list)
    status: Callable[[], bytes] = field(default=lambda: device_status(SystemClock().wall_ms()))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, work: Callable[[], None]) -> None:
        work()
        self.changed.set()

    def requests(self, path: str) -> list[httpx.Request]:
        return [request for _, asked, request in self.asked if asked == path]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append((asyncio.get_running_loop().time(), path, request))
        if self.away:
            raise httpx.ConnectError("refused")
        if faults := self.faults.get(path):
            return faults.pop(0)(request)
        answer: httpx.Response = await getattr(self, path.replace("/", "_").replace("-", "_"))(request)
        return answer

    async def _v1_gallery_deltas(self, request: httpx.Request) -> httpx.Response:
        after_seq, wait_s = (int(request.url.params[name]) for name in ("after_seq", "wait_s"))
        if after_seq == self.stream.seq:
            self.changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self.changed.wait()
            except TimeoutError:
                pass
        return respond(200, self.stream.page(after_seq))

    async def _v1_verdicts_batch(self, request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        if self.unreadable in [object_ref(item["signed_verdict"]) for item in items]:
            return problem(422, "validation_failed")
        # As the service does: what came before is a duplicate. A core that ends before it hears the answer
        # sends again.
        known = {object_ref(item["signed_verdict"]) for item in self.stored}
        news = {object_ref(item["signed_verdict"]): item for item in items}
        accepted = [ref for ref in news if ref not in known]
        self.stored += [news[ref] for ref in accepted]
        return respond(
            200,
            {"accepted": accepted, "duplicates": [ref for ref in news if ref in known], "rejected": []},
        )

    async def _v1_devices_self_status(self, _request: httpx.Request) -> httpx.Response:
        return respond(200, self.status(), **{"Svc-Server-Time": "2027-01-15T08:00:00.000Z"})

    async def _v1_keys(self, _request: httpx.Request) -> httpx.Response:
        return respond(200, {"keys": []})

    async def _v1_devices_self_wiped(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    async def _v1_devices_self_report(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    async def _v1_enrollments(self, _request: httpx.Request) -> httpx.Response:
        return respond(201, {"status": "completed"})


OVER = "wiped: nothing is left to carry"


@asynccontextmanager
async def carrying(cloud: Cloud, socket: Path) -> AsyncIterator[list[str]]:
    """The carrier's lanes, with a link of our own making; yields its status lines."""
    told: list[str] = []
    clock = SystemClock()
    address = ServerAddress.parse("http://127.0.0.1:8710")
    client = CloudClient(address, HTTP_KEY, clock.wall_ms, transport=httpx.MockTransport(cloud))
    # 0.99999: the shortest waits that the jitter allows.
    task = asyncio.create_task(carry(client, lambda: CoreLine(socket), clock, lambda: 0.99999, told.append))
    try:
        yield told
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):  # a wiped device's lanes end by themselves
            await task
        await client.close()


def whole_content(folder: Path) -> bytes:
    """Every file's bytes, one after the other."""
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def settled(core: Core) -> None:
    """Wait until the journal has nothing left to upload."""
    async with asyncio.timeout(10):
        while await core.in_store(core.journal.pending_uploads):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def test_an_erasure_is_on_the_device_and_acknowledged_within_a_second(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.stream.enrol(1)
    cloud.stream.enrol(2)

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        deltas = "/v1/gallery/deltas"
        await until_async(lambda: len(cloud.requests(deltas)) == 2)
        assert core.gallery.count == 2
        first, second = (request.url.params for request in cloud.requests(deltas))
        assert (first["after_seq"], first["wait_s"]) == ("0", "0")
        assert (second["after_seq"], second["wait_s"]) == ("2", "55")
        cloud.change(lambda: cloud.stream.tombstone(1))
        took_s = await until_async(lambda: len(cloud.requests(deltas)) == 3)
        assert core.gallery.count == 1
        assert cloud.requests(deltas)[2].url.params["after_seq"] == "3"
        assert took_s < 1.0


async def test_a_fraction_in_a_member_of_a_later_version_is_ignored_in_every_answer(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.stream.enrol(1)
    later = {"load": 0.5, "of": [{"much": 1e300, "more": 12345678901234567890}]}

    def with_it(body: bytes) -> Callable[[httpx.Request], httpx.Response]:
        return lambda _request: respond(200, json.loads(body) | later)

    cloud.faults["/v1/gallery/deltas"] = [with_it(cloud.stream.page())]
    cloud.faults["/v1/keys"] = [with_it(b'{"keys":[]}')]

    def accepted(request: httpx.Request) -> httpx.Response:
        refs = [object_ref(item["signed_verdict"]) for item in json.loads(request.content)["items"]]
        return respond(200, {"accepted": refs, "duplicates": [], "rejected": []} | later)

    cloud.faults["/v1/verdicts/batch"] = [accepted]

    async with running_core(tmp_path) as core, carrying(cloud, core.socket) as told:
        await until_async(lambda: core.gallery.count == 1)
        await core.decide(1)
        await settled(core)
        assert len(cloud.requests("/v1/verdicts/batch")) == 1
        assert [line for line in told if "refused" in line] == []


async def test_what_the_core_refuses_of_the_service_is_in_the_state_of_the_link_until_it_is_taken(
    tmp_path: Path,
) -> None:
    cloud = Cloud()
    cloud.stream.enrol(1)
    stranger = Service(key=SigningKey.generate())
    stranger.enrol(1)
    forged = stranger.page()
    cloud.faults["/v1/gallery/deltas"] = [lambda _request: respond(200, forged)]
    cloud.faults["/v1/keys"] = [lambda _request: respond(200, {"keys": 1})]

    async with running_core(tmp_path) as core, carrying(cloud, core.socket) as told:
        await until_async(lambda: core.gallery.count == 1)
        assert any("gallery.deltas refused (bad_signature)" in line for line in told)
        await until_async(
            lambda: told[-1].startswith("service reachable: online, but keys refused (malformed)")
        )
        # As the core has it, for `palmctl status`.
        await until_async(lambda: "keys refused" in core.heard.links[-1].detail)
        assert core.heard.links[-1].online


async def test_a_verdict_is_at_the_service_within_a_second_of_the_journal(tmp_path: Path) -> None:
    cloud = Cloud()
    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        await until_async(lambda: core.heard.links != [])
        for number in range(3):
            stored = await core.decide(number)
            assert await until_async(lambda: len(cloud.stored) == number + 1) < 1.0  # noqa: B023 - awaited inside
            assert cloud.stored[-1] == {"signed_verdict": stored.wrapper}
        await settled(core)


async def test_nothing_is_lost_or_doubled_over_an_outage(tmp_path: Path) -> None:
    cloud = Cloud()
    async with running_core(tmp_path) as core, carrying(cloud, core.socket) as told:
        await core.decide(0)
        await until_async(lambda: len(cloud.stored) == 1)
        cloud.away = True
        for number in range(1, 6):
            await core.decide(number)
        await until_async(lambda: told[-1].startswith("service unreachable"))
        await until_async(lambda: not core.heard.links[-1].online)
        # Whatever answered first lets every lane go on at once.
        await until_async(lambda: len(cloud.requests("/v1/verdicts/batch")) >= 3)
        cloud.away = False
        await until_async(lambda: len(cloud.stored) == 6)
        assert [item["signed_verdict"]["verdict"]["verdict_seq"] for item in cloud.stored] == [
            1,
            2,
            3,
            4,
            5,
            6,
        ]
        await until_async(lambda: core.heard.links[-1].online)
        retries = cloud.requests("/v1/verdicts/batch")[1:-1]
        first = [request for request in retries if request.content == retries[0].content]
        assert len({request.headers["Idempotency-Key"] for request in first}) == 1
        assert len({request.headers["Signature-Input"] for request in first}) == len(first)


async def test_one_item_that_the_service_cannot_read_does_not_hold_up_the_others(tmp_path: Path) -> None:
    cloud = Cloud()
    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        # Away until the service knows which one it will not read, however slowly they are decided.
        cloud.faults["/v1/verdicts/batch"] = [lambda _request: problem(503, "service_unavailable")] * 99
        stored = [await core.decide(number) for number in range(8)]
        cloud.unreadable = stored[5].ref
        cloud.faults.clear()
        await until_async(lambda: len(cloud.stored) == 7, within_s=20)
        refs = {object_ref(item["signed_verdict"]) for item in cloud.stored}
        assert refs == {each.ref for each in stored} - {stored[5].ref}
        await settled(core)
        asked = len(cloud.requests("/v1/verdicts/batch"))
        await core.decide(8)
        await until_async(lambda: len(cloud.stored) == 8)
        assert len(cloud.requests("/v1/verdicts/batch")) == asked + 1


async def test_a_core_that_restarts_gets_its_gallery_and_the_link_state_again(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.stream.enrol(1)
    async with carrying(cloud, tmp_path / "carrier.sock"):
        async with running_core(tmp_path) as core:
            await until_async(lambda: core.gallery.position.seq == 1)
            await core.decide(0)
            await until_async(lambda: len(cloud.stored) == 1)
        cloud.change(lambda: cloud.stream.enrol(2))
        async with running_core(tmp_path) as core:
            assert core.gallery.position.seq == 1
            await until_async(lambda: core.gallery.position.seq == 2)
            await until_async(lambda: core.heard.links != [] and core.heard.links[-1].online)
            await core.decide(1)
            await until_async(lambda: len(cloud.stored) == 2)


async def test_a_revoked_device_is_told_at_once_and_confirms_its_wipe(tmp_path: Path) -> None:
    cloud = Cloud()
    async with running_core(tmp_path) as core, carrying(cloud, core.socket) as told:
        await until_async(lambda: core.heard.statuses != [])
        wipe = {"wipe_id": "0f" * 16, "reason": "stolen"}
        cloud.status = lambda: device_status(SystemClock().wall_ms(), status="revoked", wipe=wipe)
        cloud.faults["/v1/verdicts/batch"] = [lambda _request: problem(401, "unauthenticated")] * 99
        await core.decide(0)
        await until_async(lambda: core.heard.wiped == ["0f" * 16], within_s=15)
        assert json.loads(cloud.requests("/v1/devices/self/wiped")[0].content) == {"wipe_id": "0f" * 16}
        assert any("revoked" in line for line in told)
        await until_async(lambda: told[-1] == OVER)


async def test_a_time_that_no_clock_shows_does_not_hold_up_the_order_to_wipe(tmp_path: Path) -> None:
    """The header is unsigned, and a proxy before the service may set it; the order in the body is signed."""
    cloud, wipe = Cloud(), {"wipe_id": "w", "reason": "lost"}
    status = device_status(SystemClock().wall_ms(), status="revoked", wipe=wipe)
    told_time = {"Svc-Server-Time": "1969-12-31T23:59:59.000Z"}
    cloud.faults["/v1/devices/self/status"] = [lambda _request: respond(200, status, **told_time)] * 99
    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        await until_async(lambda: core.heard.wiped == ["w"])


async def test_a_second_confirmation_that_is_answered_with_401_counts_as_done(tmp_path: Path) -> None:
    cloud = Cloud()
    wipe = {"wipe_id": "w", "reason": "lost"}
    cloud.status = lambda: device_status(SystemClock().wall_ms(), status="revoked", wipe=wipe)
    cloud.faults["/v1/devices/self/wiped"] = [lambda _request: problem(401, "unauthenticated")]

    async with running_core(tmp_path) as core, carrying(cloud, core.socket) as told:
        await until_async(lambda: core.heard.wiped == ["w"])
        await until_async(lambda: told[-1] == OVER)


async def test_an_enrolment_is_repeated_with_the_same_key_and_body_and_its_answer_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    cloud = Cloud()
    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        answers: list[EnrolmentAnswer] = []
        cloud.faults["/v1/enrollments"] = [
            lambda _request: problem(503, "service_unavailable", retryable=True)
        ]
        now_ms = SystemClock().monotonic_ms()
        core.enrolments.outbox.submit(
            bytearray(canonical_bytes({"token": "tok", "vector_b64": "UEFMTQ"})), answers.append, now_ms
        )
        await until_async(lambda: answers != [])
        assert answers == [EnrolmentAnswer(201, "", b'{"status": "completed"}')]
        first, second = cloud.requests("/v1/enrollments")
        assert first.content == second.content == b'{"token":"tok","vector_b64":"UEFMTQ"}'
        assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]

        refusal = problem(403, "enrollment_session_invalid")
        cloud.faults["/v1/enrollments"] = [lambda _request: refusal]
        core.enrolments.outbox.submit(bytearray(canonical_bytes({"token": "old"})), answers.append, now_ms)
        await until_async(lambda: len(answers) == 2)
        assert answers[1] == EnrolmentAnswer(403, "enrollment_session_invalid")
    assert b"UEFMTQ" not in whole_content(tmp_path)
    assert "UEFMTQ" not in caplog.text and "tok" not in caplog.text.split()


async def test_a_captive_portal_and_a_broken_service_change_nothing_and_make_no_storm(tmp_path: Path) -> None:
    cloud = Cloud()
    page = httpx.ByteStream(b"<html>")
    for path in ("/v1/gallery/deltas", "/v1/verdicts/batch", "/v1/devices/self/status"):
        cloud.faults[path] = [
            lambda _request: httpx.Response(200, stream=page, headers={"Content-Type": "text/html"}),
            lambda _request: respond(200, {"surprise": True}),
            lambda _request: respond(200, []),
        ]

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        await core.decide(0)
        await until_async(lambda: len(cloud.stored) == 1, within_s=15)
        assert core.gallery.position.seq == 0
        assert len(cloud.requests("/v1/verdicts/batch")) == 4


async def test_the_core_hears_of_a_service_that_answers_with_rubbish_of_any_length(tmp_path: Path) -> None:
    class Rubbish(Cloud):
        async def __call__(self, _request: httpx.Request) -> httpx.Response:
            raise httpx.RemoteProtocolError(f"illegal status line: {bytes([255]) * 60_000!r}")

    async with running_core(tmp_path) as core, carrying(Rubbish(), core.socket):
        await until_async(lambda: core.heard.links != [])
        assert not core.heard.links[-1].online
        assert "illegal status line" in core.heard.links[-1].detail


def proxy_page(status: int) -> httpx.Response:
    page = httpx.ByteStream(b"<html>")
    return httpx.Response(status, stream=page, headers={"Content-Type": "text/html"})


@pytest.mark.parametrize("status", [302, 404, 502])
async def test_a_short_code_that_a_proxy_answers_is_unreachable_at_once(tmp_path: Path, status: int) -> None:
    cloud, redeem = Cloud(), "/v1/enrollment-sessions/redeem"
    cloud.faults[redeem] = [lambda _request: proxy_page(status)] * 9_999

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        answers: list[EnrolmentAnswer] = []
        now_ms = SystemClock().monotonic_ms()
        core.redeems.outbox.submit(bytearray(b'{"short_code":"4F7K-9QRT"}'), answers.append, now_ms)
        await until_async(lambda: answers != [], within_s=5)
        assert answers == [EnrolmentAnswer(0, "unreachable")]
        assert len(cloud.requests(redeem)) == 1


async def test_an_answer_of_any_length_ends_an_enrolment(tmp_path: Path) -> None:
    cloud = Cloud()
    long = {"status": "completed", "more": 300_000 * "x"}
    cloud.faults["/v1/enrollments"] = [lambda _request: respond(201, long)] * 9_999

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        answers: list[EnrolmentAnswer] = []
        now_ms = SystemClock().monotonic_ms()
        core.enrolments.outbox.submit(bytearray(b'{"token":"tok"}'), answers.append, now_ms)
        await until_async(lambda: answers != [], within_s=5)
        assert answers[0].status == 201
        assert len(cloud.requests("/v1/enrollments")) == 1


async def test_an_answer_that_the_core_refuses_makes_no_storm(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.faults["/v1/enrollments"] = [lambda _request: problem(999, "validation_failed")] * 9_999

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        now_ms = SystemClock().monotonic_ms()
        core.enrolments.outbox.submit(bytearray(b'{"token":"tok"}'), lambda _answer: None, now_ms)
        await until_async(lambda: len(cloud.requests("/v1/enrollments")) == 3)
        at = [at_s for at_s, path, _ in cloud.asked if path == "/v1/enrollments"]
        assert at[2] - at[0] > 1.4  # the shortest waits of a task are 0.5 and 1 s


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_wipe_that_ended_by_mail_ends_the_carrier(tmp_path: Path, restarted: bool) -> None:
    """The validator has the record, so the core needs no confirmation, and its http key is destroyed."""
    async with carrying(Cloud(), tmp_path / "carrier.sock") as told:
        if restarted:
            over = Wipe(WipeStage.CONFIRMED, "w", "gate-7-left", "gate-7", "dbd-7")
            core = WipedDevice(settings(tmp_path), over)
            server = await IpcServer.start(tmp_path / "carrier.sock", core.answer_carrier)
            await until_async(lambda: told[-1:] == [OVER])
            await server.close()
        else:
            async with running_core(tmp_path, wiped=True):
                await until_async(lambda: told[-1:] == [OVER])


async def test_a_proxy_that_drops_a_header_costs_no_verdict(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.faults["/v1/verdicts/batch"] = [lambda _request: problem(428, "idempotency_key_required")] * 2

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        stored = await core.decide(0)
        await until_async(lambda: len(cloud.stored) == 1)
        assert cloud.stored == [{"signed_verdict": stored.wrapper}]


async def test_a_401_of_a_proxy_does_not_say_that_the_service_knows_of_a_wipe(tmp_path: Path) -> None:
    cloud, wiped = Cloud(), "/v1/devices/self/wiped"
    wipe = {"wipe_id": "w", "reason": "lost"}
    cloud.status = lambda: device_status(SystemClock().wall_ms(), status="revoked", wipe=wipe)
    cloud.faults[wiped] = [lambda _request: proxy_page(401)]

    async with running_core(tmp_path) as core, carrying(cloud, core.socket):
        await until_async(lambda: core.heard.wiped == ["w"])
        assert len(cloud.requests(wiped)) == 2
