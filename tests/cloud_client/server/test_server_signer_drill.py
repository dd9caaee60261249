"""All signing keys are rotated at once, and the report says which devices are known to follow."""

from pathlib import Path
from typing import Any

import pytest

from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import mail_send
from cloud_client.reference_server.ops.signer_drill import drill, report
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.server_harness import Cloud
from tests.cloud_client.server.test_server_mail_send import pinned, send
from tests.palmctl import printed

HOUR_S = 3600


def follows(cloud: Cloud) -> dict[str, dict[str, str]]:
    shown = cloud.operate(lambda tx, *_: report(tx))
    return {device["device_id"]: device["follows"] for device in shown["devices"]}


def test_a_drill_names_every_key_and_what_is_known_of_each_device(own_cloud: Cloud) -> None:
    cloud = own_cloud
    tenant = cloud.new_tenant()
    partner = tenant.partner()
    network, offline, silent = (tenant.device(name) for name in ("network", "gate-1", "silent"))
    mail = Mailbox(offline)
    before = {key["use"]: key for key in cloud.operate(lambda tx, *_: report(tx))["keys"]}
    assert list(before) == list(signers.USES)
    assert {key["kid_before"] for key in before.values()} == {None}
    assert set(follows(cloud)["silent"].values()) == {"registered", "root"}
    cloud.clock.forward(s=1)

    def drilled() -> dict[str, Any]:
        done: dict[str, Any] = cloud.operate(lambda tx, vault, now: drill(tx, vault, HOUR_S, now))
        return done

    first = drilled()
    for key in first["keys"]:
        assert key["kid_before"] == before[key["use"]]["kid"] != key["kid"]
        assert key["published_at"] < key["not_before"]
    published = {key["kid"] for key in cloud.send("GET", "/v1/keys").json()["keys"]}
    assert {key["kid"] for key in first["keys"] if key["use"] in signers.PUBLISHED} < published
    # Nothing has come from any device since; only what the root certifies needs nothing to be learned.
    for words in follows(cloud).values():
        assert words == {use: "root" if use in signers.CERTIFIED else "silent" for use in signers.USES}
    gallery = next(key for key in first["keys"] if key["use"] == "gallery")
    assert gallery["devices"] == {"silent": 3}
    # Repeated before the keys begin, it makes no others.
    assert drilled() == first

    # Mail by itself brings no key, however often it comes.
    mail.hand_in(partner, mail.report())
    assert set(follows(cloud)["gate-1"].values()) == {"silent", "root"}

    environment = tenant.environment("test")
    bundle = cloud.operate(lambda tx, vault, now: mail_send.trust_bundle(tx, vault, environment, now))
    send(tenant, "svc.trust.bundle", bundle)
    assert set(follows(cloud)["gate-1"].values()) == {"silent", "root"}
    mail.fetch(partner)
    mail.hand_in(partner, mail.report())
    assert set(follows(cloud)["gate-1"].values()) == {"trust_bundle", "root"}

    # A change of before the key began proves nothing; one that only the new key has signed does.
    network.enrol(partner, partner.person()["subject_id"], 1)
    network.get("/v1/gallery/deltas?epoch=1&after_seq=1")
    assert follows(cloud)["network"]["gallery"] == "unknown"
    cloud.clock.forward(s=HOUR_S)
    network.enrol(partner, partner.person()["subject_id"], 2)
    network.get("/v1/gallery/deltas?epoch=1&after_seq=4")
    words = follows(cloud)["network"]
    assert (words["gallery"], words["device_status"], words["seal"]) == ("gallery", "unknown", "unknown")
    tenant.device("late")
    assert set(follows(cloud)["late"].values()) == {"registered", "root"}
    assert set(follows(cloud)["silent"].values()) == {"silent", "root"}
    partner.post(f"/v1/devices/{silent.device_id}/revoke", {"reason": "other"}, 200)
    assert "silent" not in follows(cloud)
    second = drilled()
    assert {key["kid_before"] for key in second["keys"]} == {key["kid"] for key in first["keys"]}


def test_a_bundle_is_lost_with_the_registration_that_took_it(own_cloud: Cloud) -> None:
    cloud, tenant = own_cloud, own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    mail, environment = Mailbox(device), tenant.environment("test")
    cloud.clock.forward(s=1)
    cloud.operate(lambda tx, vault, now: drill(tx, vault, HOUR_S, now))
    bundle = cloud.operate(lambda tx, vault, now: mail_send.trust_bundle(tx, vault, environment, now))
    send(tenant, "svc.trust.bundle", bundle)
    mail.fetch(partner)
    mail.hand_in(partner, mail.report())
    assert follows(cloud)["gate-1"]["seal"] == "trust_bundle"
    partner.post("/v1/devices/gate-1/revoke", {"reason": "other"}, 200)
    cloud.clock.forward(s=1)
    tenant.device()
    # The answer to the registration names the key to seal to that is in force, not the next one.
    assert follows(cloud)["gate-1"]["seal"] == "unknown"


def test_a_key_does_not_take_over_before_one_that_was_published_earlier(own_cloud: Cloud) -> None:
    """It would give that one an end, and the other would go on signing past it."""

    def rotated(in_s: int) -> str:
        kid: str = own_cloud.operate(
            lambda tx, vault, now: operator.rotate_signer(tx, vault, "gallery", in_s, now)["kid"]
        )
        return kid

    later = rotated(30 * 24 * HOUR_S)
    for in_s in (0, HOUR_S, 30 * 24 * HOUR_S):
        with pytest.raises(OperatorError, match="takes over at"):
            rotated(in_s)
    last = rotated(31 * 24 * HOUR_S)
    ends = {key["kid"]: key["not_after"] for key in own_cloud.send("GET", "/v1/keys").json()["keys"]}
    assert (ends[later] is None, ends[last]) == (False, None)


def test_what_has_signed_receipts_stays_published(own_cloud: Cloud) -> None:
    partner = own_cloud.new_tenant().partner()
    signed = partner.delete(f"/v1/subjects/{partner.person()['subject_id']}")["signed_receipt"]
    own_cloud.operate(
        lambda tx, vault, now: [
            operator.rotate_signer(tx, vault, use, HOUR_S, now) for use in ("erasure_receipt", "webhook")
        ]
    )
    own_cloud.clock.forward(ms=10 * signers.OVERLAP_MS)
    listed = own_cloud.send("GET", "/v1/keys").json()["keys"]
    assert signed["signer_kid"] in {key["kid"] for key in listed}
    assert [key["use"] for key in listed].count(["webhook"]) == 1


def test_devices_are_never_given_more_keys_than_they_take(own_cloud: Cloud) -> None:
    cloud = own_cloud
    tenant = cloud.new_tenant()

    def published() -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = cloud.send("GET", "/v1/keys").json()["keys"]
        return keys

    with pytest.raises(OperatorError, match="not_after"):
        for _ in range(100):
            cloud.operate(lambda tx, vault, now: drill(tx, vault, HOUR_S, now))
            cloud.clock.forward(s=24 * HOUR_S)
    assert 60 < len(published()) <= 64
    assert pinned(Mailbox(tenant.device())).obj["keys"] == published()
    # What the root certifies is in no list; and the rest goes on when keys have ended.
    cloud.operate(lambda tx, vault, now: operator.rotate_signer(tx, vault, "bundle", HOUR_S, now))
    cloud.clock.ms += signers.OVERLAP_MS
    cloud.operate(lambda tx, vault, now: drill(tx, vault, HOUR_S, now))


def test_the_commands_print_it(tmp_path: Path) -> None:
    def palmctl(*words: str) -> Any:
        return printed("cloud", *words, "--data", str(tmp_path))

    done = palmctl("signer", "drill", "--in-s", "60")
    assert palmctl("signer", "status") == done
    assert [key["use"] for key in done["keys"]] == list(signers.USES)
    assert done["devices"] == []
