"""What the service may answer to a registration, and that no half of it is ever believed."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from device.errors import TrustError
from device.provisioning import online as provisioning
from device.provisioning.online import check_registration
from device.trust.keystore import KeyStore
from link1.canonical import JsonObject
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object
from tests.device.core_makers import BUNDLE_KEY, DBD_KEY, ROOT_KEY, key_obj
from tests.device.provisioning.provisioning_setting import (
    ASKED,
    NOW_MS,
    TOKEN,
    Registrar,
    carry_out,
    good_answer,
    registrar,
)

__all__ = ["registrar"]


def spoiled(change: Callable[[JsonObject], None], keys: KeyStore) -> bytes:
    answer = deepcopy(good_answer(json.loads(provisioning.registration_body(ASKED, keys, TOKEN))))
    change(answer)
    return json.dumps(answer).encode()


def other_root(answer: JsonObject) -> None:
    answer["roots"] = [key_obj(DBD_KEY)]


def wrong_kid(answer: JsonObject) -> None:
    answer["roots"][0]["kid"] = "0" * 32


def post_signer_of_another_root(answer: JsonObject) -> None:
    certificate = SignerCertificate.issue(SignerPurpose.POST, BUNDLE_KEY.public, NOW_MS + 10**9, DBD_KEY)
    answer["mail"]["signer_certs"] = [certificate.b64]


def post_signer_certified_for_bundles(answer: JsonObject) -> None:
    certificate = SignerCertificate.issue(SignerPurpose.BUNDLE, BUNDLE_KEY.public, NOW_MS + 10**9, ROOT_KEY)
    answer["mail"]["signer_certs"] = [certificate.b64]


def post_signer_run_out(answer: JsonObject) -> None:
    certificate = SignerCertificate.issue(SignerPurpose.POST, BUNDLE_KEY.public, NOW_MS - 1, ROOT_KEY)
    answer["mail"]["signer_certs"] = [certificate.b64]


def config_signed_by_another(answer: JsonObject) -> None:
    certificate = answer["config"]["signer_cert_b64"]
    answer["config"] = sign_object(Kind.CONFIG, answer["config"]["config_obj"], DBD_KEY) | {
        "signer_cert_b64": certificate
    }


def config_changed(answer: JsonObject) -> None:
    answer["config"]["config_obj"]["attempts"] = 4


def config_without_certificate(answer: JsonObject) -> None:
    del answer["config"]["signer_cert_b64"]


def member(*path: str, value: Any = None) -> Callable[[JsonObject], None]:
    def change(answer: JsonObject) -> None:
        place = answer
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        other_root,
        wrong_kid,
        post_signer_of_another_root,
        post_signer_certified_for_bundles,
        post_signer_run_out,
        config_signed_by_another,
        config_changed,
        config_without_certificate,
        member("device", "device_id", value="another"),
        member("device", "gate_id", value="another"),
        member("device", "dbd_id", value="another"),
        member("device", "kind", value="totem"),
        member("device", "status", value="revoked"),
        member("device", "keys", value=[]),
        member("device", "keys", value=[{"purpose": "verdict", "kid": []}]),
        member("roots", value=[]),
        member("keys", value=[]),
        member("gallery", value=None),
        member("mail", "service_id", value="svc2"),
        member("mail", "seal_key", value=None),
        member("mail", "inbox_next_seq", value=True),
        member("dbd_sign_key", value={"kid": "0" * 32, "alg": "ed25519", "pub_b64": DBD_KEY.public.b64}),
        member("tenant_id", value=7),
        member("config", value={}),
    ],
)
def test_an_answer_that_does_not_hold_together_pins_nothing(
    tmp_path: Path, registrar: Registrar, change: Callable[[JsonObject], None]
) -> None:
    registrar.spoil = change
    with pytest.raises(TrustError):
        carry_out(tmp_path)
    assert not (tmp_path / "state" / "trust.json").exists()


def test_a_validator_key_may_still_be_missing(tmp_path: Path) -> None:
    keys = KeyStore.create(tmp_path / "keys")
    trust = check_registration(spoiled(member("dbd_sign_key"), keys), ASKED, keys, NOW_MS)
    assert trust.dbd_keys == ()


def test_what_a_later_version_adds_is_not_pinned(tmp_path: Path) -> None:
    def later(answer: JsonObject) -> None:
        mail = answer["mail"]
        parts = [answer, answer["device"], answer["gallery"], answer["dbd_sign_key"], mail, mail["seal_key"]]
        for part in (*parts, *answer["roots"], *answer["keys"]):
            part["later"] = {"share": 0.5, "of": [1e300]}

    keys = KeyStore.create(tmp_path / "keys")
    plain, added = (
        check_registration(spoiled(change, keys), ASKED, keys, NOW_MS)
        for change in (lambda _answer: None, later)
    )
    assert added == plain


def test_any_bytes_for_an_answer_end_in_the_package_error(tmp_path: Path) -> None:
    keys = KeyStore.create(tmp_path / "keys")
    good = spoiled(lambda _answer: None, keys)
    for bad in (b"", b"{}", b"[]", b"\xff", good[:-1], good + b" x", b'{"a":' * 20):
        with pytest.raises(TrustError):
            check_registration(bad, ASKED, keys, NOW_MS)
