"""The reference server as a process for the bench, and its clients."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault
from device.provisioning.online import RegistrationFacts, registration_body
from device.trust.keystore import KeyStore
from link1.canonical import JsonObject, b64_encode
from link1.keys import SealKey, SigningKey
from link1.objects import GalleryMark, Pad, Verdict, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from tools.cloud.store import opened_store
from tools.palmctl.bench.daemon import BenchFailed

T = TypeVar("T")
MODEL_ID = "bench-model"
RATE_SCALE = 1_000_000
_SCOPES = ("subjects:read", "subjects:write", "devices:write", "verdicts:read")


@dataclass(frozen=True)
class BenchTenant:
    """A tenant in its test environment, and an API key of it."""

    tenant_id: str
    api_key: str

    @property
    def environment(self) -> Environment:
        return Environment(self.tenant_id, False)


@dataclass(frozen=True)
class ServerProcess:
    """A running server: where it listens and which process it is."""

    address: tuple[str, int]
    pid: int
    data: Path
    tenant: BenchTenant

    @property
    def host(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def partner_request(self, method: str, path: str, body: JsonObject | None = None) -> bytes:
        """A back office's request, with a new idempotency key when it has a body."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}",
            f"Authorization: Bearer {self.tenant.api_key}",
        ]
        return finished(lines, body)

    def new_person(self, path: str = "/v1/subjects") -> bytes:
        """A back office's request to create a person."""
        # Letters only: eleven digits in a row might be a CPF.
        name = os.urandom(16).hex().translate(str.maketrans("0123456789", "ghijklmnop"))
        return self.partner_request("POST", path, {"external_ref": name})


def finished(lines: list[str], body: JsonObject | None) -> bytes:
    """The bytes of a request with these lines."""
    content = b""
    if body is not None:
        content = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Idempotency-Key: {new_nonce()}"]
        lines += [f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def new_tenant(tx: Tx, vault: Vault, now_ms: int) -> BenchTenant:
    return with_new_key(tx, operator.create_tenant(tx, vault, "bench", now_ms)["tenant_id"], now_ms)


def with_new_key(tx: Tx, tenant_id: str, now_ms: int) -> BenchTenant:
    """A tenant with another API key, which has its own rate limits."""
    key = operator.create_key(tx, Environment(tenant_id, False), list(_SCOPES), now_ms)
    return BenchTenant(tenant_id, key["api_key"])


@contextmanager
def serving(
    data: Path,
    *,
    tenant: BenchTenant | None = None,
    rate_scale: float = RATE_SCALE,
    files: tuple[int, int] | None = None,
    database: str | None = None,
    log: str = "server.log",
) -> Iterator[ServerProcess]:
    """A server on a data directory, whose rate limits are out of the way by default.

    ``tenant`` is made where there is none yet. ``files`` are the server's soft and hard limit of open files,
    where they are not to be those of this process; ``log`` is the file in ``data`` that it writes to.
    """
    tenant = on_store(data, new_tenant, database) if tenant is None else tenant
    words = ["serve", "--data", str(data), "--port", "0", "--rate-scale", str(rate_scale)]
    words += [] if database is None else ["--database", database]
    with started([sys.executable, "-m", "tools.palmctl.main", "cloud", *words], data / log) as process:
        if files is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, files)  # it looks at them a second later
        yield ServerProcess(("127.0.0.1", printed_port(process, data / log)), process.pid, data, tenant)


def files_of_a_service() -> tuple[int, int]:
    """The limits of open files that systemd gives a service, as far as this process may give them."""
    soft, hard = 1024, 524_288
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return soft, hard if most == resource.RLIM_INFINITY else min(hard, most)


@contextmanager
def started(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose standard error goes to a file; it is ended afterwards."""
    with log.open("w") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def printed_port(process: subprocess.Popen[str], log: Path) -> int:
    """The port at the end of the first line that a server prints. BenchFailed when it ends instead."""
    line = process.stdout.readline().strip() if process.stdout else ""
    if not line:
        raise BenchFailed(f"the server did not start: {log.read_text()[-500:]}")
    return int(line.rpartition(":")[2])


def on_store(data: Path, work: Callable[[Tx, Vault, int], T], database: str | None = None) -> T:
    """What `palmctl cloud …` does: one transaction on the store, whether or not a server runs on it."""
    with opened_store(data, database) as (store, vault, now_ms), store.writing() as tx:
        return work(tx, vault, now_ms)


def enrolment_body(token: str, vectors: dict[str, bytes]) -> JsonObject:
    """What a device sends at the end of an enrolment: a vector of each hand, and both consents."""
    pad = {"res": "pass", "mech": "bench", "score_q": 9000}
    return {
        "token": token,
        "model_id": MODEL_ID,
        "hands": [
            {"hand": hand, "vector_b64": b64_encode(vector), "quality_q": 90, "pad": pad}
            for hand, vector in vectors.items()
        ],
        "consents": [
            {"purpose": purpose, "terms_version": "v1", "method": "device_screen", "accepted_at_ms": 1}
            for purpose in ("enrollment", "identification")
        ],
    }


@dataclass
class BenchDevice:
    """A device as far as HTTP goes: keys, signed requests, a chain of verdicts."""

    host: str
    device_id: str
    http_key: SigningKey = field(default_factory=SigningKey.generate)
    verdict_key: SigningKey = field(default_factory=SigningKey.generate)
    seq: int = 0
    last_ref: str = "0" * 32

    def registration_body(self, token: str) -> JsonObject:
        """The body of the request that registers it."""
        facts = RegistrationFacts(self.device_id, "bench", "bench", False, "1", MODEL_ID)
        keys = KeyStore(self.verdict_key, self.http_key, SealKey.generate(), bytes(32))
        body: JsonObject = json.loads(registration_body(facts, keys, token))
        return body

    def registration(self, token: str) -> bytes:
        """The request that registers it."""
        more = [f"Authorization: Provisioning {token}"]
        return self.request("POST", "/v1/devices/register", body=self.registration_body(token), more=more)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        body: JsonObject | None = None,
        more: list[str] | None = None,
    ) -> bytes:
        """A signed request."""
        headers = sign_request(
            method,
            self.host,
            path,
            query,
            None if body is None else json.dumps(body).encode(),
            key=self.http_key,
            created_s=int(time.time()),
            nonce=new_nonce(),
        )
        target = f"{path}?{query}" if query else path
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}", *(more or [])]
        return finished([*lines, *(f"{name}: {value}" for name, value in headers.items())], body)

    def verdict(self) -> JsonObject:
        """The next signed verdict of its chain: a palm that matches no one."""
        self.seq += 1
        now_ms = int(time.time() * 1000)
        verdict = Verdict(
            txn_id=f"{self.seq:032x}",
            gate_id="bench",
            dbd_id="bench",
            nonce_b64=b64_encode(bytes(16)),
            issued_at_ms=now_ms,
            ttl_ms=5000,
            decided_at_ms=now_ms,
            device_id=self.device_id,
            result=VerdictResult.NO_MATCH,
            verdict_seq=self.seq,
            prev_ref=self.last_ref,
            score_q=1000,
            margin_q=1000,
            quality_q=80,
            pad=Pad("pass", "bench", 9000),
            attempts=1,
            model_id=MODEL_ID,
            thr_id="bench",
            gallery=GalleryMark("bench", 1, 0, "0" * 16),
        )
        wrapper = sign_object(Kind.VERDICT, verdict.to_obj(), self.verdict_key)
        self.last_ref = object_ref(wrapper)
        return wrapper
