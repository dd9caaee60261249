"""A back office in Python on the generated client: a program of its own, typed without a cast.

python back_office.py URL; the environment's API_KEY is its key. It runs under PYTHONPATH with the client.
"""

import os
import sys
from datetime import UTC, datetime

from palm_service import AuthenticatedClient, models
from palm_service.api.partner import (
    create_enrollment_session,
    create_subject,
    erase_subject,
    get_erasure_receipt,
    get_subject,
    grant_consent,
    list_devices,
    list_subjects,
)
from palm_service.types import UNSET


def main() -> None:
    service = AuthenticatedClient(base_url=sys.argv[1], token=os.environ["API_KEY"])
    people = [created(service, f"python-{name}") for name in ("a", "b", "c")]
    first = people[0].subject_id

    evidence = models.ConsentEvidence(
        method=models.ConsentEvidenceMethod.PARTNER_APP,
        terms_version="v1",
        accepted_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        evidence_sha256="0" * 64,
    )
    consent = grant_consent.sync(
        str(first),
        client=service,
        body=models.GrantConsent(models.GrantConsentPurpose.IDENTIFICATION, evidence),
        idempotency_key="python-consent",
    )
    assert consent is not None and consent.status == "granted", consent

    session = create_enrollment_session.sync(
        client=service,
        body=models.CreateEnrollmentSession(
            subject_id=str(first), hands_required=[models.CreateEnrollmentSessionHandsRequiredItem.L]
        ),
        idempotency_key="python-session",
    )
    assert isinstance(session, models.CreatedEnrollmentSession), session
    assert session.subject_id == first and session.qr_payload.startswith("SVC1:ENR:")

    page = list_subjects.sync(client=service, limit=2)
    assert isinstance(page, models.SubjectPage), page
    found = list(page.data)
    while page.has_more:
        page = list_subjects.sync(client=service, limit=2, cursor=page.next_cursor or UNSET)
        assert isinstance(page, models.SubjectPage), page
        found += page.data
    assert [one.subject_id for one in found] == [one.subject_id for one in reversed(people)]
    assert [one.purpose for one in found[-1].consents] == ["identification"]

    devices = list_devices.sync(client=service)
    assert isinstance(devices, models.DevicePage), devices
    (gate,) = devices.data
    assert (
        gate.device_id == "gate-1" and gate.status is models.DeviceStatus.ACTIVE and gate.revoked_at is None
    )

    for person in people:
        receipt = erase_subject.sync(str(person.subject_id), client=service)
        assert isinstance(receipt, models.ErasureReceipt), receipt
        again = get_erasure_receipt.sync(str(receipt.receipt_id), client=service)
        assert isinstance(again, models.ErasureReceipt), again
        assert again.signed_receipt == receipt.signed_receipt and again.subject_id == person.subject_id

    problem = get_subject.sync(str(first), client=service)
    assert isinstance(problem, models.GetSubjectResponse404), problem
    assert problem.code is models.GetSubjectResponse404Code.SUBJECT_NOT_FOUND and problem.retryable is False


def created(service: AuthenticatedClient, name: str) -> models.Subject:
    made = create_subject.sync(
        client=service, body=models.CreateSubject(external_ref=name), idempotency_key=name
    )
    assert isinstance(made, models.Subject), made
    return made


main()
