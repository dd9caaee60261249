"""A registrar of the tests' own making: it answers registrations well, or as a test has it."""

import asyncio
import hashlib
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from device.config.config import (
    CameraSection,
    CloudSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
)
from device.platform.clock import SystemClock
from device.provisioning.online import Provisioned, RegistrationFacts, Surroundings, provision
from link1.canonical import JsonObject
from link1.keys import PublicKey, SealKey, SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object, verify_object

TOKEN = "prov_0123456789abcdef"
NOW_MS = SystemClock().wall_ms()
ROOT, BUNDLE, POST = (SigningKey.from_seed(bytes([n]) * 32) for n in (11, 12, 13))
GALLERY, DBD = (SigningKey.from_seed(bytes([n]) * 32) for n in (14, 15))
MAIL = SealKey.from_seed(bytes([16]) * 32)
ASKED = RegistrationFacts("gate-7-left", "gate-7", "dbd-7", True, "0.1.0", "m-test")


def spelt(secret: bytes) -> tuple[bytes, ...]:
    """Every way in which a secret could get into a file or a message; base64 without what its end may add."""
    return secret, secret.hex().encode(), *(code(secret)[:40] for code in (b64encode, urlsafe_b64encode))


def key_obj(key: PublicKey, **more: Any) -> JsonObject:
    return {"kid": key.kid, "alg": "ed25519", "pub_b64": key.b64, **more}


def good_answer(body: JsonObject) -> JsonObject:
    """What the service answers to a registration body."""
    later_ms = NOW_MS + 10**9
    policy: JsonObject = {
        "v": 1,
        "config_seq": 1,
        "thresholds": {
            "thr_id": "t1",
            "accept_q": 6000,
            "margin_q": 300,
            "quality_q": 40,
            "pad_q": 5000,
            "enrol_quality_q": 60,
        },
        "attempts": 3,
        "decision_timeout_ms": 5000,
        "passage_timeout_ms": 10000,
        "gallery_ttl_ms": 21600000,
    }
    config = sign_object(Kind.CONFIG, policy, BUNDLE)
    config["signer_cert_b64"] = SignerCertificate.issue(
        SignerPurpose.BUNDLE, BUNDLE.public, later_ms, ROOT
    ).b64
    return {
        "device": {
            "device_id": body["device_id"],
            "kind": "access",
            "status": "active",
            "gate_id": body["gate_id"],
            "dbd_id": body["dbd_id"],
            "keys": [
                {"purpose": key["purpose"], "alg": "ed25519", "kid": PublicKey.from_b64(key["pub_b64"]).kid}
                for key in body["keys"]
            ],
        },
        "tenant_id": "11111111-2222-4333-8444-555555555555",
        "roots": [key_obj(ROOT.public)],
        "keys": [
            key_obj(
                GALLERY.public,
                use=["gallery", "device_status"],
                not_before="2026-01-01T00:00:00.000Z",
                not_after=None,
            )
        ],
        "mail": {
            "service_id": "svc",
            "seal_key": {"kid": MAIL.kid, "alg": "x25519", "pub_b64": MAIL.public.b64},
            "signer_certs": [SignerCertificate.issue(SignerPurpose.POST, POST.public, later_ms, ROOT).b64],
            "inbox_next_seq": 1,
        },
        "gallery": {"stream": "t1.test", "epoch": 1},
        "dbd_sign_key": key_obj(DBD.public),
        "terms_version": "v1",
        "config": config,
    }


def respond(status: int, body: JsonObject, media_type: str = "application/json") -> httpx.Response:
    """An answer whose body is still to be read, as it comes from a network."""
    stream = httpx.ByteStream(json.dumps(body).encode())
    return httpx.Response(status, stream=stream, headers={"Content-Type": media_type})


class Registrar:
    """Stands in for the service inside httpx; `script` may replace the answer to the n-th request."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.script: dict[int, Callable[[httpx.Request], httpx.Response]] = {}
        self.spoil: Callable[[JsonObject], None] = lambda _answer: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        number = len(self.bodies)
        self.bodies.append(request.content)
        self.keys.append(request.headers["Idempotency-Key"])
        if number in self.script:
            return self.script[number](request)
        body = json.loads(request.content)
        proof = body.pop("proof")
        verdict_key = PublicKey.from_b64(body["keys"][0]["pub_b64"])
        obj = verify_object(Kind.REGISTER, proof, verdict_key)
        assert obj == body | {"token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
        assert request.headers["Authorization"] == f"Provisioning {TOKEN}"
        answer = good_answer(body)
        self.spoil(answer)
        return respond(201 if number == 0 else 200, answer)


@pytest.fixture
def registrar(monkeypatch: pytest.MonkeyPatch) -> Registrar:
    service = Registrar()

    def inside(**_options: Any) -> httpx.MockTransport:
        return httpx.MockTransport(service)

    monkeypatch.setattr("cloud_client.client.httpx.AsyncHTTPTransport", inside)
    return service


def settings(folder: Path) -> DeviceConfig:
    return DeviceConfig(
        DeviceSection(ASKED.device_id, ASKED.gate_id, ASKED.dbd_id, folder / "state", folder / "run"),
        CameraSection("/dev/video0"),
        LinkSection("/dev/ttyACM0"),
        CloudSection("http://127.0.0.1:8710"),
    )


def carry_out(folder: Path, token: str = TOKEN, asked: RegistrationFacts = ASKED) -> Provisioned:
    async def no_wait(_seconds: float) -> None:
        return None

    around = Surroundings(SystemClock(), lambda: 0.0, sleep=no_wait)
    config = settings(folder)
    return asyncio.run(provision(config, folder / "etc" / "device.toml", asked, token, around))
