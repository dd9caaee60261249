"""A partner back office: the partner API as its developer would use it, and proofs checked outside it."""

import hashlib
import secrets
import time
from types import TracebackType
from typing import Any, Self

import httpx

from link1.keys import PublicKey
from link1.objects import Decision, Passage, Verdict
from link1.signed import Kind, object_ref, verify_object
from tools.rig.demo.errors import DemoFailed

Json = dict[str, Any]


class BackOffice:
    """One API key at one service."""

    def __init__(self, url: str, api_key: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {api_key}"}, timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def create_person(self, external_ref: str, onboard_ref: str) -> Json:
        return self._post("/v1/subjects", {"external_ref": external_ref, "onboard_ref": onboard_ref}, 201)

    def grant(self, subject_id: str, purpose: str) -> Json:
        """Record a consent that the person gave in the operator's app."""
        evidence = {
            "method": "partner_app",
            "terms_version": "v1",
            "accepted_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "evidence_sha256": hashlib.sha256(f"{subject_id}:{purpose}".encode()).hexdigest(),
        }
        return self._post(
            f"/v1/subjects/{subject_id}/consents", {"purpose": purpose, "evidence": evidence}, 201
        )

    def open_enrolment(self, subject_id: str, **more: Any) -> Json:
        return self._post("/v1/enrollment-sessions", {"subject_id": subject_id, **more}, 201)

    def session(self, session_id: str) -> Json:
        return self.get(f"/v1/enrollment-sessions/{session_id}")

    def erase(self, subject_id: str) -> Json:
        answer = self._http.delete(
            f"/v1/subjects/{subject_id}", headers={"Idempotency-Key": secrets.token_hex(16)}
        )
        return _expect(answer, 200)

    def revoke(self, device_id: str, reason: str) -> Json:
        return self._post(f"/v1/devices/{device_id}/revoke", {"reason": reason}, 200)

    def get(self, path: str, **query: str) -> Json:
        return _expect(self._http.get(path, params=query), 200)

    def status_of(self, path: str) -> int:
        return self._http.get(path).status_code

    def _post(self, path: str, body: Json, status: int) -> Json:
        answer = self._http.post(path, json=body, headers={"Idempotency-Key": secrets.token_hex(16)})
        return _expect(answer, status)


def _expect(answer: httpx.Response, status: int) -> Json:
    body = answer.json()
    if answer.status_code != status or not isinstance(body, dict):
        code = body.get("code") if isinstance(body, dict) else None
        asked = f"{answer.request.method} {answer.request.url.path}"
        raise DemoFailed(f"{asked} answered {answer.status_code} {code}, not {status}")
    return body


def check_proof(proof: Json, device_key: PublicKey, validator_key: PublicKey) -> Verdict:
    """Verify a verdict proof with keys that were known beforehand, not with those that came along.

    Raises Link1Error or DemoFailed; returns the verdict.
    """
    verification = proof["verification"]
    if verification["device_verdict_key"]["kid"] != device_key.kid:
        raise DemoFailed("the proof names another device key than the one made at provisioning")
    verdict = Verdict.from_obj(verify_object(Kind.VERDICT, proof["signed_verdict"], device_key))
    ref = object_ref(proof["signed_verdict"])
    decision = Decision.from_obj(verify_object(Kind.DECISION, proof["signed_decision"], validator_key))
    if not ref == decision.verdict_ref == proof["record"]["verdict_id"] == verification["verdict_ref"]:
        raise DemoFailed("the proof's verdict, decision and record are not about the same thing")
    if "signed_passage" in proof:
        passage = Passage.from_obj(verify_object(Kind.PASSAGE, proof["signed_passage"], validator_key))
        if passage.verdict_ref != ref:
            raise DemoFailed("the passage of the proof is about another verdict")
    return verdict


def check_receipt(receipt: Json, keys: Json) -> Json:
    """Verify an erasure receipt with the service's published keys; returns the signed statement."""
    kid = receipt["signed_receipt"]["signer_kid"]
    for item in keys["keys"]:
        if item["kid"] == kid and "erasure_receipt" in item["use"]:
            key = PublicKey.from_b64(item["pub_b64"])
            return verify_object(Kind.ERASURE_RECEIPT, receipt["signed_receipt"], key)
    raise DemoFailed("the receipt is signed by a key that GET /v1/keys does not list for receipts")
