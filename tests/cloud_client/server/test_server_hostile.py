"""Hostile requests over real HTTP: what is refused, what survives it, and that nothing is echoed."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

import httpx
import pytest

from cloud_client.http_signature import new_nonce, sign_request
from tests.cloud_client.server.raw_http import MARKER, Reply, exchange, request
from tests.cloud_client.server.server_process import Board, Running, new_account, post, start
from tests.until import until

MIB = 2**20
_keys = count()


@dataclass
class Target:
    """One server for all of these tests, with two tenants."""

    running: Running
    partner: httpx.Client
    stranger: httpx.Client
    live: httpx.Client
    board: Board

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def authorization(self) -> str:
        return f"Authorization: {self.partner.headers['Authorization']}"

    def send(self, line: str, *headers: str, body: bytes = b"", quiet_s: float | None = None) -> Reply:
        """One request on a new connection, with the partner's key."""
        data = request(self.url, line, [self.authorization, *headers], body)
        return exchange(self.url, data, quiet_s=quiet_s)

    def create(self, body: bytes, *headers: str) -> Reply:
        """createSubject with this body."""
        given = headers or ("Content-Type: application/json",)
        key = f"Idempotency-Key: {MARKER}{next(_keys)}"
        return self.send("POST /v1/subjects HTTP/1.1", key, *given, body=body)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("hostile")
    running = start(folder / "data", folder / "server.log", None, "--rate-scale", "1000")
    tenants = [running.palmctl("tenant", "create", name)["tenant_id"] for name in ("one", "two")]
    partner, stranger = (running.partner(tenant) for tenant in tenants)
    made = running.palmctl(
        "key", "create", "--tenant", tenants[0], "--mode", "live", "--scope", "subjects:read"
    )
    headers = {"Authorization": f"Bearer {made['api_key']}"}
    live = httpx.Client(base_url=running.url, headers=headers, trust_env=False)
    yield Target(running, partner, stranger, live, Board(running, tenants[0]))
    running.process.terminate()
    running.process.communicate(timeout=15)
    # None of the thousands of markers that were sent is in the log either.
    assert MARKER.lower() not in running.log.read_text().lower()
    assert "Traceback" not in running.log.read_text()


@pytest.mark.parametrize(
    "body",
    [
        f'{{"external_ref":"{MARKER}","external_ref":"{MARKER}2"}}'.encode(),
        f'{{"external_ref":"a","x":{{"{MARKER}":1,"{MARKER}":2}}}}'.encode(),
        b'{"external_ref":NaN}',
        b'{"external_ref":1e999,"a":-Infinity}',
        f'{{"{MARKER}":'.encode() + b"[" * 40_000,
        b'{"a":' * 17 + f'"{MARKER}"'.encode() + b"}" * 17,
        f'{{"external_ref":"{MARKER}\xff"}}'.encode("latin-1"),
        f'{{"external_ref":"{MARKER}'.encode() + b'\xed\xa0\x80"}',
        f'{{"external_ref":"{MARKER}\\ud800"}}'.encode(),
        f'{{"{MARKER}\\udc00":1}}'.encode(),
        b"\xff\xfe" + f'{{"external_ref":"{MARKER}"}}'.encode("utf-16-le"),
        f'\ufeff{{"external_ref":"{MARKER}"}}'.encode(),
        f'{{"external_ref":"{MARKER}"}}{{}}'.encode(),
        f'{{"external_ref":"{MARKER}",}}'.encode(),
        f'{{"external_ref":"{MARKER}\n"}}'.encode(),
        f"/*{MARKER}*/{{}}".encode(),
        b"-",
        b"\x00",
        b'{"a":1' + b"0" * 60_000 + b"e}",
    ],
)
def test_json_that_is_none(target: Target, body: bytes) -> None:
    reply = target.create(body)
    assert (reply.status, reply.code) == (400, "malformed_json")


@pytest.mark.parametrize(
    "body",
    [
        f'["{MARKER}"]',
        f'{{"{MARKER}":1,"external_ref":"a"}}',
        f'{{"external_ref":"{MARKER} "}}',
        f'{{"external_ref":{{"{MARKER}":[]}}}}',
        f'{{"external_ref":"a","cpf":"{MARKER}"}}',
        f'{{"external_ref":"{MARKER}\\u0000"}}',
        f'{{"external_ref":"{MARKER}\\ud83d\\ude00"}}',
        '{"external_ref":' + "9" * 60_000 + "}",
        '{"external_ref":-0.0}',
    ],
)
def test_json_outside_the_contract(target: Target, body: str) -> None:
    assert target.create(body.encode()).code == "validation_failed"


def test_values_that_only_look_right(target: Target) -> None:
    """A CPF is refused in every member, and not repeated."""
    for body, code in (
        ({"external_ref": "529.982.247-25"}, "external_ref_looks_like_cpf"),
        ({"external_ref": "a", "onboard_ref": "529-982-247/25"}, "onboard_ref_looks_like_cpf"),
        ({"external_ref": "a", "cpf": "52998224726"}, "cpf_invalid"),
        ({"external_ref": "a", "cpf": "529.982.247-25"}, "validation_failed"),
    ):
        reply = target.create(json.dumps(body).encode())
        assert (reply.status, reply.code) == (422, code)
        assert not any(digits in reply.body for digits in (b"529982247", b"529.982", b"529-982"))


_LARGE = b'{"external_ref":"' + MARKER.encode() * (16 * MIB // len(MARKER)) + b'"}'


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("line", "known", "status"),
    [
        ("POST /v1/subjects HTTP/1.1", True, 413),
        ("POST /v1/devices/register HTTP/1.1", True, 401),
        ("POST /v1/subjects HTTP/1.1", False, 401),
        ("POST /v1/nothing HTTP/1.1", True, 404),
        ("PUT /v1/subjects HTTP/1.1", True, 405),
    ],
)
def test_sixteen_mebibytes(target: Target, line: str, known: bool, status: int, chunked: bool) -> None:
    """The sender gets to the end of its body and then reads the answer, whichever it is."""
    headers = ["Content-Type: application/json", "Idempotency-Key: large"]
    headers += [target.authorization] if known else [f"Authorization: Bearer {MARKER}"]
    if chunked:
        pieces = [_LARGE[at : at + MIB] for at in range(0, len(_LARGE), MIB)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        data = request(target.url, line, [*headers, "Transfer-Encoding: chunked"], body, length=False)
    else:
        data = request(target.url, line, headers, _LARGE)
    reply = exchange(target.url, data)
    assert reply.status == status
    if status == 413:
        assert (reply.code, reply.headers["connection"]) == ("payload_too_large", "close")


@pytest.mark.parametrize(
    ("expect", "size", "status"),
    [(True, 64 * 1024, 100), (True, 64 * 1024 + 1, 413), (False, 64 * 1024 + 1, 413)],
)
def test_a_body_that_is_announced_too_large_is_not_asked_for(
    target: Target, expect: bool, size: int, status: int
) -> None:
    headers = ["Content-Type: application/json", "Idempotency-Key: announced", f"Content-Length: {size}"]
    headers += ["Expect: 100-continue"] if expect else []
    data = request(target.url, _CREATE, [target.authorization, *headers])
    reply = exchange(target.url, data, quiet_s=3)
    assert (reply.status, reply.answers) == (status, 1)


def test_a_body_without_an_end(target: Target) -> None:
    """Neither Content-Length nor chunks: there is no body, and what follows is no request."""
    line = "POST /v1/subjects HTTP/1.1"
    headers = [target.authorization, "Content-Type: application/json", "Idempotency-Key: endless"]
    body = f'{{"external_ref":"{MARKER}"}}\r\n\r\n'.encode()
    reply = exchange(target.url, request(target.url, line, headers, body, length=False), quiet_s=0.3)
    assert b'"malformed_json"' in reply.raw
    assert b"201 Created" not in reply.raw


def test_a_large_batch_of_nothing(target: Target) -> None:
    content = b'{"items":[' + b",".join([b"[]"] * 500_000) + b"]}"
    assert target.board.send("POST", "/v1/verdicts/batch", content).status_code == 422
    content = json.dumps({"items": [{"signed_verdict": MARKER}] * 100}).encode()
    answer = target.board.send("POST", "/v1/verdicts/batch", content)
    assert {item["code"] for item in answer.json()["rejected"]} == {"malformed"}
    assert MARKER not in answer.text
    assert target.board.send("POST", "/v1/verdicts/batch", b" " * (4 * MIB + 1)).status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Content-Type: application/json", "Content-Type: application/json"], 415),
        ([f"Content-Type: application/{MARKER}"], 415),
        ([f"Content-Type: application/json; charset={MARKER}"], 415),
        (["Content-Type: application/json", "Content-Encoding: gzip"], 415),
        (["Content-Type: application/json", f"Content-Encoding: identity, {MARKER}"], 415),
        (["Content-Type: multipart/form-data; boundary=x"], 415),
        (["Content-Type: application/x-www-form-urlencoded"], 415),
        (["Content-Type:"], 415),
        (["Accept: text/html"], 415),
        (["Content-Type: application/json", "Content-Encoding: identity"], 201),
        (["Content-Type: application/json", f"Accept: {MARKER}", f"Cookie: {MARKER}"], 201),
        (["Content-Type: application/json", "Upgrade: websocket", "Connection: Upgrade"], 201),
        (["Content-Type: application/json", f"X-Forwarded-Host: {MARKER}", f"Forwarded: host={MARKER}"], 201),
        (["Content-Type: application/json", f"X-HTTP-Method-Override: {MARKER}"], 201),
        (["Content-Type: application/json", f"X-Request-Id: {MARKER} {MARKER}"], 400),
        (["Content-Type: application/json", "X-Request-Id: a", "X-Request-Id: b"], 400),
        (["Content-Type: application/json", f"Idempotency-Key: {MARKER}"], 400),
        (["Content-Type: application/json", f"A: {MARKER}\x00"], 400),
        (["Content-Type: application/json", f"A: {MARKER}\x0bb"], 400),
        (["Content-Type: application/json", f"{MARKER} : b"], 400),
        (["Content-Type: application/json", f"{MARKER}\x80: b"], 400),
        (["Content-Type: application/json", f" folded: {MARKER}", f"\tand: {MARKER}"], 415),
    ],
)
def test_headers(target: Target, headers: list[str], status: int) -> None:
    reply = target.create(json.dumps({"external_ref": new_account()}).encode(), *headers)
    assert reply.status == status
    assert "location" not in reply.headers or reply.headers["location"].startswith("/v1/subjects/")


def check_problem(reply: Reply) -> None:
    """What is no HTTP is refused like everything else that is wrong."""
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.headers["connection"], reply.headers["cache-control"]) == ("close", "no-store")
    assert reply.headers["x-request-id"] == reply.json["instance"]


def test_a_head_of_too_many_lines(target: Target) -> None:
    """Also behind another request, where it comes with it."""
    line, lines = "GET /v1/health HTTP/1.1", ["A:"] * 3000
    check_problem(exchange(target.url, request(target.url, line, lines)))
    both = request(target.url, line, []) + request(target.url, line, lines)
    reply = exchange(target.url, both, quiet_s=3)
    assert (reply.answers, reply.closed) == (2, True)


def test_a_body_in_too_many_pieces(target: Target) -> None:
    device_id = target.board.device_id
    headers = [target.authorization, "Content-Type: application/json", "Idempotency-Key: pieces"]
    head = request(
        target.url,
        f"POST /v1/devices/{device_id}/outbox HTTP/1.1",
        [*headers, "Transfer-Encoding: chunked"],
    )
    check_problem(exchange(target.url, head + b"1\r\n \r\n" * 17_000))
    pieces = b"1\r\n \r\n" * 1000 + b"2\r\n{}\r\n0\r\n\r\n"
    assert exchange(target.url, head + pieces).code == "validation_failed"


def test_a_head_without_an_end(target: Target) -> None:
    reply = target.send("GET /v1/subjects HTTP/1.1", f"A: {MARKER * 100_000}")
    check_problem(reply)


@pytest.mark.parametrize(
    "authorization",
    [
        ["{ok}", "{ok}"],
        ["{ok}", f"Authorization: Bearer {MARKER}"],
        [f"Authorization: Bearer {MARKER}", "{ok}"],
        ["{ok}, {ok}"],
        ["{ok}x"],
        [f"Authorization: {MARKER}"],
        [f"Authorization: Basic {MARKER}"],
        ["Authorization:"],
        ["Authorization: Bearer svc_test_" + "a" * 8 + "_" + "A" * 40],
        ["Authorization: Bearer svc_test_" + "a" * 4000 + "_" + "A" * 4000],
        [],
    ],
)
def test_a_credential_that_fails_learns_nothing(target: Target, authorization: list[str]) -> None:
    headers = [line.replace("{ok}", target.authorization) for line in authorization]
    reply = exchange(target.url, request(target.url, "GET /v1/subjects HTTP/1.1", headers))
    problem = reply.json
    instance = problem.pop("instance")
    assert (reply.status, reply.headers["x-request-id"]) == (401, instance)
    assert problem == {
        "type": "/problems/unauthenticated",
        "title": "Authentication failed",
        "status": 401,
        "code": "unauthenticated",
        "detail": "Authentication failed",
        "retryable": False,
        "errors": [],
    }
    assert reply.headers["www-authenticate"] == "Bearer"
    assert set(reply.headers) == {
        *("date", "content-type", "content-length", "www-authenticate", "x-request-id", "cache-control")
    }


@pytest.mark.parametrize(
    "path",
    [
        "/v1/subjects/../devices",
        "/v1/./subjects",
        "/v1/subjects/.",
        "/../v1/subjects",
        "/v1/%2e%2e/v1/subjects",
        "/v1/subjects/%2e%2e%2fdevices",
        "/v1%2fsubjects",
        "/v1%2Fsubjects",
        "/v1%5csubjects",
        "/v1/subjects%2f",
        "/v1/subjects/",
        "/v1/subjects//",
        "/v1//subjects",
        "//v1/subjects",
        "///v1/subjects",
        "/v1/subjects;a=b",
        "/v1/subjects%00",
        "/v1/subjects%20",
        "/v1/subjects%0d%0aX-Injected:%20" + MARKER,
        "/v1/%ff",
        "/v1/subjects%252f",
        "/V1/SUBJECTS",
        "/v1/" + MARKER * 100,
        "/%76%31",
        "/" + "a/" * 5000,
        "http://{host}/v1//subjects",
        "http://" + MARKER,
        "*",
    ],
)
def test_paths_that_are_no_route(target: Target, path: str) -> None:
    """Nothing is resolved, merged, decoded twice or redirected."""
    reply = target.send(f"GET {path.replace('{host}', urlsplit(target.url).netloc)} HTTP/1.1")
    assert reply.status == 404
    assert reply.code in {"route_not_found", "subject_not_found"}
    assert not {"location", "x-injected"} & set(reply.headers)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/subjects/..",
        "/v1/subjects/%2e%2e",
        f"/v1/subjects/{MARKER}",
        "/v1/subjects/%2e",
        "/v1/verdicts/..",
        f"/v1/devices/{MARKER}/inbox",
        "/v1/devices/%2e%2e/inbox",
        f"/v1/enrollment-sessions/{MARKER}%0a",
        "/v1/subjects/00000000-0000-4000-8000-000000000000%00",
    ],
)
def test_names_that_nothing_has(target: Target, path: str) -> None:
    reply = target.send(f"GET {path} HTTP/1.1")
    assert (reply.status, reply.code.endswith("_not_found")) == (404, True)


def test_a_target_in_absolute_form(target: Target) -> None:
    """RFC 9112 §3.2.2: a server takes it; its authority goes before Host."""
    for scheme, authority in (("http", urlsplit(target.url).netloc), ("HTTPS", MARKER)):
        assert target.send(f"GET {scheme}://{authority}/v1/subjects?limit=1 HTTP/1.1").status == 200
    assert target.send("GET /%76%31/subjects HTTP/1.1").status == 200  # a letter may be encoded


_CREATE = "POST /v1/subjects HTTP/1.1"
_SMUGGLED = f"GET /v1/health HTTP/1.1\r\nHost: {MARKER}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 4", "Transfer-Encoding: chunked"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked", "Content-Length: 4"], b"2\r\n{}\r\n0\r\n\r\n" + _SMUGGLED),
        (["Content-Length: 2", "Content-Length: 40"], b"{}" + _SMUGGLED),
        (["Content-Length: 2, 40"], b"{}" + _SMUGGLED),
        (["Content-Length: +2"], b"{}" + _SMUGGLED),
        (["Content-Length: 0x2"], b"{}" + _SMUGGLED),
        (["Content-Length: -2"], b"{}" + _SMUGGLED),
        (["Content-Length: 2 2"], b"{}" + _SMUGGLED),
        (["Content-Length: " + "9" * 40], b"{}" + _SMUGGLED),
        (["Transfer-Encoding: xchunked"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked, identity"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding : chunked"], b"0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked"], b"-1\r\n{}\r\n0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked"], b"0x2\r\n{}\r\n0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked"], b"2\r\n{}XX0\r\n\r\n" + _SMUGGLED),
        (["Transfer-Encoding: chunked"], b"f" * 40 + b"\r\n" + _SMUGGLED),
    ],
)
def test_no_request_hides_in_another(target: Target, headers: list[str], body: bytes) -> None:
    """A body whose end two readers could see differently: one refusal at most, and the connection ends."""
    given = [target.authorization, "Content-Type: application/json", "Idempotency-Key: s", *headers]
    reply = exchange(target.url, request(target.url, _CREATE, given, body, length=False), quiet_s=3)
    assert (reply.status, reply.closed, reply.answers) == (400, True, 1)
    check_problem(reply)


@pytest.mark.parametrize(
    "head",
    [
        "GET /v1/health HTTP/1.1\r\n\r\n",
        f"GET /v1/health HTTP/1.1\r\nHost: a\r\nHost: {MARKER}\r\n\r\n",
        f"GET /v1/health HTTP/1.1\r\nHost : {MARKER}\r\n\r\n",
        f"GET /v1/{MARKER} health HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /v1/health {MARKER}\r\nHost: a\r\n\r\n",
        f"{MARKER}\x01 /v1/health HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /v1/h\u00e9alth{MARKER} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /v1/health HTTP/1.1\r\n{MARKER}\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(target: Target, head: str) -> None:
    reply = exchange(target.url, head.encode("latin-1"), quiet_s=3)
    assert (reply.status, reply.closed, reply.answers) == (400, True, 1)
    check_problem(reply)
    # A question about it names the request id; lines are written a few times a second.
    wanted = re.compile(rf"palm.cloud.access \? \(no request\) 400 .* {reply.json['instance']}\n")
    until(lambda: wanted.search(target.running.log.read_text()))


def test_an_empty_line_may_come_before_a_request(target: Target) -> None:
    """RFC 9112 §2.2: some clients send one after a body."""
    given = [target.authorization, "Content-Type: application/json", f"Idempotency-Key: {next(_keys)}"]
    creation = request(target.url, _CREATE, given, f'{{"external_ref":"{new_account()}"}}'.encode())
    health = request(target.url, "GET /v1/health HTTP/1.1", ["Connection: close"])
    reply = exchange(target.url, b"\r\n" + creation + b"\r\n" + health, quiet_s=3)
    assert (reply.status, reply.answers, reply.raw.count(b"HTTP/1.1 200 ")) == (201, 2, 1)
    assert exchange(target.url, creation + b"\r\n", quiet_s=1).answers == 1
    reply = exchange(target.url, b"\r\n\r\n" + health, quiet_s=3)
    assert (reply.status, reply.closed, reply.answers) == (400, True, 1)


def test_a_strange_method_is_a_method(target: Target) -> None:
    reply = target.send(f"{MARKER.upper()} /v1/subjects HTTP/1.1")
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert target.send("TRACE /v1/subjects HTTP/1.1", f"X-A: {MARKER}").status == 405
    assert target.send(f"CONNECT {MARKER}:1 HTTP/1.1").status == 404


@pytest.mark.parametrize(
    "query", [f"{MARKER}=1", f"limit={MARKER}", f"cursor={MARKER}", f"status={MARKER}", "limit=%31&limit=2"]
)
def test_queries(target: Target, query: str) -> None:
    reply = target.send(f"GET /v1/subjects?{query} HTTP/1.1")
    assert reply.code in {"invalid_request", "invalid_cursor"}


def test_cursors_open_one_list_only(target: Target) -> None:
    for client in (target.partner, target.stranger):
        for _ in range(3):
            post(client, "/v1/subjects", {"external_ref": new_account()}).raise_for_status()
    cursor: str = target.partner.get("/v1/subjects?limit=1").json()["next_cursor"]

    def code(client: httpx.Client, text: str, path: str = "/v1/subjects", **more: str) -> str:
        answer = client.get(path, params={"cursor": text, **more})
        assert text not in answer.text
        return str(answer.json().get("code", answer.status_code))

    assert code(target.partner, cursor) == "200"
    assert code(target.stranger, cursor) == "invalid_cursor"
    assert code(target.live, cursor) == "invalid_cursor"
    assert code(target.partner, cursor, "/v1/devices") == "invalid_cursor"
    assert code(target.partner, cursor, "/v1/verdicts") == "invalid_cursor"
    assert code(target.partner, cursor, status="active") == "invalid_cursor"
    for at in range(len(cursor)):
        other = "A" if cursor[at] != "A" else "B"
        assert code(target.partner, cursor[:at] + other + cursor[at + 1 :]) == "invalid_cursor"
    for text in (cursor[:-1], cursor[:-4], cursor + "A", cursor * 20, "=", "A" * 512, "A" * 513):
        assert code(target.partner, text) == "invalid_cursor"


def test_other_tenants_and_environments(target: Target) -> None:
    """Another tenant's resource answers like a missing one; the caller's other environment says so."""
    made = post(target.partner, "/v1/subjects", {"external_ref": new_account()}).json()
    path = f"/v1/subjects/{made['subject_id']}"
    missing = target.stranger.get("/v1/subjects/00000000-0000-4000-8000-000000000000").json()
    for method, where in (("GET", path), ("DELETE", path), ("DELETE", f"{path}/consents/enrollment")):
        answer = target.stranger.request(method, where)
        assert answer.json() | {"instance": ""} == missing | {"instance": ""}
    assert target.live.get(path).json()["code"] == "livemode_mismatch"
    assert (
        target.stranger.get("/v1/subjects", params={"external_ref": made["external_ref"]}).json()["data"]
        == []
    )
    session = post(target.stranger, "/v1/enrollment-sessions", {"external_ref": made["external_ref"]})
    assert session.json()["code"] == "subject_not_found"
    revoked = post(target.stranger, "/v1/devices/gate-1/revoke", {"reason": "lost"})
    assert revoked.json()["code"] == "device_not_found"
    assert target.partner.get(path).status_code == 200


def _signed(target: Target, **changes: object) -> dict[str, str]:
    given: dict[str, object] = {
        "method": "GET",
        "authority": urlsplit(target.url).netloc,
        "path": "/v1/devices/self/status",
        "query": "",
        "body": None,
        "key": target.board.http_key,
        "created_s": int(time.time()),
        "nonce": new_nonce(),
    } | changes
    return sign_request(**given)  # type: ignore[arg-type]


def _status(target: Target, headers: dict[str, str], method: str = "GET") -> httpx.Response:
    answer = httpx.request(method, f"{target.url}/v1/devices/self/status", headers=headers, trust_env=False)
    assert MARKER not in answer.text
    return answer


def test_device_signatures(target: Target) -> None:
    """Every way to be wrong is the same 401, and a signature is good once."""
    now_s = int(time.time())
    good = _signed(target)
    assert _status(target, good).status_code == 200
    nonce = new_nonce()
    name, signature = "Signature-Input", "Signature"
    refused = {
        "replayed": good,
        "too old": _signed(target, created_s=now_s - 320),
        "too early": _signed(target, created_s=now_s + 320),
        "another path": _signed(target, path="/v1/devices/self/wiped"),
        "another query": _signed(target, query="a=1"),
        "another method": _signed(target, method="POST"),
        "another host": _signed(target, authority=MARKER.lower()),
        "another key": _signed(target, key=target.board.verdict_key),
        "a short nonce": _signed(target, nonce="ab"),
        "not signed": {},
        "no input": {signature: good[signature]},
        "no signature": {name: good[name]},
        "other components": good | {name: good[name].replace('"@method" ', "")},
        "other order": good | {name: good[name].replace('"@method" "@authority"', '"@authority" "@method"')},
        "other tag": good | {name: good[name].replace("svc.device.v1", MARKER)},
        "other alg": good | {name: good[name].replace('"ed25519"', '"hmac-sha256"')},
        "other label": {key: value.replace("sig1", "sig2") for key, value in good.items()},
        "garbage": good | {name: MARKER, signature: MARKER},
        "an API key": {"Authorization": target.partner.headers["Authorization"]},
        "a marker": {"Authorization": f"Provisioning {MARKER}"},
    }
    first: dict[str, object] | None = None
    for case, headers in refused.items():
        answer = _status(target, headers)
        assert answer.status_code == 401, case
        problem = answer.json() | {"instance": ""}
        first = first or problem
        assert problem == first, case
        assert answer.headers["svc-server-time"], case
    assert _status(target, _signed(target, created_s=now_s - 280, nonce=nonce)).status_code == 200
    assert _status(target, _signed(target, created_s=now_s - 280, nonce=nonce)).status_code == 401
    twice = [*_signed(target).items()]
    doubled = httpx.get(f"{target.url}/v1/devices/self/status", headers=[*twice, *twice], trust_env=False)
    assert doubled.status_code == 401


def test_a_body_is_part_of_the_signature(target: Target) -> None:
    content = json.dumps({"items": [{"signed_verdict": MARKER}]}).encode()
    path = "/v1/verdicts/batch"
    headers = _signed(target, method="POST", path=path, body=content) | {
        "Content-Type": "application/json",
        "Idempotency-Key": new_nonce(),
    }
    other = content.replace(MARKER.encode(), b"zq8Marker")
    for sent in (other, b""):
        answer = httpx.post(target.url + path, content=sent, headers=headers, trust_env=False)
        assert answer.status_code == 401
    without = {name: value for name, value in headers.items() if name.lower() != "content-digest"}
    assert httpx.post(target.url + path, content=content, headers=without, trust_env=False).status_code == 401
    assert httpx.post(target.url + path, content=content, headers=headers, trust_env=False).status_code == 200
