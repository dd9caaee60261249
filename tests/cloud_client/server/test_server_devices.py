"""The device surface: registration, revocation and wipe, attestation, signed requests."""

import json
import os

import pytest

from cloud_client.reference_server.contract.words import RESERVED_DEVICE_IDS
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops.offline_registration import answer_request
from link1.canonical import b64_encode, canonical_bytes
from link1.keys import PublicKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object, verify_object
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of, keys_of


def status_of(device: SimDevice) -> dict[str, object]:
    wrapper = device.get("/v1/devices/self/status")
    key = keys_of(device.cloud)[wrapper["signer_kid"]]
    return verify_object(Kind.DEVICE_STATUS, wrapper, key)


def test_registration_pins_what_a_device_needs(tenant: Tenant, partner: Partner) -> None:
    dbd = tenant.add_dbd()
    device = SimDevice(tenant, "gate-1")
    token = tenant.token("gate-1")
    first = device.register(token)
    answer = first.json()
    root = PublicKey.from_b64(answer["roots"][0]["pub_b64"])
    now_ms = tenant.cloud.clock.ms
    config = dict(answer["config"])
    certificate = SignerCertificate.from_b64(config.pop("signer_cert_b64"))
    signer = certificate.check(SignerPurpose.BUNDLE, [root], now_ms)
    assert verify_object(Kind.CONFIG, config, signer)["config_seq"] == 1
    (mail_cert,) = answer["mail"]["signer_certs"]
    SignerCertificate.from_b64(mail_cert).check(SignerPurpose.POST, [root], now_ms)
    assert answer["dbd_sign_key"]["kid"] == dbd.kid
    assert answer["tenant_id"] == tenant.tenant_id
    again = device.register(token)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["device"]["keys"] == answer["device"]["keys"]
    (listed,) = partner.get("/v1/devices")["data"]
    assert listed["gallery"] == {
        "stream": tenant.environment("test").stream,
        "epoch": 0,
        "seq": 0,
        "synced_at": None,
    }
    assert listed["health"] == ["KEY_UNATTESTED"]


@pytest.mark.parametrize("device_id", sorted(RESERVED_DEVICE_IDS))
def test_no_device_has_a_reserved_id_from_a_stick_either(
    tenant: Tenant, partner: Partner, device_id: str
) -> None:
    """Requests about it would go elsewhere: clients make ``/v1/revoke`` of ``/v1/devices/../revoke``."""
    device, token = SimDevice(tenant, device_id), "t" * 32
    content = canonical_bytes(
        {
            "v": 1,
            "type": "palm-access.registration.request",
            "token": token,
            "body": device.registration(token),
        }
    )
    with pytest.raises(OperatorError, match=r"/device_id \(reserved\)"):
        tenant.cloud.operate(
            lambda tx, vault, now: answer_request(
                tx,
                vault,
                tenant.environment("test"),
                content,
                verdict_kid=device.verdict_key.kid,
                now_ms=now,
            )
        )
    assert partner.get("/v1/devices")["data"] == []


def test_bad_registrations(tenant: Tenant) -> None:
    device = SimDevice(tenant, "gate-1")
    token = tenant.token("gate-1")
    good = device.registration(token)

    def answer(body: object, with_token: str = token) -> str:
        return code_of(device.register(with_token, body))  # type: ignore[arg-type]

    assert answer(good, "x" * 43) == "unauthenticated"
    assert answer(device.registration("y" * 43)) == "unauthenticated"
    assert answer(good | {"gate_id": "other"}) == "unauthenticated"
    assert answer(good | {"extra": 1}) == "validation_failed"
    assert answer(good | {"keys": [good["keys"][0], good["keys"][0]]}) in {
        "unauthenticated",
        "validation_failed",
    }
    elsewhere = SimDevice(tenant, "gate-2")
    assert answer(elsewhere.registration(token)) == "unauthenticated"
    # A signature by another key than the http key in the body.
    other = SimDevice(tenant, "gate-1")
    device.http_key, real = other.http_key, device.http_key
    assert answer(good) == "unauthenticated"
    device.http_key = real
    tenant.cloud.clock.forward(s=3600)
    assert answer(good) == "unauthenticated"


def test_no_spelling_of_a_registration_does_without_the_http_keys_signature(tenant: Tenant) -> None:
    """What one JSON reader takes for the same value as another, and what a strict one refuses."""
    device = SimDevice(tenant, "gate-1")
    token = tenant.token("gate-1")
    good = device.registration(token)
    fact = "passage_sensor"
    zero = sign_object(Kind.REGISTER, good["proof"]["register_obj"] | {fact: 0}, device.verdict_key)
    for proof, spelt in ((good["proof"], "false"), (zero, "0"), (zero, "0.0"), (zero, "-0.0")):
        text = json.dumps(good | {"proof": proof})
        head, middle, tail = text.rpartition(f'"{fact}": ')
        content = head + middle + spelt + tail.partition(",")[1] + tail.partition(",")[2]
        unsigned = tenant.cloud.run(
            tenant.cloud.http.request(
                "POST",
                "/v1/devices/register",
                headers={"Authorization": f"Provisioning {token}", "Content-Type": "application/json"},
                content=content,
            )
        )
        assert code_of(unsigned) == "unauthenticated", spelt
    assert code_of(device.register(token, good | {"proof": zero})) == "unauthenticated"


def test_a_token_registers_one_set_of_keys(tenant: Tenant) -> None:
    token = tenant.token("gate-1")
    assert SimDevice(tenant, "gate-1").register(token).status_code == 201
    assert code_of(SimDevice(tenant, "gate-1").register(token)) == "unauthenticated"
    # Another token does not let other keys take an active device's name.
    second = SimDevice(tenant, "gate-1").register(tenant.token("gate-1"))
    assert code_of(second) == "device_state_conflict"


@pytest.mark.parametrize("name", ["verdict_key", "http_key", "seal_key"])
def test_keys_are_unique_everywhere(cloud: Cloud, tenant: Tenant, name: str) -> None:
    device = tenant.device("gate-1")
    elsewhere = SimDevice(cloud.new_tenant(), "gate-9")
    setattr(elsewhere, name, getattr(device, name))
    response = elsewhere.register(elsewhere.tenant.token("gate-9"))
    assert code_of(response) == "device_state_conflict"


@pytest.mark.parametrize("device_id", ["self", "register", "attest", ".", "..", "a b", ""])
def test_reserved_names(tenant: Tenant, device_id: str) -> None:
    with pytest.raises(OperatorError):
        tenant.token(device_id)


def test_revocation_wipe_and_readmission(tenant: Tenant, partner: Partner) -> None:
    device = tenant.device("gate:1")
    revoked = partner.post("/v1/devices/gate%3A1/revoke", {"reason": "lost"}, 200)
    assert (revoked["status"], len(revoked["keys"])) == ("revoked", 2)
    partner.cloud.clock.forward(s=1)
    assert partner.post("/v1/devices/gate:1/revoke", {"reason": "stolen"}, 200) == revoked
    assert code_of(device.send("GET", "/v1/gallery/snapshot")) == "unauthenticated"
    first, second = status_of(device), status_of(device)
    wipe = first["wipe"]
    assert wipe == second["wipe"]
    assert isinstance(wipe, dict)
    assert (first["status"], wipe["reason"]) == ("revoked", "lost")
    wrong = device.send("POST", "/v1/devices/self/wiped", {"wipe_id": "0" * 32})
    assert code_of(wrong) == "device_state_conflict"
    device.post("/v1/devices/self/wiped", {"wipe_id": wipe["wipe_id"]}, 204)
    assert code_of(device.send("GET", "/v1/devices/self/status")) == "unauthenticated"
    (listed,) = partner.get("/v1/devices", status="wiped")["data"]
    assert listed["device_id"] == "gate:1"
    # The old keys are archived and open nothing; new keys make the device active again.
    again = device.register(tenant.token("gate:1"))
    assert code_of(again) == "device_state_conflict"
    tenant.device("gate:1")
    assert partner.get("/v1/devices")["data"][0]["status"] == "active"
    assert code_of(device.send("GET", "/v1/devices/self/status")) == "unauthenticated"


def test_a_revoked_device_that_never_answers_is_locked_out_in_the_end(
    tenant: Tenant, device: SimDevice, partner: Partner
) -> None:
    partner.post("/v1/devices/gate-1/revoke", {"reason": "other"}, 200)
    tenant.cloud.clock.forward(s=90 * 24 * 3600)
    assert code_of(device.send("GET", "/v1/devices/self/status")) == "unauthenticated"


def test_devices_are_found_by_their_filters(tenant: Tenant, partner: Partner) -> None:
    tenant.device("a", gate_id="north")
    tenant.device("b", kind="totem")
    assert [item["device_id"] for item in partner.get("/v1/devices", gate_id="north")["data"]] == ["a"]
    assert [item["device_id"] for item in partner.get("/v1/devices", kind="totem")["data"]] == ["b"]
    assert (
        code_of(partner.send("POST", "/v1/devices/nobody/revoke", {"reason": "lost"})) == "device_not_found"
    )
    live = tenant.partner("live").send("POST", "/v1/devices/a/revoke", {"reason": "lost"})
    assert code_of(live) == "livemode_mismatch"


def test_a_totem_has_no_gallery(tenant: Tenant) -> None:
    totem = SimDevice(tenant, "totem-1", kind="totem")
    answer = totem.register(tenant.token("totem-1"))
    assert answer.json()["gallery"] is None
    for path in ("/v1/gallery/snapshot", "/v1/gallery/deltas?epoch=1&after_seq=0"):
        assert code_of(totem.send("GET", path)) == "forbidden"


def test_attestation(device: SimDevice) -> None:
    assert device.post("/v1/devices/attest", {"level": "none", "evidence": None}) == {
        "trust": {"attest_level": "none", "verified": False}
    }
    x509 = device.send("POST", "/v1/devices/attest", {"level": "x509", "evidence": {}})
    assert code_of(x509) == "validation_failed"


def test_device_requests_are_refused_alike(tenant: Tenant, device: SimDevice) -> None:
    good = device.signed("GET", "/v1/devices/self/status", "", None)
    bad = [
        {},
        good | {"Signature": "sig1=:" + b64_encode(os.urandom(64)) + ":"},
        SimDevice(tenant, "nobody").signed("GET", "/v1/devices/self/status", "", None),
        device.signed("GET", "/v1/devices/self/status", "x=1", None),
    ]
    answers = [device.cloud.send("GET", "/v1/devices/self/status", headers=headers) for headers in bad]
    tenant.cloud.clock.forward(s=301)
    answers.append(device.cloud.send("GET", "/v1/devices/self/status", headers=good))
    assert {answer.status_code for answer in answers} == {401}
    assert len({json.dumps(answer.json() | {"instance": ""}) for answer in answers}) == 1


def test_a_device_key_is_scoped_to_its_device(tenant: Tenant, partner: Partner) -> None:
    device, other = tenant.device("gate-1"), tenant.device("gate-2")
    body = {"level": "none", "evidence": None}
    first = device.send("POST", "/v1/devices/attest", body, key="same")
    again = device.send("POST", "/v1/devices/attest", body, key="same")
    elsewhere = other.send("POST", "/v1/devices/attest", body, key="same")
    replayed = [answer.headers["idempotent-replayed"] for answer in (first, again, elsewhere)]
    assert replayed == ["false", "true", "false"]
    assert partner.get("/v1/devices", limit=1)["has_more"]


def test_proofs_cover_the_token(tenant: Tenant) -> None:
    device = SimDevice(tenant, "gate-1")
    token = tenant.token("gate-1")
    body = device.registration(token)
    stolen = dict(body["proof"]["register_obj"]) | {"token_sha256": "0" * 64}
    body["proof"] = sign_object(Kind.REGISTER, stolen, device.verdict_key)
    assert code_of(device.register(token, body)) == "unauthenticated"
