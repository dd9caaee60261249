"""What is the same for every route: order of checks, credentials, headers, bodies, queries, limits."""

import json
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.contract import ServiceCode
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.ops.serve import ServeOptions
from cloud_client.reference_server.web.api.openapi import codes_of
from cloud_client.reference_server.web.api.operations import OPERATIONS
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of

BODY = {"external_ref": "p-1"}


def test_the_first_failing_check_answers(tenant: Tenant, cloud: Cloud) -> None:
    """A request that is wrong in every way, put right one step at a time."""
    weak = tenant.partner(scopes=["subjects:read"])
    partner = tenant.partner()
    bad: dict[str, str] = {"Idempotency-Key": "a b", "Content-Type": "text/plain", "X-Request-Id": "a b"}

    def answer(path: str = "/v1/subjects?x=1", content: str = "{") -> str:
        return code_of(cloud.send("POST", path, headers=bad, content=content))

    assert answer("/v1/nothing") == "route_not_found"
    assert answer() == "invalid_request"
    bad["X-Request-Id"] = "ok"
    assert answer() == "unauthenticated"
    bad["Authorization"] = f"Bearer {weak.api_key}"
    assert answer() == "insufficient_scope"
    bad["Authorization"] = f"Bearer {partner.api_key}"
    assert answer() == "unsupported_media_type"
    bad["Content-Type"] = "application/json"
    assert answer() == "invalid_request"
    del bad["Idempotency-Key"]
    assert answer() == "idempotency_key_required"
    bad["Idempotency-Key"] = "k"
    assert answer() == "invalid_request"
    assert answer("/v1/subjects") == "malformed_json"
    assert answer("/v1/subjects", "[]") == "validation_failed"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Basic {key}",
        "Bearer  {key}",
        "Bearer {key} ",
        "Bearer {key}x",
        "Bearer svc_live_{rest}",
        "Bearer svc_test_aaaaaaaa_" + "A" * 40,
        "Provisioning {key}",
    ],
)
def test_every_credential_failure_is_the_same_401(partner: Partner, authorization: str) -> None:
    rest = partner.api_key.removeprefix("svc_test_")
    headers = {"Authorization": authorization.format(key=partner.api_key, rest=rest)}
    response = partner.cloud.send("GET", "/v1/subjects", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    body = response.json() | {"instance": ""}
    assert body == partner.cloud.send("GET", "/v1/subjects").json() | {"instance": ""}


def test_the_scheme_is_case_insensitive_and_the_header_stands_once(partner: Partner) -> None:
    headers = {"Authorization": f"bEARER {partner.api_key}"}
    assert partner.cloud.send("GET", "/v1/subjects", headers=headers).status_code == 200
    twice = [("Authorization", f"Bearer {partner.api_key}")] * 2
    assert partner.cloud.send("GET", "/v1/subjects", headers=twice).status_code == 401
    assert partner.cloud.send("GET", "/v1/health", headers=twice).status_code == 200


def test_a_revoked_key_is_refused_at_once(tenant: Tenant, partner: Partner) -> None:
    from cloud_client.reference_server.ops import commands as operator

    done = tenant.cloud.operate(
        lambda tx, _, now: operator.revoke_key(tx, tenant.tenant_id, partner.key_id, now)
    )
    assert done == {"key_id": partner.key_id, "revoked_at_ms": tenant.cloud.clock.ms}
    assert partner.send("GET", "/v1/subjects").status_code == 401


def test_partner_and_device_credentials_do_not_mix(device: SimDevice, partner: Partner) -> None:
    assert partner.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0").status_code == 401
    assert device.send("GET", "/v1/subjects").status_code == 401


@pytest.mark.parametrize(
    ("value", "status"),
    [
        *(("abc.DEF_1:-", 200), ("x" * 64, 200), ("x" * 65, 400), ("a b", 400), ("", 400), ("é", 400)),
        *(("529.982.247-25", 400), ("52998224725", 400), ("52998224726", 200), ("r-52998224725", 400)),
    ],
)
def test_request_id(partner: Partner, value: str, status: int) -> None:
    response = partner.send("GET", "/v1/subjects", headers={"X-Request-Id": value.encode("latin-1")})
    assert response.status_code == status
    assert (response.headers["x-request-id"] == value) == (status == 200)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("OPTIONS", "/v1/keys", 204), ("PUT", "/v1/keys", 405), ("GET", "/v1/nothing", 404)],
)
def test_request_id_where_nothing_is_carried_out(cloud: Cloud, method: str, path: str, status: int) -> None:
    for sent, echoed in (("mine", True), ("a b", False)):
        response = cloud.send(method, path, headers={"X-Request-Id": sent})
        assert response.status_code == status
        assert (response.headers["x-request-id"] == sent) == echoed
        assert not response.content or response.json()["instance"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/subjects/",
        "/v1//subjects",
        "//v1/subjects",
        "/V1/subjects",
        "/v1/events",
        "/v1/subjects/%2e%2e/devices",
        "/v1/subjects/a%2Fb",
        "/v1/subjects/..%2Fdevices",
    ],
)
def test_no_such_route(partner: Partner, path: str) -> None:
    assert code_of(partner.send("GET", path)) == "route_not_found"


def test_methods(partner: Partner) -> None:
    response = partner.cloud.send("PUT", "/v1/subjects")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
    assert code_of(response) == "method_not_allowed"
    options = partner.cloud.send("OPTIONS", "/v1/keys")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")
    head = partner.send("HEAD", "/v1/subjects")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(partner.send("GET", "/v1/subjects").content)


def test_webhooks_are_planned(partner: Partner) -> None:
    assert code_of(partner.send("GET", "/v1/webhooks/x/y")) == "not_implemented"
    assert code_of(partner.cloud.send("GET", "/v1/webhooks")) == "unauthenticated"


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=UTF-8", 201),
        ('application/json;charset="utf-8"', 201),
        ("application/json; charset=latin-1", 415),
        ("application/json; x=1", 415),
        ("application/problem+json", 415),
        ("text/json", 415),
        ("", 415),
    ],
)
def test_media_types(partner: Partner, content_type: str, status: int) -> None:
    response = partner.send("POST", "/v1/subjects", BODY, headers={"Content-Type": content_type})
    assert response.status_code == status


def test_content_encoding_is_refused(partner: Partner) -> None:
    response = partner.send("POST", "/v1/subjects", BODY, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b'{"a":1}x',
        b'{"external_ref":"a","external_ref":"b"}',
        b'{"external_ref":NaN}',
        b'{"external_ref":-Infinity}',
        b'\xef\xbb\xbf{"external_ref":"a"}',
        b'{"external_ref":"\xff"}',
        b'{"external_ref":"\\ud800"}',
        b'{"\\udfff":1}',
        b"[" * 17 + b"]" * 17,
        b"[" * 60_000,
        b"{'a':1}",
        b"nul",
    ],
)
def test_hostile_json(partner: Partner, content: bytes) -> None:
    response = partner.send("POST", "/v1/subjects", content=content)
    assert (response.status_code, code_of(response)) == (400, "malformed_json")


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        ("[]", ""),
        ("null", ""),
        ('"x"', ""),
        ('{"external_ref":1.5}', "/external_ref"),
        ('{"external_ref":' + "9" * 400 + "}", "/external_ref"),
        ('{"external_ref":true}', "/external_ref"),
        ('{"external_ref":"a\\n"}', "/external_ref"),
        ('{"external_ref":"a","sneaky":1}', ""),
        ('{"external_ref":"a","cpf":null}', "/cpf"),
        ("{}", "/external_ref"),
    ],
)
def test_json_outside_the_contract(partner: Partner, content: str, pointer: str) -> None:
    response = partner.send("POST", "/v1/subjects", content=content)
    assert (response.status_code, code_of(response)) == (422, "validation_failed")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert "sneaky" not in response.text


def test_large_bodies(partner: Partner) -> None:
    content = b'{"external_ref":"' + b"a" * 65_536 + b'"}'
    response = partner.send("POST", "/v1/subjects", content=content)
    assert (response.status_code, response.headers["connection"]) == (413, "close")


@given(st.binary(max_size=200))
def test_the_reader_raises_nothing_else(data: bytes) -> None:
    try:
        value = read_body(data)
    except Problem as problem:
        assert problem.status == 400
    else:
        assert json.loads(data) == value or value != value


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=05",
        "limit=1.0",
        "limit=",
        "limit=1&limit=1",
        "offset=1",
        "status=gone",
        "status",
        "external_ref=%ff",
        "external_ref=a%20b",
        "cpf=52998224725",
        "&&",
        "=",
    ],
)
def test_bad_queries(partner: Partner, query: str) -> None:
    response = partner.send("GET", f"/v1/subjects?{query}")
    assert (response.status_code, code_of(response)) == (400, "invalid_request")
    assert "52998224725" not in response.text


def test_rate_limits_tell_and_hold(tmp_path_factory: pytest.TempPathFactory) -> None:
    with closing(Cloud(tmp_path_factory.mktemp("rates"), rate_scale=1)) as cloud:
        partner = cloud.new_tenant().partner()
        first = partner.send("GET", "/v1/subjects")
        assert first.headers["ratelimit-limit"] == "200"
        assert first.headers["ratelimit-remaining"] == "199"
        assert first.headers["ratelimit-reset"] == "1"
        answers = [partner.send("GET", "/v1/subjects").status_code for _ in range(200)]
        assert answers == [200] * 199 + [429]
        limited = partner.send("GET", "/v1/subjects")
        assert (limited.headers["retry-after"], limited.headers["ratelimit-remaining"]) == ("1", "0")
        assert code_of(limited) == "rate_limited"
        cloud.clock.forward(s=1)
        assert partner.send("GET", "/v1/subjects").headers["ratelimit-remaining"] == "99"
        person = partner.person()
        session = partner.send("POST", "/v1/enrollment-sessions", {"subject_id": person["subject_id"]})
        # The key's writes (38 of 40 left) are tighter than the tenant's sessions (59 of 60).
        assert session.headers["ratelimit-limit"] == "40"


@pytest.mark.parametrize(
    ("addresses", "granted"),
    [
        (["192.0.2.1", "::ffff:192.0.2.1"], 200),
        (["2001:db8::1", "2001:db8::ffff"], 200),
        (["192.0.2.1", "192.0.2.2"], 250),
        (["2001:db8:0:1::1", "2001:db8:0:2::1"], 250),
    ],
)
def test_strangers_are_limited_by_the_addresses_of_one_host(
    tmp_path: Path, addresses: list[str], granted: int
) -> None:
    cloud = Cloud(tmp_path, rate_scale=1)

    async def ask(address: str) -> list[int]:
        transport = httpx.ASGITransport(cloud.app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://cloud.test") as client:
            return [(await client.get("/problems")).status_code for _ in range(125)]

    with closing(cloud):
        answers = [status for address in addresses for status in cloud.run(ask(address))]
        assert answers == [200] * granted + [429] * (250 - granted)


@pytest.mark.parametrize(
    ("forwarded", "behind_tls_proxy", "granted"),
    [
        (["203.0.113.5", "198.51.100.7"], True, 250),
        (["203.0.113.5", "192.0.2.9, 203.0.113.5"], True, 200),  # a client writes what it likes before it
        (["2001:db8:0:1::1", "2001:db8:0:1::2"], True, 200),
        (["", "unknown"], True, 200),
        (["203.0.113.5", "198.51.100.7"], False, 200),
    ],
)
def test_strangers_behind_a_proxy_are_limited_one_by_one(
    tmp_path: Path, forwarded: list[str], behind_tls_proxy: bool, granted: int
) -> None:
    with closing(Cloud(tmp_path, rate_scale=1, behind_tls_proxy=behind_tls_proxy)) as cloud:
        answers = [
            cloud.send("GET", "/v1/keys", headers={"X-Forwarded-For": addresses}).status_code
            for addresses in forwarded
            for _ in range(125)
        ]
        assert answers == [200] * granted + [429] * (250 - granted)


def test_the_dearest_request_fits_the_least_limits(tmp_path: Path) -> None:
    ServeOptions(DataDirectory.of(tmp_path), rate_scale=0.25).check()
    with closing(Cloud(tmp_path, rate_scale=0.25)) as cloud:
        device = cloud.new_tenant().device()
        cloud.clock.forward(s=60)
        assert device.get("/v1/gallery/snapshot")["data"] == []


def test_signing_keys_can_be_cached(cloud: Cloud) -> None:
    keys = cloud.send("GET", "/v1/keys")
    assert keys.headers["cache-control"] == "public, max-age=300"
    again = cloud.send("GET", "/v1/keys", headers={"If-None-Match": keys.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert {use for key in keys.json()["keys"] for use in key["use"]} == {
        "gallery",
        "device_status",
        "erasure_receipt",
        "webhook",
    }


def test_the_served_document_describes_the_table(cloud: Cloud) -> None:
    document = cloud.send("GET", "/v1/openapi.json").json()
    listed = {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }
    shown = [operation for operation in OPERATIONS if operation.answers]
    assert set(listed) == {operation.operation_id for operation in shown}
    assert listed["getErasureReceipt"]["x-contract"] == "referenced"
    for operation in shown:
        statuses = set(listed[operation.operation_id]["responses"])
        assert {str(status) for status in operation.answers} <= statuses
        assert codes_of(operation)
    names = set(document["components"]["schemas"])
    text = json.dumps(document)
    assert {ref.split('"')[0] for ref in text.split("#/components/schemas/")[1:]} <= names
    subject = document["components"]["schemas"]["CreateSubject"]
    cpf = {"type": "string", "pattern": "^[0-9]{11}$", "examples": ["52998224725"]}
    assert subject["properties"]["cpf"] == cpf
    assert subject["required"] == ["external_ref"]


def test_a_consent_that_was_never_granted_does_not_make_a_partner_drop_the_person(partner: Partner) -> None:
    """The contract has no code of its own for it."""
    subject_id = partner.person()["subject_id"]
    missing = partner.send("DELETE", f"/v1/subjects/{subject_id}/consents/enrollment")
    assert code_of(missing) == "subject_not_found"
    assert "the purpose was never granted" in partner.get(missing.json()["type"])["todo"]
    assert partner.get(f"/v1/subjects/{subject_id}")["subject_id"] == subject_id


def test_the_type_of_a_problem_leads_to_what_to_do(cloud: Cloud) -> None:
    """Without a credential; every code is there, and the problem's own members are those of the list."""
    problem = cloud.send("GET", "/v1/devices").json()
    shown = cloud.send("GET", problem["type"])
    assert shown.status_code == 200
    listed = cloud.send("GET", "/problems").json()["data"]
    assert shown.json() in listed and shown.json()["todo"]
    assert {name: problem[name] for name in ("code", "status", "title", "retryable")}.items() <= (
        shown.json().items()
    )
    assert {each["code"] for each in listed} == set(ProblemCode) >= set(ServiceCode)
    assert cloud.send("GET", "/problems/no_such_code").json()["code"] == "route_not_found"
