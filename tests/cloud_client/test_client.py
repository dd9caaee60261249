"""The client against a double that does what the reference server never would, and what it signs."""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cloud_client import client as client_module
from cloud_client.client import CloudClient, ServerAddress
from cloud_client.errors import (
    CloudAnswerError,
    CloudError,
    CloudProblem,
    CloudUnreachable,
    ServerAddressError,
)
from cloud_client.reference_server.contract.request_signature import VerifiedRequest, verify_request
from cloud_client.reference_server.errors import HttpSignatureError
from cloud_client.retry import Backoff, is_transient
from link1.keys import SigningKey
from tests.cloud_client.scripted_http import Seen, http, problem, scripted
from tests.until import run

T = TypeVar("T")
KEY = SigningKey.from_seed(bytes(range(32)))
NOW_MS = 1_800_000_000_000


def client(origin: str, wall_ms: int = NOW_MS) -> CloudClient:
    return CloudClient(ServerAddress.parse(origin), KEY, lambda: wall_ms)


def verified(seen: Seen, origin: str, now_ms: int = NOW_MS) -> VerifiedRequest:
    path, _, query = seen.target.partition("?")
    verified = verify_request(
        seen.method,
        origin.removeprefix("http://"),
        path,
        query,
        headers=seen.headers,
        key_of=lambda kid: KEY.public if kid == KEY.kid else None,
        now_s=now_ms // 1000,
    )
    verified.check_body(seen.body)
    return verified


class PatientServer:
    """It keeps every connection, and counts them."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(http(200, {}).replace(b"Connection: close\r\n", b""))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()


async def test_a_connection_that_a_server_may_be_about_to_end_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers end an idle connection after 5 s as a rule; a request that meets the end gets no answer."""
    patient, later_s, now_s = PatientServer(), [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now_s() + later_s[0])
    server = await asyncio.start_server(patient.serve, "127.0.0.1", 0)
    async with server, client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as cloud:
        for idle_s, connections in ((0, 1), (1, 1), (4.9, 2)):
            later_s[0] += idle_s
            await cloud.device_status()
            assert patient.connections == connections


def fails(answer: bytes | Callable[[asyncio.StreamWriter], object], kind: type[CloudError]) -> CloudError:
    """The error that a status request ends in when it gets this answer."""

    async def scenario() -> CloudError:
        async with scripted([answer]) as double, client(double.origin) as cloud:
            with pytest.raises(kind) as caught:
                await cloud.device_status()
            return caught.value

    return run(scenario)


async def test_every_request_is_signed_with_what_is_really_sent() -> None:
    async with scripted([http(200, {})]) as double, client(double.origin) as cloud:
        await cloud.device_status()
        await cloud.gallery_deltas(epoch=3, after_seq=17, wait_s=0)
        await cloud.gallery_snapshot(None)
        await cloud.gallery_snapshot("abc_=-")
        await cloud.upload_verdicts(b'{"items":[]}', "key-1")
        await cloud.register(b"{}", "tok", "key-2")
        nonces = {verified(seen, double.origin).nonce for seen in double.seen}
        assert len(nonces) == 6
        targets = [seen.target for seen in double.seen]
        assert targets[1] == "/v1/gallery/deltas?epoch=3&after_seq=17&limit=200&wait_s=0"
        assert targets[2:4] == ["/v1/gallery/snapshot", "/v1/gallery/snapshot?cursor=abc_=-"]
        assert double.seen[4].headers["idempotency-key"] == "key-1"
        assert double.seen[4].headers["content-type"] == "application/json"
        assert double.seen[5].headers["authorization"] == "Provisioning tok"


async def test_a_repeated_post_has_the_same_key_and_body_and_another_nonce() -> None:
    answers = [problem(500, "internal_error", retryable=True), http(200, {})]
    async with scripted(answers) as double, client(double.origin) as cloud:
        with pytest.raises(CloudProblem) as caught:
            await cloud.upload_verdicts(b'{"a":1}', "key-1")
        assert is_transient(caught.value)
        await cloud.upload_verdicts(b'{"a":1}', "key-1")
        first, second = double.seen
        assert (first.body, first.headers["idempotency-key"]) == (
            second.body,
            second.headers["idempotency-key"],
        )
        assert verified(first, double.origin).nonce != verified(second, double.origin).nonce


async def test_a_clock_that_is_years_off_is_corrected_by_the_servers_own() -> None:
    clock = {"Svc-Server-Time": "2027-01-15T08:00:00.000Z"}
    refused = problem(401, "unauthenticated", headers=clock)
    async with scripted([refused, http(200, {})]) as double, client(double.origin, wall_ms=0) as cloud:
        await cloud.device_status()
        await cloud.device_status()
        assert len(double.seen) == 3
        with pytest.raises(HttpSignatureError):
            verified(double.seen[0], double.origin)
        verified(double.seen[1], double.origin)
        verified(double.seen[2], double.origin)


async def test_requests_that_are_away_while_the_clock_is_corrected_are_corrected_too() -> None:
    refused = problem(401, "unauthenticated", headers={"Svc-Server-Time": "2027-01-15T08:00:00.000Z"})
    both = asyncio.Barrier(2)

    async def refuses(writer: asyncio.StreamWriter) -> None:
        await both.wait()
        writer.write(refused)

    async with scripted([refuses, refuses, http(200, {})]) as double:
        async with client(double.origin, wall_ms=0) as cloud:
            await asyncio.gather(cloud.device_status(), cloud.signing_keys())
        assert len(double.seen) == 4


async def test_a_clock_that_is_set_while_a_request_is_away_explains_its_401() -> None:
    refused = problem(401, "unauthenticated", headers={"Svc-Server-Time": "2027-01-15T08:00:00.000Z"})
    wall_ms = 0

    async def refuses(writer: asyncio.StreamWriter) -> None:
        nonlocal wall_ms
        wall_ms = NOW_MS
        writer.write(refused)

    async with scripted([refuses, http(200, {})]) as double:
        async with CloudClient(ServerAddress.parse(double.origin), KEY, lambda: wall_ms) as cloud:
            await cloud.device_status()
        verified(double.seen[1], double.origin)


async def test_no_cookie_is_kept() -> None:
    async with scripted([http(200, {}, Set_Cookie="a=1; Path=/")]) as double:
        async with client(double.origin) as cloud:
            await cloud.device_status()
            await cloud.device_status()
        assert "cookie" not in double.seen[1].headers


async def test_a_401_with_a_good_clock_is_not_tried_again() -> None:
    clock = {"Svc-Server-Time": "2027-01-15T08:04:00.000Z"}
    async with scripted([problem(401, "unauthenticated", headers=clock)]) as double:
        async with client(double.origin) as cloud:
            with pytest.raises(CloudProblem) as caught:
                await cloud.device_status()
        assert (caught.value.status, caught.value.code) == (401, "unauthenticated")
        assert len(double.seen) == 1


def test_a_problem_is_typed_and_nothing_unexpected_from_it_is_believed() -> None:
    error = fails(
        problem(
            422,
            "validation_failed",
            errors=[{"pointer": "/items/0"}, {"pointer": "/a\nb"}, {"pointer": 7}, 8],
            headers={"Retry-After": "7"},
        ),
        CloudProblem,
    )
    assert isinstance(error, CloudProblem)
    assert (error.status, error.code, error.retry_after_s) == (422, "validation_failed", 7.0)
    assert error.pointers == ("/items/0",)
    assert error.request_id == "req-1"
    assert not is_transient(error)
    gone = fails(problem(410, "history_expired", snapshot_seq=9), CloudProblem)
    assert isinstance(gone, CloudProblem) and gone.code == "history_expired"
    odd = fails(problem(400, "X" * 500, instance="a\r\nb"), CloudProblem)
    assert isinstance(odd, CloudProblem) and (odd.code, odd.request_id) == ("", "")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (http(502, b"<html>", "text/html"), 502),
        (http(302, None, Location="https://elsewhere.example/"), 302),
        (http(302, None, Location="about:blank"), 302),
        (http(307, None, Location="/" + 65_530 * "x"), 307),
        (http(404, b"{not json", "application/problem+json"), 404),
        (http(403, b"[1]", "application/problem+json"), 403),
    ],
)
def test_a_refusal_that_is_no_problem_document_has_no_code(answer: bytes, status: int) -> None:
    error = fails(answer, CloudProblem)
    assert isinstance(error, CloudProblem)
    assert (error.status, error.code) == (status, "")
    assert is_transient(error) == (status == 502)


@pytest.mark.parametrize(("asked", "kept_s"), [("60", 60), ("86400", 900), ("999999999", 900), ("-1", 0)])
def test_no_answer_silences_a_device_for_longer_than_a_quarter_of_an_hour(asked: str, kept_s: float) -> None:
    page = http(503, b"<html>maintenance", "text/html", Retry_After=asked)
    assert fails(page, CloudProblem).retry_after_s == kept_s


def test_what_is_no_json_and_what_never_ends_are_refused() -> None:
    fails(http(200, b"<html>welcome to the station wifi", "text/html"), CloudAnswerError)

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    fails(endless, CloudAnswerError)


def test_a_connection_that_breaks_off_is_unreachable_and_worth_repeating(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut_in_body = http(200, {"a": 1})[:-3]
    cut_in_head = b"HTTP/1.1 200 X\r\nContent-"
    for answer in (b"", cut_in_head, cut_in_body, b"SSH-2.0-OpenSSH_9.9\r\n", 60_000 * b"\xff" + b"\r\n\r\n"):
        failure = fails(answer, CloudUnreachable)
        assert is_transient(failure)
        assert len(str(failure)) < 300

    async def hangs(_writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def trickles(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    monkeypatch.setattr(client_module, "READ_S", 0.1)
    assert "in time" in str(fails(hangs, CloudUnreachable))
    monkeypatch.setattr(client_module, "WHOLE_S", 0.3)
    assert "no whole answer" in str(fails(trickles, CloudUnreachable))


async def test_nobody_listening_is_unreachable() -> None:
    async with client("http://127.0.0.1:1") as cloud:
        with pytest.raises(CloudUnreachable, match="cannot be reached"):
            await cloud.device_status()


@pytest.mark.parametrize(
    "url",
    [
        "http://cloud.example",
        "http://192.168.1.7:8710",
        "http://127.0.0.1.evil.example",
        "ftp://cloud.example",
        "cloud.example",
        "https://",
        "https://user:pw@cloud.example",
        "https://cloud.example/prefix",
        "https://cloud.example/?x=1",
        "https://cloud.example/#f",
        "https://cloud.example:99999",
        "https://cloud.example:0",
        "https://cloud..example",
        "https://cloud. example",
        f"https://{'a' * 64}.example",
        "https://xn--.example",
        "",
    ],
)
def test_addresses_that_are_no_safe_origin_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ServerAddressError) as caught:
        ServerAddress.parse(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://cloud.example", "https://cloud.example"),
        ("https://cloud.example:443/", "https://cloud.example"),
        ("HTTPS://Cloud.Example:8443", "https://cloud.example:8443"),
        ("http://127.0.0.1:8710", "http://127.0.0.1:8710"),
        ("http://127.9.9.9", "http://127.9.9.9"),
        ("http://[::1]:8710/", "http://[::1]:8710"),
        ("http://localhost:8710", "http://localhost:8710"),
        ("https://10.0.0.7", "https://10.0.0.7"),
        ("https://cloud_1.example.", "https://cloud_1.example."),
        ("https://münchen.example", "https://xn--mnchen-3ya.example"),
    ],
)
def test_good_addresses(url: str, origin: str) -> None:
    assert ServerAddress.parse(url).origin == origin


def test_the_ca_file_is_the_only_ca_and_must_be_one(tmp_path: Path) -> None:
    missing = ServerAddress.parse("https://cloud.example", tmp_path / "ca.pem")
    with pytest.raises(ServerAddressError, match=r"ca\.pem"):
        missing.tls_context()
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ServerAddressError, match="PEM"):
        missing.tls_context()
    system = ServerAddress.parse("https://cloud.example").tls_context()
    assert isinstance(system, ssl.SSLContext)
    assert system.verify_mode == ssl.CERT_REQUIRED and system.check_hostname


def test_backoff_doubles_to_a_minute_with_jitter_and_starts_anew() -> None:
    least, most = Backoff(lambda: 0.999999), Backoff(lambda: 0.0)
    assert [most.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [round(least.failed(), 2) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert most.failed(at_least_s=300) == 300
    most.succeeded()
    assert most.failed() == 1
    for _ in range(100_000):
        most.failed()
    assert most.failed() == 60
