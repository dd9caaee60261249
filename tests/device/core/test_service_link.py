"""What the core knows of the way to its service: from its start, and from the carrier's reports."""

import pytest

from device.core.self_description import FIRST_REPORT_MS, ServiceLink
from device.health import Health
from device.values.carrier import CloudState
from tests.device.core_makers import HandClock


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
