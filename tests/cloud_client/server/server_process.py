"""A server in a separate process, and a partner and a device that reach it over real HTTP."""

import copy
import hashlib
import json
import re
import resource
import secrets
import string
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.contract.words import Scope
from link1.canonical import b64_encode
from link1.keys import SealKey, SealPublicKey, SigningKey
from link1.signed import Kind, object_ref, sign_object
from tests.cloud_client.server.server_database import database_words
from tests.palmctl import printed


@dataclass
class Running:
    """A server process and what talks to it."""

    data: Path
    process: subprocess.Popen[str]
    url: str
    log: Path
    database: str | None = None

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


class Board:
    """A registered device over real HTTP."""

    def __init__(self, running: Running, tenant: str, device_id: str = "gate-1") -> None:
        self.url = running.url
        self.verdict_key, self.http_key = SigningKey.generate(), SigningKey.generate()
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=20)
        made = running.palmctl(
            "token", "create", "--tenant", tenant, "--mode", "test", "--device-id", device_id
        )
        facts = {
            "device_id": device_id,
            "kind": "access",
            "gate_id": "g1",
            "dbd_id": "d1",
            "passage_sensor": False,
            "app": {"pkg": "p", "version": "1"},
            "model_id": "m",
            "keys": [
                {"purpose": "verdict", "alg": "ed25519", "pub_b64": self.verdict_key.public.b64},
                {"purpose": "http", "alg": "ed25519", "pub_b64": self.http_key.public.b64},
            ],
            "seal_key": {"alg": "x25519", "pub_b64": SealKey.generate().public.b64},
        }
        digest = hashlib.sha256(made["token"].encode()).hexdigest()
        proof = sign_object(Kind.REGISTER, facts | {"token_sha256": digest}, self.verdict_key)
        content = json.dumps(facts | {"proof": proof}).encode()
        headers = {"Authorization": f"Provisioning {made['token']}"}
        registered = self.send("POST", "/v1/devices/register", content, headers).raise_for_status().json()
        self.mail_seal_key = SealPublicKey.from_b64(registered["mail"]["seal_key"]["pub_b64"])
        self.stream = registered["gallery"]["stream"]
        self.device_id = device_id
        self.verdict_seq, self.last_ref = 0, "0" * 32

    def at(self, running: Running) -> "Board":
        """The same device, talking to another server."""
        other = copy.copy(self)
        other.url = running.url
        other.http = httpx.Client(base_url=running.url, trust_env=False, timeout=20)
        return other

    def upload_verdict(self) -> str:
        """Hand in a first verdict, of an unknown hand; its verdict_id."""
        (verdict_id,) = self.send("POST", "/v1/verdicts/batch", self.batch(1)).json()["accepted"]
        return str(verdict_id)

    def batch(self, count: int) -> bytes:
        """The body of a batch: the next verdicts of this device's chain, of unknown hands."""
        items = []
        for _ in range(count):
            self.verdict_seq += 1
            verdict = {
                "v": 1,
                "txn_id": f"{self.verdict_seq:032x}",
                "gate_id": "g1",
                "dbd_id": "d1",
                "nonce_b64": b64_encode(bytes(16)),
                "issued_at_ms": 1,
                "ttl_ms": 5000,
                "decided_at_ms": int(time.time() * 1000),
                "device_id": self.device_id,
                "decision": "reject",
                "result": "NO_MATCH",
                "verdict_seq": self.verdict_seq,
                "prev_ref": self.last_ref,
                "score_q": 100,
                "margin_q": 10000,
                "quality_q": 80,
                "pad": {"res": "pass", "mech": "m", "score_q": 9000},
                "attempts": 3,
                "model_id": "m",
                "thr_id": "t",
                "gallery": {"stream": "s", "epoch": 1, "seq": 0, "head16": "0" * 16},
            }
            wrapper = sign_object(Kind.VERDICT, verdict, self.verdict_key)
            self.last_ref = object_ref(wrapper)
            items.append({"signed_verdict": wrapper})
        return json.dumps({"items": items}).encode()

    def send(
        self, method: str, target: str, content: bytes | None = None, more: dict[str, str] | None = None
    ) -> httpx.Response:
        path, _, query = target.partition("?")
        headers = sign_request(
            method,
            self.url.partition("://")[2],
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
    enrolment = {
        "token": session["token"],
        "model_id": "m",
        "hands": [
            {
                "hand": "L",
                "vector_b64": b64_encode(bytes(vector)),
                "quality_q": 90,
                "pad": {"res": "pass", "mech": "m", "score_q": 1},
            }
        ],
        "consents": [
            {"purpose": purpose, "terms_version": "v1", "method": "device_screen", "accepted_at_ms": 1}
            for purpose in ("enrollment", "identification")
        ],
    }
    return board.send("POST", "/v1/enrollments", json.dumps(enrolment).encode()).status_code
