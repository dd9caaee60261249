"""What the files of a running server hold of a person: before an erasure nothing readable, after it nothing.

A whole journey over real HTTP; then every file of the data directory is searched byte by byte, the
write-ahead log included, for every value of the person in every spelling, and for the very ciphertexts and
MACs from the tables.
"""

import base64
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cloud_client.http_signature import new_nonce
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_process import Board, Running, start
from tests.until import until
from tools.rig.bench.cloud_server import enrolment_body

pytestmark = on_sqlite

EXTERNAL_REF = "account-of-Zacarias-0042"
ONBOARD_REF = "onboard+of+Zacarias/0042"
CPF = "52998224725"


@pytest.fixture
def journey(tmp_path: Path) -> Iterator["Journey"]:
    with start(tmp_path / "data", tmp_path / "server.log", None) as running:
        yield Journey(running)


class Journey:
    """A person who is enrolled, passes, and is looked at; everything secret or personal that was said."""

    def __init__(self, running: Running) -> None:
        self.running = running
        tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        self.partner = running.partner(tenant)
        self.board = Board(running, tenant)
        self.keys: list[str] = []
        body = {"external_ref": EXTERNAL_REF, "cpf": CPF, "onboard_ref": ONBOARD_REF}
        self.person = self.post("/v1/subjects", body)
        self.subject_id: str = self.person["subject_id"]
        wanted = {"external_ref": EXTERNAL_REF, "hands_required": ["L", "R"]}
        self.session = self.post("/v1/enrollment-sessions", wanted)
        rng = np.random.default_rng(int(time.time()))
        vectors = rng.standard_normal((2, 512))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = [vector.astype("<f4") for vector in vectors]
        self.enrol()
        self.partner.get("/v1/subjects", params={"external_ref": EXTERNAL_REF}).raise_for_status()
        self.partner.get("/v1/subjects", params={"cpf": CPF})
        self.partner.get(f"/v1/subjects/{self.subject_id}").raise_for_status()
        self.post("/v1/subjects", {"external_ref": EXTERNAL_REF, "cpf": CPF}, 409)
        self.post("/v1/subjects", {"external_ref": CPF}, 422)
        self.board.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0").raise_for_status()
        self.board.send("GET", "/v1/gallery/snapshot").raise_for_status()

    def post(self, path: str, body: dict[str, Any], status: int = 201) -> dict[str, Any]:
        self.keys.append(f"key-of-Zacarias-{new_nonce()}")
        answer = self.partner.post(path, json=body, headers={"Idempotency-Key": self.keys[-1]})
        assert answer.status_code == status, answer.text
        content: dict[str, Any] = answer.json()
        return content

    def enrol(self) -> None:
        vectors = {hand: vector.tobytes() for hand, vector in zip("LR", self.vectors, strict=True)}
        body = enrolment_body(self.session["token"], vectors)
        self.board.send("POST", "/v1/enrollments", json.dumps(body).encode()).raise_for_status()

    def said(self) -> dict[str, bytes]:
        """What must not be readable in any file, erased or not: by name."""
        secret = self.partner.headers["Authorization"].removeprefix("Bearer ")
        values = {
            "external_ref": EXTERNAL_REF,
            "onboard_ref": ONBOARD_REF,
            "cpf": CPF,
            "token": self.session["token"],
            "short_code": self.session["short_code"],
            "short_code without the hyphen": self.session["short_code"].replace("-", ""),
            "api key": secret.rpartition("_")[2],
            **{f"idempotency key {number}": key for number, key in enumerate(self.keys)},
        }
        needles = {name: value.encode() for name, value in values.items()}
        for name, value in values.items():
            encoded = base64.b64encode(value.encode()).rstrip(b"=")
            needles |= {f"{name} in base64": encoded, f"{name} in hex": value.encode().hex().encode()}
        for number, vector in enumerate(self.vectors):
            for spelling in ("<f4", "<f2", "<f8", ">f4"):
                needles[f"vector {number} as {spelling}"] = vector.astype(spelling).tobytes()[16:48]
            text = base64.b64encode(vector.tobytes())
            needles[f"vector {number} in base64"] = text[400:440]
            needles[f"vector {number} as JSON"] = str(float(vector[7])).encode()
        return needles

    def stored(self) -> dict[str, bytes]:
        """What the tables hold about the person: ciphertexts, MACs, hashes."""
        questions = {
            "subjects": "SELECT external_ref_mac, cpf_mac, cpf_ct, person_key_ct, refs_ct FROM subjects",
            "sessions": "SELECT session_id FROM sessions",
            "consents": "SELECT consent_id FROM consents",
            "templates": "SELECT template_id, vector_ct, entry_digest FROM templates",
            "deltas": "SELECT salt, entry_ct FROM deltas WHERE entry_ct IS NOT NULL",
            "idempotency": "SELECT answer_ct, key_mac FROM idempotency WHERE subject_id IS NOT NULL",
        }
        found: dict[str, bytes] = {}
        database = sqlite3.connect(self.running.data / "cloud.db")
        database.row_factory = sqlite3.Row
        for table, question in questions.items():
            rows = database.execute(question).fetchall()
            assert rows, table
            for number, row in enumerate(rows):
                for name in row.keys():  # noqa: SIM118 - a Row iterates over its values
                    value = row[name]
                    found[f"{table}.{name} {number}"] = value if isinstance(value, bytes) else value.encode()
        database.close()
        return found

    def log_is_emptied(self) -> None:
        """The write-ahead log is emptied right after the answer; wait for that."""
        log = self.running.data / "cloud.db-wal"
        until(lambda: not log.exists() or not log.stat().st_size)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.running.data.rglob("*") if path.is_file()}

    def found(self, needles: dict[str, bytes]) -> list[str]:
        return [
            f"{name} in {file}"
            for file, content in self.files().items()
            for name, needle in needles.items()
            if needle in content
        ]


def test_the_store_alone_gives_nothing_back(journey: Journey) -> None:
    assert (journey.running.data / "cloud.db-wal").stat().st_size > 0
    assert journey.found(journey.said()) == []


def test_after_an_erasure_nothing_is_left(journey: Journey) -> None:
    needles = journey.said() | journey.stored()
    # The seal proves nothing if the needles would not be found.
    assert {line.split(".")[0] for line in journey.found(journey.stored())} >= {"subjects", "templates"}
    path, key = f"/v1/subjects/{journey.subject_id}", {"Idempotency-Key": "erase-Zacarias"}
    answer = journey.partner.delete(path, headers=key).raise_for_status()
    needles["the key of the erasure"] = b"erase-Zacarias"
    journey.log_is_emptied()
    assert journey.found(needles) == []
    # The receipt has the id (as a column and in the signed object), the tombstone the pseudonym.
    everything = b"".join(journey.files().values())
    assert everything.count(journey.subject_id.encode()) == 2
    assert everything.count(journey.person["subject_ref"].encode()) == 1
    assert everything.count(bytes.fromhex(journey.subject_id.replace("-", ""))) == 0
    # The tombstone is deleted after seven days; the receipt stays.
    journey.running.palmctl("sweep", "--now", "2099-01-01T00:00:00Z")
    journey.log_is_emptied()
    everything = b"".join(journey.files().values())
    assert everything.count(journey.person["subject_ref"].encode()) == 0
    assert everything.count(journey.subject_id.encode()) == 2
    assert journey.partner.get(f"/v1/erasure-receipts/{answer.json()['receipt_id']}").status_code == 200
    journey.running.process.terminate()
    journey.running.process.communicate(timeout=15)
    assert journey.found(needles) == []


def test_revoking_the_enrollment_consent_destroys_the_palms(journey: Journey) -> None:
    stored = journey.stored()
    needles = {name: needle for name, needle in stored.items() if name.startswith(("templates", "deltas"))}
    assert len(journey.found(needles)) >= 6
    path = f"/v1/subjects/{journey.subject_id}/consents/enrollment"
    journey.partner.delete(path).raise_for_status()
    journey.log_is_emptied()
    assert journey.found(needles) == []
    assert journey.found(journey.said()) == []


def test_nothing_personal_is_logged(journey: Journey) -> None:
    running, partner = journey.running, journey.partner
    partner.delete(f"/v1/subjects/{journey.subject_id}").raise_for_status()
    bad = {"Authorization": f"Bearer svc_test_{EXTERNAL_REF}", "X-Request-Id": f"not {EXTERNAL_REF}"}
    httpx.get(f"{running.url}/v1/subjects?external_ref={EXTERNAL_REF}", headers=bad, trust_env=False)
    httpx.post(f"{running.url}/v1/{EXTERNAL_REF}", content=CPF, trust_env=False)
    running.process.terminate()
    out, _ = running.process.communicate(timeout=15)
    log = running.log.read_bytes() + out.encode()
    assert b"POST /v1/subjects 201" in log
    assert b"POST /v1/enrollments 201" in log
    assert b"POST (no route) 404" in log
    shown = {name for name, needle in journey.said().items() if needle in log}
    assert shown == set()
    for value in (
        journey.subject_id,
        journey.session["session_id"],
        journey.person["subject_ref"],
        "?",
        "Bearer",
    ):
        assert value.encode() not in log
