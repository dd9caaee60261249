"""The reference server in memory, a partner and a device that talk to it, and a clock that tests set.

Every answer that passes through here is held against the operation table: its status must be one that the
operation declares, its body must fit the model (or be a problem document), and the common headers must be
there. Tests therefore only state what is particular to them.
"""

import asyncio
import hashlib
import itertools
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.contract.words import Scope
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.ops.serve import build
from link1.canonical import JsonObject, b64_encode
from link1.keys import PublicKey, SealKey, SigningKey
from link1.objects import Decision, GalleryMark, Pad, Passage, Verdict, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from tests.cloud_client.server.server_checks import check_answer
from tests.cloud_client.server.server_database import new_database

ORIGIN = "http://cloud.test"
MODEL_ID = "model-1"
ALL_SCOPES = [scope.value for scope in Scope]
START_MS = 1_790_000_000_000
_numbers = itertools.count(1)


class Clock:
    """A wall clock and a monotonic clock that move only when a test moves them."""

    def __init__(self) -> None:
        self.ms = START_MS
        self._stepped_ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return (self.ms - self._stepped_ms) / 1000

    def forward(self, *, ms: int = 0, s: float = 0) -> None:
        self.ms += ms + int(s * 1000)

    def step(self, ms: int) -> None:
        """The wall clock alone is set, forward or back."""
        self.ms += ms
        self._stepped_ms += ms


class Cloud:
    """A server in this process. Requests run on its own loop, one after another."""

    def __init__(
        self,
        path: Path,
        rate_scale: float = 1000.0,
        database: str | None = None,
        *,
        behind_tls_proxy: bool = False,
    ) -> None:
        self.clock = Clock()
        self.data = DataDirectory.of(path, database or new_database())
        self._runner = asyncio.Runner()
        self._rate_scale = rate_scale
        self._behind_tls_proxy = behind_tls_proxy
        self._start()

    def _start(self) -> None:
        self.app, self.api = build(
            self.data,
            now_ms=self.clock.now_ms,
            monotonic_s=self.clock.monotonic_s,
            rate_scale=self._rate_scale,
            behind_tls_proxy=self._behind_tls_proxy,
        )
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True, client=("192.0.2.1", 1))
        self.http = httpx.AsyncClient(transport=transport, base_url=ORIGIN)

    def close(self) -> None:
        self.api.store.close()
        self._runner.close()

    def restart(self) -> None:
        """The same data directory, a new process' worth of memory."""
        self.api.store.close()
        self._start()

    def operate(self, work: Any) -> Any:
        """What ``palmctl cloud …`` does: one write transaction on the same store, from outside."""
        store, vault = self.data.open(self.clock.ms)
        with closing(store), store.writing() as tx:
            return work(tx, vault, self.clock.ms)

    def new_tenant(self) -> "Tenant":
        made = self.operate(lambda tx, vault, now: operator.create_tenant(tx, vault, "acme", now))
        return Tenant(self, made["tenant_id"])

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def send(self, method: str, target: str, **given: Any) -> httpx.Response:
        """One request; the answer is checked against the contract."""
        response: httpx.Response = self.run(self.http.request(method, target, **given))
        check_answer(method, urlsplit(target).path, response)
        return response


class Tenant:
    """A tenant and its two environments."""

    def __init__(self, cloud: Cloud, tenant_id: str) -> None:
        self.cloud = cloud
        self.tenant_id = tenant_id

    def environment(self, mode: str) -> Environment:
        return Environment(self.tenant_id, mode == "live")

    def partner(self, mode: str = "test", scopes: list[str] | None = None) -> "Partner":
        made = self.cloud.operate(
            lambda tx, _, now: operator.create_key(tx, self.environment(mode), scopes or ALL_SCOPES, now)
        )
        return Partner(self.cloud, made["api_key"], made["key_id"])

    def add_dbd(self, key: SigningKey | None = None) -> SigningKey:
        """Make a key of the validator `d1` known, another one than before by default; returns it."""
        added = key or SigningKey.generate()
        self.cloud.operate(
            lambda tx, _, now: operator.add_dbd(tx, self.environment("test"), "d1", added.public.b64, now)
        )
        return added

    def token(self, device_id: str, mode: str = "test") -> str:
        made = self.cloud.operate(
            lambda tx, _, now: operator.create_token(tx, self.environment(mode), device_id, 3600, now)
        )
        token: str = made["token"]
        return token

    def device(self, device_id: str = "gate-1", mode: str = "test", **facts: Any) -> "SimDevice":
        device = SimDevice(self, device_id, mode, **facts)
        response = device.register(self.token(device_id, mode))
        assert response.status_code == 201, response.text
        return device


class Partner:
    """A back office with an API key."""

    def __init__(self, cloud: Cloud, api_key: str, key_id: str) -> None:
        self.cloud = cloud
        self.key_id = key_id
        self.api_key = api_key

    def send(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **given: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"} | given.pop("headers", {})
        if method == "POST":
            headers.setdefault("Idempotency-Key", key or f"k{next(_numbers)}")
            headers.setdefault("Content-Type", "application/json")
            given.setdefault("content", json.dumps(body))
        elif key is not None:
            headers["Idempotency-Key"] = key
        return self.cloud.send(method, path, headers=headers, **given)

    def get(self, path: str, **params: Any) -> Any:
        response = self.send("GET", path, params=params)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any, status: int = 201) -> Any:
        response = self.send("POST", path, body)
        assert response.status_code == status, response.text
        return response.json()

    def delete(self, path: str) -> Any:
        response = self.send("DELETE", path)
        assert response.status_code == 200, response.text
        return response.json()

    def person(self, external_ref: str | None = None, **more: Any) -> Any:
        return self.post("/v1/subjects", {"external_ref": external_ref or f"p-{next(_numbers)}", **more})

    def session(self, subject_id: str, **more: Any) -> Any:
        return self.post("/v1/enrollment-sessions", {"subject_id": subject_id, **more})


class SimDevice:
    """A device with its keys, as far as the HTTP surface goes."""

    def __init__(self, tenant: Tenant, device_id: str, mode: str = "test", **facts: Any) -> None:
        self.tenant, self.cloud = tenant, tenant.cloud
        self.device_id, self.mode = device_id, mode
        self.verdict_key, self.http_key = SigningKey.generate(), SigningKey.generate()
        self.seal_key = SealKey.generate()
        self.facts: JsonObject = {
            "kind": "access",
            "gate_id": "g1",
            "dbd_id": "d1",
            "passage_sensor": False,
            "app": {"pkg": "palm", "version": "1"},
            "model_id": MODEL_ID,
        } | facts
        self.seq = 0
        self.last_ref = "0" * 32

    def registration(self, token: str) -> JsonObject:
        facts = {
            "device_id": self.device_id,
            **self.facts,
            "keys": [
                {"purpose": "verdict", "alg": "ed25519", "pub_b64": self.verdict_key.public.b64},
                {"purpose": "http", "alg": "ed25519", "pub_b64": self.http_key.public.b64},
            ],
            "seal_key": {"alg": "x25519", "pub_b64": self.seal_key.public.b64},
        }
        digest = hashlib.sha256(token.encode()).hexdigest()
        return facts | {
            "proof": sign_object(Kind.REGISTER, facts | {"token_sha256": digest}, self.verdict_key)
        }

    def register(self, token: str, body: JsonObject | None = None) -> httpx.Response:
        response = self.send(
            "POST",
            "/v1/devices/register",
            body or self.registration(token),
            headers={"Authorization": f"Provisioning {token}"},
        )
        if response.is_success:
            self.registered: JsonObject = response.json()
        return response

    def signed(self, method: str, path: str, query: str, content: bytes | None) -> dict[str, str]:
        return sign_request(
            method,
            "cloud.test",
            path,
            query,
            content,
            key=self.http_key,
            created_s=self.cloud.clock.ms // 1000,
            nonce=new_nonce(),
        )

    def send(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        split = urlsplit(target)
        content = None if body is None else json.dumps(body).encode()
        all_headers = self.signed(method, split.path, split.query, content) | (headers or {})
        if method == "POST":
            all_headers |= {
                "Idempotency-Key": key or f"d{next(_numbers)}",
                "Content-Type": "application/json",
            }
        return self.cloud.send(method, target, headers=all_headers, content=content)

    def get(self, target: str) -> Any:
        response = self.send("GET", target)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: Any, status: int = 200) -> Any:
        response = self.send("POST", path, body)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def enrolment(self, token: str, vectors: dict[str, bytes], **changes: Any) -> JsonObject:
        body = {
            "token": token,
            "model_id": MODEL_ID,
            "hands": [
                {
                    "hand": hand,
                    "vector_b64": b64_encode(vector),
                    "quality_q": 80,
                    "pad": {"res": "pass", "mech": "m", "score_q": 9000},
                }
                for hand, vector in vectors.items()
            ],
            "consents": [
                {
                    "purpose": purpose,
                    "terms_version": "v1",
                    "method": "device_screen",
                    "accepted_at_ms": self.cloud.clock.ms,
                }
                for purpose in ("enrollment", "identification")
            ],
        }
        return body | changes

    def enrol(self, partner: Partner, subject_id: str, seed: int = 1) -> Any:
        """Both palms of a person, through a new session."""
        session = partner.session(subject_id)
        vectors = {"L": vector(2 * seed), "R": vector(2 * seed + 1)}
        return self.post("/v1/enrollments", self.enrolment(session["token"], vectors), 201)

    def verdict(self, subject_ref: str | None = None, **changes: Any) -> JsonObject:
        """The next signed verdict of this device."""
        self.seq += 1
        accepted = {"subject_ref": subject_ref, "hand": "L"} if subject_ref else {}
        verdict = Verdict(
            txn_id=os.urandom(16).hex(),
            gate_id=self.facts["gate_id"],
            dbd_id=self.facts["dbd_id"],
            nonce_b64=b64_encode(bytes(16)),
            issued_at_ms=self.cloud.clock.ms,
            ttl_ms=5000,
            decided_at_ms=self.cloud.clock.ms,
            device_id=self.device_id,
            result=VerdictResult.MATCH if subject_ref else VerdictResult.NO_MATCH,
            verdict_seq=self.seq,
            prev_ref=self.last_ref,
            score_q=9000,
            margin_q=3000,
            quality_q=80,
            pad=Pad("pass", "m", 9000),
            attempts=1,
            model_id=MODEL_ID,
            thr_id="t",
            gallery=GalleryMark("s", 1, 0, "0" * 16),
            **accepted,
        )
        wrapper = sign_object(Kind.VERDICT, verdict.to_obj() | changes, self.verdict_key)
        self.last_ref = object_ref(wrapper)
        return wrapper

    def upload(self, *items: object) -> Any:
        return self.post("/v1/verdicts/batch", {"items": list(items)})


def decision(verdict: JsonObject, key: SigningKey, **changes: Any) -> JsonObject:
    """A validator's signed decision on a signed verdict."""
    inner = verdict["verdict"]
    made = Decision(
        inner["txn_id"],
        inner["gate_id"],
        inner["dbd_id"],
        inner["nonce_b64"],
        object_ref(verdict),
        "ok",
        "LIBERAR",
        True,
        1,
        inner["decided_at_ms"] + 5,
    )
    return sign_object(Kind.DECISION, made.to_obj() | changes, key)


def passage(verdict: JsonObject, key: SigningKey, **changes: Any) -> JsonObject:
    """A validator's signed passage for a signed verdict."""
    inner = verdict["verdict"]
    made = Passage(
        inner["txn_id"],
        inner["dbd_id"],
        inner["gate_id"],
        object_ref(verdict),
        True,
        "giro",
        inner["decided_at_ms"] + 900,
        1,
    )
    return sign_object(Kind.PASSAGE, made.to_obj() | changes, key)


def vector(seed: int) -> bytes:
    """A unit vector; different seeds are nearly orthogonal."""
    values = np.random.default_rng(seed).standard_normal(512)
    return (values / np.linalg.norm(values)).astype("<f4").tobytes()


def keys_of(cloud: Cloud) -> dict[str, PublicKey]:
    """By kid, the keys that the service publishes."""
    listed = cloud.send("GET", "/v1/keys").json()["keys"]
    return {key["kid"]: PublicKey.from_b64(key["pub_b64"]) for key in listed}


def code_of(response: httpx.Response) -> str:
    code: str = response.json()["code"]
    return code
