"""The admin bind: health, metrics, the reference page, and the operator's page without a browser."""

import ast
import re
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloud_client.reference_server.contract.words import Reconciliation, SessionStatus
from cloud_client.reference_server.domain.devices import fleet, rollouts
from cloud_client.reference_server.domain.devices.config import change_config
from cloud_client.reference_server.domain.devices.rollout_rules import Halt, Share, Standing, judge
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.ops.serve import ServeOptions
from cloud_client.reference_server.store import health
from cloud_client.reference_server.web.access_log import ServedRequest
from cloud_client.reference_server.web.admin import operator_page
from cloud_client.reference_server.web.admin.app import make_admin_app
from cloud_client.reference_server.web.admin.bind import AdminBind
from cloud_client.reference_server.web.admin.metrics import Metrics, ServiceFigures
from cloud_client.reference_server.web.admin.operator_page.languages import language_of, templates
from cloud_client.reference_server.web.admin.operator_page.portuguese import PORTUGUESE
from cloud_client.reference_server.web.admin.operator_page.routes import SECTIONS
from cloud_client.reference_server.web.admin.operator_page.visits import IDLE_S, LONGEST_S, Visits
from cloud_client.reference_server.web.admin.operator_page.words import ago, numbers_apart, sentence
from cloud_client.reference_server.web.api.openapi import document
from cloud_client.reference_server.web.api.operations import OPERATIONS
from link1.keys import SigningKey
from tests.cloud_client.server.rollout_harness import report
from tests.cloud_client.server.server_database import ENGINE
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, decision, vector
from tests.cloud_client.server.server_process import Running

ORIGIN = "http://127.0.0.1:8711"
SAME_SITE = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
STANDING = ServiceFigures({}, [], 0, 0, {}, 0, 0)


class Desk:
    """A browser without script at the admin bind of a server."""

    def __init__(self, cloud: Cloud, *, local: bool = True, each_device: bool = False) -> None:
        self.cloud = cloud
        self.metrics = Metrics(each_device=each_device)
        service, store = cloud.api.service, cloud.api.store
        app = make_admin_app(service, store, self.metrics, local=local)
        transport = httpx.ASGITransport(app)
        self.http = httpx.AsyncClient(transport=transport, base_url=ORIGIN)

    def get(self, path: str, **given: Any) -> httpx.Response:
        response: httpx.Response = self.cloud.run(self.http.get(path, **given))
        return response

    def post(
        self, path: str, fields: dict[str, str], headers: dict[str, str] | None = None
    ) -> httpx.Response:
        response: httpx.Response = self.cloud.run(
            self.http.post(path, data=fields, headers=SAME_SITE if headers is None else headers)
        )
        return response

    def sign_in(self, api_key: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.post("/operator/sign-in", {"api_key": api_key}, headers)

    def page(self, path: str) -> str:
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.text


@pytest.fixture
def desk(cloud: Cloud) -> Desk:
    return Desk(cloud)


def test_health_looks_at_the_store(own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(own_cloud)
    monkeypatch.setattr(health, "EVERY_S", 0)
    assert desk.get("/healthz").json() == {"status": "ok"}

    async def broken(_work: Any) -> None:
        raise StoreUnavailable("database: disk I/O error")

    monkeypatch.setattr(desk.cloud.api.store, "read_aside", broken)
    answer = desk.get("/healthz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert desk.get("/metrics").status_code == 503
    assert desk.get("/operator/sign-in").status_code == 200
    # Browsers send the cookies of whatever else serves this host.
    assert desk.get("/operator/sign-in", headers={"Cookie": "a/b=1; {=}; ;="}).status_code == 200


@pytest.mark.skipif(ENGINE != "sqlite", reason="about SQLite's file")
def test_a_database_file_that_is_replaced_takes_nothing_more(
    own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a backup is put in place under a server that runs: what it answered to would be lost."""
    monkeypatch.setattr(health, "EVERY_S", 0)
    desk, partner = Desk(own_cloud), own_cloud.new_tenant().partner()
    person = partner.person()["subject_id"]
    file = own_cloud.data.database
    assert isinstance(file, Path)
    copy = file.with_name("backup.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    for name in ("cloud.db", "cloud.db-wal", "cloud.db-shm"):
        file.with_name(name).unlink()
    copy.rename(file)
    refused = partner.send("POST", "/v1/subjects", {"external_ref": "lost"})
    assert (refused.status_code, refused.json()["code"]) == (503, "service_unavailable")
    assert partner.send("DELETE", f"/v1/subjects/{person}").status_code == 503
    assert desk.get("/healthz").status_code == 503
    own_cloud.restart()
    assert partner.send("GET", f"/v1/subjects/{person}").status_code == 200
    assert partner.send("POST", "/v1/subjects", {"external_ref": "kept"}).status_code == 201


def test_health_outlives_a_table_that_is_lost(own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a look at the store ends with, there is another."""
    monkeypatch.setattr(health, "EVERY_S", 0)
    desk = Desk(own_cloud)
    assert desk.get("/healthz").status_code == 200
    own_cloud.operate(lambda tx, *_: tx.run("ALTER TABLE nonces RENAME TO lost"))
    assert [desk.get("/healthz").status_code for _ in range(2)] == [503, 503]
    own_cloud.operate(lambda tx, *_: tx.run("ALTER TABLE lost RENAME TO nonces"))
    assert desk.get("/healthz").json() == {"status": "ok"}


def test_metrics_tell_figures_and_no_value(own_cloud: Cloud) -> None:
    desk, tenant = Desk(own_cloud), own_cloud.new_tenant()
    own_cloud.api.on_answer = desk.metrics.note
    partner, device = tenant.partner(), tenant.device("gate-needle")
    device.get("/v1/gallery/deltas?epoch=1&after_seq=0")
    person = partner.person("needle-ref")
    device.enrol(partner, person["subject_id"])
    partner.session(partner.person()["subject_id"])
    partner.send("GET", "/v1/subjects?external_ref=needle-ref")
    partner.send("GET", "/v1/needle/path")
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    text = desk.get("/metrics").text
    for line in (
        'palm_http_requests_total{method="POST",route="/v1/subjects",status="201"} 2.0',
        'palm_http_requests_total{method="GET",route="(no route)",status="404"} 1.0',
        'palm_http_request_seconds_count{method="GET",route="/v1/subjects"} 1.0',
        'palm_devices{status="active"} 1.0',
        'palm_devices_behind{deltas="1"} 1.0',
        'palm_devices_behind{deltas="1000"} 0.0',
        "palm_device_gallery_lag_max_deltas 3.0",
        'palm_enrollment_sessions{status="open"} 1.0',
        "palm_erasures_pending 1.0",
        "palm_long_poll_waiters 0.0",
        'palm_store_queue{crew="write"} 0.0',
    ):
        assert line in text.splitlines()
    for needle in ("needle", person["subject_id"], tenant.tenant_id, partner.key_id, partner.api_key[-20:]):
        assert needle not in text


def test_an_erasure_is_overdue_when_it_is_old_itself(own_cloud: Cloud) -> None:
    """Where people are erased all the time one is always pending, and that is no reason to wake anyone."""
    desk, tenant = Desk(own_cloud), own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device("gate-7")

    def erase() -> None:
        person = partner.person()
        device.enrol(partner, person["subject_id"])
        partner.delete(f"/v1/subjects/{person['subject_id']}")

    def figures() -> set[str]:
        return {line for line in desk.get("/metrics").text.splitlines() if line.startswith("palm_erasures_")}

    erase()
    for _ in range(8):
        own_cloud.clock.forward(s=3600)
        seen = device.get("/v1/gallery/deltas?epoch=1&after_seq=0&limit=500")["head"]["head_obj"]["seq"]
        erase()
        device.get(f"/v1/gallery/deltas?epoch=1&after_seq={seen}")
        assert figures() == {"palm_erasures_pending 1.0", "palm_erasures_overdue 0.0"}
    own_cloud.clock.forward(s=6 * 3600)
    assert figures() == {"palm_erasures_pending 1.0", "palm_erasures_overdue 1.0"}


def test_a_metric_takes_any_answer() -> None:
    metrics = Metrics()
    metrics.note(ServedRequest("?", "(no route)", 405, 0.2, "r"))
    assert b'method="?"' in metrics.page(STANDING, waiters=4, queued={"write": 2})


def test_every_answer_is_guarded(desk: Desk) -> None:
    for path in ("/operator/sign-in", "/docs", "/healthz", "/operator/static/admin.css", "/nowhere"):
        headers = desk.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'")
        assert "unsafe" not in policy
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert desk.get("/operator/static/live.js").headers["content-type"].startswith("text/javascript")
    assert desk.get("/operator/static/views.py").status_code == 404
    assert desk.get("/operator/static/..%2fviews.py").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8711", "127.0.0.1.evil.example", "10.0.0.1", "[", ""]
)
def test_only_this_machines_names_are_answered(cloud: Cloud, host: str) -> None:
    assert Desk(cloud).get("/metrics", headers={"Host": host}).status_code == 421
    assert Desk(cloud, local=False).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8711", "127.0.0.1", "127.0.0.2:8711", "[::1]:8711", "[::1]"]
)
def test_this_machines_names(desk: Desk, host: str) -> None:
    assert desk.get("/healthz", headers={"Host": host}).status_code == 200


def test_signing_in_and_out(desk: Desk, tenant: Tenant) -> None:
    partner = tenant.partner()
    assert desk.get("/").headers["location"] == "/operator"
    assert desk.get("/operator").headers["location"] == "/operator/sign-in"
    answer = desk.sign_in(partner.api_key)
    assert (answer.status_code, answer.headers["location"]) == (303, "/operator")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/operator" in cookie
    assert "Secure" not in cookie
    assert partner.api_key.rpartition("_")[2] not in cookie
    page = desk.page("/operator")
    assert partner.key_id in page
    assert partner.api_key.rpartition("_")[2] not in page
    token = re.search(r'name="form_token" value="([^"]+)"', page)
    assert token is not None
    # A stranger's page cannot sign anyone out.
    desk.post("/operator/sign-out", {"form_token": "x" * 43})
    desk.post("/operator/sign-out", {"form_token": token[1]}, {"Origin": "http://evil.example"})
    desk.page("/operator")
    assert desk.get("/operator/sign-in").headers["location"] == "/operator"
    out = desk.post("/operator/sign-out", {"form_token": token[1]})
    assert 'palm_operator=""' in out.headers["set-cookie"]
    assert desk.get("/operator").status_code == 303


def test_the_cookie_keeps_to_https_beyond_this_machine(cloud: Cloud, partner: Partner) -> None:
    assert "Secure" in Desk(cloud, local=False).sign_in(partner.api_key).headers["set-cookie"]


@pytest.mark.parametrize("sent", ["", "nonsense", "svc_test_aaaaaaaaaaaa_" + "A" * 40, "x" * 9000, "ü"])
def test_a_key_that_is_not_accepted(desk: Desk, sent: str) -> None:
    answer = desk.sign_in(sent)
    assert answer.status_code == 401
    assert "This API key is not accepted." in answer.text
    assert "set-cookie" not in answer.headers
    assert "nonsense" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:8712"},
        {"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN},
    ],
)
def test_a_form_from_elsewhere(desk: Desk, partner: Partner, headers: dict[str, str]) -> None:
    answer = desk.sign_in(partner.api_key, headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


def test_a_revoked_key_is_signed_out_with_the_next_click(desk: Desk, tenant: Tenant) -> None:
    partner = tenant.partner()
    desk.sign_in(partner.api_key)
    desk.page("/operator/devices")
    desk.cloud.operate(lambda tx, _, now: operator.revoke_key(tx, tenant.tenant_id, partner.key_id, now))
    assert desk.get("/operator/devices").headers["location"] == "/operator/sign-in"


def test_scopes_are_respected(desk: Desk, tenant: Tenant) -> None:
    desk.sign_in(tenant.partner(scopes=["devices:read"]).api_key)
    home = desk.page("/operator")
    assert "Devices that need a look" in home
    for hidden in ("Verdicts", "Erasures", "Conflicts", "in review"):
        assert hidden not in home
    refused = desk.get("/operator/erasures")
    assert refused.status_code == 403
    assert "subjects:read" in refused.text
    assert desk.get("/operator/verdicts").status_code == 403


def test_empty_pages_say_so(desk: Desk, partner: Partner) -> None:
    desk.sign_in(partner.api_key)
    assert "No device is registered yet" in desk.page("/operator/devices")
    assert "No verdict has been uploaded yet" in desk.page("/operator/verdicts")
    assert "No verdict is listed under" in desk.page("/operator/verdicts?reconciliation=conflict")
    assert "No enrollment session has been opened" in desk.page("/operator/enrollment")
    assert "No one has been erased" in desk.page("/operator/erasures")
    for odd in ("0", "-1", "x", "9" * 12, "²"):
        assert "No device is registered yet" in desk.page(f"/operator/devices?page={odd}")
    for further_back in ("devices?page=7", "verdicts?page=7", "verdicts?reconciliation=complete&page=7"):
        assert "nothing on this page" in desk.page(f"/operator/{further_back}")


def test_the_pages_show_what_is_there_and_nobody(desk: Desk, tenant: Tenant, partner: Partner) -> None:
    device, late = tenant.device("gate-1"), tenant.device("gate-2")
    key = tenant.add_dbd()
    person = partner.person("needle-ref", onboard_ref="needle-board")
    device.enrol(partner, person["subject_id"])
    good, bad = device.verdict(person["subject_ref"]), device.verdict()
    device.upload(
        {"signed_verdict": good, "signed_decision": decision(good, key)},
        {"signed_verdict": bad, "signed_decision": decision(bad, SigningKey.generate())},
    )
    partner.session(partner.person()["subject_id"])
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    seq = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")["data"][-1]["seq"]
    device.get(f"/v1/gallery/deltas?epoch=1&after_seq={seq}")
    desk.sign_in(partner.api_key)
    pages = {
        name: desk.page(f"/operator/{name}") for name in ("devices", "verdicts", "enrollment", "erasures")
    }
    pages["overview"] = desk.page("/operator")
    assert "in step" in pages["devices"]
    assert "none yet" in pages["devices"]
    assert pages["devices"].index(late.device_id) < pages["devices"].index(device.device_id)
    conflicts = pages["verdicts"].partition("All, newest first")[0]
    assert "decision by a validator key that is not known" in conflicts
    assert ">open<" in pages["enrollment"]
    assert "1 of 2" in pages["erasures"]
    assert late.device_id in pages["erasures"]
    for page in pages.values():
        assert "needle" not in page
        assert '<meta http-equiv="refresh" content="20">' in page
        assert not re.search(r'(src|href)="(https?:)?//', page)
        assert "style=" not in page
    other = Desk(desk.cloud)
    other.sign_in(tenant.partner("live").api_key)
    assert "No device is registered yet" in other.page("/operator/devices")


def test_a_session_in_review_is_named_whole_as_the_command_takes_it(
    desk: Desk, tenant: Tenant, partner: Partner
) -> None:
    device = tenant.device()
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    session = partner.session(partner.person()["subject_id"])
    device.post("/v1/enrollments", device.enrolment(session["token"], {"L": vector(2), "R": vector(77)}), 202)
    desk.sign_in(partner.api_key)
    assert f"palmctl cloud session approve {session['session_id']}" in desk.page("/operator/enrollment")


@pytest.mark.parametrize("ttl_s", [6 * 3600, 600])
def test_a_device_that_has_stopped_needs_a_look(own_cloud: Cloud, ttl_s: int) -> None:
    """It still talks to the service and lacks no delta, but no head has reached it for as long as its
    configuration lets it recognize people."""
    desk, tenant = Desk(own_cloud), own_cloud.new_tenant()
    changes = {"gallery_ttl_ms": ttl_s * 1000}
    own_cloud.operate(lambda tx, _, now: change_config(tx, tenant.environment("test"), changes, now))
    device = tenant.device("gate-1")
    device.get("/v1/gallery/deltas?epoch=1&after_seq=0")
    desk.sign_in(tenant.partner().api_key)
    assert "None: every active device is in touch" in desk.page("/operator")
    own_cloud.clock.forward(s=ttl_s)
    assert "palm_devices_gallery_expired 0.0" in desk.get("/metrics").text
    own_cloud.clock.forward(s=1)
    assert "palm_devices_gallery_expired 1.0" in desk.get("/metrics").text
    device.get("/v1/devices/self/status")
    desk.sign_in(tenant.partner().api_key)
    overview = desk.page("/operator")
    assert "stopped" in desk.page("/operator/devices")
    assert "None: every active device is in touch" not in overview
    assert "0<small> of 1</small></span> <span>devices in touch and in step" in overview
    assert "recognizes no one" in overview


def test_a_device_that_reports_that_it_serves_no_one_needs_a_look(desk: Desk, tenant: Tenant) -> None:
    """In touch and in step as it is: on the page of a large fleet it was one of hundreds."""
    devices = [tenant.device(f"gate-{number}") for number in range(3)]
    for device in devices:
        device.get("/v1/gallery/deltas?epoch=1&after_seq=0")
    desk.sign_in(tenant.partner().api_key)
    assert "None: every active device is in touch" in desk.page("/operator")
    devices[1].post("/v1/devices/self/report", report(serving=False), 204)
    overview, listed = desk.page("/operator"), desk.page("/operator/devices")
    looked_at = overview.partition("Devices that need a look")[2].partition("Latest verdicts")[0]
    assert re.findall(r">(gate-\d)<", looked_at) == ["gate-1"]
    assert "degraded" in looked_at and "recognizes no one" in looked_at
    assert re.findall(r'class="name"[^>]*>(gate-\d)<', listed) == ["gate-1", "gate-0", "gate-2"]
    devices[1].post("/v1/devices/self/report", report(uptime_s=61), 204)
    assert "None: every active device is in touch" in desk.page("/operator")


def test_pages_follow_one_another(desk: Desk, device: SimDevice, partner: Partner) -> None:
    device.upload(*({"signed_verdict": device.verdict()} for _ in range(60)))
    desk.sign_in(partner.api_key)
    first, second = desk.page("/operator/verdicts"), desk.page("/operator/verdicts?page=2")
    assert (first.count("<tr class"), second.count("<tr class")) == (50, 10)
    assert "Older" in first
    assert "Newer" in second


def test_visits_end_by_themselves() -> None:
    now_s = 0.0
    visits = Visits(lambda: now_s)
    api_key = "svc_test_aaaaaaaaaaaa_" + "A" * 40
    idle, busy = visits.begin(api_key), visits.begin(api_key)
    assert visits.find(idle + "x") is None
    while now_s < LONGEST_S:
        assert visits.find(busy) is not None
        now_s += IDLE_S
    assert visits.find(idle) is None
    now_s += 1
    assert visits.find(busy) is None
    kept = [visits.begin(api_key) for _ in range(1100)]
    assert visits.find(kept[-1]) is not None
    assert sum(visits.find(cookie) is not None for cookie in kept) <= 1000


def test_the_reference_is_the_whole_document_by_itself(desk: Desk) -> None:
    page = desk.page("/docs")
    for operation in OPERATIONS:
        assert (f'id="{operation.operation_id}"' in page) == bool(operation.answers)
    for word in ("idempotency_key_required", "Bearer $API_KEY", "account-17"):
        assert word in page
    assert "<script" not in page
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert desk.get("/openapi.json").json() == document(OPERATIONS)


def admin_url(running: Running) -> str:
    found = re.search(r"operator page (http://127\.0\.0\.1:\d+)/operator", running.log.read_text())
    assert found is not None
    return found[1]


def test_the_bind_of_a_running_server(running: Running) -> None:
    url = admin_url(running)
    assert httpx.get(f"{url}/healthz", trust_env=False).json() == {"status": "ok"}
    assert httpx.get(f"{running.url}/v1/health", trust_env=False).status_code == 200
    assert 'route="/v1/health",status="200"} 1.0' in httpx.get(f"{url}/metrics", trust_env=False).text
    for path in ("/healthz", "/metrics", "/docs", "/operator"):
        assert httpx.get(running.url + path, trust_env=False).status_code == 404


def test_where_it_may_listen(tmp_path: Path) -> None:
    data = DataDirectory.of(tmp_path)
    ServeOptions(data, admin=AdminBind("::1")).check()
    ServeOptions(data, admin=AdminBind("10.0.0.1"), behind_tls_proxy=True).check()
    with pytest.raises(OperatorError, match="not a loopback"):
        ServeOptions(data, admin=AdminBind("10.0.0.1")).check()


def test_a_taken_port_matters_to_whoever_asked_for_it(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    from cloud_client.reference_server.web.admin.bind import listening

    async def listen(bind: AdminBind | None) -> str | None:
        async with listening(bind, cloud.app) as url:
            return url

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cloud.run(listen(AdminBind(port=port))) is None
        assert "give --admin-port" in caplog.text
        with pytest.raises(OperatorError, match="choose another --admin-port"):
            cloud.run(listen(AdminBind(port=port, asked=True)))
    assert cloud.run(listen(None)) is None
    assert cloud.run(listen(AdminBind(port=0))).startswith("http://127.0.0.1:")


def test_the_operators_language(desk: Desk, tenant: Tenant, partner: Partner) -> None:
    device = tenant.device("gate-1")
    device.upload({"signed_verdict": device.verdict()})
    partner.session(partner.person()["subject_id"])
    brazil = {"Accept-Language": "pt-BR,pt;q=0.9,en;q=0.5"}
    door = desk.get("/operator/sign-in", headers=brazil)
    assert "Entre com uma chave de API" in door.text and '<html lang="pt-BR">' in door.text
    assert door.headers["content-language"] == "pt-BR" and door.headers["vary"] == "Accept-Language"
    desk.sign_in(partner.api_key)
    words = re.compile(r">[^<>]*\b(the|and|of|yet|ago|no|device|verdict|person|page|in)\b[^<>]*<")
    for name in (
        "",
        "/devices",
        "/verdicts",
        "/verdicts?reconciliation=conflict",
        "/enrollment",
        "/erasures",
    ):
        shown = desk.get(f"/operator{name}", headers=brazil).text
        assert not words.search(re.sub(r"<(code|script)\b.*?</\1>", "", shown)), shown
    assert "sem galeria" in shown or "Ninguém foi excluído" in shown
    assert "Dispositivos" in desk.get("/operator", headers=brazil).text


def test_a_chosen_language_stays(desk: Desk, partner: Partner) -> None:
    desk.sign_in(partner.api_key)
    assert "Visão geral" in desk.page("/operator?language=pt-BR")
    assert "Visão geral" in desk.page("/operator/devices")
    assert "Overview" in desk.page("/operator/devices?language=en")
    assert "Overview" in desk.get("/operator", headers={"Accept-Language": "pt-BR"}).text
    listed = desk.page("/operator/verdicts?reconciliation=conflict&page=2&language=en")
    assert 'href="?reconciliation=conflict&amp;page=2&amp;language=pt-BR"' in listed
    for odd in ("fr", "", "x" * 5000, "pt-BR\r\nSet-Cookie: a=b"):
        assert "Overview" in desk.get("/operator", params={"language": odd}).text


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        (None, "en"),
        ("", "en"),
        ("*", "en"),
        ("pt", "pt-BR"),
        ("PT-br", "pt-BR"),
        ("en-GB, pt-BR", "en"),
        ("en;q=0.2, pt;q=0.9", "pt-BR"),
        ("en; q=0.2, pt ;Q=0.9", "pt-BR"),
        ("pt;q=0", "en"),
        ("pt;q=x, en", "en"),
        (";;,,q=" * 10_000, "en"),
    ],
)
def test_what_a_browser_accepts(accepted: str | None, language: str) -> None:
    assert language_of(None, accepted) == language


def halts() -> list[str]:
    """What a rollout says that halted itself."""
    few, half = Share(0, 0), Share(1000, 523)
    judged = (
        judge([Standing.FAILED], soaked=True, took=few, others=few),
        judge([Standing.WELL], soaked=True, took=half, others=Share(400, 400)),
    )
    return [one.reason for one in judged if isinstance(one, Halt)]


def test_why_a_rollout_halted_is_said_in_portuguese() -> None:
    bad, differs = (sentence(reason, PORTUGUESE.__getitem__, ",") for reason in halts())
    assert bad == "1 de 1 dispositivos com problema: 1 falharam, 0 sem sinal"
    assert differs.startswith("52,3% de 1000 vereditos") and "100,0% de 400" in differs
    assert [sentence(reason, str, ".") for reason in halts()] == halts()


def test_a_time_far_ahead_is_not_now() -> None:
    """A device whose clock is a year ahead decides in a year."""
    assert ago(60_999, 61_000) == ago(120_999, 61_000) == "just now"
    assert ago(61_000 + 365 * 24 * 3_600_000, 61_000) == "in 365 d"


def test_every_word_of_the_page_is_translated() -> None:
    page = Path(operator_page.__file__).parent
    extract = getattr(templates("en"), "extract_translations")  # noqa: B009 (jinja2.ext.i18n adds it)
    found = [
        message
        for path in (page / "templates").glob("*.html")
        for _line, _function, message in extract(path.read_text())
    ]
    # A word that comes from the views is None here.
    asked = {text for message in found for text in ([message] if isinstance(message, str) else message or ())}
    asked = {text for text in asked if text}
    asked |= {section.title for section in SECTIONS} | {"just now", "%s ago", "in %s"}
    asked |= {word.value.replace("_", " ") for word in (*SessionStatus, *Reconciliation)}
    asked |= {numbers_apart(reason)[0] for reason in halts()}
    assert asked <= PORTUGUESE.keys(), asked - PORTUGUESE.keys()
    sources_of_views = (page / "views.py").read_text()
    sources = "".join((page / f"{name}.py").read_text() for name in ("views", "fleet_views", "routes"))
    sources += Path(fleet.__file__).read_text() + Path(rollouts.__file__).read_text()
    said = PORTUGUESE.keys() & set(re.findall(r'"((?:[^"\\]|\\.)*)"', sources))
    assert PORTUGUESE.keys() == asked | said
    functions = [node for node in ast.walk(ast.parse(sources_of_views)) if isinstance(node, ast.FunctionDef)]
    shown = [name for name in functions if name.name in ("_device_state", "_gallery_words", "_why")]
    returned = {
        text.value
        for function in shown
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value
    }
    # The tones are classes of the style sheet; `behind` has its number in the template.
    assert returned - PORTUGUESE.keys() == {"good", "warn", "bad", "quiet", "behind"}
    for english, portuguese in PORTUGUESE.items():
        assert re.findall(r"%(?:\(\w+\))?s", english) == re.findall(r"%(?:\(\w+\))?s", portuguese)
        assert re.findall(r"<[^>]+>", english) == re.findall(r"<[^>]+>", portuguese)
