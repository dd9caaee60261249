"""A provisioned device with a gallery of any size, made without a server.

The bench is its own service: it holds a root, and signs a gallery of made-up people in pages that are applied
by the same code as the real service's pages. To the device they are the same.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device.config.config import DeviceConfig
from device.core.opening import boot_id
from device.platform.clock import SystemClock
from device.provisioning.online import pin
from device.trust.keystore import KeyStore
from device.trust.known_time import gallery_now
from device.trust.trust import trust_from_registration
from gallery.gallery import Gallery
from gallery.stream import MAX_ENTRIES, Entry, Head, entry_sha256, state_of
from link1.canonical import JsonObject
from link1.keys import PublicKey, SealKey, SealPublicKey, SigningKey
from link1.sealed import SERVICE_ID, SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object

STREAM = "bench"
DEVICE_ID, GATE_ID, DBD_ID = "palm-bench", "gate-bench", "dbd-bench"
_YEAR_MS = 365 * 24 * 3600 * 1000
_BLOCK = 10_000
"""Templates that are made at once."""
_CONFIG = {
    "v": 1,
    "config_seq": 1,
    "attempts": 3,
    "decision_timeout_ms": 5000,
    "passage_timeout_ms": 10_000,
    "gallery_ttl_ms": 21_600_000,
}


@dataclass(frozen=True)
class Known:
    """A person for the gallery, with one template."""

    subject_ref: str
    hand: str
    vector: NDArray[np.float32]


@dataclass(frozen=True)
class Board:
    """A provisioned device, the validator that it trusts, and the keys of its service: what it signs with,
    its root, and what its outbox mail is sealed to."""

    config_path: Path
    verdict_key: PublicKey
    device_seal_key: SealPublicKey
    validator_key: SigningKey
    service_key: SigningKey
    root_key: SigningKey
    mail_seal_key: SealKey


def make_board(
    folder: Path,
    config: DeviceConfig,
    *,
    model_id: str,
    thresholds: JsonObject,
    known: Sequence[Known],
    templates: int,
) -> Board:
    """Provision a device in `folder` and fill its gallery: `known`, and strangers up to `templates`."""
    clock = SystemClock()
    now_ms = clock.wall_ms()
    root, bundle, gallery_key, validator = (SigningKey.generate() for _ in range(4))
    keys, mail_seal_key = KeyStore.create(config.keys_dir), SealKey.generate()
    seal = mail_seal_key.public
    certificate = SignerCertificate.issue(SignerPurpose.BUNDLE, bundle.public, now_ms + _YEAR_MS, root)
    signed_config = sign_object(Kind.CONFIG, {**_CONFIG, "thresholds": thresholds}, bundle)
    answer = {
        "device": {"device_id": config.device.id},
        "tenant_id": STREAM,
        "roots": [_key(root.public)],
        "keys": [
            {
                **_key(gallery_key.public),
                "use": ["gallery", "device_status"],
                "not_before": "2026-01-01T00:00:00.000Z",
                "not_after": None,
            }
        ],
        "mail": {
            "service_id": SERVICE_ID,
            "seal_key": {"kid": seal.kid, "alg": "x25519", "pub_b64": seal.b64},
            "signer_certs": [],
            "inbox_next_seq": 1,
        },
        "gallery": {"stream": STREAM, "epoch": 1},
        "dbd_sign_key": _key(validator.public),
        "terms_version": "v1",
        "config": signed_config | {"signer_cert_b64": certificate.b64},
    }
    trust = trust_from_registration(
        answer,
        device_id=config.device.id,
        gate_id=config.device.gate_id,
        dbd_id=config.device.dbd_id,
        passage_sensor=False,
        pinned_at_ms=now_ms,
    )
    pin(config, folder / "device.toml", keys, None, trust)
    gallery = Gallery(
        config.gallery_dir,
        data_key=keys.data_key,
        model_id=model_id,
        stream=STREAM,
        epoch=1,
        gallery_key=trust.gallery_key,
        now=gallery_now(clock),
        boot_id=boot_id(),
    )
    for page in snapshot_pages(known, templates, model_id, gallery_key, now_ms):
        gallery.apply_snapshot_page(page, gallery_now(clock))
    gallery.close()
    return Board(
        config_path=folder / "device.toml",
        verdict_key=keys.verdict.public,
        device_seal_key=keys.seal.public,
        validator_key=validator,
        service_key=gallery_key,
        root_key=root,
        mail_seal_key=mail_seal_key,
    )


def snapshot_pages(
    known: Sequence[Known],
    templates: int,
    model_id: str,
    key: SigningKey,
    now_ms: int,
    *,
    epoch: int = 1,
    seq: int | None = None,
) -> Iterator[bytes]:
    """A signed snapshot as the service serves it: `known`, and made-up strangers up to `templates`.

    Made twice, once for its state and once for its pages, so that a million templates need no memory. Its
    seq is the number of templates unless one is given.
    """
    count = max(templates, len(known))
    head = Head(
        stream=STREAM,
        epoch=epoch,
        seq=count if seq is None else seq,
        head=os.urandom(32),
        count=count,
        issued_at_ms=now_ms,
        state=state_of(entry_sha256(obj) for obj in _entries(known, count, model_id)),
    )
    signed = sign_object(Kind.GALLERY_HEAD, head.to_obj(), key)
    entries = _entries(known, count, model_id)
    for start in range(0, max(1, count), MAX_ENTRIES):
        more = start + MAX_ENTRIES < count
        page = {
            "head": signed,
            "data": list(islice(entries, MAX_ENTRIES)),
            "next_cursor": "next" if more else None,
            "has_more": more,
        }
        yield json.dumps(page).encode()


def _entries(known: Sequence[Known], count: int, model_id: str) -> Iterator[JsonObject]:
    """By rising template_id, the same in every run."""
    for number, person in enumerate(chain(known, _strangers(count - len(known)))):
        vector = person.vector.astype("<f4").tobytes()
        yield Entry(f"{number:032x}", person.subject_ref, person.hand, model_id, vector).to_obj()


def _strangers(count: int) -> Iterator[Known]:
    for block, start in enumerate(range(0, count, _BLOCK)):
        rng = np.random.default_rng((2026, block))
        vectors = rng.standard_normal((min(_BLOCK, count - start), 512), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for number, vector in enumerate(vectors, start):
            yield Known(f"{0xFACE:04x}{number:028x}", "LR"[number % 2], vector)


def _key(key: PublicKey) -> JsonObject:
    return {"kid": key.kid, "alg": "ed25519", "pub_b64": key.b64}
