"""Enrollment sessions: short codes, every way they end, palms that are refused or held."""

import pytest

from cloud_client.reference_server.domain.people import enrollments
from cloud_client.reference_server.ops import commands as operator
from tests.cloud_client.server.server_database import everything_in
from tests.cloud_client.server.server_harness import Partner, Tenant, code_of, vector


def test_a_short_code_stands_for_the_token(tenant: Tenant, partner: Partner) -> None:
    device = tenant.device()
    session = partner.session(partner.person()["subject_id"], hands_required=["R"])
    assert session["qr_payload"] == f"SVC1:ENR:{session['session_id']}:{session['token']}"
    typed = session["short_code"].lower().replace("-", "").replace("0", "o").replace("1", "l")
    for code in (session["short_code"], typed):
        redeemed = device.post("/v1/enrollment-sessions/redeem", {"short_code": code})
        assert (redeemed["token"], redeemed["hands_required"]) == (session["token"], ["R"])
    wrong = device.send("POST", "/v1/enrollment-sessions/redeem", {"short_code": "0000-0000"})
    assert code_of(wrong) == "enrollment_session_invalid"
    stored = everything_in(tenant.cloud.data.database)
    assert session["token"].encode() not in stored
    assert session["short_code"].encode() not in stored
    shown = partner.get(f"/v1/enrollment-sessions/{session['session_id']}")
    assert not {"token", "qr_payload", "short_code"} & set(shown)
    tenant.cloud.clock.forward(s=300)
    late = device.send("POST", "/v1/enrollment-sessions/redeem", {"short_code": session["short_code"]})
    assert code_of(late) == "enrollment_session_invalid"
    assert partner.get(f"/v1/enrollment-sessions/{session['session_id']}")["status"] == "expired"


def test_a_session_that_was_shown_as_expired_stays_so(tenant: Tenant, partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    enrolled = partner.session(subject_id, expires_in_s=60)
    device = tenant.device()
    made = device.enrolment(enrolled["token"], {"L": vector(1), "R": vector(2)})
    device.post("/v1/enrollments", made, 201)

    def statuses() -> list[str]:
        return [partner.get(f"/v1/enrollment-sessions/{one['session_id']}")["status"] for one in ended]

    ended = [partner.session(subject_id, expires_in_s=60)]
    tenant.cloud.clock.forward(s=61)
    assert statuses() == ["expired"]
    ended.append(partner.session(subject_id, expires_in_s=60))
    tenant.cloud.clock.forward(s=61)
    partner.delete(f"/v1/subjects/{subject_id}/consents/enrollment")
    assert statuses() == ["expired", "expired"]


def test_sessions_end_in_every_way(tenant: Tenant, partner: Partner) -> None:
    device = tenant.device()
    subject_id = partner.person()["subject_id"]
    first, second = partner.session(subject_id), partner.session(subject_id)
    assert partner.get(f"/v1/enrollment-sessions/{first['session_id']}")["status"] == "cancelled"
    failed = device.post("/v1/enrollments", {"token": second["token"], "failed": "capture_rejected"})
    assert failed == {"session_id": second["session_id"], "status": "failed"}
    shown = partner.get(f"/v1/enrollment-sessions/{second['session_id']}")
    assert shown["failure_code"] == "capture_rejected"
    third = partner.session(subject_id)
    environment = tenant.environment("test")
    tenant.cloud.operate(
        lambda tx, _, now: operator.cancel_session(tx, environment, third["session_id"], now)
    )
    burnt = device.enrolment(third["token"], {"L": vector(1), "R": vector(2)})
    assert code_of(device.send("POST", "/v1/enrollments", burnt)) == "enrollment_session_invalid"
    fourth = partner.session(subject_id)
    partner.delete(f"/v1/subjects/{subject_id}")
    gone = partner.send("GET", f"/v1/enrollment-sessions/{fourth['session_id']}")
    assert code_of(gone) == "enrollment_session_not_found"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": "x" * 43}, "enrollment_session_invalid"),
        ({"model_id": "other"}, "model_unsupported"),
        ({"consents": []}, "consent_required"),
        ({"hands": []}, "validation_failed"),
    ],
)
def test_enrolments_that_are_refused(
    tenant: Tenant, partner: Partner, change: dict[str, object], code: str
) -> None:
    device = tenant.device()
    session = partner.session(partner.person()["subject_id"])
    body = device.enrolment(session["token"], {"L": vector(1), "R": vector(2)}) | change
    assert code_of(device.send("POST", "/v1/enrollments", body)) == code
    assert partner.get(f"/v1/enrollment-sessions/{session['session_id']}")["status"] == "open"


@pytest.mark.parametrize(
    "hands", [{"L": vector(1)}, {"L": vector(1), "R": bytes(2048)}, {"L": b"", "R": b""}]
)
def test_other_palms_than_asked_for(tenant: Tenant, partner: Partner, hands: dict[str, bytes]) -> None:
    device = tenant.device()
    session = partner.session(partner.person()["subject_id"])
    response = device.send("POST", "/v1/enrollments", device.enrolment(session["token"], hands))
    assert code_of(response) == "validation_failed"


def test_a_session_for_one_device(tenant: Tenant, partner: Partner) -> None:
    chosen, other = tenant.device("gate-1"), tenant.device("gate-2")
    subject_id = partner.person()["subject_id"]
    session = partner.session(subject_id, device_id="gate-1")
    body = chosen.enrolment(session["token"], {"L": vector(1), "R": vector(2)})
    assert code_of(other.send("POST", "/v1/enrollments", body)) == "enrollment_session_invalid"
    chosen.post("/v1/enrollments", body, 201)
    request = {"subject_id": subject_id, "device_id": "nobody"}
    assert code_of(partner.send("POST", "/v1/enrollment-sessions", request)) == "device_not_found"
    partner.post("/v1/devices/gate-2/revoke", {"reason": "lost"}, 200)
    request["device_id"] = "gate-2"
    response = partner.send("POST", "/v1/enrollment-sessions", request)
    assert code_of(response) == "device_state_conflict"


@pytest.mark.parametrize("approved", [True, False])
def test_a_palm_that_resembles_another_persons(tenant: Tenant, partner: Partner, approved: bool) -> None:
    device = tenant.device()
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    twin = partner.person()["subject_id"]
    session = partner.session(twin)
    body = device.enrolment(session["token"], {"L": vector(2), "R": vector(77)})
    held = device.post("/v1/enrollments", body, 202)
    assert held == {"session_id": session["session_id"], "status": "review"}
    assert partner.get(f"/v1/subjects/{twin}")["status"] == "pending_enrollment"
    environment = tenant.environment("test")

    def end(tx, vault, now):  # type: ignore[no-untyped-def]
        if approved:
            return enrollments.approve(tx, vault, environment, session["session_id"], now)
        return enrollments.reject(tx, environment, session["session_id"])

    tenant.cloud.operate(end)
    shown = partner.get(f"/v1/enrollment-sessions/{session['session_id']}")
    assert (shown["status"], shown["failure_code"]) == ("completed" if approved else "failed", None)
    expected = "active" if approved else "pending_enrollment"
    assert partner.get(f"/v1/subjects/{twin}")["status"] == expected
