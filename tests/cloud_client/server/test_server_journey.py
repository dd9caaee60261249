"""The scenario that everything is for: enrol, pass, reconcile, erase."""

import json

import pytest

from gallery.stream import read_delta_page, read_snapshot_page, state_of
from link1.keys import PublicKey
from link1.signed import Kind, object_ref, verify_object
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, decision, vector
from tests.until import until


def gallery_key(cloud: Cloud) -> dict[str, PublicKey]:
    keys = cloud.send("GET", "/v1/keys").json()["keys"]
    return {key["kid"]: PublicKey.from_b64(key["pub_b64"]) for key in keys if "gallery" in key["use"]}


def test_enrol_pass_and_erase(cloud: Cloud, tenant: Tenant, partner: Partner) -> None:
    dbd = tenant.add_dbd()
    device = tenant.device()
    person = partner.person("p-1", cpf="52998224725", onboard_ref="tok+1")
    assert person["status"] == "pending_enrollment"
    enrolled = device.enrol(partner, person["subject_id"])
    assert enrolled["subject_ref"] == person["subject_ref"]
    person = partner.get(f"/v1/subjects/{person['subject_id']}")
    assert (person["status"], person["enrollment"]["hands"]) == ("active", ["L", "R"])
    assert person["gallery_seq"] == 2

    keys = gallery_key(cloud)
    target = "/v1/gallery/deltas?epoch=1&after_seq=0"
    page = read_delta_page(device.send("GET", target).content, keys.get)
    assert [delta.entry.vector for delta in page.deltas if delta.entry] == [vector(2), vector(3)]
    assert (page.head.seq, page.head.count, page.has_more) == (2, 2, False)
    snapshot = read_snapshot_page(device.send("GET", "/v1/gallery/snapshot").content, keys.get)
    assert snapshot.head.state == state_of(entry.sha256 for entry in snapshot.entries)
    assert snapshot.entries[0].entry.onboard_ref == "tok+1"

    verdict = device.verdict(person["subject_ref"])
    answer = device.upload({"signed_verdict": verdict, "signed_decision": decision(verdict, dbd)})
    assert answer == {"accepted": [object_ref(verdict)], "duplicates": [], "rejected": []}
    (record,) = partner.get("/v1/verdicts", reconciliation="complete")["data"]
    assert (record["subject_id"], record["external_ref"]) == (person["subject_id"], "p-1")
    proof = partner.get(f"/v1/verdicts/{record['verdict_id']}")
    assert object_ref(proof["signed_verdict"]) == record["verdict_id"]
    shown = proof["verification"]
    verify_object(
        Kind.VERDICT,
        proof["signed_verdict"],
        PublicKey.from_b64(shown["device_verdict_key"]["pub_b64"]),
    )
    verify_object(
        Kind.DECISION, proof["signed_decision"], PublicKey.from_b64(shown["dbd_sign_key"]["pub_b64"])
    )

    receipt = partner.delete(f"/v1/subjects/{person['subject_id']}")
    content = receipt["signed_receipt"]["receipt"]
    assert content["erased"] == ["templates", "cpf_hmac", "cpf_ciphertext", "external_ref", "onboard_ref"]
    assert content["retained"] == ["verdict_proofs"]
    assert content["gallery"] == {"stream": tenant.environment("test").stream, "epoch": 1, "seq": 3}
    assert receipt["propagation"]["status"] == "pending"
    page = read_delta_page(device.send("GET", target).content, keys.get)
    assert [str(delta.op) for delta in page.deltas] == ["noop", "noop", "tombstone"]
    assert page.deltas[2].subject_ref == person["subject_ref"]
    assert page.head.count == 0
    device.get("/v1/gallery/deltas?epoch=1&after_seq=3")
    later = partner.get(f"/v1/erasure-receipts/{receipt['receipt_id']}")
    assert later["propagation"] | {"fail_closed_at": ""} == {
        "status": "complete",
        "devices_total": 1,
        "devices_acknowledged": 1,
        "fail_closed_at": "",
    }
    assert later["signed_receipt"] == receipt["signed_receipt"]
    (record,) = partner.get("/v1/verdicts")["data"]
    assert "subject_id" not in record
    assert "external_ref" not in record


@on_sqlite
def test_nothing_of_an_erased_person_is_in_any_file(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    person = partner.person("zq-needle-ref", cpf="52998224725", onboard_ref="zq-needle-onboard")
    device.enrol(partner, person["subject_id"])
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    until(lambda: not (own_cloud.data.path / "cloud.db-wal").stat().st_size)
    needles = [b"zq-needle", b"52998224725", vector(2)[:64], vector(3)[:64]]
    for path in own_cloud.data.path.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [needle for needle in needles if needle in content], path


@pytest.mark.parametrize("mode", ["test", "live"])
def test_a_stranger_of_another_tenant_sees_nothing(cloud: Cloud, partner: Partner, mode: str) -> None:
    person = partner.person()
    stranger = cloud.new_tenant().partner(mode)
    response = stranger.send("GET", f"/v1/subjects/{person['subject_id']}")
    assert response.status_code == 404
    assert person["subject_id"] not in json.dumps(response.json())


def test_the_other_environment_is_told_so(tenant: Tenant, partner: Partner) -> None:
    person = partner.person()
    response = tenant.partner("live").send("GET", f"/v1/subjects/{person['subject_id']}")
    assert (response.status_code, response.json()["code"]) == (403, "livemode_mismatch")


def test_a_replayed_request_of_a_device_is_refused(device: SimDevice) -> None:
    headers = device.signed("GET", "/v1/devices/self/status", "", None)
    first = device.cloud.send("GET", "/v1/devices/self/status", headers=headers)
    again = device.cloud.send("GET", "/v1/devices/self/status", headers=headers)
    assert (first.status_code, again.status_code) == (200, 401)
