"""What the tests of the device's core have in common: a clock that is moved by hand, keys, signed objects."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from device.passage.decision import Outcome, build_verdict
from device.values.recognition import MatchedPerson, Sighting
from device.values.transactions import StoredVerdict
from link1.canonical import JsonObject, b64_encode
from link1.keys import SealKey, SigningKey
from link1.objects import Decision, GalleryMark, Pad, Passage, Request, VerdictResult
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, object_ref, sign_object
from models.thresholds import Thresholds

DEVICE_ID = "gate-7-left"
GATE_ID = "gate-7"
DBD_ID = "dbd-7"
NOW_MS = 1_760_000_000_000
DATA_KEY = bytes(range(32))

VERDICT_KEY = SigningKey.from_seed(b"\x01" * 32)
HTTP_KEY = SigningKey.from_seed(b"\x02" * 32)
DBD_KEY = SigningKey.from_seed(b"\x03" * 32)
ROOT_KEY = SigningKey.from_seed(b"\x04" * 32)
BUNDLE_KEY = SigningKey.from_seed(b"\x05" * 32)
GALLERY_KEY = SigningKey.from_seed(b"\x06" * 32)
MAIL_SEAL_KEY = SealKey.from_seed(b"\x07" * 32)

GALLERY = GalleryMark("stream-1", 1, 7, "0123456789abcdef")
LIVE = Pad("pass", "texture", 9_000)
THRESHOLDS = Thresholds("thr-1", accept_q=6_000, margin_q=500, quality_q=50, pad_q=5_000, enrol_quality_q=70)
ALICE = MatchedPerson("a" * 32, "R", "ticket-17")


@dataclass
class HandClock:
    """Stands still until it is moved."""

    now_ms: int = 1_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def boottime_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return NOW_MS + self.now_ms


def txn_id_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def make_request(
    name: str, *, ttl_ms: int = 10_000, issued_at_ms: int = NOW_MS
) -> tuple[Request, JsonObject]:
    nonce_b64 = b64_encode(hashlib.sha256(b"nonce" + name.encode()).digest())
    request = Request(txn_id_of(name), GATE_ID, DBD_ID, nonce_b64, issued_at_ms, ttl_ms)
    return request, sign_object(Kind.REQUEST, request.to_obj(), DBD_KEY)


def sign_verdict(request: Request, outcome: Outcome, seq: int, prev_ref: str) -> JsonObject:
    verdict = build_verdict(
        request,
        outcome,
        device_id=DEVICE_ID,
        verdict_seq=seq,
        prev_ref=prev_ref,
        decided_at_ms=NOW_MS,
        model_id="model-1",
        thr_id=THRESHOLDS.thr_id,
        gallery=GALLERY,
    )
    return sign_object(Kind.VERDICT, verdict.to_obj(), VERDICT_KEY)


def make_stored(request: Request, outcome: Outcome, seq: int = 1, prev_ref: str = "0" * 32) -> StoredVerdict:
    wrapper = sign_verdict(request, outcome, seq, prev_ref)
    return StoredVerdict(seq, object_ref(wrapper), wrapper)


def make_decision(stored: StoredVerdict, **changes: Any) -> tuple[Decision, JsonObject]:
    verdict = stored.wrapper["verdict"]
    members = {name: verdict[name] for name in ("txn_id", "gate_id", "dbd_id", "nonce_b64")}
    members |= {"verdict_ref": stored.ref, "reason": "ok", "outcome": "LIBERAR", "actuated": True}
    decision = Decision(**(members | {"decision_seq": stored.seq, "decided_at_ms": NOW_MS} | changes))
    return decision, sign_object(Kind.DECISION, decision.to_obj(), DBD_KEY)


def make_passage(stored: StoredVerdict, **changes: Any) -> tuple[Passage, JsonObject]:
    verdict = stored.wrapper["verdict"]
    members = {name: verdict[name] for name in ("txn_id", "gate_id", "dbd_id")}
    members |= {"verdict_ref": stored.ref, "passed": True, "cause": "giro"}
    passage = Passage(**(members | {"at_ms": NOW_MS, "dbd_event_seq": stored.seq} | changes))
    return passage, sign_object(Kind.PASSAGE, passage.to_obj(), DBD_KEY)


REJECTED = Outcome(VerdictResult.NO_MATCH, score_q=1_000, quality_q=80, pad=LIVE, attempts=3)


def good_sighting(at_ms: int = 0, **changes: Any) -> Sighting:
    """A good, live capture of Alice, well over both thresholds, unless `changes` say otherwise."""
    members: dict[str, Any] = {
        "hand_present": True,
        "at_ms": at_ms,
        "quality_q": 80,
        "pad": LIVE,
        "score": 0.8,
        "margin": 0.4,
        "candidate": ALICE,
        "good": True,
    }
    return Sighting(**(members | changes))


def poor_sighting(at_ms: int = 0, quality_q: int = 20) -> Sighting:
    return Sighting(True, at_ms, quality_q=quality_q)


def no_hand(at_ms: int = 0) -> Sighting:
    return Sighting(False, at_ms)


def config_obj(**changes: Any) -> JsonObject:
    return {
        "v": 1,
        "config_seq": 1,
        "thresholds": THRESHOLDS.to_obj(),
        "attempts": 3,
        "decision_timeout_ms": 5_000,
        "passage_timeout_ms": 10_000,
        "gallery_ttl_ms": 21_600_000,
    } | changes


def signed_config(
    obj: JsonObject | None = None,
    *,
    root: SigningKey = ROOT_KEY,
    purpose: SignerPurpose = SignerPurpose.BUNDLE,
    not_after_ms: int = NOW_MS + 1_000,
) -> JsonObject:
    certificate = SignerCertificate.issue(purpose, BUNDLE_KEY.public, not_after_ms, root)
    signed = sign_object(Kind.CONFIG, config_obj() if obj is None else obj, BUNDLE_KEY)
    return signed | {"signer_cert_b64": certificate.b64}


def key_obj(key: SigningKey) -> JsonObject:
    return {"kid": key.kid, "alg": "ed25519", "pub_b64": key.public.b64}


def registration_answer(
    *, root: SigningKey = ROOT_KEY, now_ms: int = NOW_MS, lasts_ms: int = 1_000
) -> JsonObject:
    """What POST /v1/devices/register answers; its certificates hold for `lasts_ms`."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    ends_ms = now_ms + lasts_ms
    certificate = SignerCertificate.issue(SignerPurpose.POST, BUNDLE_KEY.public, ends_ms, root)

    return {
        "device": {"device_id": DEVICE_ID, "kind": "access", "status": "active"},
        "tenant_id": "7f0c0c58-5b0c-4a53-9f5b-0a1c4a1d9f11",
        "roots": [key_obj(root)],
        "keys": [key_obj(GALLERY_KEY) | {"use": ["gallery"], "not_before": at, "not_after": None}],
        "mail": {
            "service_id": "svc",
            "seal_key": {
                "kid": MAIL_SEAL_KEY.kid,
                "alg": "x25519",
                "pub_b64": MAIL_SEAL_KEY.public.b64,
            },
            "signer_certs": [certificate.b64],
            "inbox_next_seq": 1,
        },
        "gallery": {"stream": "stream-1", "epoch": 1},
        "dbd_sign_key": key_obj(DBD_KEY),
        "terms_version": "v1",
        "config": signed_config(root=root, not_after_ms=ends_ms),
    }
