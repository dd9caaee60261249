"""Trust bundles: how pinned keys change after registration (device surface §6).

A bundle adds and revokes keys; keys that it does not name stay, and a revoked key never counts again: neither
a key that is pinned, nor a signer of bundles, configurations, releases or mail. A bundle is valid when a
pinned root certified its signer. A new root needs the signature of a pinned one over
`svc.root.v1 ‖ 0x00 ‖ the new key`, in its member `root_sig_b64`. A removed root vouches for nothing; it is
kept for root's installer alone, which may have missed several changes (`followed_roots`).
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from device.errors import TrustError
from device.trust.policy import certified, read_policy
from device.trust.trust import DbdKey, Trust, merged_windows, reread, revoked_kids, without_ended
from link1 import members
from link1.canonical import JsonObject, b64_decode
from link1.errors import FormatError, SignatureError
from link1.keys import SIGNATURE_BYTES, PublicKey
from link1.members import HEX32
from link1.signed import Kind

ROOT_PREFIX: Final = b"svc.root.v1\x00"
_MAX_ITEMS: Final = 64
_MAX_FORMER: Final = 16
_MAX_DBD_KEYS: Final = 4_096
"""A bundle lists the validators of all gates; a device keeps only its own."""


def with_bundle(trust: Trust, signed: Mapping[str, Any], *, now_ms: int) -> Trust:
    """`trust` after a bundle; `trust` itself when the bundle is not newer than the last one applied.

    Raises TrustError when no pinned root vouches for it, or when it would leave the device without a root, or
    without one that vouches for the configuration in force.
    """
    try:
        bundle = certified(
            Kind.TRUST_BUNDLE, signed, roots=trust.roots, now_ms=now_ms, revoked=trust.revoked_kids
        )
        members.version_1(bundle)
        bundle_seq = members.integer(bundle, "bundle_seq", 1)
        if bundle_seq <= trust.bundle_seq:
            return trust
        # A status older than the bundle must not restore a validator key that the bundle revokes.
        issued_at_ms = members.integer(bundle, "issued_at_ms")
        numbers = {
            "bundle_seq": bundle_seq,
            "status_at_ms": max(trust.status_at_ms, issued_at_ms),
            "service_ms": max(trust.service_ms, issued_at_ms),
        }
        changed = reread(trust, _changes(trust, bundle, now_ms) | numbers)
    except (FormatError, SignatureError) as error:
        raise TrustError(f"the trust bundle is refused: {error}") from error
    read_policy(changed.config, roots=changed.roots, taken_at_ms=changed.pinned_at_ms)
    return changed


def _changes(trust: Trust, bundle: JsonObject, now_ms: int) -> JsonObject:
    gone = trust.revoked_kids | revoked_kids(bundle)
    newer = members.integer(bundle, "issued_at_ms") >= trust.status_at_ms
    dbd_keys = [DbdKey.from_obj(item) for item in _items(bundle, "dbd_keys", _MAX_DBD_KEYS)]
    roots = [_vouched_root(trust, item) for item in _items(bundle, "roots")]
    pinned = {item["kid"]: item for item in trust.obj["roots"]}
    # Named again, a root keeps the signature with which it came.
    roots = [item | pinned.get(members.text(item, "kid", HEX32), {}) for item in roots]
    former = [item for kid, item in pinned.items() if kid in gone and "root_sig_b64" in item]
    mail = trust.obj["mail"]
    seal_keys = [item for item in _items(bundle, "seal_keys") if members.text(item, "kid", HEX32) not in gone]
    return {
        "roots": _merged(trust.obj["roots"], roots, gone),
        "former_roots": [*trust.former_roots, *former][-_MAX_FORMER:],
        "keys": without_ended(_merged(trust.obj["keys"], _items(bundle, "keys"), gone), now_ms),
        "dbd_keys": [key.to_obj() for key in merged_windows(trust, dbd_keys, newer=newer)],
        "revoked_kids": sorted(gone),
        "mail": mail | {"seal_key": seal_keys[0]} if seal_keys else mail,
    }


def _vouched_root(trust: Trust, item: JsonObject) -> JsonObject:
    if PublicKey.from_b64(members.member(item, "pub_b64")) in trust.roots or is_vouched(item, trust.roots):
        return item
    raise SignatureError("a new root is not signed by a pinned root")


def is_vouched(item: JsonObject, roots: Iterable[PublicKey]) -> bool:
    """Whether one of `roots` signed the root in an item of a bundle or trust.json. Raises FormatError."""
    root = PublicKey.from_b64(members.member(item, "pub_b64"))
    signature = b64_decode(members.member(item, "root_sig_b64"), length=SIGNATURE_BYTES)
    for one in roots:
        try:
            one.verify(ROOT_PREFIX + root.raw, signature)
        except SignatureError:
            continue
        return True
    return False


def followed_roots(trust: Trust, known: Iterable[PublicKey]) -> frozenset[PublicKey]:
    """`known`, and the roots to which the signatures in `trust` lead from there, one to the next."""
    followed = frozenset(known)
    while True:
        further = set()
        for item in (*trust.former_roots, *trust.obj["roots"]):
            root = PublicKey.from_b64(item["pub_b64"])
            with contextlib.suppress(FormatError):
                if root not in followed and "root_sig_b64" in item and is_vouched(item, followed):
                    further.add(root)
        if not further:
            return followed
        followed |= further


def _merged(held: list[JsonObject], named: list[JsonObject], gone: frozenset[str]) -> list[JsonObject]:
    by_kid = {item["kid"]: item for item in held} | {members.text(item, "kid", HEX32): item for item in named}
    return [item for kid, item in by_kid.items() if kid not in gone]


def _items(bundle: JsonObject, name: str, most: int = _MAX_ITEMS) -> list[JsonObject]:
    items = members.array(bundle, name, 0, most)
    if not all(isinstance(item, dict) for item in items):
        raise FormatError(f"member {name} is not an array of objects")
    return items
