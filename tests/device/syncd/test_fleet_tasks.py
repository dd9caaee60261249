"""Reports out and releases in, between a real core and a service with faults of its own."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from device.syncd import fleet_tasks
from link1.canonical import JsonObject
from tests.device.syncd.test_carrier_lanes import Cloud, carrying, problem, respond
from tests.device.updates.update_setting import offer, release, signed
from tests.device.whole_device import Device, make_device, validator_at
from tests.until import until_async
from tools.cloud.pack_release import chunk_bodies
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DEVICE_ID

REPORT, UPDATES = "/v1/devices/self/report", "/v1/devices/self/updates"
PAYLOAD, CHUNK = bytes(range(256)) * 4, 256


@dataclass
class FleetCloud(Cloud):
    """A service that takes reports, and offers `manifests`."""

    device: Device | None = None
    manifests: list[JsonObject] = field(default_factory=list)
    attest_due: bool = False

    @property
    def reports(self) -> list[tuple[float, dict[str, Any]]]:
        return [(at, json.loads(request.content)) for at, path, request in self.asked if path == REPORT]

    async def _v1_gallery_deltas(self, _request: httpx.Request) -> httpx.Response:
        return problem(403, "forbidden")  # the device's gallery is another's

    async def _v1_devices_self_report(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    async def _v1_devices_self_updates(self, _request: httpx.Request) -> httpx.Response:
        assert self.device is not None
        key = self.device.board.service_key
        answer = offer(*self.manifests, key=key, device_id=DEVICE_ID)
        answer |= {"next_after_s": 60, "attest_due": self.attest_due}
        return respond(200, answer)

    async def _v1_updates_7_chunks_0(self, _request: httpx.Request) -> httpx.Response:
        return respond(200, next(iter(chunk_bodies(PAYLOAD, 7, CHUNK))))

    async def _v1_updates_7_chunks_1(self, _request: httpx.Request) -> httpx.Response:
        return problem(404, "update_not_found")


@asynccontextmanager
async def fleet(folder: Path, **given: Any) -> AsyncIterator[tuple[Device, FleetCloud, str]]:
    device = make_device(folder)
    cloud = FleetCloud(device=device, **given)
    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running():
            async with carrying(cloud, device.config.carrier_socket):
                yield device, cloud, port


@pytest.fixture(autouse=True)
def close_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports may follow each other sooner than in the product, to keep the tests short."""
    monkeypatch.setattr(fleet_tasks, "REPORTS_APART_S", 0.4)


async def test_a_change_is_reported_soon_never_too_soon_and_a_failure_is_not_repeated(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (device, cloud, port):
        cloud.faults[REPORT] = [lambda _request: problem(503, "internal_error", retryable=True)]
        await until_async(lambda: len(cloud.reports) == 1)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            await until_async(lambda: cloud.reports[-1][1]["link"]["up"])
        await until_async(lambda: not cloud.reports[-1][1]["link"]["up"])
        times = [at for at, _ in cloud.reports]
        assert all(later - earlier >= 0.4 for earlier, later in itertools.pairwise(times))
        keys = [request.headers["Idempotency-Key"] for request in cloud.requests(REPORT)]
        assert len(set(keys)) == len(keys), "each of them is another report"
        states = [(one["health"], one["link"], one["serving"], one["updates"]) for _, one in cloud.reports]
        assert all(earlier != later for earlier, later in itertools.pairwise(states))


async def test_without_news_a_report_comes_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_tasks, "REPORT_EVERY_S", 1.5)

    async with fleet(tmp_path) as (_device, cloud, _port):
        await until_async(lambda: len(cloud.reports) >= 4)
        (last, told), (before, _) = cloud.reports[-1], cloud.reports[-2]
        assert 1.5 * 0.9 <= last - before <= 1.5 * 1.1 + 1.0
        assert told["boot_id"] == cloud.reports[0][1]["boot_id"]


async def test_a_report_that_the_service_refuses_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(tmp_path) as (_device, cloud, _port):
        cloud.faults[REPORT] = [lambda _request: problem(422, "validation_error")]
        await until_async(lambda: "reports: one is refused" in caplog.text)
    assert "the service answered 422 validation_error" in caplog.text


async def test_a_service_that_asks_for_a_wait_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_tasks, "REPORT_EVERY_S", 0.5)

    def limited(_request: httpx.Request) -> httpx.Response:
        answer = problem(429, "rate_limited", retryable=True)
        answer.headers["Retry-After"] = "2"
        return answer

    async with fleet(tmp_path) as (_device, cloud, _port):
        cloud.faults[REPORT] = [limited]
        await until_async(lambda: len(cloud.reports) >= 2)
        assert cloud.reports[1][0] - cloud.reports[0][0] >= 2


async def test_a_service_without_these_routes_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_tasks, "REPORT_EVERY_S", 0.5)

    async with fleet(tmp_path) as (device, cloud, port):
        cloud.faults[REPORT] = [lambda _request: problem(404, "route_not_found")] * 9
        cloud.faults[UPDATES] = [lambda _request: problem(405, "method_not_allowed")] * 9
        await until_async(lambda: bool(cloud.reports) and bool(cloud.requests(UPDATES)))
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()  # which is news
            await until_async(lambda: len(cloud.requests("/v1/gallery/deltas")) >= 4)
        assert (len(cloud.reports), len(cloud.requests(UPDATES))) == (1, 1)


async def test_a_release_whose_chunks_are_gone_is_withdrawn_and_reported(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (device, cloud, _port):
        obj = release(PAYLOAD, 7, chunk_bytes=CHUNK)
        cloud.manifests.append(signed(obj, device.board.root_key))
        gone = {"kind": "model", "name": "palm", "release_seq": 7, "state": "withdrawn"}
        await until_async(lambda: bool(cloud.reports) and cloud.reports[-1][1]["updates"] == [gone], 30)
        chunks = [path for _, path, _ in cloud.asked if "chunks" in path]
        assert chunks == ["/v1/updates/7/chunks/0", "/v1/updates/7/chunks/1"]


async def test_a_service_that_sends_another_chunk_is_not_asked_again_before_its_turn(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (device, cloud, _port):
        obj = release(PAYLOAD, 8, chunk_bytes=CHUNK)
        other = next(iter(chunk_bodies(PAYLOAD, 7, CHUNK)))
        chunk = "/v1/updates/8/chunks/0"
        cloud.faults[chunk] = [lambda _request: respond(200, other)] * 9
        cloud.manifests.append(signed(obj, device.board.root_key))
        await until_async(lambda: bool(cloud.requests(chunk)), 30)
        await until_async(lambda: len(cloud.requests("/v1/gallery/deltas")) >= 3)
        assert len(cloud.requests(chunk)) == 1


async def test_offers_that_the_core_refuses_make_no_storm(tmp_path: Path) -> None:
    async with fleet(tmp_path, manifests=[{"manifest_obj": {"release_seq": 1}}]) as (device, cloud, port):
        await until_async(lambda: len(cloud.requests(UPDATES)) == 1)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            await until_async(lambda: cloud.reports[-1][1]["link"]["up"])
        assert len(cloud.requests(UPDATES)) == 1
