"""The whole way over real HTTP: provisioned by the command, carried by palm-syncd's lanes, kept by the
reference server."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloud_client.client import CloudClient, ServerAddress
from device.config.config import AttestSection, load_config, write_config
from device.enrolment.consent import REQUIRED, Asked
from device.enrolment.outbox import EnrolmentAnswer
from device.enrolment.session import read_redeemed, write_enrolment
from device.platform.clock import SystemClock
from device.syncd.main import carry
from device.syncd.tasks import CoreLine
from device.trust.attestation import read_attested
from device.trust.keystore import KeyStore
from device.trust.trust import Trust, load_trust, with_service_keys
from device.values.recognition import PalmCapture
from link1.canonical import JsonObject, b64_encode, canonical_bytes
from link1.objects import Pad, Request, Verdict
from link1.signed import Kind, sign_object
from tests.device.carrier_setting import Core, running_core, vector
from tests.device.factory import make_board, make_ca
from tests.device.reference_cloud import DBD_ID, DBD_KEY, GATE_ID, Server, running_server
from tests.device.syncd.test_carrier_lanes import settled
from tests.link1.cable import decision_for, verdict_for
from tests.until import until_async

MODEL_ID = "m-test"
CLOCK = SystemClock()


@pytest.fixture
def server(server: Server) -> Server:
    """The server, and a tenant of the test's own in it."""
    server.enter_new_tenant()
    return server


@dataclass
class Device:
    """A provisioned device's folder."""

    folder: Path
    keys: KeyStore
    trust: Trust
    told: dict[str, Any]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.manifest.load_manifest", lambda _dir: SimpleNamespace(model_id=MODEL_ID))
    monkeypatch.setattr("models.manifest.shipped_model_dir", lambda: Path("/nowhere"))


@pytest.fixture
def device(server: Server, tmp_path: Path) -> Device:
    return provisioned(server, tmp_path, "gate-7-left")


def provisioned(server: Server, folder: Path, device_id: str, token: str = "") -> Device:
    told = server.provision(folder, device_id, token=token)
    config = load_config(folder / "device.toml")
    trust, keys = load_trust(config.trust_path), KeyStore.open(config.keys_dir)
    return Device(folder, keys, trust, told)


def test_provisioning_attests_the_keys_where_the_configuration_has_a_factorys_chain(
    server: Server, tmp_path: Path
) -> None:
    server.operate("factory-ca", "add", str(make_ca(tmp_path)))
    token = server.token("gate-7-left")
    config = load_config(provisioned(server, tmp_path, "gate-7-left", token).folder / "device.toml")
    section = AttestSection(make_board(tmp_path), f"file:{tmp_path / 'board.key'}")
    write_config(tmp_path / "device.toml", replace(config, attest=section))
    again = provisioned(server, tmp_path, "gate-7-left", token)
    (listed,) = server.get("/v1/devices")["data"]
    assert listed["trust"] == {"attest_level": "x509", "verified": True}
    assert read_attested(config.device.state_dir, again.keys) is not None


@asynccontextmanager
async def living(device: Device, server: Server) -> AsyncIterator[Core]:
    """The core on the device's state, and the carrier beside it."""
    trust, keys = device.trust, device.keys
    assert trust.gallery is not None
    async with running_core(
        device.folder / "state",
        stream=trust.gallery[0],
        epoch=trust.gallery[1],
        model_id=MODEL_ID,
        device_id=trust.device_id,
        key_of=trust.gallery_key,
        status_key=lambda kid: trust.service_key(kid, "device_status"),
        data_key=keys.data_key,
        verdict_kid=keys.verdict.kid,
    ) as core:
        client = CloudClient(ServerAddress.parse(server.url), keys.http, CLOCK.wall_ms)
        task = asyncio.create_task(
            carry(client, lambda: CoreLine(core.socket), CLOCK, lambda: 0.99999, lambda _text: None)
        )
        try:
            yield core
        finally:
            task.cancel()
            await asyncio.wait([task])
            await client.close()


async def enrol(core: Core, server: Server, name: str, seed: int) -> tuple[str, EnrolmentAnswer]:
    """A person enrolled on this device; their subject_id, and the answer that came back to the core."""
    subject_id = await asyncio.to_thread(server.person, name)
    session = await asyncio.to_thread(server.session, subject_id)
    answers: list[EnrolmentAnswer] = []
    hand = {
        "hand": "L",
        "vector_b64": b64_encode(vector(seed)),
        "quality_q": 80,
        "pad": {"res": "pass", "mech": "test", "score_q": 9000},
    }
    body = {"token": session["token"], "model_id": MODEL_ID, "hands": [hand], "consents": []}
    assert core.enrolments.outbox.submit(
        bytearray(canonical_bytes(body)), answers.append, CLOCK.monotonic_ms()
    )
    await until_async(lambda: answers != [])
    return subject_id, answers[0]


async def pass_gate(core: Core, device: Device) -> tuple[str, JsonObject]:
    """A rejecting verdict in the journal; its ref, and the validator's decision on it."""
    now_ms = CLOCK.wall_ms()
    asked = Request(os.urandom(16).hex(), GATE_ID, DBD_ID, b64_encode(os.urandom(32)), now_ms, 5_000)
    about = {"device_id": device.trust.device_id, "model_id": MODEL_ID, "decided_at_ms": now_ms}

    def build(seq: int, prev_ref: str) -> JsonObject:
        verdict = verdict_for(asked, seq, accept=False, prev_ref=prev_ref, **about)
        return sign_object(Kind.VERDICT, verdict.to_obj(), device.keys.verdict)

    stored = await core.in_store(core.journal.append_verdict, asked.txn_id, "0" * 32, build)
    core.api.verdict_waiting.set()
    blocked = {"reason": "not_recognised", "outcome": "BLOQUEAR", "actuated": False}
    verdict = Verdict.from_obj(stored.wrapper["verdict"])
    decision = decision_for(verdict, stored.ref, stored.seq, **blocked, decided_at_ms=now_ms)
    return stored.ref, sign_object(Kind.DECISION, decision.to_obj(), DBD_KEY)


def record(server: Server, ref: str) -> dict[str, Any] | None:
    answer = server.office.get(f"{server.url}/v1/verdicts/{ref}")
    return answer.json() if answer.is_success else None


async def told(ask: Callable[[], object], expected: object) -> float:
    """Wait until the service answers so; how long that took."""
    begun = asyncio.get_running_loop().time()
    async with asyncio.timeout(15):
        while await asyncio.to_thread(ask) != expected:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return asyncio.get_running_loop().time() - begun


async def reconciled(server: Server, ref: str, to: str) -> float:
    """Wait until the service says so of a verdict; how long that took."""

    def state() -> object:
        found = record(server, ref)
        return found and found["record"]["reconciliation"]

    return await told(state, to)


def test_provisioning_pins_what_the_service_is_and_may_be_repeated(
    server: Server, tmp_path: Path, device: Device
) -> None:
    assert device.told["root_kid"] == server.operate("root", "show")["kid"]
    assert device.told["dbd_kids"] == [DBD_KEY.kid]
    token = server.token(device.trust.device_id)
    again = provisioned(server, tmp_path, device.trust.device_id, token)
    assert replace(again.trust, pinned_at_ms=0, obj={}) == replace(device.trust, pinned_at_ms=0, obj={})
    listed = [
        item for item in server.get("/v1/devices")["data"] if item["device_id"] == device.trust.device_id
    ]
    assert [item["status"] for item in listed] == ["active"]


async def test_enrolled_carried_recognised_erased_and_gone_within_a_second(
    server: Server, device: Device
) -> None:
    async with living(device, server) as core:
        subject_id, answer = await enrol(core, server, "Ana", seed=1)
        assert (answer.status, json.loads(answer.body)["status"]) == (201, "completed")
        await until_async(lambda: core.gallery.count == 1)
        probe = np.frombuffer(vector(1), "<f4")[None].astype(np.float32)
        assert core.gallery.search(probe).best is not None

        receipt = await asyncio.to_thread(server.erase, subject_id)
        tombstone_s = await until_async(lambda: core.gallery.count == 0)
        assert tombstone_s < 1.0
        assert core.gallery.search(probe).best is None

        def propagation() -> str:
            return str(server.get(f"/v1/erasure-receipts/{receipt['receipt_id']}")["propagation"]["status"])

        assert await told(propagation, "complete") < 1.0


async def test_a_short_code_becomes_a_session_and_consent_on_the_screen_is_recorded(
    server: Server, device: Device
) -> None:
    async with living(device, server) as core:
        person = await asyncio.to_thread(server.post, "/v1/subjects", {"external_ref": "Eva"})
        created = await asyncio.to_thread(server.session, person["subject_id"])
        answers: list[EnrolmentAnswer] = []
        for code in (created["short_code"].lower(), "ZZZZ-ZZZZ"):
            body = bytearray(canonical_bytes({"short_code": code}))
            core.redeems.outbox.submit(body, answers.append, CLOCK.monotonic_ms())
        await until_async(lambda: len(answers) == 2)
        assert (answers[1].status, answers[1].code) == (403, "enrollment_session_invalid")
        session = read_redeemed(answers[0].body)
        assert (session.session_id, session.token) == (created["session_id"], created["token"])
        assert (session.hands_required, session.terms_version) == (("L",), "v1")

        capture = PalmCapture("L", np.frombuffer(vector(78), "<f4"), 80, Pad("pass", "test", 9000), 0)
        for consents in ((), Asked("v1").accepted("v1", REQUIRED, CLOCK.wall_ms())):
            enrolment = write_enrolment(session.token, MODEL_ID, [capture], consents)
            core.enrolments.outbox.submit(enrolment, answers.append, CLOCK.monotonic_ms())
        await until_async(lambda: len(answers) == 4)
        assert [(answer.status, answer.code) for answer in answers[2:]] == [
            (422, "consent_required"),
            (201, ""),
        ]
        subject = await asyncio.to_thread(server.get, f"/v1/subjects/{person['subject_id']}")
        assert subject["consents"] == [{"purpose": word, "status": "granted"} for word in REQUIRED]
        assert subject["enrollment"]["hands"] == ["L"]


async def test_a_palm_that_resembles_anothers_is_held_for_review_and_a_used_token_refused(
    server: Server, device: Device
) -> None:
    async with living(device, server) as core:
        _, first = await enrol(core, server, "Bia", seed=77)
        _, second = await enrol(core, server, "Caio", seed=77)
        assert (first.status, second.status) == (201, 202)
        answers: list[EnrolmentAnswer] = []
        body = {"token": "x" * 43, "model_id": MODEL_ID, "hands": [], "consents": []}
        core.enrolments.outbox.submit(bytearray(canonical_bytes(body)), answers.append, CLOCK.monotonic_ms())
        body = {"token": "x" * 43, "failed": "capture_rejected"}
        core.enrolments.outbox.submit(bytearray(canonical_bytes(body)), answers.append, CLOCK.monotonic_ms())
        await until_async(lambda: len(answers) == 2)
        assert [(answer.status, answer.code) for answer in answers] == [
            (422, "validation_failed"),
            (403, "enrollment_session_invalid"),
        ]


async def test_a_verdict_and_what_comes_later_are_found_again_with_a_proof(
    server: Server, device: Device
) -> None:
    async with living(device, server) as core:
        ref, decision = await pass_gate(core, device)
        assert await reconciled(server, ref, "awaiting_decision") < 1.5
        await core.in_store(core.journal.record_decision, ref, decision, awaits_passage=False)
        core.api.verdict_waiting.set()
        assert await reconciled(server, ref, "complete") < 1.5
        proof = await asyncio.to_thread(record, server, ref)
        assert proof is not None
        assert proof["signed_decision"] == decision
        assert proof["verification"]["device_verdict_key"]["kid"] == device.keys.verdict.kid
        assert await core.in_store(core.journal.pending_uploads) == 0


async def test_a_decision_that_the_service_does_not_take_is_refused_once_and_kept(
    server: Server, device: Device
) -> None:
    async with living(device, server) as core:
        ref, decision = await pass_gate(core, device)
        decision["decision_obj"]["reason"] = "ok"
        await core.in_store(core.journal.record_decision, ref, decision, awaits_passage=False)
        core.api.verdict_waiting.set()
        await reconciled(server, ref, "awaiting_decision")
        await settled(core)


async def test_a_server_that_is_killed_and_comes_back_gets_everything_once(tmp_path: Path) -> None:
    with running_server(tmp_path / "own") as own:
        mine = await asyncio.to_thread(provisioned, own, tmp_path / "mine", "device-outage")
        async with living(mine, own) as core:
            first, _ = await pass_gate(core, mine)
            await reconciled(own, first, "awaiting_decision")
            await until_async(lambda: core.heard.links != [] and core.heard.links[-1].online)
            own.stop(kill=True)
            refs = [(await pass_gate(core, mine))[0] for _ in range(5)]
            await until_async(lambda: not core.heard.links[-1].online)
            await asyncio.to_thread(own.start)
            for ref in refs:
                await reconciled(own, ref, "awaiting_decision")
            await until_async(lambda: core.heard.links[-1].online)
            listed = await asyncio.to_thread(own.get, "/v1/verdicts")
            assert len(listed["data"]) == 6


async def test_a_new_epoch_is_taken_by_snapshot(server: Server, device: Device) -> None:
    async with living(device, server) as core:
        await enrol(core, server, "Davi", seed=5)
        place = ("--tenant", server.tenant, "--mode", "test")
        renewed = await asyncio.to_thread(server.operate, "epoch", "new", *place, "--model-id", MODEL_ID)
        await until_async(lambda: core.gallery.position.epoch == renewed["epoch"])
        await until_async(lambda: core.gallery.position.seq == renewed["seq"])


async def test_a_revoked_device_hears_so_and_its_wipe_is_confirmed(server: Server, device: Device) -> None:
    async with living(device, server) as core:
        await until_async(lambda: core.heard.statuses != [])
        path = f"/v1/devices/{device.trust.device_id}/revoke"
        await asyncio.to_thread(server.post, path, {"reason": "stolen"})
        await until_async(lambda: core.heard.wiped != [])
        listed = await asyncio.to_thread(server.get, "/v1/devices")
        assert [item["status"] for item in listed["data"]] == ["wiped"]


async def test_a_rotated_key_is_learnt_when_it_is_published_in_time_and_not_later(
    server: Server, device: Device
) -> None:
    before = {key.public.kid for key in device.trust.keys}
    announced = server.operate("signer", "rotate", "--use", "gallery", "--in-s", "3600")
    now_ms = CLOCK.wall_ms()

    async with living(device, server) as core:
        await until_async(lambda: core.heard.keys != [])
        published = core.heard.keys[0]
        learnt = with_service_keys(device.trust, published, now_ms)
        assert {key.public.kid for key in learnt.keys} == before | {announced["kid"]}
        assert learnt.gallery_key(announced["kid"]) is not None
        late = with_service_keys(device.trust, published, now_ms + 2 * 3_600_000)
        assert {key.public.kid for key in late.keys} == before
        # Bringing the list again changes nothing.
        assert with_service_keys(learnt, published, now_ms + 2 * 3_600_000).obj == learnt.obj
