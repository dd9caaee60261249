"""Releases as a service makes them, signed with keys of the test's own."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from device.platform.clock import SystemClock
from device.updates.desk import UpdateDesk
from device.updates.manifest import Manifest, OfferAnswer, OfferReader, ReleaseKind, read_manifest
from device.updates.models import OpenedUpdates
from device.updates.state import GalleryFacts
from device.updates.store import UpdateStore
from link1.canonical import JsonObject
from link1.keys import SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object
from models.manifest import load_manifest, shipped_model_dir
from tests.republished import republish
from tools.cloud.pack_release import manifest_obj, pack_files, pack_model

ROOT = SigningKey.from_seed(b"\x21" * 32)
SIGNER = SigningKey.from_seed(b"\x22" * 32)
STATUS_KEY = SigningKey.from_seed(b"\x23" * 32)
OTHER_MODEL = "palm-next"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


OFFERS = OfferReader("dev-1", {STATUS_KEY.kid: STATUS_KEY.public}.get, now_ms)


def signed(obj: JsonObject, root: SigningKey = ROOT, **certificate: Any) -> JsonObject:
    """A manifest_obj with its signature and the signer's certificate."""
    purpose = certificate.get("purpose", SignerPurpose.BUNDLE)
    not_after_ms = certificate.get("not_after_ms", now_ms() + 3_600_000)
    vouched = SignerCertificate.issue(purpose, SIGNER.public, not_after_ms, root)
    return sign_object(Kind.UPDATE_MANIFEST, obj, SIGNER) | {"signer_cert_b64": vouched.b64}


def release(payload: bytes, release_seq: int, /, *, chunk_bytes: int = 64, **changed: Any) -> JsonObject:
    """A manifest_obj about a payload, by default a model's."""
    obj = manifest_obj(
        payload,
        kind=ReleaseKind.MODEL,
        name="palm",
        version="2.0",
        min_app_version="0.0.1",
        release_seq=release_seq,
        chunk_bytes=chunk_bytes,
    )
    return obj | changed


def offer(*manifests: JsonObject, key: SigningKey = STATUS_KEY, **changed: Any) -> JsonObject:
    """The answer of the service that offers these signed manifests to dev-1."""
    obj = {
        "v": 1,
        "device_id": "dev-1",
        "release_seqs": [wrapper["manifest_obj"]["release_seq"] for wrapper in manifests],
        "issued_at_ms": now_ms(),
    }
    signed_offer = sign_object(Kind.UPDATE_OFFER, obj | changed, key)
    return {"data": list(manifests), "offer": signed_offer, "next_after_s": 900, "attest_due": False}


def read_offer(*manifests: JsonObject, **changed: Any) -> OfferAnswer:
    return OFFERS.read(offer(*manifests, **changed), None)


def manifest(payload: bytes, release_seq: int, /, **changed: Any) -> Manifest:
    return read_manifest(
        signed(release(payload, release_seq, **changed)), roots=[ROOT.public], now_ms=now_ms()
    )


@cache
def model_payload(model_id: str = OTHER_MODEL) -> bytes:
    """The shipped network under another model_id, packed."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        republish(shipped_model_dir(), model_id, out)
        return pack_model(out)


@cache
def shipped_id() -> str:
    return load_manifest(shipped_model_dir()).model_id


def tiny_model(folder: Path) -> str:
    """A self-test for payloads that hold no network: the model_id in the one file `id`."""
    return str(json.loads((folder / "id").read_text())["model_id"])


@contextmanager
def packed_files(**contents: str) -> Iterator[bytes]:
    """An archive of small files."""
    with TemporaryDirectory() as folder:
        for name, text in contents.items():
            (Path(folder) / name).write_text(text)
        yield pack_files(Path(folder), sorted(contents))


@dataclass(frozen=True)
class GalleryOf:
    """A gallery of which only the facts are asked."""

    found: GalleryFacts

    async def facts(self) -> GalleryFacts:
        return self.found


def open_desk(state_dir: Path, **changed: Any) -> UpdateDesk:
    """A desk over a state directory, as a start of the program opens it; small payloads, no pauses."""
    store = UpdateStore(state_dir, pause_s=0.0)
    state = store.load(1)
    store.tidy(state)
    given: dict[str, Any] = {
        "opened": OpenedUpdates(store, state, "", "palm-gen-4"),
        "roots": lambda: (ROOT.public,),
        "revoked": tuple,
        "app_version": "0.1.0",
        "model_pinned": False,
        "now_ms": SystemClock().wall_ms,
        "test_model": tiny_model,
    }
    return UpdateDesk(**(given | changed))
