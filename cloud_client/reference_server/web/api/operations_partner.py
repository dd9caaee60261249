"""The public and the partner's part of the operation table."""

from dataclasses import replace
from typing import Final

from cloud_client.contract import NAME_64
from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract import bodies
from cloud_client.reference_server.contract import mail as mail_bodies
from cloud_client.reference_server.contract.bodies import MAX_SAFE_INTEGER
from cloud_client.reference_server.contract.parameters import (
    CURSOR_PARAMETER,
    EXTERNAL_REF_PARAMETER,
    LIMIT,
    date_time,
    integer,
    matching,
    one_of,
    uuid,
)
from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.contract.words import (
    MAX_BULK_JSON_BYTES,
    DeviceStatusWord,
    Reconciliation,
    Scope,
    SubjectStatus,
)
from cloud_client.reference_server.domain.devices import records as devices
from cloud_client.reference_server.domain.mail import listing as mail_listing
from cloud_client.reference_server.domain.mail import outbox as mail_outbox
from cloud_client.reference_server.domain.people import consents, erasure, sessions, subjects
from cloud_client.reference_server.domain.verdicts import records as verdicts
from cloud_client.reference_server.web.api import public
from cloud_client.reference_server.web.api.operation import (
    Keyed,
    Operation,
    Surface,
)
from cloud_client.reference_server.web.api.rate_limit import Rate

PUBLIC: Final = (
    Operation(
        "getHealth",
        "GET /v1/health",
        "Whether the service answers",
        public.get_health,
        {200: shown.HealthAnswer},
        Surface.PUBLIC,
        waits=True,
        dated=True,
    ),
    Operation(
        "listSigningKeys",
        "GET /v1/keys",
        "The service's public signing keys",
        public.list_signing_keys,
        {200: shown.SigningKeys},
        Surface.PUBLIC,
        conditional=True,
        note="Has an ETag, and answers 304 to an If-None-Match that names it.",
    ),
    Operation(
        "listProblemTypes",
        "GET /problems",
        "Every error code, and what to do about it",
        public.list_problems,
        {200: shown.ProblemTypes},
        Surface.PUBLIC,
        added=True,
    ),
    Operation(
        "getProblemType",
        "GET /problems/{code}",
        "One error code, and what to do about it",
        public.get_problem,
        {200: shown.ProblemType},
        Surface.PUBLIC,
        added=True,
        note="A problem's `type` leads here.",
    ),
)

SUBJECTS: Final = (
    Operation(
        "createSubject",
        "POST /v1/subjects",
        "Create a person",
        subjects.create_subject,
        {201: shown.Subject},
        problems=(
            ProblemCode.EXTERNAL_REF_CONFLICT,
            ProblemCode.CPF_CONFLICT,
            ProblemCode.EXTERNAL_REF_LOOKS_LIKE_CPF,
            ProblemCode.ONBOARD_REF_LOOKS_LIKE_CPF,
            ProblemCode.CPF_INVALID,
        ),
        scope=Scope.SUBJECTS_WRITE,
        bodies=(bodies.CreateSubject,),
        located=True,
        keyed=Keyed.REQUIRED,
    ),
    Operation(
        "listSubjects",
        "GET /v1/subjects",
        "List persons, newest first",
        subjects.list_subjects,
        {200: shown.SubjectPage},
        problems=(ProblemCode.CURSOR_EXPIRED,),
        scope=Scope.SUBJECTS_READ,
        query=(
            EXTERNAL_REF_PARAMETER,
            one_of("status", [word.value for word in SubjectStatus]),
            LIMIT,
            CURSOR_PARAMETER,
        ),
        lists=True,
    ),
    Operation(
        "getSubject",
        "GET /v1/subjects/{subject_id}",
        "One person",
        subjects.get_subject,
        {200: shown.Subject},
        scope=Scope.SUBJECTS_READ,
    ),
    Operation(
        "eraseSubject",
        "DELETE /v1/subjects/{subject_id}",
        "Erase a person and get a signed receipt",
        erasure.erase_subject,
        {200: shown.ErasureReceipt},
        scope=Scope.SUBJECTS_WRITE,
        keyed=Keyed.OPTIONAL,
        note=(
            "What stays has no biometrics: the signed receipt, the signed verdicts already recorded until "
            "their 13 months are over, and in the gallery log, for its 7 days, a tombstone with the "
            "pseudonym subject_ref, without which a device that was away could not drop the palm."
        ),
    ),
    Operation(
        "getErasureReceipt",
        "GET /v1/erasure-receipts/{receipt_id}",
        "The receipt of an erasure, with its propagation as of now",
        erasure.get_erasure_receipt,
        {200: shown.ErasureReceipt},
        scope=Scope.SUBJECTS_READ,
        referenced=True,
        note="propagation says how many devices have applied the erasure.",
    ),
    Operation(
        "grantConsent",
        "POST /v1/subjects/{subject_id}/consents",
        "Record a consent",
        consents.grant_consent,
        {201: shown.ConsentAnswer, 200: shown.ConsentAnswer},
        scope=Scope.SUBJECTS_WRITE,
        bodies=(bodies.GrantConsent,),
        keyed=Keyed.REQUIRED,
    ),
    Operation(
        "revokeConsent",
        "DELETE /v1/subjects/{subject_id}/consents/{purpose}",
        "Revoke a consent",
        consents.revoke_consent,
        {200: shown.ConsentAnswer},
        scope=Scope.SUBJECTS_WRITE,
        keyed=Keyed.OPTIONAL,
        note=(
            "Without the enrollment consent the palms are destroyed; without the identification consent "
            "the person is suspended at every gate. A purpose that was never granted is `subject_not_found` "
            "as well."
        ),
    ),
)

SESSIONS: Final = (
    Operation(
        "createEnrollmentSession",
        "POST /v1/enrollment-sessions",
        "Open an enrollment session",
        sessions.create_session,
        {201: shown.CreatedEnrollmentSession},
        problems=(
            ProblemCode.SUBJECT_NOT_FOUND,
            ProblemCode.DEVICE_NOT_FOUND,
            ProblemCode.LIVEMODE_MISMATCH,
            ProblemCode.SUBJECT_STATE_CONFLICT,
            ProblemCode.DEVICE_STATE_CONFLICT,
        ),
        scope=Scope.SUBJECTS_WRITE,
        bodies=(bodies.CreateEnrollmentSession,),
        located=True,
        limits=(Rate.SESSIONS_OF_TENANT,),
        keyed=Keyed.REQUIRED,
        note="The answer shows token, qr_payload and short_code this once.",
    ),
    Operation(
        "getEnrollmentSession",
        "GET /v1/enrollment-sessions/{session_id}",
        "One enrollment session",
        sessions.get_session,
        {200: shown.EnrollmentSession},
        scope=Scope.SUBJECTS_READ,
    ),
)

DEVICES: Final = (
    Operation(
        "listDevices",
        "GET /v1/devices",
        "List devices, newest first",
        devices.list_devices,
        {200: shown.DevicePage},
        scope=Scope.DEVICES_READ,
        query=(
            one_of("status", [word.value for word in DeviceStatusWord]),
            matching("gate_id", NAME_64),
            one_of("kind", ["access", "totem"]),
            LIMIT,
            CURSOR_PARAMETER,
        ),
        lists=True,
    ),
    Operation(
        "revokeDevice",
        "POST /v1/devices/{device_id}/revoke",
        "Revoke a device",
        devices.revoke_device,
        {200: shown.DeviceAnswer},
        scope=Scope.DEVICES_WRITE,
        bodies=(bodies.RevokeDevice,),
        keyed=Keyed.REQUIRED,
        note="The device gets a signed wipe with its next status query, and through its inbox.",
    ),
)

MAIL: Final = (
    Operation(
        "listDeviceInbox",
        "GET /v1/devices/{device_id}/inbox",
        "Sealed records to carry to a device",
        mail_listing.list_device_inbox,
        {200: shown.InboxPage},
        problems=(ProblemCode.VALIDATION_FAILED,),
        scope=Scope.DEVICES_READ,
        query=(
            replace(integer("after_seq", 0, MAX_SAFE_INTEGER, 0), refused_with=ProblemCode.VALIDATION_FAILED),
            replace(LIMIT, refused_with=ProblemCode.VALIDATION_FAILED),
        ),
        waits=True,
        note=(
            "Ends after limit records or 8 MiB, then has_more is true. Go on from the last seq that the "
            "validator has taken. after_seq or limit outside its range is 422 here, not 400."
        ),
    ),
    Operation(
        "submitDeviceOutbox",
        "POST /v1/devices/{device_id}/outbox",
        "Hand in sealed records of a device",
        mail_outbox.submit_device_outbox,
        {200: shown.OutboxResult},
        scope=Scope.DEVICES_WRITE,
        bodies=(mail_bodies.SubmitOutbox,),
        keyed=Keyed.REQUIRED,
        max_bytes=MAX_BULK_JSON_BYTES,
        note=(
            "A record is handed in as the device gave it to the validator. Delete nothing: the device "
            "does that when the signed receipt has come through its inbox."
        ),
    ),
)

VERDICTS: Final = (
    Operation(
        "listVerdicts",
        "GET /v1/verdicts",
        "List verdicts",
        verdicts.list_verdicts,
        {200: shown.VerdictPage},
        problems=(ProblemCode.CURSOR_EXPIRED,),
        scope=Scope.VERDICTS_READ,
        query=(
            matching("device_id", NAME_64),
            matching("gate_id", NAME_64),
            uuid("subject_id"),
            one_of("decision", ["accept", "reject", "abstain"]),
            one_of("reconciliation", [word.value for word in Reconciliation]),
            date_time("from"),
            date_time("to"),
            one_of("order", ["desc", "asc"], "desc"),
            LIMIT,
            CURSOR_PARAMETER,
        ),
        lists=True,
    ),
    Operation(
        "listVerdictChanges",
        "GET /v1/verdict-changes",
        "List verdicts in the order in which they came or changed last",
        verdicts.list_verdict_changes,
        {200: shown.VerdictChangesPage},
        problems=(ProblemCode.CURSOR_EXPIRED,),
        scope=Scope.VERDICTS_READ,
        query=(LIMIT, CURSOR_PARAMETER),
        lists=True,
        added=True,
        note=(
            "Lists every verdict that came or changed, whenever it was decided. next_cursor is always "
            "there: begin the next poll with it."
        ),
    ),
    Operation(
        "getVerdict",
        "GET /v1/verdicts/{verdict_id}",
        "A verdict with its proof",
        verdicts.get_verdict,
        {200: shown.VerdictProof},
        scope=Scope.VERDICTS_READ,
        note="Has everything that is needed to check the signatures without this service.",
    ),
)

WEBHOOKS: Final = tuple(
    Operation(
        f"{method.lower()}Webhooks{index}",
        f"{method} {path}",
        "Planned",
        public.webhooks,
        {},
        problems=(ProblemCode.NOT_IMPLEMENTED,),
    )
    for index, path in enumerate(("/v1/webhooks", "/v1/webhooks/{rest:path}"))
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
)

PARTNER_OPERATIONS: Final = (
    *PUBLIC,
    *SUBJECTS,
    *SESSIONS,
    *DEVICES,
    *MAIL,
    *VERDICTS,
    *WEBHOOKS,
)
