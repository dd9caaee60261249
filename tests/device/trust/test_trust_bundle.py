"""Trust bundles: what may change pinned keys, and what may not."""

from pathlib import Path
from typing import Any

import pytest

from device.errors import TrustError
from device.platform.threads import StoreThread
from device.trust.bundle import ROOT_PREFIX, with_bundle
from device.trust.pinning import Pinning
from device.trust.policy import read_policy
from device.trust.trust import Pinned, Trust, load_trust, registered_again, save_trust
from link1.canonical import JsonObject, b64_encode
from link1.keys import SealKey, SigningKey
from link1.sealed import SignerPurpose
from tests.device.core_makers import (
    BUNDLE_KEY,
    DBD_KEY,
    GALLERY_KEY,
    NOW_MS,
    ROOT_KEY,
    config_obj,
    signed_config,
)
from tests.device.trust.pinned_makers import bundle, registered

NEW_ROOT = SigningKey.from_seed(b"\x21" * 32)
NEW_KEY = SigningKey.from_seed(b"\x22" * 32)
NEW_SEAL = SealKey.from_seed(b"\x23" * 32)


@pytest.fixture
def trust() -> Trust:
    return registered()


def public(key: SigningKey, **more: Any) -> JsonObject:
    return {"kid": key.kid, "alg": "ed25519", "pub_b64": key.public.b64} | more


def signed_root(by: SigningKey) -> JsonObject:
    return public(NEW_ROOT, root_sig_b64=b64_encode(by.sign(ROOT_PREFIX + NEW_ROOT.public.raw)))


def test_keys_are_added_and_revoked_and_what_is_not_named_stays(trust: Trust, tmp_path: Any) -> None:
    added = public(NEW_KEY, use=["gallery"], not_before="2025-01-01T00:00:00.000Z", not_after=None)
    seal = {"kid": NEW_SEAL.kid, "alg": "x25519", "pub_b64": NEW_SEAL.public.b64}
    new = with_bundle(trust, bundle(keys=[added], seal_keys=[seal]), now_ms=NOW_MS)
    assert new.gallery_key(NEW_KEY.kid) == NEW_KEY.public
    assert new.gallery_key(GALLERY_KEY.kid) == GALLERY_KEY.public
    assert new.mail_seal_key == NEW_SEAL.public
    assert new.dbd_key(DBD_KEY.kid, NOW_MS) == DBD_KEY.public
    revoking = bundle(bundle_seq=2, revoked_kids=[GALLERY_KEY.kid, DBD_KEY.kid])
    newer = with_bundle(new, revoking, now_ms=NOW_MS)
    assert newer.gallery_key(GALLERY_KEY.kid) is None
    assert newer.dbd_key(DBD_KEY.kid, NOW_MS) is None
    save_trust(tmp_path / "trust.json", newer)
    assert load_trust(tmp_path / "trust.json") == newer
    assert newer.bundle_seq == 2


def test_the_answer_to_another_registration_brings_no_revoked_mail_key_back(trust: Trust) -> None:
    """It may have lain on a stick since before the bundle."""
    seal = {"kid": NEW_SEAL.kid, "alg": "x25519", "pub_b64": NEW_SEAL.public.b64}
    new = with_bundle(trust, bundle(seal_keys=[seal], revoked_kids=[trust.mail_seal_key.kid]), now_ms=NOW_MS)
    again = registered_again(new, registered())
    assert again.mail_seal_key == NEW_SEAL.public
    assert registered_again(trust, registered()).mail_seal_key == trust.mail_seal_key


async def test_what_a_revoked_signer_signs_counts_no_more_and_the_configuration_stays(
    trust: Trust, tmp_path: Path
) -> None:
    path, thread = tmp_path / "trust.json", StoreThread("test")
    save_trust(path, trust)
    policy = read_policy(trust.config, roots=trust.roots, taken_at_ms=NOW_MS)
    pinning = Pinning(
        Pinned(trust),
        policy,
        path=path,
        thread=thread,
        now_ms=lambda: NOW_MS,
        validator_keys_changed=lambda: None,
        policy_changed=lambda: None,
    )
    await pinning.take_bundle(bundle(signer=NEW_KEY, revoked_kids=[BUNDLE_KEY.kid]))
    with pytest.raises(TrustError, match="revoked"):
        await pinning.take_bundle(bundle(bundle_seq=2))
    with pytest.raises(TrustError, match="revoked"):
        await pinning.take_config(signed_config(config_obj(config_seq=2)))
    await pinning.take_bundle(bundle(signer=NEW_KEY, bundle_seq=2))
    thread.close()
    after = load_trust(path)
    assert (after.bundle_seq, pinning.policy) == (2, policy)
    assert read_policy(after.config, roots=after.roots, taken_at_ms=after.pinned_at_ms) == policy


def test_bundle_seq_never_falls(trust: Trust) -> None:
    new = with_bundle(trust, bundle(bundle_seq=5), now_ms=NOW_MS)
    for seq in (4, 5):
        assert with_bundle(new, bundle(bundle_seq=seq, revoked_kids=[DBD_KEY.kid]), now_ms=NOW_MS) is new


def test_a_new_root_needs_the_signature_of_an_old_one(trust: Trust) -> None:
    new = with_bundle(trust, bundle(roots=[signed_root(ROOT_KEY)]), now_ms=NOW_MS)
    assert set(new.roots) == {ROOT_KEY.public, NEW_ROOT.public}
    after = with_bundle(new, bundle(NEW_ROOT, bundle_seq=2), now_ms=NOW_MS)
    assert after.bundle_seq == 2
    for item in (signed_root(NEW_ROOT), public(NEW_ROOT)):
        with pytest.raises(TrustError):
            with_bundle(trust, bundle(roots=[item]), now_ms=NOW_MS)


@pytest.mark.parametrize(
    "wrong",
    [
        bundle(root=NEW_ROOT),
        bundle(purpose=SignerPurpose.POST),
        bundle() | {"sig_b64": bundle(bundle_seq=2)["sig_b64"]},
        {name: value for name, value in bundle().items() if name != "signer_cert_b64"},
        bundle(bundle_seq=0),
        bundle(revoked_kids=["short"]),
        bundle(keys=["no object"]),
        bundle(keys=[{"kid": "0" * 32}]),
        bundle(roots=[public(ROOT_KEY) | {"kid": []}]),
        bundle(seal_keys=[{"kid": []}]),
        {},
    ],
)
def test_what_no_pinned_root_vouches_for_is_refused(trust: Trust, wrong: JsonObject) -> None:
    with pytest.raises(TrustError):
        with_bundle(trust, wrong, now_ms=NOW_MS)


def test_a_certificate_that_has_run_out_is_refused(trust: Trust) -> None:
    with pytest.raises(TrustError):
        with_bundle(trust, bundle(), now_ms=NOW_MS + 1_001)


def test_no_bundle_takes_the_last_root_or_the_one_under_the_configuration(trust: Trust) -> None:
    with pytest.raises(TrustError):
        with_bundle(trust, bundle(revoked_kids=[ROOT_KEY.kid]), now_ms=NOW_MS)
    both = bundle(roots=[signed_root(ROOT_KEY)], revoked_kids=[ROOT_KEY.kid])
    with pytest.raises(TrustError, match="configuration"):
        with_bundle(trust, both, now_ms=NOW_MS)
