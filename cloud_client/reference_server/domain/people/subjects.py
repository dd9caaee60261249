"""Subjects: create, list, get. Erasing is in erasure.py."""

import json
import uuid
from typing import Any

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import CreateSubject
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.contract.words import Purpose
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.pages import Listed, list_page, read_cursor
from cloud_client.reference_server.domain.people import status as standing
from cloud_client.reference_server.domain.people.cpf import carries_cpf, is_valid_cpf
from cloud_client.reference_server.domain.tenancy import persons, tenants
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault

CURSOR_AGE_MS = 30 * 24 * 3600 * 1000


def create_subject(call: Call, tx: Tx) -> ApiAnswer:
    """createSubject: a person without palms."""
    body: CreateSubject = call.body
    environment, vault = call.environment, call.vault
    if carries_cpf(body.external_ref):
        raise Problem(ProblemCode.EXTERNAL_REF_LOOKS_LIKE_CPF)
    if body.onboard_ref is not None and carries_cpf(body.onboard_ref):
        raise Problem(ProblemCode.ONBOARD_REF_LOOKS_LIKE_CPF)
    if body.cpf is not None and not is_valid_cpf(body.cpf):
        raise Problem(ProblemCode.CPF_INVALID)
    external_ref_mac = persons.external_ref_mac(vault, environment, body.external_ref)
    if tx.exists(
        """SELECT 1 FROM subjects
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND external_ref_mac = :mac""",
        mac=external_ref_mac,
        **environment.params,
    ):
        raise Problem(ProblemCode.EXTERNAL_REF_CONFLICT)
    tenant = tenants.load(tx, vault, environment.tenant_id)
    cpf_mac = None if body.cpf is None else tenant.cpf_mac(environment, body.cpf)
    if cpf_mac is not None and tx.exists(
        """SELECT 1 FROM subjects
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND cpf_mac = :cpf_mac""",
        cpf_mac=cpf_mac,
        **environment.params,
    ):
        raise Problem(ProblemCode.CPF_CONFLICT)
    subject_id = str(uuid.uuid4())
    key, key_ct = persons.new_key(tx, vault, subject_id)
    row = tx.row(
        """INSERT INTO subjects (subject_id, tenant_id, livemode, subject_ref, status, external_ref_mac,
                                 cpf_mac, cpf_ct, person_key_ct, refs_ct, has_onboard_ref, created_ms,
                                 updated_ms)
           VALUES (:subject_id, :tenant_id, :livemode, :subject_ref, 'pending_enrollment', :external_ref_mac,
                   :cpf_mac, :cpf_ct, :key_ct, :refs_ct, :has_onboard_ref, :now_ms, :now_ms)
           RETURNING *""",
        subject_id=subject_id,
        subject_ref=tenant.subject_ref(subject_id),
        external_ref_mac=external_ref_mac,
        cpf_mac=cpf_mac,
        cpf_ct=None if body.cpf is None else persons.seal_cpf(key, subject_id, body.cpf),
        key_ct=key_ct,
        refs_ct=persons.seal_refs(key, subject_id, body.external_ref, body.onboard_ref),
        has_onboard_ref=int(body.onboard_ref is not None),
        now_ms=call.now_ms,
        **environment.params,
    )
    person = persons.SubjectIdentity(
        subject_id, row["subject_ref"], key, body.external_ref, body.onboard_ref, suspended=False
    )
    location = {"Location": f"/v1/subjects/{subject_id}"}
    return ApiAnswer(201, subject_object(tx, vault, row, person), location, subject_id=subject_id)


def get_subject(call: Call, tx: Tx) -> ApiAnswer:
    row = persons.row_by_id(tx, call.environment, call.path["subject_id"])
    return ApiAnswer(200, subject_object(tx, call.vault, row))


def list_subjects(call: Call, tx: Tx) -> ApiAnswer:
    """listSubjects: newest first."""
    query = call.query
    after = read_cursor(call, "subjects", max_age_ms=CURSOR_AGE_MS)
    filters: dict[str, Any] = {}
    if query["external_ref"] is not None:
        filters["external_ref_mac"] = persons.external_ref_mac(
            call.vault, call.environment, query["external_ref"]
        )
    if query["status"] is not None:
        filters["status"] = query["status"]
    listed = Listed("subjects", "subjects", "created_ms", "subject_id", shown.SubjectPage, filters)
    return list_page(call, tx, listed, after, lambda row: subject_object(tx, call.vault, row))


def subject_object(
    tx: Tx, vault: Vault, row: Row, person: persons.SubjectIdentity | None = None
) -> shown.Subject:
    """The Subject of the contract; ``person`` is what the row seals, where the caller has it open."""
    person = person or persons.load(vault, row)
    return shown.Subject.of(
        row,
        external_ref=person.external_ref,
        onboard_ref=person.onboard_ref,
        block=standing.block_object(tx, row),
        enrollment=None
        if row["enrolled_ms"] is None
        else shown.EnrollmentOfSubject.of(row, hands=json.loads(row["hands"])),
        consents=_consents(tx, row["subject_id"]),
        kyc=shown.Kyc(cpf_on_file=row["cpf_ct"] is not None),
    )


def _consents(tx: Tx, subject_id: str) -> list[shown.ConsentOfSubject]:
    rows = tx.all(
        "SELECT purpose, status FROM consents WHERE subject_id = :subject_id ORDER BY recorded_no",
        subject_id=subject_id,
    )
    if not rows:
        return []
    latest = {row["purpose"]: row["status"] for row in rows}
    return [
        shown.ConsentOfSubject(purpose=purpose.value, status=latest[purpose])
        for purpose in Purpose
        if purpose in latest
    ]
