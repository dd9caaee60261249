"""Mail to and from the daemon itself: a process, a pty, and a validator that carries."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

from cloud_client.reference_server.contract.sealed import check_outbox_record
from link1.bodies import MailState
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.keys import SigningKey
from link1.objects import VerdictResult
from link1.sealed import SignerCertificate, SignerPurpose, open_record
from link1.signed import Kind, sign_object
from link1.validator.desk import VerdictAnswered
from link1.validator.mail import InboxSettled, OutboxCollected
from models.manifest import load_manifest, shipped_model_dir
from tests.device.mail.mail_setting import sealed
from tests.device.status_makers import some_device_status
from tests.device.whole_device import Device, Validator, answered, pictures, until, validator_at, validator_of
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DEVICE_ID

SIGNER = SigningKey.generate()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def certificate(device: Device, purpose: SignerPurpose) -> SignerCertificate:
    return SignerCertificate.issue(purpose, SIGNER.public, now_ms() + 3_600_000, device.board.root_key)


def record(device: Device, seq: int, type_: str, body: JsonObject) -> bytes:
    to, post = device.board.device_seal_key, certificate(device, SignerPurpose.POST)
    return canonical_bytes(sealed(seq, type_, body, dst=DEVICE_ID, to=to, signer=SIGNER, certificate=post))


def config(device: Device, config_seq: int, **thresholds: Any) -> JsonObject:
    obj: JsonObject = {
        "v": 1,
        "config_seq": config_seq,
        "thresholds": asdict(load_manifest(shipped_model_dir()).thresholds) | thresholds,
        "attempts": 1,
        "decision_timeout_ms": 5_000,
        "passage_timeout_ms": 10_000,
        "gallery_ttl_ms": 21_600_000,
    }
    signed = sign_object(Kind.CONFIG, obj, SIGNER)
    return signed | {"signer_cert_b64": certificate(device, SignerPurpose.BUNDLE).b64}


async def carried(validator: Validator, seq: int, data: bytes) -> InboxSettled:
    assert validator.mail.offer(seq, data)
    validator.pump.kick()
    return await validator.wait_for(InboxSettled, lambda event: event.seq == seq)


async def collected(validator: Validator, device: Device, type_: str) -> JsonObject:
    """The next outbox record of a type, opened as the service does."""
    while True:
        event = await validator.wait_for(OutboxCollected)
        told = read_strict(event.data, max_bytes=1 << 20)
        _, ciphertext = check_outbox_record(told, device_id=DEVICE_ID, signer=device.board.verdict_key)
        word, body = open_record(told, ciphertext, device.board.mail_seal_key)
        if word == type_:
            return body


async def shown(validator: Validator, device: Device, occasion: int) -> VerdictAnswered:
    return await answered(device, validator, pictures(occasion=occasion))


async def test_configuration_by_mail_takes_effect_and_outlives_a_kill(device: Device) -> None:
    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running() as process:
            async with validator_at(port, device.board, carries_mail=True) as validator:
                await validator.wait_serving()
                said = await shown(validator, device, 9000)
                assert said.verdict.result is VerdictResult.MATCH
                settled = await carried(
                    validator,
                    1,
                    record(device, 1, "svc.config", config(device, 2, thr_id="strict", accept_q=10_000)),
                )
                assert (settled.state, settled.applied_seq) == (MailState.APPLIED, 1)
                old = record(device, 2, "svc.config", config(device, 1, thr_id="lax", accept_q=1))
                assert (await carried(validator, 2, old)).state is MailState.APPLIED
                said = await shown(validator, device, 9001)
                assert (said.verdict.result, said.verdict.thr_id) == (VerdictResult.NO_MATCH, "strict")
                sent = 0
                while sent != said.verdict.verdict_seq:
                    batch = await collected(validator, device, "svc.verdicts.batch")
                    sent = batch["items"][-1]["signed_verdict"]["verdict"]["verdict_seq"]
            process.kill()
            process.wait(20)
        with device.running():
            async with validator_at(port, device.board, carries_mail=True) as validator:
                status = (await validator.wait_serving()).status
                assert status.thr_id == "strict"
                assert status.mail.in_applied_seq == 2
                assert status.mail.out_seq >= 1
                receipt = {"device_id": DEVICE_ID, "acked_upto_seq": 1_000_000}
                await carried(validator, 3, record(device, 3, "svc.post.receipt", receipt))
                mail = (await asyncio.to_thread(device.status)).mail
                assert mail.out_acked_seq >= status.mail.out_seq


async def test_a_refused_record_stops_the_mail_and_no_passage(device: Device) -> None:
    async with validator_of(device, carries_mail=True) as validator:
        await validator.wait_serving()
        forged = config(device, 2) | {"sig_b64": config(device, 3)["sig_b64"]}
        settled = await carried(validator, 1, record(device, 1, "svc.config", forged))
        assert (settled.state, settled.code) == (MailState.REFUSED, "untrusted")
        said = await shown(validator, device, 9000)
        assert said.verdict.result is VerdictResult.MATCH
        report = await collected(validator, device, "svc.device.report")
        while not report["refused"]:
            report = await collected(validator, device, "svc.device.report")
        assert report["refused"] == [{"seq": 1, "code": "untrusted"}]


async def test_a_revocation_by_mail_destroys_the_gallery_for_good(device: Device) -> None:
    wipe = {"wipe_id": "0" * 32, "reason": "stolen"}
    status = some_device_status(
        device_id=DEVICE_ID, status="revoked", issued_at_ms=now_ms(), gallery=None, wipe=wipe
    )

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running() as process:
            async with validator_at(port, device.board, carries_mail=True) as validator:
                await validator.wait_serving()
                order = sign_object(Kind.DEVICE_STATUS, status, device.board.service_key)
                assert (
                    await carried(validator, 1, record(device, 1, "svc.device.revoke", order))
                ).state is MailState.APPLIED
                await until(lambda: "REVOKED" in device.health())
                assert (await shown(validator, device, 9000)).verdict.result is VerdictResult.NOT_READY
            process.kill()
            process.wait(20)
        with device.running():
            await until(lambda: "REVOKED" in device.health())
            assert (await asyncio.to_thread(device.status)).gallery.templates == 0


async def test_a_validator_key_that_a_bundle_revokes_is_sent_away(device: Device) -> None:
    async with validator_of(device, carries_mail=True) as validator:
        await validator.wait_serving()
        obj = {
            "v": 1,
            "bundle_seq": 1,
            "issued_at_ms": now_ms(),
            "roots": [],
            "keys": [],
            "seal_keys": [],
            "revoked_kids": [device.board.validator_key.kid],
            "dbd_keys": [],
        }
        bundle = sign_object(Kind.TRUST_BUNDLE, obj, SIGNER)
        bundle |= {"signer_cert_b64": certificate(device, SignerPurpose.BUNDLE).b64}
        validator.mail.offer(1, record(device, 1, "svc.trust.bundle", bundle))
        validator.pump.kick()
        await until(lambda: "LINK_DOWN" in device.health())
        await until(lambda: device.status().mail.in_applied_seq == 1)
