"""What the operator sees of reports and rollouts: figures for Prometheus, the fleet, one device's day."""

import re
from typing import Any

import pytest

from cloud_client.reference_server.domain.devices.fleet import SILENT_BY_MAIL_MS, SILENT_MS
from cloud_client.reference_server.domain.devices.rollouts import RolloutPlan, start
from tests import REPOSITORY
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.rollout_harness import Rolled, report
from tests.cloud_client.server.server_harness import Cloud, SimDevice, Tenant
from tests.cloud_client.server.test_server_admin import Desk

REPORT = "/v1/devices/self/report"


class AdminBrowser(Desk):
    """It also reads /metrics."""

    def sample(self, line: str) -> float:
        """The value of a sample of /metrics."""
        found = [one for one in self.get("/metrics").text.splitlines() if one.startswith(f"{line} ")]
        assert len(found) == 1, line
        return float(found[0].rpartition(" ")[2])


def sent(device: SimDevice, **changes: Any) -> None:
    device.cloud.clock.forward(s=5)
    device.post(REPORT, report(**changes), 204)


@pytest.fixture
def tenant(own_cloud: Cloud) -> Tenant:
    return own_cloud.new_tenant()


def test_silence_is_counted_after_90_seconds(own_cloud: Cloud, tenant: Tenant) -> None:
    browser, device = AdminBrowser(own_cloud), tenant.device()
    states = {state: f'palm_fleet_devices{{state="{state}"}}' for state in ("serving", "degraded", "silent")}
    assert [browser.sample(line) for line in states.values()] == [0, 0, 0]
    sent(device)
    assert [browser.sample(line) for line in states.values()] == [1, 0, 0]
    sent(device, serving=False, uptime_s=65)
    assert [browser.sample(line) for line in states.values()] == [0, 1, 0]
    own_cloud.clock.forward(ms=SILENT_MS)
    assert browser.sample(states["silent"]) == 0
    own_cloud.clock.forward(ms=1)
    assert browser.sample(states["silent"]) == 1
    sent(device, uptime_s=300)
    assert browser.sample(states["serving"]) == 1


def test_a_device_that_reports_by_mail_is_silent_later(own_cloud: Cloud, tenant: Tenant) -> None:
    browser, device = AdminBrowser(own_cloud), tenant.device()
    mailbox, partner = Mailbox(device), tenant.partner()
    own_cloud.clock.forward(s=5)
    mailbox.hand_in(partner, mailbox.report(**report()))
    own_cloud.clock.forward(ms=SILENT_MS + 1)
    assert browser.sample('palm_fleet_devices{state="serving"}') == 1
    own_cloud.clock.forward(ms=SILENT_BY_MAIL_MS)
    assert browser.sample('palm_fleet_devices{state="silent"}') == 1


def test_totals_never_fall_whatever_a_device_says(own_cloud: Cloud, tenant: Tenant) -> None:
    browser, first, second = AdminBrowser(own_cloud), tenant.device("gate-1"), tenant.device("gate-2")
    line = 'palm_fleet_verdicts_total{decision="accept",result="MATCH"}'
    spread = {"latency_ms.le_50": 1, "latency_ms.le_100": 3, "latency_ms.le_200": 3, "latency_ms.le_inf": 4}
    seen = [browser.sample(line)]
    for device, uptime_s, count in ((first, 10, 4), (second, 10, 5), (first, 20, 1), (second, 20, 6)):
        sent(device, uptime_s=uptime_s, counters={"verdicts.accept.MATCH": count} | spread)
        seen.append(browser.sample(line))
    assert seen == [0, 4, 9, 10, 11]
    assert browser.sample('palm_fleet_verdict_seconds_bucket{le="0.1"}') == 6
    assert browser.sample('palm_fleet_verdict_seconds_bucket{le="+Inf"}') == 8


def test_series_are_few_unless_each_device_is_asked_for(own_cloud: Cloud, tenant: Tenant) -> None:
    plain, each = AdminBrowser(own_cloud), AdminBrowser(own_cloud, each_device=True)
    before = len(plain.get("/metrics").text.splitlines())
    for number in range(3):
        words = [f"WORD_{number}_{word}" for word in range(5)]
        sent(tenant.device(f"needle-{number}"), health=words, counters={"verdicts.reject.SPOOF": 2})
    text = plain.get("/metrics").text
    # The least free storage and the highest temperature are known only once a device has reported.
    assert len(text.splitlines()) <= before + 6
    assert "needle" not in text and "WORD_" not in text
    assert tenant.tenant_id not in text
    named = f'tenant_id="{tenant.tenant_id}"'
    assert each.sample(f'palm_device_serving{{device_id="needle-1",{named}}}') == 1
    assert each.sample(f'palm_device_verdicts_total{{decision="reject",device_id="needle-1",{named}}}') == 2
    described = (REPOSITORY / "docs/reference/METRICS.md").read_text(encoding="utf-8")
    served = re.findall(r"^# TYPE (palm_\w+)", each.get("/metrics").text, re.MULTILINE)
    assert [name for name in served if f"`{name}`" not in described] == []


def test_worst_values_and_updates(own_cloud: Cloud, tenant: Tenant) -> None:
    browser = AdminBrowser(own_cloud)
    failed = [{"kind": "app", "name": "n", "release_seq": 3, "state": "failed", "code": "self_test"}]
    boards = ((30, 900), (71, 120), (None, None))
    for number, (temperature, free) in enumerate(boards):
        board = {"temperature_c": temperature, "storage_free_mib": free, "memory_free_mib": None}
        queues = {"verdicts": number * 10, "mail": 0}
        sent(tenant.device(f"gate-{number}"), board=board, queues=queues, updates=failed if number else [])
    assert browser.sample("palm_fleet_temperature_max_celsius") == 71
    assert browser.sample("palm_fleet_storage_free_min_mebibytes") == 120
    assert browser.sample('palm_fleet_queue_max{queue="verdicts"}') == 20
    assert browser.sample('palm_fleet_updates{kind="app",state="failed"}') == 2
    assert browser.sample('palm_fleet_health{word="CAMERA_FAULT"}') == 3


def test_the_page_shows_the_fleet_and_one_devices_day(own_cloud: Cloud, tenant: Tenant) -> None:
    browser, partner = AdminBrowser(own_cloud), tenant.partner()
    device, other = tenant.device("gate-a"), tenant.device("gate-b")
    browser.sign_in(partner.api_key)
    sent(device, counters={"frames": 7, "latency_ms.le_50": 3, "latency_ms.le_inf": 4})
    sent(other, serving=False)
    overview = browser.get("/operator").text
    assert "1<small> of 2</small>" in overview
    assert "1 degraded" in overview
    listed = browser.get("/operator/devices").text
    assert 'href="/operator/devices/gate-a"' in listed
    page = browser.get("/operator/devices/gate-a")
    assert page.status_code == 200
    assert page.text.count("<progress") == page.text.count("<progress aria-label=") > 0
    for text in ("serving", "41 °C", "75 %", "CAMERA_FAULT", "0.2.0+x~1/y"):
        assert text in page.text
    assert "None was uploaded." in page.text
    device.upload({"signed_verdict": device.verdict()})
    page_now = browser.get("/operator/devices/gate-a").text
    assert "Abstain" in page_now
    assert "NO_MATCH" in page_now


def test_another_tenants_device_is_no_such_device(own_cloud: Cloud, tenant: Tenant) -> None:
    browser = AdminBrowser(own_cloud)
    own_cloud.new_tenant().device("gate-x")
    browser.sign_in(tenant.partner().api_key)
    for name in ("gate-x", "nowhere", "%3Cscript%3E", "a" * 300):
        answer = browser.get(f"/operator/devices/{name}")
        assert answer.status_code == 404
        assert "<script>" not in answer.text.replace('<script src="/operator/static/live.js" defer>', "")


def test_rollouts_are_listed_wave_by_wave(own_cloud: Cloud, tenant: Tenant) -> None:
    browser = AdminBrowser(own_cloud)
    browser.sign_in(tenant.partner().api_key)
    assert "No release has been rolled out:" in browser.get("/operator/rollouts").text
    for number in range(4):
        sent(tenant.device(f"gate-{number}"))
    rolled = Rolled(tenant)
    plan = RolloutPlan(waves=(50, 100), soak_s=60, silence_s=900, mail_after_s=3600)
    own_cloud.operate(lambda tx, _, now: start(tx, rolled.environment, rolled.release_seq, plan, now))
    page = browser.get("/operator/rollouts").text
    assert page.count("<progress") == page.count("<progress aria-label=") > 0
    for text in (f"release {rolled.release_seq}", "running", "50 %", "100 %", "wave 1 of 2"):
        assert text in page
    rolled.halt()
    assert "halted by an operator" in browser.get("/operator/rollouts").text
    assert "interrompida por um operador" in browser.get("/operator/rollouts?language=pt-BR").text
