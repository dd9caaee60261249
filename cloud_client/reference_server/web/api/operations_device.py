"""The device surface's part of the operation table."""

from typing import Final

from cloud_client.contract import DEFAULT_DELTA_PAGE, MAX_WAIT_S
from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract import bodies
from cloud_client.reference_server.contract.parameters import CURSOR_PARAMETER, integer
from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.contract.words import MAX_BULK_JSON_BYTES, MAX_DELTA_PAGE, MAX_REPORT_BYTES
from cloud_client.reference_server.domain.devices import attestation, registration, reports, updates
from cloud_client.reference_server.domain.devices import gallery as gallery_routes
from cloud_client.reference_server.domain.devices import status as device_routes
from cloud_client.reference_server.domain.people import enrollments
from cloud_client.reference_server.domain.verdicts import uploads
from cloud_client.reference_server.web.api.operation import MAX_VALUES_OF_A_BATCH, Keyed, Operation, Surface
from cloud_client.reference_server.web.api.rate_limit import Rate
from link1.canonical import CARRYING_DEPTH

_MAX_SEQ = 2**53 - 1

DEVICE_OPERATIONS: Final = (
    Operation(
        "registerDevice",
        "POST /v1/devices/register",
        "Register a device with a provisioning token",
        registration.register_device,
        {201: shown.RegistrationAnswer, 200: shown.RegistrationAnswer},
        Surface.REGISTRATION,
        problems=(ProblemCode.DEVICE_STATE_CONFLICT,),
        bodies=(bodies.RegisterDevice,),
        keyed=Keyed.REQUIRED,
    ),
    Operation(
        "attestDevice",
        "POST /v1/devices/attest",
        "Attest the device's keys",
        attestation.attest_device,
        {200: shown.Attestation},
        Surface.DEVICE,
        problems=(ProblemCode.DEVICE_STATE_CONFLICT,),
        bodies=(bodies.Attest,),
        limits=(Rate.ATTESTATION,),
        keyed=Keyed.REQUIRED,
    ),
    Operation(
        "getDeviceStatus",
        "GET /v1/devices/self/status",
        "The device's signed status",
        device_routes.device_status,
        {200: shown.SignedDeviceStatus},
        Surface.DEVICE,
        waits=True,
        for_revoked=True,
    ),
    Operation(
        "reportDevice",
        "POST /v1/devices/self/report",
        "Report how the device is",
        reports.report_device,
        {204: None},
        Surface.DEVICE,
        bodies=(bodies.ReportBody,),
        limits=(Rate.REPORT,),
        keyed=Keyed.REQUIRED,
        newest_key_only=True,
        max_bytes=MAX_REPORT_BYTES,
        max_values=MAX_REPORT_BYTES,
    ),
    Operation(
        "listUpdates",
        "GET /v1/devices/self/updates",
        "What the device is offered now",
        updates.list_updates,
        {200: shown.OfferedUpdates},
        Surface.DEVICE,
    ),
    Operation(
        "getUpdateChunk",
        "GET /v1/updates/{release_seq}/chunks/{index}",
        "A chunk of a release that the device was offered",
        updates.get_chunk,
        {200: shown.UpdateChunk},
        Surface.DEVICE,
        cost=0.2,
        lists=True,
    ),
    Operation(
        "acknowledgeWipe",
        "POST /v1/devices/self/wiped",
        "Acknowledge a wipe",
        device_routes.acknowledge_wipe,
        {204: None},
        Surface.DEVICE,
        problems=(ProblemCode.DEVICE_STATE_CONFLICT,),
        bodies=(bodies.Wiped,),
        keyed=Keyed.REQUIRED,
        for_revoked=True,
    ),
    Operation(
        "getGallerySnapshot",
        "GET /v1/gallery/snapshot",
        "A page of a consistent snapshot of the gallery",
        gallery_routes.snapshot,
        {200: shown.SnapshotPageAnswer},
        Surface.DEVICE,
        problems=(ProblemCode.CURSOR_EXPIRED,),
        query=(CURSOR_PARAMETER,),
        cost=5.0,
        waits=True,
        access_only=True,
    ),
    Operation(
        "listGalleryDeltas",
        "GET /v1/gallery/deltas",
        "What has changed in the gallery, waiting for it",
        gallery_routes.list_deltas,
        {200: shown.DeltaPageAnswer},
        Surface.DEVICE,
        problems=(ProblemCode.HISTORY_EXPIRED,),
        query=(
            integer("epoch", 0, _MAX_SEQ, required=True),
            integer("after_seq", 0, _MAX_SEQ, required=True),
            integer("limit", 1, MAX_DELTA_PAGE, DEFAULT_DELTA_PAGE),
            integer("wait_s", 0, MAX_WAIT_S, 0),
        ),
        waits=True,
        polled=True,
        access_only=True,
    ),
    Operation(
        "uploadVerdicts",
        "POST /v1/verdicts/batch",
        "Upload verdicts and what became of them",
        uploads.upload_verdicts,
        {200: shown.BatchResult},
        Surface.DEVICE,
        bodies=(bodies.VerdictBatch,),
        keyed=Keyed.REQUIRED,
        max_bytes=MAX_BULK_JSON_BYTES,
        max_depth=CARRYING_DEPTH,
        max_values=MAX_VALUES_OF_A_BATCH,
    ),
    Operation(
        "redeemShortCode",
        "POST /v1/enrollment-sessions/redeem",
        "Exchange a short code for a session's token",
        enrollments.redeem_short_code,
        {200: shown.RedeemedSession},
        Surface.DEVICE,
        problems=(ProblemCode.ENROLLMENT_SESSION_INVALID,),
        bodies=(bodies.RedeemBody,),
        limits=(Rate.REDEEM_OF_DEVICE, Rate.REDEEM_OF_TENANT),
        keyed=Keyed.REQUIRED,
    ),
    Operation(
        "concludeEnrollment",
        "POST /v1/enrollments",
        "Complete an enrollment session, or report its failure",
        enrollments.conclude_enrollment,
        {201: shown.Enrollment, 202: shown.EnrollmentOutcome, 200: shown.EnrollmentOutcome},
        Surface.DEVICE,
        problems=(
            ProblemCode.ENROLLMENT_SESSION_INVALID,
            ProblemCode.CONSENT_REQUIRED,
            ProblemCode.MODEL_UNSUPPORTED,
        ),
        bodies=(bodies.CompleteEnrollment, bodies.FailEnrollment),
        body_of=enrollments.read_enrollment,
        ahead=enrollments.search_ahead,
        keyed=Keyed.REQUIRED,
    ),
)
