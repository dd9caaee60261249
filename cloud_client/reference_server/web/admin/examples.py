"""Example values for a schema of the OpenAPI document: the same every time, and believable."""

from collections.abc import Mapping
from typing import Any, Final

_UUID: Final = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
_HEX_32: Final = "9f86d081884c7d659a2feaa0c55ad015"
_KID: Final = "21fe31dfa154a261626bf854046fd227"
_AT: Final = "2026-03-02T08:15:30.250Z"
_AT_MS: Final = 1772439330250
_KEY_B64: Final = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
_SIGNATURE_B64: Final = "A" * 86 + "=="
_SIGNED: Final = {"alg": "ed25519", "signer_kid": _KID, "sig_b64": _SIGNATURE_B64}

# By the contract's own member names; what is not here is made from the schema.
_BY_NAME: Final[Mapping[str, Any]] = {
    "external_ref": "account-17",
    "onboard_ref": "token+17",
    "cpf": "52998224725",
    "subject_ref": "5d41402abc4b2a76b9719d911017c592",
    "device_id": "gate-07",
    "completed_by_device_id": "gate-07",
    "gate_id": "north-2",
    "dbd_id": "dbd-2",
    "kid": _KID,
    "signer_kid": _KID,
    "pub_b64": _KEY_B64,
    "sig_b64": _SIGNATURE_B64,
    "model_id": "palm-gen-4",
    "terms_version": "v1",
    "evidence_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "verdict_seq": 1042,
    "decision_seq": 88121,
    "gallery_seq": 311,
    "seq": 311,
    "epoch": 1,
    "stream": "acme:test",
    "tenant_id": "acme",
    "result": "MATCH",
    "outcome": "LIBERAR",
    "cause": "giro",
    "pad_res": "pass",
    "quality_q": 82,
    "api_version": "v1",
    "contract_version": "1.0.0",
    "failure_code": None,
    "block": None,
    "revoked_at": None,
    "not_after": None,
    "next_cursor": None,
    "has_more": False,
    "use": ["erasure_receipt"],
    "health": ["KEY_UNATTESTED"],
    "attest_level": "none",
    "verified": False,
    "passed": True,
    "actuated": True,
    "kind": "access",
    "pkg": "palm-access-device",
    "version": "0.1.0",
    "short_code": "7KQ2-M4XD",
    "token": "Zk3v0m1l7mCq0dP1YbT2Gx8nS5wR9uEaHhJ4oKfLtVs",
    "qr_payload": f"SVC1:ENR:{_UUID}:Zk3v0m1l7mCq0dP1YbT2Gx8nS5wR9uEaHhJ4oKfLtVs",
    "devices_total": 12,
    "devices_acknowledged": 9,
    "fail_closed_at": "2026-03-02T14:15:30.250Z",
    "expires_at": "2026-03-02T08:20:30.250Z",
    "instance": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "limit": 50,
    "after_seq": 310,
    "wait_s": 55,
    "method": "partner_app",
    "reason": "lost",
    "vector_b64": "AACAPwAA",
    "ct_b64": "q83vASNFZ4mrze8BI0VniQ==",
    "ct_len": 16,
    "ct_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "signer_cert_b64": "A" * 139 + "=",
    "box": "in",
    "src": "svc",
    "dst": "gate-07",
    "suite": "hpke-x25519-sha256-chacha20poly1305",
    "next_after_seq": 311,
    "acked_upto_seq": 311,
    "mech": "texture",
    "score_q": 9100,
    "attempts": 1,
    "v": 1,
    "txn_id": "3f2b8c1d4e5f60718293a4b5c6d7e8f9",
    "nonce_b64": "gq8m0JtVY3Hk1xS7pQb2Zw==",
    "ttl_ms": 4000,
    "margin_q": 2300,
    "thr_id": "palm-gen-4-t1",
    "head16": "9f86d081884c7d65",
    "prev_ref": "0c7e2f4a9b1d3c5e7f8091a2b3c4d5e6",
    "dbd_event_seq": 40233,
    "erased": ["templates", "cpf_hmac", "cpf_ciphertext", "external_ref", "onboard_ref"],
    "retained": ["verdict_proofs"],
}
_BY_PLACE: Final[Mapping[tuple[str, str], Any]] = {
    ("Subject", "status"): "active",
    ("EnrollmentSession", "status"): "completed",
    ("ErasureReceipt", "status"): "pending",
    ("Propagation", "status"): "pending",
    ("Health", "status"): "ok",
    ("DbdDecision", "reason"): "ok",
    ("Block", "reason"): "operator",
    ("DecisionObject", "reason"): "ok",
    ("PadObject", "res"): "pass",
    ("PadBody", "res"): "pass",
    ("Attest", "evidence"): None,
    ("RegisterDevice", "keys"): [
        {"purpose": purpose, "alg": "ed25519", "pub_b64": _KEY_B64} for purpose in ("verdict", "http")
    ],
    ("VerdictBatch", "items"): [{"signed_verdict": {"verdict": {}} | _SIGNED}],
}
# Objects that the device surface's page describes, not the schema.
_SIGNED_OBJECTS: Final = {"head": "gallery_head", "config": "config"}


def example(  # noqa: PLR0911 - one return a kind of schema
    schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "", place: str = ""
) -> Any:
    """A value that fits ``schema``.

    ``schemas`` are the document's components; ``name`` is the member's, ``place`` that of its object.
    """
    if "$ref" in schema:
        place = schema["$ref"].rpartition("/")[2]
        return example(schemas[place], schemas, name, place)
    if (place, name) in _BY_PLACE:
        return _BY_PLACE[place, name]
    if name in _SIGNED_OBJECTS:
        return {_SIGNED_OBJECTS[name]: {}} | _SIGNED
    if "properties" in schema or schema.get("type") == "object":
        return _object(schema, schemas, place)
    ways = schema.get("anyOf") or schema.get("oneOf")
    if ways:
        return None if _BY_NAME.get(name, 0) is None else example(ways[0], schemas, name, place)
    if name in _BY_NAME and _fits(_BY_NAME[name], schema):
        return _BY_NAME[name]
    if schema.get("type") == "array":
        return _items(schema, schemas, name, place)
    return _plain(schema, name)


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any], place: str) -> dict[str, Any]:
    # Of members that exclude one another the first alternative's are shown.
    others = {other for way in schema.get("oneOf", ())[1:] for other in way.get("required", ())}
    return {
        member: example(inner, schemas, member, place)
        for member, inner in schema.get("properties", {}).items()
        if member not in others
    }


def _items(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str, place: str) -> list[Any]:
    inner = schema.get("items", {})
    if "default" in schema:
        default: list[Any] = schema["default"]
        return default
    if inner.get("enum") == ["L", "R"] or inner.get("type") == "integer" or not inner:
        return list(inner.get("enum", []))
    return [example(inner, schemas, name.removesuffix("s"), place)]


def _plain(schema: Mapping[str, Any], name: str) -> Any:
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") in ("integer", "number"):
        return _AT_MS if name.endswith("_ms") else max(1, schema.get("minimum", 1))
    return False if schema.get("type") == "boolean" else _text(schema, name)


def _text(schema: Mapping[str, Any], name: str) -> str:
    pattern = schema.get("pattern", "")
    if schema.get("format") == "date-time":
        return _AT
    if schema.get("format") == "uuid" or "{8}-" in pattern:
        return _UUID
    return _HEX_32 if "{32}" in pattern else name or "text"


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "boolean": (bool,),
        "array": (list,),
    }
    expected = kinds.get(schema.get("type", ""))
    if expected is None or not isinstance(value, expected):
        return False
    return value in schema.get("enum", [value]) and value == schema.get("const", value)
