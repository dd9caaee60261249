"""What the core knows of the way to its service: from its start, and from the carrier's reports."""

import asyncio

import pytest

from device.core.self_description import FIRST_REPORT_MS, SILENT_MS, ServiceLink
from device.health import Health, HealthWord
from device.syncd.tasks import STATUS_EVERY_S
from device.values.carrier import CloudState
from tests.device.core_makers import HandClock
from tests.device.whole_device import Device, ask_carrier, until


@pytest.mark.parametrize("online", [True, False])
def test_nothing_is_known_until_the_carrier_has_reported(online: bool) -> None:
    link = ServiceLink(Health(lambda _words: None), HandClock(), has_cloud=True)
    assert link.unreported
    link.link_state(CloudState(online, "as it is"))
    assert not link.unreported


def test_a_carrier_that_never_reports_is_not_waited_for() -> None:
    clock = HandClock()
    link = ServiceLink(Health(lambda _words: None), clock, has_cloud=True)
    clock.now_ms += FIRST_REPORT_MS - 1
    assert link.unreported
    clock.now_ms += 1
    assert not link.unreported


def test_a_device_without_a_network_waits_for_no_report() -> None:
    assert not ServiceLink(Health(lambda _words: None), HandClock(), has_cloud=False).unreported


@pytest.mark.parametrize("reported", [True, False])
def test_a_carrier_that_falls_silent_is_away_and_the_service_with_it(reported: bool) -> None:
    """Mail carries nothing while the network is said to: the last word of a dead carrier must not hold."""
    clock, health = HandClock(), Health(lambda _words: None)
    link = ServiceLink(health, clock, has_cloud=True)
    if reported:
        link.link_state(CloudState(True, "fine"))
    clock.now_ms += SILENT_MS - 1
    link.look()
    assert (link.state.online, HealthWord.OFFLINE in health.words) == (reported, False)
    clock.now_ms += 1
    link.look()
    assert (link.state.online, HealthWord.OFFLINE in health.words) == (False, True)
    assert "palm-syncd" in health.details[HealthWord.OFFLINE]
    link.link_state(CloudState(True, "fine again"))
    link.look()
    assert (link.state.online, HealthWord.OFFLINE in health.words) == (True, False)


def test_a_carrier_that_lives_is_never_taken_for_silent() -> None:
    assert SILENT_MS >= 3 * STATUS_EVERY_S * 1000


def test_a_device_without_a_network_expects_no_carrier() -> None:
    clock, health = HandClock(), Health(lambda _words: None)
    link = ServiceLink(health, clock, has_cloud=False)
    clock.now_ms += SILENT_MS
    link.look()
    assert health.words == ()


def test_a_device_without_a_network_notices_a_clock_that_is_behind_what_the_service_signed() -> None:
    """Nothing else would tell: mail has no `Svc-Server-Time`."""
    clock, health, signed_ms = HandClock(), Health(lambda _words: None), 0
    link = ServiceLink(health, clock, has_cloud=False, signed_ms=lambda: signed_ms)
    signed_ms = clock.wall_ms() + 301_000
    link.look()
    assert health.words == (HealthWord.CLOCK_UNTRUSTED,)
    assert "301 s" in health.details[HealthWord.CLOCK_UNTRUSTED]
    clock.now_ms += 1_000
    link.look()
    assert HealthWord.CLOCK_UNTRUSTED not in health.words


@pytest.mark.parametrize("ahead_s", [0, 301])
def test_with_a_network_the_services_clock_decides(ahead_s: int) -> None:
    """What the service signed may be of a day on which its clock had leapt."""
    clock, health = HandClock(), Health(lambda _words: None)
    link = ServiceLink(health, clock, has_cloud=True, signed_ms=lambda: clock.wall_ms() + 3_600_000)
    link.look()
    assert health.words == (HealthWord.CLOCK_UNTRUSTED,)
    link.link_state(CloudState(True, "fine"))
    link.server_time(clock.wall_ms() + 1_000 * ahead_s)
    link.look()
    assert health.words == ((HealthWord.CLOCK_UNTRUSTED,) if ahead_s else ())


async def test_a_running_device_notices_that_its_carrier_is_gone(device: Device) -> None:
    program = "from device.core import palmd, self_description as own; own.SILENT_MS = 300; palmd.main()"

    with device.altered(program):
        await until(lambda: device.status().device_id != "")
        await ask_carrier(device, "link_state", online=True, detail="fine")
        await until(lambda: "palm-syncd" in device.health().get("OFFLINE", ""))
        assert not (await asyncio.to_thread(device.status)).cloud.online
