"""Many connections, slow ones, large ones and wrong ones: what others notice of them, and how they end."""

import json
import re
import select
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.domain.gallery.waiters import AT_WORK
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.web.listening.connections import (
    KEPT_BACK,
    SWEEPS,
    UNSENT_BYTES,
    UNSENT_BYTES_OF_STRANGERS,
    Connections,
)
from link1.keys import SigningKey
from tests.cloud_client.server.raw_http import exchange, request
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_process import (
    Board,
    Running,
    enrol,
    new_account,
    no_file_may_grow,
    post,
    start,
)
from tests.palmctl import PALMCTL
from tests.until import until
from tools.palmctl.main import main

pytestmark = on_sqlite

MIB = 2**20


@contextmanager
def served(tmp_path: Path, *more: str, files: tuple[int, int] | None = None) -> Iterator[Running]:
    """A server; it must end without a traceback, however it was treated."""
    with start(tmp_path / "data", tmp_path / "server.log", None, *more, files=files) as running:
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=15) == 0
        assert "Traceback" not in running.log.read_text()


def _open(running: Running) -> socket.socket:
    parts = urlsplit(running.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def _signed(board: Board, target: str, content: bytes, **changes: object) -> bytes:
    """The head of a signed request, and the part of the body that is sent."""
    method, query = str(changes.pop("method", "POST")), str(changes.pop("query", ""))
    signed = sign_request(
        method,
        urlsplit(board.url).netloc,
        target,
        query,
        content,
        key=changes.pop("key", board.http_key),  # type: ignore[arg-type]
        created_s=int(time.time()),
        nonce=new_nonce(),
    )
    lines = [f"{name}: {value}" for name, value in signed.items()]
    lines += ["Content-Type: application/json", f"Idempotency-Key: {new_nonce()}"]
    asked = f"{target}?{query}" if query else target
    return request(board.url, f"{method} {asked} HTTP/1.1", lines, content)


def _rss(running: Running) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def _ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        while connection.recv(1 << 20, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_every_slow_phase_ends(tmp_path: Path) -> None:
    """Silence, a slow head, a slow body, an answer that is not taken, and no end after an answer."""
    with served(tmp_path, "--rate-scale", "1000") as running, ExitStack() as stack:
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        board = Board(running, tenant)
        content = b" " * MIB
        whole = _signed(board, "/v1/verdicts/batch", content)
        beginnings = {
            "silent": b"",
            "slow head": b"GET /v1/health HTTP/1.1\r\n",
            "slow body": whole[: len(whole) - len(content)],
            "not taken": request(running.url, "GET /v1/openapi.json HTTP/1.1", []) * 300,
            "no end": request(running.url, "POST /v1/subjects HTTP/1.1", ["Content-Length: 900000"]),
        }
        connections = {}
        for name, beginning in beginnings.items():
            connections[name] = stack.enter_context(_open(running))
            connections[name].sendall(beginning)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            board.send, "GET", "/v1/gallery/deltas?epoch=1&after_seq=0&wait_s=14"
        )

        def ends(name: str) -> bool:
            try:
                if name in {"slow head", "slow body", "no end"}:
                    connections[name].send(b"a")
                if name == "not taken":
                    # Looked at without reading: an end without the answer resets the connection.
                    return connections[name].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
                return _ended(connections[name])
            except OSError:
                return True

        open_still = set(connections)

        def all_end() -> bool:
            open_still.difference_update([name for name in open_still if ends(name)])
            return not open_still

        until(all_end, within_s=13, every_s=0.5)  # a byte every half second is the slow client's pace
        # A device that waits is not slow.
        assert waiting.result(10).status_code == 200


def test_answers_are_made_as_they_are_taken(tmp_path: Path) -> None:
    """However many a stranger asks for at once; all of them come once they are read."""
    asked = 40
    with served(tmp_path, "--rate-scale", "1000") as running, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.settimeout(20)
        parts = urlsplit(running.url)
        connection.connect((parts.hostname, parts.port))
        wanted = "GET /v1/openapi.json HTTP/1.1"
        connection.sendall(request(running.url, wanted, []) * (asked - 1))
        connection.sendall(request(running.url, wanted, ["Connection: close"]))
        for _ in range(asked):  # each of these takes its turn behind one of those
            assert exchange(running.url, request(running.url, "GET /v1/health HTTP/1.1", [])).status == 200
        until(lambda: running.log.read_text().count("GET /v1/health") >= asked)  # lines go out in groups
        assert 1 <= running.log.read_text().count("GET /v1/openapi.json") <= 3
        received = b"".join(iter(lambda: connection.recv(MIB), b""))
        bodies = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 ")[1:]]
        assert len(bodies) == asked
        (body,) = set(bodies)
        assert json.loads(body)["openapi"]


def test_answers_that_are_not_taken_have_a_bound(tmp_path: Path) -> None:
    """However many strangers ask for the largest one and read nothing; a known caller's stays."""
    many = 500
    with served(tmp_path, "--rate-scale", "1000") as running, ExitStack() as stack:
        partner = running.partner(running.palmctl("tenant", "create", "acme")["tenant_id"])
        size = len(httpx.get(f"{running.url}/v1/openapi.json", trust_env=False).content)
        assert many * size > 1.5 * UNSENT_BYTES_OF_STRANGERS
        before, parts = _rss(running), urlsplit(running.url)
        opened = []
        for number in range(many):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.bind((f"127.0.{1 + number // 250}.{1 + number % 250}", 0))
            one.connect((parts.hostname, parts.port))
            one.sendall(request(running.url, "GET /v1/openapi.json HTTP/1.1", []))
            opened.append(one)
        asked = "GET /v1/openapi.json 200"
        until(lambda: running.log.read_text().count(asked) > many, within_s=60)
        assert _rss(running) - before < 1.25 * UNSENT_BYTES_OF_STRANGERS + 24 * MIB
        assert partner.get("/v1/subjects").status_code == 200
        assert sum(map(_ended, opened)) >= many - UNSENT_BYTES_OF_STRANGERS / size - 100
        assert running.log.read_text().count("answers are taken slowly") == 1


def test_the_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    with served(tmp_path, files=(64, 900)) as running, ExitStack() as stack:
        opened = [stack.enter_context(_open(running)) for _ in range(300)]
        assert httpx.get(f"{running.url}/v1/health", trust_env=False).status_code == 200
        assert not any(_ended(connection) for connection in opened)


def test_strangers_push_out_strangers_only(tmp_path: Path) -> None:
    """With fewer places than connections every known caller is served, and the log stays short."""
    with served(tmp_path, "--rate-scale", "1000", files=(256, 256)) as running, ExitStack() as stack:
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        partner, board = running.partner(tenant), Board(running, tenant)
        subject_id = enrol(partner, board)
        admin = re.findall(r"http://\S+(?=/operator)", running.log.read_text())
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            board.send, "GET", "/v1/gallery/deltas?epoch=1&after_seq=1&wait_s=50"
        )
        until(lambda: "palm_long_poll_waiters 1.0" in httpx.get(f"{admin[0]}/metrics", trust_env=False).text)
        opened = [stack.enter_context(_open(running)) for _ in range(600)]
        assert post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code == 201
        assert httpx.get(f"{running.url}/v1/health", trust_env=False).status_code == 200
        until(lambda: sum(map(_ended, opened)) > 600 - (256 - KEPT_BACK))
        partner.delete(f"/v1/subjects/{subject_id}").raise_for_status()
        assert [delta["op"] for delta in waiting.result(10).json()["data"]] == ["tombstone"]
        assert httpx.get(f"{admin[0]}/healthz", trust_env=False).status_code == 200
        lines = [line for line in running.log.read_text().splitlines() if "palm.cloud.access" not in line]
        assert sum("were ended for newcomers" in line for line in lines) == 1
        assert len(lines) < 20


def test_who_ends_when_answers_are_not_taken() -> None:
    """A stranger of the address with the most, then of the others; a known caller last."""

    class Reader:
        ended = False

        def overdue(self, now_s: float) -> bool:
            return False

        def abort(self) -> None:
            self.ended = True

        shutdown = turn = abort

    places = Connections(1000)
    known, lone, *crowd = (Reader() for _ in range(12))
    places.enter(known, "192.0.2.1")
    places.enter(lone, "192.0.2.2")
    for one in crowd:
        places.enter(one, "192.0.2.3")
    places.unsent(known, UNSENT_BYTES_OF_STRANGERS)
    places.authenticated(known)
    for one in (lone, *crowd):
        places.unsent(one, UNSENT_BYTES_OF_STRANGERS // 8)
    assert [one.ended for one in (known, lone, *crowd)] == [False] * 2 + [True] * 3 + [False] * 7
    for one in crowd:
        places.unsent(one, 0)  # taken
    places.unsent(lone, UNSENT_BYTES_OF_STRANGERS)
    assert not lone.ended
    places.unsent(known, UNSENT_BYTES)
    assert (lone.ended, known.ended) == (True, False)
    places.unsent(known, UNSENT_BYTES + 1)
    assert known.ended
    assert len(places) == 7


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of the address with the most goes; an authenticated connection and a lone one stay."""

    class Held:
        ended = False

        def overdue(self, now_s: float) -> bool:
            return now_s > 100

        def abort(self) -> None:
            self.ended = True

        shutdown = turn = abort

    now_s = 0.0
    places = Connections(40, lambda: now_s)
    known, lone, same_network = Held(), Held(), Held()
    assert places.enter(known, "192.0.2.1")
    places.authenticated(known)
    assert places.enter(lone, "192.0.2.2")
    assert places.enter(same_network, "2001:db8::1")
    crowd = [Held() for _ in range(50)]
    for number, one in enumerate(crowd):
        assert places.enter(one, f"2001:db8::{number + 2:x}")
    assert [held.ended for held in (known, lone, same_network)] == [False, False, True]
    assert [one.ended for one in crowd] == [True] * 31 + [False] * 19
    for one in [lone, *crowd]:
        places.leave(one)
    while len(places) < 40:
        places.enter(one := Held(), "192.0.2.3")
        places.authenticated(one)
    assert not places.enter(Held(), "192.0.2.4")
    now_s = 101
    for _ in range(2 * SWEEPS):
        places.sweep()
    assert known.ended


def test_a_body_counts_when_its_sender_is_known(tmp_path: Path) -> None:
    """4 MiB each from strangers cost no memory and are answered; of one device only so many are held."""
    content = b" " * (4 * MIB)
    with served(tmp_path, "--rate-scale", "1000") as running, ExitStack() as stack:
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        board = Board(running, tenant)
        stranger = _signed(board, "/v1/verdicts/batch", content, key=SigningKey.generate())
        bearer = ["Authorization: Bearer svc_test_aaaaaaaa_" + "A" * 40]
        token = ["Authorization: Provisioning " + "A" * 40]
        wrong = [
            stranger,
            stranger.replace(b"Signature-Input", b"Signature-Nothing"),
            request(running.url, "POST /v1/subjects HTTP/1.1", bearer, content),
            request(running.url, "POST /v1/devices/register HTTP/1.1", token, content),
        ]
        before = _rss(running)
        with ThreadPoolExecutor(16) as threads:
            replies = list(threads.map(lambda data: exchange(running.url, data), wrong * 16))
        assert {(reply.status, reply.code) for reply in replies} == {(401, "unauthenticated")}
        assert _rss(running) - before < 24 * MIB
        # Its head is good, and its body never ends.
        held = [stack.enter_context(_open(running)) for _ in range(7)]
        for connection in held:
            connection.sendall(_signed(board, "/v1/verdicts/batch", content)[:-1])
        until(lambda: len(select.select(held, [], [], 0)[0]) >= 3)
        answers = [connection.recv(65536) for connection in select.select(held, [], [], 0)[0]]
        assert {answer[9:12] for answer in answers} == {b"503"}
        assert all(b"retry-after: 1" in answer for answer in answers)
        # Another sender is not concerned, and the device is served when the others have gone.
        partner = running.partner(tenant)
        assert post(partner, "/v1/subjects", {"external_ref": new_account()}).status_code == 201
        stack.close()
        until(lambda: board.send("POST", "/v1/verdicts/batch", content).status_code == 400)


def test_polls_whose_body_never_ends_take_no_turn(tmp_path: Path) -> None:
    """A few polls are carried out at once; a device that does not send what it announced is none of them."""
    with served(tmp_path) as running, ExitStack() as stack:
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        board = Board(running, tenant)
        query = "epoch=1&after_seq=0"
        for _ in range(AT_WORK + 2):
            head = _signed(board, "/v1/gallery/deltas", b"{}", method="GET", query=query)
            stack.enter_context(_open(running)).sendall(head[:-1])
        for _ in range(3):  # those that hang are there by then
            answer = board.send("GET", f"/v1/gallery/deltas?{query}")
            assert answer.status_code == 200
            assert answer.elapsed < timedelta(seconds=5), "a slow body ends after ten"


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(built.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize("fault", ["not PEM", "another's key", "a key with a password"])
def test_a_certificate_that_cannot_be_served_with_is_named(tmp_path: Path, fault: str) -> None:
    """At once and in words: OpenSSL would ask a terminal for the password."""
    certificate, key = _certificate(tmp_path)
    if fault == "not PEM":
        certificate.write_text("no certificate")
    else:
        other, locked = ec.generate_private_key(ec.SECP256R1()), fault == "a key with a password"
        lock = BestAvailableEncryption(b"secret") if locked else NoEncryption()
        key.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    words = ["cloud", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    done = CliRunner().invoke(main, [*words, "--tls-cert", str(certificate), "--tls-key", str(key)])
    assert done.exit_code == 1
    assert "--tls-cert and --tls-key cannot be used" in done.stderr
    assert "doctor" not in done.stderr


def test_with_tls(tmp_path: Path) -> None:
    """Answers before the end of a body, hang-ups and handshakes that are never made: the server lasts."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate, key = _certificate(tmp_path)
    words = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with served(tmp_path, *words) as running, ExitStack() as stack:

        def answer(data: bytes, *, hang_up: bool = False) -> bytes:
            with context.wrap_socket(_open(running)) as connection:
                connection.sendall(data)
                received = b""
                while not hang_up and (chunk := connection.recv(65536)):
                    received += chunk
                return received

        large = request(running.url, "POST /v1/subjects HTTP/1.1", [], b" " * (8 * MIB))
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 3:
            assert answer(large)[9:12] == b"401"
            assert answer(b"nothing\r\n\r\n")[9:12] == b"400"
            answer(large[:100_000], hang_up=True)
            answer(request(running.url, "GET /v1/openapi.json HTTP/1.1", []) * 9, hang_up=True)
            stack.enter_context(_open(running)).send(b"\x16\x03")
            stack.enter_context(context.wrap_socket(_open(running)))
        health = request(running.url, "GET /v1/health HTTP/1.1", ["Connection: close"])
        assert answer(health)[9:12] == b"200"


def test_health_is_that_of_writes(tmp_path: Path) -> None:
    with served(tmp_path, "--rate-scale", "1000") as running:
        admin = re.findall(r"http://\S+(?=/operator)", running.log.read_text())[0]

        def statuses() -> set[int]:
            urls = (f"{running.url}/v1/health", f"{admin}/healthz")
            return {httpx.get(url, trust_env=False).status_code for url in urls}

        assert statuses() == {200}
        with no_file_may_grow(running):
            until(lambda: statuses() == {503}, every_s=0.1)
            answer = httpx.get(f"{running.url}/v1/health", trust_env=False)
            assert (answer.json()["code"], answer.headers["retry-after"]) == ("service_unavailable", "1")
        until(lambda: statuses() == {200}, every_s=0.1)
        assert "the store takes no writes" in running.log.read_text()
        (running.data / "cloud.db").rename(running.data / "elsewhere.db")
        until(lambda: statuses() == {503}, every_s=0.1)
        (running.data / "elsewhere.db").rename(running.data / "cloud.db")
        until(lambda: statuses() == {200}, every_s=0.1)


def test_one_server_on_a_sqlite_store(tmp_path: Path) -> None:
    def second(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*PALMCTL, "cloud", "serve", "--port", "0", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    with served(tmp_path) as running:
        database = running.data / "cloud.db"
        (link := tmp_path / "link.db").symlink_to(database)
        elsewhere = ["--data", str(tmp_path / "b"), "--database"]
        for words in (
            ["--data", str(running.data)],
            [*elsewhere, f"sqlite:///{database}"],
            [*elsewhere, f"sqlite:///{link}"],
        ):
            done = second(*words)
            assert (done.returncode, done.stdout) == (1, "")
            assert "another server is serving" in done.stderr
            assert "Traceback" not in done.stderr
        # Commands work next to it.
        assert running.palmctl("tenant", "create", "acme")["tenant_id"]
    # The lock ends with the process, however that ends.
    with DataDirectory.of(running.data).served():
        pass


def test_the_end_under_load(tmp_path: Path) -> None:
    """SIGTERM with waiting devices, half a head, half a body, a reader that does not read, and silence."""
    with served(tmp_path, "--rate-scale", "1000") as running, ExitStack() as stack:
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        board = Board(running, tenant)
        content = b" " * MIB
        pending = stack.enter_context(ThreadPoolExecutor(1)).submit(
            board.send, "GET", "/v1/gallery/deltas?epoch=1&after_seq=0&wait_s=50"
        )
        for beginning in (
            b"",
            b"GET /v1/hea",
            _signed(board, "/v1/verdicts/batch", content)[:-1000],
            request(running.url, "POST /v1/subjects HTTP/1.1", ["Content-Length: 9000"]) + b"{",
            request(running.url, "GET /v1/openapi.json HTTP/1.1", []) * 300,
            b"nothing\r\n\r\n",
        ):
            stack.enter_context(_open(running)).sendall(beginning)
        admin = re.findall(r"http://\S+(?=/operator)", running.log.read_text())[0]
        stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(admin).port or 0)))
        until(lambda: "palm_long_poll_waiters 1.0" in httpx.get(f"{admin}/metrics", trust_env=False).text)
        begun_s = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=15) == 0
        assert time.monotonic() - begun_s < 10
        assert pending.result(1).status_code == 200
        assert json.loads(pending.result().content)["data"] == []
