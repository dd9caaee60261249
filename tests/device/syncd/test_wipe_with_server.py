"""A revocation to its end: the device empty, the service knowing it, over the network and by mail alone."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from cloud_client.client import CloudClient, ServerAddress
from device.platform.clock import SystemClock
from device.platform.ipc import IpcClient
from device.values.status import WipeStatus
from tests.device.reference_cloud import Server
from tests.device.served_device import ServedDevice, served_device
from tests.device.state_scan import files_of, found_in
from tests.until import until as happens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
until = partial(happens, within_s=90.0, every_s=0.1)


def revoke(server: Server, device: ServedDevice) -> None:
    server.post(f"/v1/devices/{device.device_id}/revoke", {"reason": "stolen"})


def status_at_service(server: Server, device: ServedDevice) -> str:
    listed = server.get("/v1/devices")["data"]
    return str(next(item["status"] for item in listed if item["device_id"] == device.device_id))


def wipe_of(device: ServedDevice) -> WipeStatus:
    wipe = device.status().wipe
    assert wipe is not None
    return wipe


def nothing_left(device: ServedDevice, secrets: dict[str, bytes]) -> bool:
    return set(files_of(device.state)) == {"wipe.json"} and found_in(device.state, secrets) == []


def key_bytes(device: ServedDevice) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (device.state / "keys").iterdir()}


def client_of(server: Server, device: ServedDevice) -> CloudClient:
    return CloudClient(ServerAddress.parse(server.url), device.keys.http, SystemClock().wall_ms)


async def carry_the_order(server: Server, device: ServedDevice) -> str:
    """Carry the device's status to its core, which wipes it; the wipe_id."""
    async with client_of(server, device) as cloud:
        order = await cloud.device_status()
    core = await IpcClient.connect(device.config.carrier_socket)
    told = await core.call("status", order.body, timeout_s=30)
    core.close()
    return str(told.header["wiped"])


def test_over_the_network(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-7-left") as (device, _port):
        secrets = key_bytes(device)
        device.start("palmd")
        device.start("syncd")
        until(lambda: device.says(lambda told: told.cloud.online))
        revoke(server, device)
        # The carrier asks every minute; one that starts asks at once.
        device.kill("syncd")
        device.start("syncd")
        until(lambda: status_at_service(server, device) == "wiped")
        until(lambda: nothing_left(device, secrets))
        assert device.processes["syncd"].wait(20) == 0, "with it the http key leaves memory"
        assert "REVOKED" in device.health()
        device.kill("palmd")
        device.start("palmd")
        until(lambda: "REVOKED" in device.health())
        assert wipe_of(device).stage == "confirmed"
        # There is no key to carry with any more.
        device.kill("syncd")
        device.start("syncd")
        assert device.processes["syncd"].wait(30) == 3


def test_cut_off_before_the_service_was_told(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-7-right") as (device, _port):
        secrets = key_bytes(device)
        device.start("palmd")
        until(device.answers)
        revoke(server, device)
        wipe_id = asyncio.run(carry_the_order(server, device))
        device.kill("palmd")  # nobody was told, and the verdict key is gone
        assert status_at_service(server, device) == "revoked"
        device.start("palmd")
        until(device.answers)
        assert wipe_of(device).to_obj() == {
            "stage": "erased",
            "wipe_id": wipe_id,
            "record": json.loads((device.state / "wipe.json").read_bytes())["record"],
        }
        device.start("syncd")
        until(lambda: status_at_service(server, device) == "wiped")
        until(lambda: nothing_left(device, secrets))


def test_an_answer_that_was_lost_is_made_good_by_a_401(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-8") as (device, _port):
        device.start("palmd")
        until(device.answers)
        revoke(server, device)

        async def tell_and_lose_the_answer() -> None:
            body = json.dumps({"wipe_id": await carry_the_order(server, device)}).encode()
            async with client_of(server, device) as cloud:
                assert (await cloud.wiped(body, "a-key")).status == 204

        asyncio.run(tell_and_lose_the_answer())
        assert status_at_service(server, device) == "wiped"
        device.start("syncd")
        until(lambda: set(files_of(device.state)) == {"wipe.json"})


def test_by_mail_alone(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-9", network=False) as (device, port):
        secrets = key_bytes(device)
        device.start("palmd")
        device.start_validator(port, server)
        until(lambda: device.says(lambda told: told.gallery.fresh))
        revoke(server, device)
        until(lambda: status_at_service(server, device) == "wiped")
        until(lambda: nothing_left(device, secrets))
        assert "REVOKED" in device.health()
        device.kill("palmd")
        device.start("palmd")
        until(lambda: "REVOKED" in device.health())
        assert nothing_left(device, secrets)


def test_the_record_of_a_cut_off_device_can_be_handed_in_by_hand(server: Server, tmp_path: Path) -> None:
    with served_device(tmp_path / "device", server, "gate-10", network=False) as (device, _port):
        device.start("palmd")
        until(device.answers)
        revoke(server, device)
        asyncio.run(carry_the_order(server, device))
        device.kill("palmd")
        device.start("palmd")
        until(device.answers)
        record = wipe_of(device).record
        server.post(f"/v1/devices/{device.device_id}/outbox", {"records": [record]})
        assert status_at_service(server, device) == "wiped"
