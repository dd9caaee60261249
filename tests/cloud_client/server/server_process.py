"""A server in a separate process, and a partner and a device that reach it over real HTTP."""

import copy
import json
import re
import resource
import secrets
import sqlite3
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.contract.words import Scope
from link1.keys import SealPublicKey
from tests.cloud_client.server.server_database import database_words
from tests.palmctl import printed
from tools.rig.bench.cloud_server import BenchDevice, enrolment_body

LOG_BYTES = 500_000


@dataclass
class Running:
    """A server process and what talks to it; as a context it is killed at the end."""

    data: Path
    process: subprocess.Popen[str]
    url: str
    log: Path
    database: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def where(self) -> list[str]:
        """The options of every command on this server's store."""
        return ["--data", str(self.data), *database_words(self.database)]

    def palmctl(self, *words: str) -> Any:
        return printed("cloud", *words, *self.where)

    def partner(self, tenant: str) -> httpx.Client:
        scopes = [word for scope in Scope for word in ("--scope", scope.value)]
        made = self.palmctl("key", "create", "--tenant", tenant, "--mode", "test", *scopes)
        headers = {"Authorization": f"Bearer {made['api_key']}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False)


def new_account() -> str:
    """An unused external_ref; without digits, for a run of eleven may be a CPF."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))


def start(
    data: Path, log: Path, database: str | None, *more: str, files: tuple[int, int] | None = None
) -> Running:
    """Start a server and wait until it accepts connections; ``files`` are its soft and hard limit of them."""
    where = ["--data", str(data), *database_words(database)]
    words = ["-m", "tools.palmctl.main", "cloud", "serve", *where, "--port", "0", *more]
    # A log that is not read would fill a pipe and stop the server.
    with log.open("w") as errors:
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=errors, text=True)
        if files is not None:
            # It is a second away from looking at them.
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, files)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.match("serving https?://127.0.0.1:", line), log.read_text()
    return Running(data, process, line.split()[1], log, database)


@contextmanager
def no_file_may_grow(running: Running) -> Iterator[None]:
    """The operating system refuses the server whatever would make the write-ahead log of SQLite longer.

    That is made longer first: the server's own log has the same limit, and grows while the test asks.
    """
    with closing(sqlite3.connect(running.data / "cloud.db")) as database:
        database.executescript(
            f"CREATE TABLE longer (x); INSERT INTO longer VALUES (zeroblob({LOG_BYTES})); DROP TABLE longer"
        )
    size = (running.data / "cloud.db-wal").stat().st_size
    assert size > LOG_BYTES > running.log.stat().st_size
    _, hard = resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


class Board(BenchDevice):
    """A registered device over real HTTP."""

    def __init__(self, running: Running, tenant: str, device_id: str = "gate-1") -> None:
        super().__init__(running.url.partition("://")[2], device_id)
        self.reach(running.url)
        of = ("--tenant", tenant, "--mode", "test", "--device-id", device_id)
        token = running.palmctl("token", "create", *of)["token"]
        content = json.dumps(self.registration_body(token)).encode()
        headers = {"Authorization": f"Provisioning {token}"}
        registered = self.send("POST", "/v1/devices/register", content, headers).raise_for_status().json()
        self.mail_seal_key = SealPublicKey.from_b64(registered["mail"]["seal_key"]["pub_b64"])
        self.stream = registered["gallery"]["stream"]

    def reach(self, url: str) -> None:
        self.url, self.host = url, url.partition("://")[2]
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=20)

    def at(self, running: Running) -> "Board":
        """The same device, talking to another server."""
        other = copy.copy(self)
        other.reach(running.url)
        return other

    def upload_verdict(self) -> str:
        """Hand in a first verdict, of an unknown hand; its verdict_id."""
        (verdict_id,) = self.send("POST", "/v1/verdicts/batch", self.batch(1)).json()["accepted"]
        return str(verdict_id)

    def batch(self, count: int) -> bytes:
        """The body of a batch: the next verdicts of this device's chain, of unknown hands."""
        return json.dumps({"items": [{"signed_verdict": self.verdict()} for _ in range(count)]}).encode()

    def send(
        self, method: str, target: str, content: bytes | None = None, more: dict[str, str] | None = None
    ) -> httpx.Response:
        path, _, query = target.partition("?")
        headers = sign_request(
            method,
            self.host,
            path,
            query,
            content,
            key=self.http_key,
            created_s=int(time.time()),
            nonce=new_nonce(),
        ) | (more or {})
        if content is not None:
            headers |= {"Content-Type": "application/json", "Idempotency-Key": new_nonce()}
        return self.http.request(method, target, content=content, headers=headers)


def post(partner: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    return partner.post(path, json=body, headers={"Idempotency-Key": new_nonce()})


def enrol(partner: httpx.Client, board: Board) -> str:
    """A new person with one palm; the subject_id."""
    subject_id: str = post(partner, "/v1/subjects", {"external_ref": new_account()}).json()["subject_id"]
    assert enrol_person(partner, board, subject_id) == 201
    return subject_id


def enrol_person(partner: httpx.Client, board: Board, subject_id: str) -> int:
    """Open a session and complete it; the status of the first request that is refused, else of the last."""
    body = {"subject_id": subject_id, "hands_required": ["L"]}
    opened = post(partner, "/v1/enrollment-sessions", body)
    if opened.status_code != 201:
        return opened.status_code
    session = opened.json()
    vector = bytearray(2048)
    vector[2:4] = b"\x80\x3f"  # 1.0 in the first place
    enrolment = enrolment_body(session["token"], {"L": bytes(vector)})
    return board.send("POST", "/v1/enrollments", json.dumps(enrolment).encode()).status_code
