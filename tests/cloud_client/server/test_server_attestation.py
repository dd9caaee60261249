"""Attestation: whose certificate chain vouches for a device's keys."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from cloud_client.reference_server.domain.devices import attestation
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.web.access_log import ServedRequest
from link1.canonical import b64_decode, b64_encode
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of

PATH = "/v1/devices/attest"
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Maker:
    """A factory: a certificate with its key, which issues others."""

    def __init__(self, key: Key, certificate: x509.Certificate) -> None:
        self.key, self.certificate = key, certificate

    @property
    def b64(self) -> str:
        return b64_encode(self.certificate.public_bytes(Encoding.DER))

    def issue(
        self,
        key: Key,
        *,
        ca: bool | None = False,
        path_length: int | None = None,
        usage: str | None = None,
        days: int = 3650,
        at: datetime,
        critical_extension: bool = False,
    ) -> "Maker":
        builder = (
            x509.CertificateBuilder()
            .subject_name(name_of(f"made {x509.random_serial_number()}"))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(at - timedelta(days=1))
            .not_valid_after(at + timedelta(days=days))
        )
        if ca is not None:
            builder = builder.add_extension(x509.BasicConstraints(ca, path_length), critical=True)
        if usage is not None:
            words = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "key_cert_sign",
                    "crl_sign",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            builder = builder.add_extension(x509.KeyUsage(**(words | {usage: True})), critical=True)
        if critical_extension:
            unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
            builder = builder.add_extension(unknown, critical=True)
        algorithm = None if isinstance(self.key, ed25519.Ed25519PrivateKey) else SHA256()
        return Maker(key, builder.sign(self.key, algorithm))


def root_of(at: datetime, key: Key | None = None, *, ca: bool = True, days: int = 7300) -> Maker:
    key = key or p256()
    name = name_of("factory CA")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=1))
        .not_valid_after(at + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())
    )
    return Maker(key, certificate)


def fingerprint(maker: Maker) -> str:
    return maker.certificate.fingerprint(SHA256()).hex()


@pytest.fixture
def at(cloud: Cloud) -> datetime:
    return datetime.fromtimestamp(cloud.clock.ms / 1000, UTC)


@pytest.fixture
def root(cloud: Cloud, at: datetime) -> Maker:
    made = root_of(at)
    pem = made.certificate.public_bytes(Encoding.PEM)
    cloud.operate(lambda tx, _, now: attestation.add_factory_ca(tx, pem, now))
    return made


def message_of(device: SimDevice) -> bytes:
    """What a leaf signs for this device now."""
    status = device.get("/v1/devices/self/status")["device_status_obj"]
    keys = (device.verdict_key.public.raw, device.http_key.public.raw, device.seal_key.public.raw)
    return attestation.PREFIX + attestation.key_digest(*keys) + b64_decode(status["challenge_b64"])


def signature(leaf: Maker, message: bytes) -> str:
    if isinstance(leaf.key, ed25519.Ed25519PrivateKey):
        return b64_encode(leaf.key.sign(message))
    assert isinstance(leaf.key, ec.EllipticCurvePrivateKey)
    return b64_encode(leaf.key.sign(message, ec.ECDSA(SHA256())))


def evidence(device: SimDevice, *chain: Maker, message: bytes | None = None) -> dict[str, Any]:
    sig_b64 = signature(chain[0], message or message_of(device))
    return {
        "level": "x509",
        "evidence": {"chain_b64": [maker.b64 for maker in chain], "sig_b64": sig_b64},
    }


def refused(device: SimDevice, body: dict[str, Any]) -> list[dict[str, str]]:
    response = device.send("POST", PATH, body)
    assert code_of(response) == "validation_failed"
    errors: list[dict[str, str]] = response.json()["errors"]
    return errors


NOT_VERIFIED = [{"pointer": "/evidence", "code": "not_verified"}]


def test_a_chain_vouches_for_the_keys(device: SimDevice, partner: Partner, root: Maker, at: datetime) -> None:
    between = root.issue(p256(), ca=True, path_length=0, usage="key_cert_sign", at=at)
    leaf = between.issue(p256(), usage="digital_signature", at=at)
    assert partner.get("/v1/devices")["data"][0]["health"] == ["KEY_UNATTESTED"]
    answer = device.post(PATH, evidence(device, leaf, between))
    assert answer == {"trust": {"attest_level": "x509", "verified": True}}
    (listed,) = partner.get("/v1/devices")["data"]
    assert (listed["trust"], listed["health"]) == (answer["trust"], [])
    device.post(PATH, {"level": "none", "evidence": None})
    (listed,) = partner.get("/v1/devices")["data"]
    assert (listed["trust"]["verified"], listed["health"]) == (False, ["KEY_UNATTESTED"])


def test_new_keys_have_to_be_attested_anew(
    tenant: Tenant, device: SimDevice, partner: Partner, root: Maker, at: datetime
) -> None:
    device.post(PATH, evidence(device, root.issue(p256(), at=at)))
    partner.post("/v1/devices/gate-1/revoke", {"reason": "other"}, 200)
    tenant.device("gate-1")
    (listed,) = partner.get("/v1/devices")["data"]
    assert (listed["trust"]["attest_level"], listed["health"]) == ("none", ["KEY_UNATTESTED"])


DAY_S = 24 * 3600


def attested(device: SimDevice, partner: Partner) -> bool:
    """Whether the partner sees it as attested; trust and health agree."""
    (listed,) = [row for row in partner.get("/v1/devices")["data"] if row["device_id"] == device.device_id]
    verified: bool = listed["trust"]["verified"]
    assert listed["trust"] == {"attest_level": "x509" if verified else "none", "verified": verified}
    assert ("KEY_UNATTESTED" in listed["health"]) is not verified
    return verified


def due(device: SimDevice) -> bool:
    flag: bool = device.get("/v1/devices/self/updates")["attest_due"]
    return flag


def test_an_attestation_is_good_for_90_days(
    device: SimDevice, partner: Partner, root: Maker, at: datetime
) -> None:
    assert due(device)
    leaf = root.issue(p256(), at=at)
    device.post(PATH, evidence(device, leaf))
    assert (attested(device, partner), due(device)) == (True, False)
    device.cloud.clock.forward(s=30 * DAY_S - 1)
    assert not due(device)
    device.cloud.clock.forward(s=1)
    assert (attested(device, partner), due(device)) == (True, True)
    device.cloud.clock.forward(s=60 * DAY_S - 1)
    assert attested(device, partner)
    device.cloud.clock.forward(s=1)
    assert (attested(device, partner), due(device)) == (False, True)
    device.post(PATH, evidence(device, leaf))
    assert (attested(device, partner), due(device)) == (True, False)


@pytest.mark.parametrize("which", ["leaf", "between"])
def test_it_ends_with_a_certificate_of_the_chain(
    device: SimDevice, partner: Partner, root: Maker, at: datetime, which: str
) -> None:
    days = {"leaf": 3650, "between": 3650} | {which: 10}
    between = root.issue(p256(), ca=True, days=days["between"], at=at)
    leaf = between.issue(p256(), days=days["leaf"], at=at)
    device.post(PATH, evidence(device, leaf, between))
    device.cloud.clock.forward(s=10 * DAY_S - 1)
    assert attested(device, partner)
    device.cloud.clock.forward(s=1)
    assert not attested(device, partner)


def test_it_ends_with_its_ca(
    cloud: Cloud, tenant: Tenant, partner: Partner, root: Maker, at: datetime
) -> None:
    other = root_of(at, ed25519.Ed25519PrivateKey.generate())
    der = other.certificate.public_bytes(Encoding.DER)
    cloud.operate(lambda tx, _, now: attestation.add_factory_ca(tx, der, now))
    one, two = tenant.device("gate-a"), tenant.device("gate-b")
    one.post(PATH, evidence(one, root.issue(p256(), at=at)))
    two.post(PATH, evidence(two, other.issue(p256(), at=at)))
    cloud.operate(lambda tx, _, __: attestation.remove_factory_ca(tx, fingerprint(root).upper()))
    assert (attested(one, partner), attested(two, partner)) == (False, True)


def test_a_renewed_ca_takes_over(tenant: Tenant, partner: Partner, at: datetime) -> None:
    """It has the name and the key of the old one, which stays configured until its devices have changed."""
    cloud, new = tenant.cloud, root_of(at)
    old = root_of(at, new.key, days=10)
    while fingerprint(old) > fingerprint(new):  # the one that would be found first
        old = root_of(at, new.key, days=10)
    for ca in (old, new):
        der = ca.certificate.public_bytes(Encoding.DER)
        cloud.operate(lambda tx, _, now, der=der: attestation.add_factory_ca(tx, der, now))
    one, two = tenant.device("gate-1"), tenant.device("gate-2")
    trusted = {"trust": {"attest_level": "x509", "verified": True}}
    assert one.post(PATH, evidence(one, new.issue(p256(), at=at)), 200) == trusted
    cloud.clock.forward(s=11 * 86_400)
    # The old one has ended: what the new one vouches for is good, before it is removed and after.
    assert two.post(PATH, evidence(two, new.issue(p256(), at=at), old), 200) == trusted
    cloud.operate(lambda tx, *_: attestation.remove_factory_ca(tx, fingerprint(old)))
    for device in partner.get("/v1/devices")["data"]:
        assert device["trust"] == trusted["trust"]


def test_without_a_ca_nothing_is_due(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    device = tenant.device()
    assert not due(device)
    der = root_of(datetime.fromtimestamp(own_cloud.clock.ms / 1000, UTC)).certificate.public_bytes(
        Encoding.DER
    )
    own_cloud.operate(lambda tx, _, now: attestation.add_factory_ca(tx, der, now))
    assert due(device)


def test_a_leaf_vouches_for_one_device(
    cloud: Cloud, tenant: Tenant, partner: Partner, root: Maker, at: datetime
) -> None:
    first, second = tenant.device("gate-a"), tenant.device("gate-b")
    elsewhere = cloud.new_tenant().device("gate-a")
    key = p256()
    leaf = root.issue(key, at=at)
    first.post(PATH, evidence(first, leaf))
    again = root.issue(key, at=at)  # another certificate for the same key
    for device, chain in ((second, leaf), (second, again), (elsewhere, leaf)):
        response = device.send("POST", PATH, evidence(device, chain))
        assert (response.status_code, code_of(response)) == (409, "device_state_conflict")
    assert (attested(first, partner), attested(second, partner)) == (True, False)
    first.post(PATH, evidence(first, leaf))
    # Not even when it has lapsed, or the device is revoked; only once that is wiped.
    cloud.clock.forward(s=91 * DAY_S)
    assert second.send("POST", PATH, evidence(second, leaf)).status_code == 409
    partner.post("/v1/devices/gate-a/revoke", {"reason": "other"}, 200)
    assert second.send("POST", PATH, evidence(second, leaf)).status_code == 409
    wipe_id = first.get("/v1/devices/self/status")["device_status_obj"]["wipe"]["wipe_id"]
    first.post("/v1/devices/self/wiped", {"wipe_id": wipe_id}, 204)
    second.post(PATH, evidence(second, leaf))
    assert attested(second, partner)


def test_a_leaf_stays_with_its_device(tenant: Tenant, partner: Partner, root: Maker, at: datetime) -> None:
    """Through another leaf, a device that gives its attestation up, and new keys."""
    first, second = tenant.device("gate-a"), tenant.device("gate-b")
    leaf = root.issue(p256(), at=at)
    first.post(PATH, evidence(first, leaf))
    first.post(PATH, evidence(first, root.issue(p256(), at=at)))
    first.post(PATH, {"level": "none", "evidence": None})
    assert not attested(first, partner)
    partner.post("/v1/devices/gate-a/revoke", {"reason": "other"}, 200)
    first = tenant.device("gate-a")
    assert second.send("POST", PATH, evidence(second, leaf)).status_code == 409
    first.post(PATH, evidence(first, leaf))
    assert attested(first, partner)


def test_what_does_not_verify_leaves_trust_as_it_was(
    device: SimDevice, partner: Partner, root: Maker, at: datetime
) -> None:
    device.post(PATH, evidence(device, root.issue(p256(), at=at)))
    assert refused(device, evidence(device, root_of(at).issue(p256(), at=at))) == NOT_VERIFIED
    assert attested(device, partner)


@pytest.mark.parametrize("kind", ["p384", "ed25519", "rsa-ca", "with-root", "bare-leaf"])
def test_chains_that_are_good(cloud: Cloud, device: SimDevice, root: Maker, at: datetime, kind: str) -> None:
    if kind == "rsa-ca":
        root = root_of(at, rsa.generate_private_key(public_exponent=65537, key_size=2048))
        der = root.certificate.public_bytes(Encoding.DER)
        cloud.operate(lambda tx, _, now: attestation.add_factory_ca(tx, der, now))
    key: Key = p256()
    if kind == "p384":
        key = ec.generate_private_key(ec.SECP384R1())
    if kind == "ed25519":
        key = ed25519.Ed25519PrivateKey.generate()
    leaf = root.issue(key, at=at, ca=None if kind == "bare-leaf" else False)
    chain = (leaf, root) if kind == "with-root" else (leaf,)
    assert device.post(PATH, evidence(device, *chain))["trust"]["verified"]


def test_chains_that_prove_nothing(
    cloud: Cloud, device: SimDevice, root: Maker, at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their maker sees one answer; the log of the server has the reason."""
    served: list[ServedRequest] = []
    monkeypatch.setattr(cloud.api, "on_answer", served.append)
    leaf = root.issue(p256(), at=at)
    stranger = root_of(at)
    not_a_ca = root.issue(p256(), ca=False, at=at)
    short = root.issue(p256(), ca=True, path_length=0, at=at)
    below_short = short.issue(p256(), ca=True, at=at)
    cannot_sign = root.issue(p256(), ca=True, usage="digital_signature", at=at)
    chains = {
        "another CA": (stranger.issue(p256(), at=at),),
        "another CA, brought along": (stranger.issue(p256(), at=at), stranger),
        "issued by a leaf": (not_a_ca.issue(p256(), at=at), not_a_ca),
        "a path too long": (below_short.issue(p256(), at=at), below_short, short),
        "an issuer that may not sign certificates": (cannot_sign.issue(p256(), at=at), cannot_sign),
        "expired": (root.issue(p256(), days=0, at=at - timedelta(hours=1)),),
        "not yet valid": (root.issue(p256(), at=at + timedelta(days=2)),),
        "a CA as leaf": (root.issue(p256(), ca=True, at=at),),
        "a leaf that may not sign": (root.issue(p256(), usage="key_agreement", at=at),),
        "an extension that is not understood": (root.issue(p256(), at=at, critical_extension=True),),
        "in the wrong order": (root.issue(p256(), at=at), leaf),
        "the root alone": (root,),
        "a small curve": (root.issue(ec.generate_private_key(ec.SECP224R1()), at=at),),
    }
    reasons = {}
    for what, chain in chains.items():
        assert refused(device, evidence(device, *chain)) == NOT_VERIFIED, what
        reasons[what] = served[-1].reason
    assert reasons == {
        "another CA": "no factory CA of ours issued the last certificate of the chain",
        "another CA, brought along": "no factory CA of ours issued the last certificate of the chain",
        "issued by a leaf": "an issuer is no CA, or its path length is too short",
        "a path too long": "an issuer is no CA, or its path length is too short",
        "an issuer that may not sign certificates": "an issuer may not sign certificates: key usage",
        "expired": "a certificate of the chain, or its CA, is not valid now",
        "not yet valid": "a certificate of the chain, or its CA, is not valid now",
        "a CA as leaf": "the leaf is a CA",
        "a leaf that may not sign": "the leaf may not sign: key usage",
        "an extension that is not understood": "a critical extension of a certificate is not understood",
        "in the wrong order": "certificate 0 of the chain is not issued by the next",
        "the root alone": "the leaf is a CA",
        "a small curve": "the leaf's key is neither Ed25519 nor ECDSA on P-256 or P-384",
    }


def damaged(maker: Maker) -> dict[str, bytes]:
    """A certificate of a version that there is not, and one that says its basic constraints twice."""
    der = maker.certificate.public_bytes(Encoding.DER)
    made = {
        "version": der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1),
        "twice": der.replace(bytes.fromhex("0603551d0f"), bytes.fromhex("0603551d13"), 1),
    }
    assert der not in made.values()
    return made


@pytest.mark.parametrize("how", ["version", "twice"])
def test_a_certificate_that_cannot_be_read_proves_nothing(
    cloud: Cloud, device: SimDevice, root: Maker, at: datetime, how: str
) -> None:
    leaf = root.issue(p256(), usage="digital_signature", at=at)
    body = evidence(device, leaf)
    body["evidence"]["chain_b64"] = [b64_encode(damaged(leaf)[how])]
    assert refused(device, body) == NOT_VERIFIED
    body["evidence"]["chain_b64"] = [leaf.b64, b64_encode(damaged(leaf)[how])]
    assert refused(device, body) == NOT_VERIFIED
    authority = damaged(root.issue(p256(), ca=True, usage="key_cert_sign", at=at))[how]
    with pytest.raises(OperatorError, match="no CA certificate"):
        cloud.operate(lambda tx, _, now: attestation.add_factory_ca(tx, authority, now))


def test_a_signature_is_for_these_keys_and_this_challenge(
    tenant: Tenant, device: SimDevice, root: Maker, at: datetime
) -> None:
    leaf = root.issue(p256(), at=at)
    other = tenant.device("gate-2")
    assert refused(device, evidence(device, leaf, message=message_of(other))) == NOT_VERIFIED
    message = message_of(device)
    body = evidence(device, leaf, message=message)
    tenant.cloud.clock.forward(s=300)
    assert refused(device, body) == NOT_VERIFIED
    body = evidence(device, leaf)
    device.post(PATH, body)
    assert refused(device, body) == NOT_VERIFIED
    stale = evidence(device, leaf)
    message_of(device)  # another status brings another challenge
    assert refused(device, stale) == NOT_VERIFIED


@pytest.mark.parametrize(
    ("shape", "pointer"),
    [
        (None, "/evidence"),
        ({}, "/evidence/chain_b64"),
        ({"chain_b64": [], "sig_b64": "AAAA"}, "/evidence/chain_b64"),
        ({"chain_b64": ["AAAA"] * 5, "sig_b64": "AAAA"}, "/evidence/chain_b64"),
        ({"chain_b64": ["!"], "sig_b64": "AAAA"}, "/evidence/chain_b64/0"),
        ({"chain_b64": ["AAAA"], "sig_b64": 1}, "/evidence/sig_b64"),
        ({"chain_b64": ["AAAA"], "sig_b64": "AAAA", "more": 1}, "/evidence"),
        ({"chain_b64": ["AAAA"], "sig_b64": "AAAA"}, "/evidence"),
    ],
)
def test_evidence_of_another_shape(device: SimDevice, root: Maker, shape: Any, pointer: str) -> None:
    errors = refused(device, {"level": "x509", "evidence": shape})
    assert pointer in {error["pointer"] for error in errors}


def test_only_cas_are_configured(cloud: Cloud, root: Maker, at: datetime) -> None:
    leaf = root.issue(p256(), at=at).certificate.public_bytes(Encoding.DER)
    for content in (leaf, b"nothing", b"-----BEGIN nothing"):
        with pytest.raises(OperatorError):
            cloud.operate(lambda tx, _, now, content=content: attestation.add_factory_ca(tx, content, now))
    listed = cloud.operate(lambda tx, _, __: attestation.list_factory_cas(tx))["data"]
    assert {"fingerprint": fingerprint(root), "subject": "CN=factory CA"} in listed
    removed = cloud.operate(lambda tx, _, __: attestation.remove_factory_ca(tx, fingerprint(root)))
    assert removed == {"fingerprint": fingerprint(root), "subject": "CN=factory CA"}
    with pytest.raises(OperatorError):
        cloud.operate(lambda tx, _, __: attestation.remove_factory_ca(tx, fingerprint(root)))


def test_without_a_factory_ca_nothing_is_verified(device: SimDevice, at: datetime) -> None:
    root = root_of(at)
    assert refused(device, evidence(device, root.issue(p256(), at=at))) == NOT_VERIFIED
