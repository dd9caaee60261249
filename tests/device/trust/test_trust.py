from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from device.errors import NotProvisioned, TrustError
from device.platform.threads import StoreThread
from device.trust.bundle import with_bundle
from device.trust.pinning import Pinning
from device.trust.policy import read_policy
from device.trust.trust import (
    DbdKey,
    Pinned,
    Trust,
    load_trust,
    save_trust,
    trust_from_registration,
    with_dbd_keys,
    with_service_keys,
)
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.keys import SigningKey
from link1.sealed import SignerPurpose
from tests.device.core_makers import (
    BUNDLE_KEY,
    DBD_ID,
    DBD_KEY,
    DEVICE_ID,
    GALLERY_KEY,
    GATE_ID,
    HTTP_KEY,
    NOW_MS,
    ROOT_KEY,
    THRESHOLDS,
    config_obj,
    registration_answer,
    signed_config,
)
from tests.device.trust.pinned_makers import bundle, registered


def pin(answer: JsonObject, **changes: Any) -> Trust:
    asked: dict[str, Any] = {
        "device_id": DEVICE_ID,
        "gate_id": GATE_ID,
        "dbd_id": DBD_ID,
        "passage_sensor": True,
        "pinned_at_ms": NOW_MS,
    }
    return trust_from_registration(answer, **(asked | changes))


def test_a_registration_is_pinned_and_read_back(tmp_path: Path) -> None:
    trust = pin(registration_answer())
    save_trust(tmp_path / "trust.json", trust)
    assert load_trust(tmp_path / "trust.json") == trust
    assert trust.device_id == DEVICE_ID
    assert trust.gallery == ("stream-1", 1)
    assert trust.roots == (ROOT_KEY.public,)
    assert trust.passage_sensor


def test_which_keys_are_believed() -> None:
    trust = pin(registration_answer())
    assert trust.gallery_key(GALLERY_KEY.kid) == GALLERY_KEY.public
    assert trust.service_key(GALLERY_KEY.kid, "webhook") is None
    assert trust.gallery_key(HTTP_KEY.kid) is None
    assert trust.dbd_key(DBD_KEY.kid, 0) == DBD_KEY.public
    assert trust.dbd_key(HTTP_KEY.kid, 0) is None


def test_a_retired_key_is_not_believed() -> None:
    answer = registration_answer()
    answer["keys"][0]["not_after"] = "2025-10-09T09:00:00.000Z"
    trust = pin(answer)
    retired_ms = 1_760_000_400_000
    assert trust.gallery_key(GALLERY_KEY.kid, retired_ms - 1) == GALLERY_KEY.public
    assert trust.gallery_key(GALLERY_KEY.kid, retired_ms) is None


def test_validator_keys_count_from_and_until() -> None:
    trust = with_dbd_keys(pin(registration_answer()), [DbdKey(DBD_ID, DBD_KEY.public, 10, 20)], 5)
    assert [trust.dbd_key(DBD_KEY.kid, at_ms) is not None for at_ms in (9, 10, 19, 20)] == [
        False,
        True,
        True,
        False,
    ]
    foreign = DbdKey("dbd-8", HTTP_KEY.public, 0, None)
    assert with_dbd_keys(trust, [foreign], 5) is trust, "another validator's key"


def test_a_validator_key_may_not_be_known_yet() -> None:
    trust = pin(registration_answer() | {"dbd_sign_key": None})
    assert trust.dbd_keys == ()


def test_another_device_is_refused() -> None:
    with pytest.raises(TrustError, match="another device_id"):
        pin(registration_answer(), device_id="gate-8")


@pytest.mark.parametrize("member", sorted(registration_answer()))
def test_a_missing_member_refuses_the_answer(member: str) -> None:
    answer = registration_answer()
    del answer[member]
    with pytest.raises(TrustError, match="outside the contract"):
        pin(answer)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("roots", []),
        ("roots", [{"kid": "0" * 32, "alg": "ed25519", "pub_b64": ROOT_KEY.public.b64}]),
        ("roots", ["x"]),
        ("gallery", {"stream": "a b", "epoch": 1}),
        ("tenant_id", 5),
        ("dbd_sign_key", {"kid": DBD_KEY.kid, "alg": "rsa", "pub_b64": DBD_KEY.public.b64}),
        ("config", None),
        ("mail", {}),
    ],
)
def test_a_wrong_member_refuses_the_answer(member: str, value: object) -> None:
    with pytest.raises(TrustError, match="outside the contract"):
        pin(registration_answer() | {member: value})


def test_a_wrong_service_key_refuses_the_answer() -> None:
    no_day = "2025-13-41T00:00:00Z"
    changes: list[JsonObject] = [
        {"use": []},
        {"use": ["A"]},
        {"not_before": "soon"},
        {"not_before": no_day},
    ]
    for change in changes:
        answer = registration_answer()
        answer["keys"][0] |= change
        with pytest.raises(TrustError):
            pin(answer)


@pytest.mark.parametrize("by_bundle", [False, True])
def test_the_keys_of_a_hundred_rotations_are_learnt_and_none_that_counts_is_dropped(by_bundle: bool) -> None:
    """Keys that have ended make room for new ones; a list of too many that have not is refused."""
    trust, month_ms = registered(), 30 * 24 * 3_600_000

    def text(at_ms: int) -> str:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()

    def item(number: int, end_ms: int | None = None) -> JsonObject:
        key = SigningKey.from_seed(number.to_bytes(32, "big"))
        at = {
            "not_before": text(NOW_MS + number * month_ms),
            "not_after": None if end_ms is None else text(end_ms),
        }
        return {"kid": key.kid, "alg": "ed25519", "use": ["gallery"], "pub_b64": key.public.b64, **at}

    def learnt(trust: Trust, items: list[JsonObject], number: int, now_ms: int) -> Trust:
        if by_bundle:
            signed = bundle(bundle_seq=number, keys=items, certificate_ends_ms=now_ms + month_ms)
            return with_bundle(trust, signed, now_ms=now_ms)
        return with_service_keys(trust, items, now_ms)

    first = {key.public.kid for key in trust.keys}
    for number in range(1, 101):
        now_ms = NOW_MS + number * month_ms - 1_000
        ending = [] if number == 1 else [item(number - 1, now_ms + 3_600_000)]
        trust = learnt(trust, [*ending, item(number)], number, now_ms)
        assert trust.gallery_key(item(number)["kid"]) is not None
        assert first <= {key.public.kid for key in trust.keys}
    many = [item(number) for number in range(200, 264)]
    with pytest.raises(TrustError, match="member keys"):
        learnt(trust, many, 101, NOW_MS + 102 * month_ms)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    with pytest.raises(NotProvisioned, match="palmctl provision"):
        load_trust(path)
    save_trust(path, pin(registration_answer()))
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"[]", whole.replace(b'"v": 1', b'"v": 2')):
        path.write_bytes(content)
        with pytest.raises(TrustError, match="is damaged"):
            load_trust(path)


def test_unreadable_and_unwritable_files(tmp_path: Path) -> None:
    (tmp_path / "trust.json").mkdir()
    with pytest.raises(TrustError, match="cannot be read"):
        load_trust(tmp_path / "trust.json")
    with pytest.raises(TrustError, match="cannot be written"):
        save_trust(tmp_path / "none" / "trust.json", pin(registration_answer()))


def test_a_policy_with_a_good_chain_is_read() -> None:
    policy = read_policy(signed_config(), roots=(HTTP_KEY.public, ROOT_KEY.public), taken_at_ms=NOW_MS)
    assert policy.thresholds == THRESHOLDS
    assert (policy.config_seq, policy.attempts) == (1, 3)
    assert (policy.decision_timeout_ms, policy.passage_timeout_ms) == (5_000, 10_000)
    assert policy.gallery_ttl_ms == 21_600_000


@pytest.mark.parametrize(
    ("signed", "words"),
    [
        (signed_config(root=HTTP_KEY), "no pinned root"),
        (signed_config(purpose=SignerPurpose.POST), "no pinned root"),
        (signed_config(not_after_ms=NOW_MS - 1), "run out"),
        (signed_config() | {"sig_b64": "A" * 86 + "=="}, "does not hold"),
        (signed_config() | {"signer_kid": ROOT_KEY.kid}, "another key"),
        (signed_config() | {"more": 1}, "has the members"),
        ({key: value for key, value in signed_config().items() if key != "signer_cert_b64"}, "base64"),
        (signed_config(config_obj(attempts=0)), "attempts"),
        (signed_config(config_obj(gallery_ttl_ms=21_600_001)), "gallery_ttl_ms"),
        (signed_config(config_obj(thresholds={})), "thr_id"),
    ],
)
def test_policies_that_are_refused(signed: JsonObject, words: str) -> None:
    with pytest.raises(TrustError, match=words):
        read_policy(signed, roots=(ROOT_KEY.public,), taken_at_ms=NOW_MS)


def test_a_changed_threshold_breaks_the_signature() -> None:
    signed = signed_config()
    signed["config_obj"]["thresholds"]["accept_q"] = 1
    with pytest.raises(TrustError, match="does not hold"):
        read_policy(signed, roots=(ROOT_KEY.public,), taken_at_ms=NOW_MS)


def test_the_signer_is_the_one_the_certificate_names() -> None:
    assert signed_config()["signer_kid"] == BUNDLE_KEY.kid


@pytest.mark.parametrize("more", [300_000 * "x", [[[[[[[[[[[[[[]]]]]]]]]]]]]]], ids=["long", "deep"])
async def test_a_configuration_that_the_next_start_could_not_read_is_refused(
    tmp_path: Path, more: object
) -> None:
    path, trust = tmp_path / "trust.json", registered()
    save_trust(path, trust)
    thread = StoreThread("test")
    pinning = Pinning(
        Pinned(trust),
        read_policy(trust.config, roots=trust.roots, taken_at_ms=NOW_MS),
        path=path,
        thread=thread,
        now_ms=lambda: NOW_MS,
        validator_keys_changed=lambda: None,
        policy_changed=lambda: None,
    )

    with pytest.raises(FormatError):
        await pinning.take_config(signed_config(config_obj(config_seq=2, more=more)))
    await pinning.take_config(signed_config(config_obj(config_seq=3, attempts=5)))
    thread.close()
    assert pinning.policy.config_seq == 3
    assert load_trust(path) == pinning.pinned.trust
