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
from link1.keys import PublicKey
from link1.signed import Kind, verify_object
from tests.device.core_makers import ROOT_KEY, registration_answer

TOKEN = "prov_0123456789abcdef"
NOW_MS = SystemClock().wall_ms()
ASKED = RegistrationFacts("gate-7-left", "gate-7", "dbd-7", True, "0.1.0", "m-test")


def spelt(secret: bytes) -> tuple[bytes, ...]:
    """Every way in which a secret could get into a file or a message; base64 without what its end may add."""
    return secret, secret.hex().encode(), *(code(secret)[:40] for code in (b64encode, urlsafe_b64encode))


def good_answer(body: JsonObject) -> JsonObject:
    """What the service answers to a registration body."""
    answer = registration_answer(root=ROOT_KEY, now_ms=NOW_MS, lasts_ms=10**9)
    answer["keys"][0]["use"] = ["gallery", "device_status"]
    answer["device"] |= {
        "device_id": body["device_id"],
        "gate_id": body["gate_id"],
        "dbd_id": body["dbd_id"],
        "keys": [
            {"purpose": key["purpose"], "alg": "ed25519", "kid": PublicKey.from_b64(key["pub_b64"]).kid}
            for key in body["keys"]
        ],
    }
    return answer


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
