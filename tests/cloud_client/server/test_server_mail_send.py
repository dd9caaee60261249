"""What an operator sends: configuration, trust bundles, updates; and retired operations."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import mail_send
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.api.app import make_app
from cloud_client.reference_server.web.api.openapi import document
from cloud_client.reference_server.web.api.operation import Retirement
from cloud_client.reference_server.web.api.operations import OPERATIONS
from device.trust.bundle import with_bundle
from device.trust.policy import read_policy
from device.trust.trust import Trust, trust_from_registration
from link1.canonical import JsonObject, b64_encode
from link1.keys import SealKey, SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, verify_object
from models.manifest import shipped_model_dir
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.server_harness import ORIGIN, Cloud, Partner, Tenant
from tests.palmctl import printed
from tools.cloud.command import cloud as command


@pytest.fixture
def mail(tenant: Tenant) -> Mailbox:
    return Mailbox(tenant.device())


def send(tenant: Tenant, kind: str, obj: JsonObject, device_id: str = "gate-1") -> Any:
    environment, content = tenant.environment("test"), json.dumps(obj).encode()
    return tenant.cloud.operate(
        lambda tx, vault, now: mail_send.send(tx, vault, environment, device_id, (kind, content), now_ms=now)
    )


def opened(mail: Mailbox, kind: Kind, body: JsonObject) -> JsonObject:
    """The inner object, verified as a device does it."""
    wrapper = dict(body)
    certificate = SignerCertificate.from_b64(wrapper.pop("signer_cert_b64"))
    signer = certificate.check(SignerPurpose.BUNDLE, mail.roots, mail.device.cloud.clock.ms)
    return verify_object(kind, wrapper, signer)


def set_config(tenant: Tenant, **changes: Any) -> Any:
    environment = tenant.environment("test")
    store, vault = tenant.cloud.data.open(tenant.cloud.clock.ms)
    with closing(store):
        return mail_send.set_config(store, vault, environment, changes, tenant.cloud.clock.ms)


BUNDLE = {
    "v": 1,
    "bundle_seq": 1,
    "issued_at_ms": 1,
    "roots": [],
    "keys": [],
    "seal_keys": [],
    "revoked_kids": ["0" * 32],
    "dbd_keys": [],
}
A_KEY, A_SEAL_KEY = SigningKey.generate().public, SealKey.generate().public
OF_SEAL_KEY = {"kid": A_SEAL_KEY.kid, "alg": "x25519", "pub_b64": A_SEAL_KEY.b64}
OF_ROOT = {"kid": A_KEY.kid, "alg": "ed25519", "pub_b64": A_KEY.b64}
OF_KEY = OF_ROOT | {"use": ["gallery"], "not_before": "2026-03-02T08:15:30.250Z", "not_after": None}
OF_DBD = {"dbd_id": "x", "kid": A_KEY.kid, "pub_b64": A_KEY.b64, "not_before_ms": 0, "not_after_ms": None}
MANIFEST = {
    "v": 1,
    "kind": "app",
    "name": "palm",
    "version": "1.1",
    "size": 3,
    "sha256": "0" * 64,
    "chunk_size": 1024,
    "chunk_count": 1,
    "min_app_version": "1.0",
    "release_seq": 1,
}


def test_what_is_signed_arrives_signed(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    config = device_config.FIRST_CONFIG | {"config_seq": 5}
    chunk = {"release_seq": 1, "index": 0, "data_b64": b64_encode(b"abc")}
    sent = [
        send(tenant, "svc.config", config),
        send(tenant, "svc.trust.bundle", BUNDLE),
        send(tenant, "svc.update.manifest", MANIFEST),
        send(tenant, "svc.update.chunk", chunk),
    ]
    assert [(item["device_id"], item["seq"]) for item in sent] == [("gate-1", seq) for seq in range(1, 5)]
    assert [record["post"]["rid"] for record in mail.records(partner)] == [item["rid"] for item in sent]
    letters = mail.fetch(partner)
    kinds = [Kind.CONFIG, Kind.TRUST_BUNDLE, Kind.UPDATE_MANIFEST]
    objects = [opened(mail, kind, body) for kind, (_, body) in zip(kinds, letters, strict=False)]
    assert objects == [config, BUNDLE, MANIFEST]
    assert letters[3] == ("svc.update.chunk", chunk)
    with pytest.raises(OperatorError, match="config_seq"):
        send(tenant, "svc.config", config)
    assert set_config(tenant, attempts=2)["config_seq"] > 5


def pinned(mail: Mailbox) -> Trust:
    """What the device keeps of its registration."""
    facts = mail.device.facts
    return trust_from_registration(
        mail.device.registered,
        device_id=mail.device.device_id,
        gate_id=facts["gate_id"],
        dbd_id=facts["dbd_id"],
        passage_sensor=facts["passage_sensor"],
        pinned_at_ms=mail.device.cloud.clock.ms,
    )


def test_a_bundle_for_a_fleet_of_hundreds(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    environment, now_ms = tenant.environment("test"), tenant.cloud.clock.ms

    def add(tx: Tx, *_: Any) -> None:
        for number in range(300):
            key = SigningKey.generate().public
            operator.add_dbd(tx, environment, f"validator-{number}", key.b64, now_ms)

    tenant.cloud.operate(add)
    bundle = tenant.cloud.operate(lambda tx, vault, now: mail_send.trust_bundle(tx, vault, environment, now))
    assert len(bundle["dbd_keys"]) == 300
    send(tenant, "svc.trust.bundle", bundle)
    ((_, body),) = mail.fetch(partner)
    assert with_bundle(pinned(mail), body, now_ms=now_ms).bundle_seq == bundle["bundle_seq"]


def test_a_bundle_of_all_keys_after_a_rotation(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    dbd = tenant.add_dbd()
    tenant.cloud.clock.forward(s=1)
    for use in ("gallery", "seal"):
        tenant.cloud.operate(lambda tx, vault, now, use=use: operator.rotate_signer(tx, vault, use, 0, now))
    environment = tenant.environment("test")
    bundle = tenant.cloud.operate(lambda tx, vault, now: mail_send.trust_bundle(tx, vault, environment, now))
    send(tenant, "svc.trust.bundle", bundle)
    ((_, body),) = mail.fetch(partner)
    assert opened(mail, Kind.TRUST_BUNDLE, body) == bundle
    assert [key["kid"] for key in bundle["roots"]] == [root.kid for root in mail.roots]
    assert [key["kid"] for key in bundle["dbd_keys"]] == [dbd.kid]
    assert mail.seal_key.kid in [key["kid"] for key in bundle["seal_keys"]][1:]
    assert bundle["keys"] == tenant.cloud.send("GET", "/v1/keys").json()["keys"]
    # And what runs in a device takes it.
    trust = pinned(mail)
    trusted = with_bundle(trust, body, now_ms=tenant.cloud.clock.ms)
    assert trusted.mail_seal_key.kid == bundle["seal_keys"][0]["kid"] != trust.mail_seal_key.kid
    assert len(trusted.obj["keys"]) == len(bundle["keys"])


@pytest.mark.parametrize(
    ("kind", "obj", "says"),
    [
        ("svc.post.receipt", {}, "--type"),
        ("svc.gallery.head", {}, "--type"),
        ("svc.trust.bundle", BUNDLE | {"bundle_seq": 0}, "/bundle_seq"),
        ("svc.trust.bundle", BUNDLE | {"more": 0}, "unknown_member"),
        ("svc.trust.bundle", BUNDLE | {"keys": [{}] * 65}, "/keys"),
        ("svc.trust.bundle", BUNDLE | {"v": True}, "/v"),
        ("svc.trust.bundle", BUNDLE | {"roots": [OF_ROOT | {"kid": "0" * 32}]}, "/roots/0 "),
        ("svc.trust.bundle", BUNDLE | {"roots": [OF_ROOT | {"root_sig_b64": "AA=="}]}, "/roots/0/root_sig"),
        ("svc.trust.bundle", BUNDLE | {"keys": [OF_ROOT]}, "/keys/0/use"),
        ("svc.trust.bundle", BUNDLE | {"keys": [OF_KEY | {"not_after": "2026-13-02T08:15:30Z"}]}, "not_a"),
        ("svc.trust.bundle", BUNDLE | {"keys": [OF_KEY | {"not_after": "2026-12-02t08:15:30z"}]}, "not_a"),
        ("svc.trust.bundle", BUNDLE | {"seal_keys": [OF_SEAL_KEY | {"pub_b64": "AA=="}]}, "/seal_keys/0 "),
        ("svc.trust.bundle", BUNDLE | {"seal_keys": [OF_ROOT]}, "/seal_keys/0/alg"),
        ("svc.trust.bundle", BUNDLE | {"dbd_keys": [OF_DBD | {"kid": "0" * 32}]}, "/dbd_keys/0 "),
        ("svc.trust.bundle", BUNDLE | {"dbd_keys": [OF_DBD | {"not_after_ms": 1.0}]}, "signed"),
        ("svc.update.manifest", {}, "/sha256"),
        ("svc.update.manifest", MANIFEST | {"v": True}, "/v"),
        ("svc.update.manifest", MANIFEST | {"chunk_count": 2}, "/chunk_count"),
        ("svc.update.manifest", MANIFEST | {"chunk_size": 256 * 1024 + 1}, "/chunk_size"),
        (
            "svc.update.chunk",
            {"release_seq": 1, "index": 0, "data_b64": b64_encode(bytes(256 * 1024 + 1))},
            "/data_b64",
        ),
        ("svc.update.chunk", {"release_seq": 1, "index": 0, "data_b64": "?"}, "/data_b64"),
        ("svc.config", {"v": 1.5}, "signed"),
        ("svc.config", device_config.FIRST_CONFIG | {"v": True, "config_seq": 9}, "/v"),
    ],
)
def test_what_is_not_sent(tenant: Tenant, mail: Mailbox, kind: str, obj: JsonObject, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        send(tenant, kind, obj)


def test_a_bundle_of_every_kind_of_key_is_sent(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    named = {"keys": [OF_KEY], "seal_keys": [OF_SEAL_KEY], "dbd_keys": [OF_DBD]}
    send(tenant, "svc.trust.bundle", BUNDLE | named)
    ((_, body),) = mail.fetch(partner)
    trusted = with_bundle(pinned(mail), body, now_ms=tenant.cloud.clock.ms)
    assert trusted.mail_seal_key == A_SEAL_KEY and trusted.service_key(A_KEY.kid, "gallery") == A_KEY


@pytest.mark.parametrize("use", signers.USES)
def test_a_key_in_use_is_not_revoked(tenant: Tenant, mail: Mailbox, use: str) -> None:
    """Devices would take nothing more from this service, or have nothing to seal to."""

    kid = tenant.cloud.operate(lambda tx, _vault, now_ms: signers.kid_in_force(tx, use, now_ms))
    revoked = BUNDLE | {"revoked_kids": [kid]}
    with pytest.raises(OperatorError, match=f"signer rotate --use {use}"):
        send(tenant, "svc.trust.bundle", revoked)
    tenant.cloud.clock.forward(s=1)
    tenant.cloud.operate(lambda tx, vault, now_ms: operator.rotate_signer(tx, vault, use, 0, now_ms))
    send(tenant, "svc.trust.bundle", revoked)


def test_to_whom_it_is_not_sent(tenant: Tenant, mail: Mailbox) -> None:
    with pytest.raises(OperatorError, match="no such device"):
        send(tenant, "svc.trust.bundle", BUNDLE, "nobody")


def test_a_configuration_goes_out_some_devices_at_a_time(
    tenant: Tenant, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write in between: sealing to thousands in one transaction held them up for seconds."""
    monkeypatch.setattr(mail_send, "STEP_DEVICES", 2)
    boxes = [Mailbox(tenant.device(f"gate-{number}")) for number in range(5)]
    set_config(tenant, attempts=4)
    assert [[kind for kind, _ in box.fetch(partner)] for box in boxes] == [["svc.config"]] * 5


def test_a_changed_configuration_rises_and_goes_to_every_device(
    tenant: Tenant, partner: Partner, mail: Mailbox
) -> None:
    totem, live = Mailbox(tenant.device("totem", kind="totem")), tenant.device("live", mode="live")
    changed = set_config(tenant, accept_q=8000, thr_id="strict-1", gallery_ttl_ms=3_600_000)
    seq = changed["config_seq"]
    assert (seq > 1, changed["thresholds"]["accept_q"]) == (True, 8000)
    assert changed["thresholds"]["margin_q"] == device_config.DEFAULT_THRESHOLDS["margin_q"]
    for box in (mail, totem):
        ((kind, body),) = box.fetch(partner)
        policy = read_policy(body, roots=tuple(box.roots), taken_at_ms=tenant.cloud.clock.ms)
        assert (policy.config_seq, policy.thresholds.accept_q) == (seq, 8000)
        assert (kind, opened(box, Kind.CONFIG, body)) == ("svc.config", changed)
    assert mail.device.get("/v1/devices/self/status")["device_status_obj"]["config_seq"] == seq
    assert live.get("/v1/devices/self/status")["device_status_obj"]["config_seq"] == 1
    newcomer = tenant.device("gate-9")
    assert newcomer.registered["config"]["config_obj"] == changed
    assert set_config(tenant, attempts=5)["config_seq"] == seq + 1


def test_after_a_restore_devices_take_a_changed_configuration(tmp_path: Path) -> None:
    """They may follow a configuration made after the backup, and take none that is not above it."""
    database, copy = tmp_path / "cloud.db", tmp_path / "copy.db"
    cloud = Cloud(tmp_path, database=f"sqlite:///{database}")
    tenant = cloud.new_tenant()
    mail = Mailbox(tenant.device())
    printed("cloud", "backup", str(copy), "--data", str(tmp_path))
    lost = set_config(tenant, attempts=4)
    ((_, body),) = mail.fetch(tenant.partner())
    followed = read_policy(body, roots=tuple(mail.roots), taken_at_ms=cloud.clock.ms)
    assert followed.config_seq == lost["config_seq"]
    cloud.close()
    for path in tmp_path.glob("cloud.db*"):
        path.unlink()
    copy.rename(database)
    restored = Cloud(tmp_path, database=f"sqlite:///{database}")
    restored.clock.ms = cloud.clock.ms + 1000
    assert set_config(Tenant(restored, tenant.tenant_id), attempts=5)["config_seq"] > followed.config_seq
    restored.close()


@pytest.mark.parametrize("changes", [{}, {"accept_q": 1}, {"gallery_ttl_ms": 21_600_001}, {"attempts": 0}])
def test_configurations_that_are_not_made(tenant: Tenant, mail: Mailbox, changes: dict[str, int]) -> None:
    with pytest.raises(OperatorError):
        set_config(tenant, **changes)
    environment = tenant.environment("test")
    assert tenant.cloud.operate(lambda tx, _, __: mail_send.show_config(tx, environment))["config_seq"] == 1


def test_a_name_of_thresholds_does_not_come_to_stand_for_others(tenant: Tenant) -> None:
    default = device_config.DEFAULT_THRESHOLDS
    with pytest.raises(OperatorError, match="another --thr-id"):
        set_config(tenant, thr_id=default["thr_id"], accept_q=1)
    seq = set_config(tenant, thr_id="strict-1", accept_q=8000)["config_seq"]
    # Given once more, as after a call that was cut off.
    assert set_config(tenant, thr_id="strict-1", accept_q=8000)["config_seq"] == seq + 1
    with pytest.raises(OperatorError, match="another --thr-id"):
        set_config(tenant, thr_id="strict-1", accept_q=8001)
    # The default's name with what is in force now.
    with pytest.raises(OperatorError, match="another --thr-id"):
        set_config(tenant, thr_id=default["thr_id"])
    assert set_config(tenant, **default)["thresholds"] == default


def test_a_tenant_that_is_not_there_has_no_configuration(cloud: Cloud) -> None:
    absent = Tenant(cloud, "absent")
    environment = absent.environment("test")
    with pytest.raises(OperatorError, match="no such tenant"):
        set_config(absent, attempts=2)
    with pytest.raises(OperatorError, match="no such tenant"):
        cloud.operate(lambda tx, *_: mail_send.show_config(tx, environment))
    with pytest.raises(OperatorError, match="no such tenant"):
        cloud.operate(lambda tx, vault, now: mail_send.trust_bundle(tx, vault, environment, now))


def test_the_commands(own_cloud: Cloud, tmp_path: Path) -> None:
    tenant = own_cloud.new_tenant()
    device = tenant.device()
    body = tmp_path / "bundle.json"
    body.write_text(json.dumps(BUNDLE))
    where = ["--data", str(own_cloud.data.path), "--tenant", tenant.tenant_id, "--mode", "test"]
    if not isinstance(own_cloud.data.database, Path):
        where += ["--database", str(own_cloud.data.database)]

    def palmctl(*words: str) -> Any:
        return printed("cloud", *words, *where)

    words = ["--device-id", device.device_id, "--type", "svc.trust.bundle", "--body", str(body)]
    sent = palmctl("mail", "send", *words)
    assert (sent["device_id"], sent["seq"], len(sent["rid"])) == ("gate-1", 1, 32)
    assert palmctl("config", "set", "--attempts", "2")["config_seq"] > 1
    assert palmctl("config", "show")["attempts"] == 2
    body.write_text(json.dumps(palmctl("mail", "bundle")))
    assert palmctl("mail", "send", *words)["seq"] == 3
    # Without --json the bundle is for reading, and nothing that `mail send` takes.
    assert "with --json" in CliRunner().invoke(command, ["mail", "bundle", "--help"]).output
    del where[2:6]
    assert palmctl("factory-ca", "list") == {"data": []}


def test_a_release_is_mailed_a_few_records_at_a_time(own_cloud: Cloud) -> None:
    """Others write in between: software for a few devices in one transaction held them up for minutes."""
    tenant, names = own_cloud.new_tenant(), ("gate-1", "gate-2")
    partner, boxes = tenant.partner(), [Mailbox(tenant.device(name)) for name in names]
    words = ["cloud", "release", "create", "--data", str(own_cloud.data.path), "--tenant", tenant.tenant_id]
    words += ["--mode", "test", "--kind", "model", "--from", str(shipped_model_dir())]
    if not isinstance(own_cloud.data.database, Path):
        words += ["--database", str(own_cloud.data.database)]
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(printed, *words, *(word for name in names for word in ("--device-id", name)))
        seen = set()
        while wait([command], timeout=0.05).not_done:
            seen.add(len(boxes[0].records(partner, limit=200)))
        made = command.result()
    records = made["chunk_count"] + 1
    assert seen - {0, records}, "all of it came at once"
    assert [(one["device_id"], one["first_seq"], one["last_seq"]) for one in made["devices"]] == [
        (name, 1, records) for name in names
    ]
    for box in boxes:
        (kind, body), *chunks = box.fetch(partner)
        assert opened(box, Kind.UPDATE_MANIFEST, body)["release_seq"] == made["release_seq"]
        assert (kind, [chunk["index"] for _, chunk in chunks]) == (
            "svc.update.manifest",
            [*range(records - 1)],
        )


def test_certificates_of_signers_do_not_run_out(own_cloud: Cloud) -> None:
    """A record of a signer that has been in force for years still opens a year later."""
    mail = Mailbox(own_cloud.new_tenant().device())
    own_cloud.clock.forward(ms=3 * signers.CERTIFICATE_MS)
    partner = mail.device.tenant.partner()
    mail.hand_in(partner, mail.report())
    own_cloud.clock.forward(ms=signers.RENEWED_EVERY_MS - 1)
    assert [kind for kind, _ in mail.fetch(partner)] == ["svc.post.receipt", "svc.gallery.head"]


def test_retired_operations_say_so(cloud: Cloud) -> None:
    """None is in v1.0: a table with such an entry shows what would be answered."""
    assert not any(operation.retirement for operation in OPERATIONS)
    retirement = Retirement(1_798_761_600, 1_830_297_600)
    table = tuple(
        replace(operation, retirement=retirement) if operation.operation_id == "listDevices" else operation
        for operation in OPERATIONS
    )
    http = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(cloud.api, table)), base_url=ORIGIN)
    retired = cloud.run(http.get("/v1/devices"))
    assert retired.status_code == 401
    assert retired.headers["deprecation"] == "@1798761600"
    assert retired.headers["sunset"] == "Sat, 01 Jan 2028 00:00:00 GMT"
    other = cloud.run(http.get("/v1/health"))
    assert "deprecation" not in other.headers
    assert "sunset" not in other.headers
    paths = document(table)["paths"]
    assert paths["/v1/devices"]["get"]["deprecated"]
    assert "deprecated" not in paths["/v1/verdicts"]["get"]
    cloud.run(http.aclose())
