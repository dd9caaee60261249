"""Subjects, consents, pages and idempotency."""

import string
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_client.reference_server.contract.times import parse_rfc3339, rfc3339
from cloud_client.reference_server.domain.people.cpf import carries_cpf, is_valid_cpf, shows_cpf
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops.retention import sweep
from cloud_client.reference_server.web.api import idempotency
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of

CPF = "52998224725"
EVIDENCE = {
    "method": "partner_app",
    "terms_version": "v1",
    "accepted_at": "2026-01-02T03:04:05+01:00",
    "evidence_sha256": "0" * 64,
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("529.982.247-25", True),
        (f"acct-{CPF}", True),
        ("2024-529.982.247-25", True),
        ("5.2.9.9.8.2.2.4.7.2.5", True),
        (f"a{CPF}b", True),
        (f"1{CPF}", False),
        ("111.111.111-11", False),
        ("529.982.247-26", False),
        ("529x982.247-25", False),
        ("550e8400-e29b-41d4-a716-446655440000", False),
    ],
)
def test_a_cpf_inside_another_identifier(text: str, found: bool) -> None:
    assert carries_cpf(text) is found


@pytest.mark.parametrize(
    "text",
    [CPF, "5.2.9.9.8.2.2.4.7.2.5", f"signup-{CPF}", "a:529.982.247-25:b", "1-529982247-25", f"cpf{CPF}"],
)
def test_a_cpf_written_out_in_a_name(text: str) -> None:
    assert shows_cpf(text)


@pytest.mark.parametrize(
    "text", [f"1{CPF}", f"{CPF}1", f"fad{CPF}", f"{CPF}f", "52998224-725", "529.982.247-26"]
)
def test_digits_of_a_random_name(text: str) -> None:
    assert not shows_cpf(f"req-{text}")


@given(st.uuids())
def test_no_uuid_shows_a_cpf(name: UUID) -> None:
    assert not shows_cpf(f"req-{name}")
    assert not shows_cpf(f"req_{name.hex}")


@given(st.text(string.digits, min_size=12, max_size=30))
def test_longer_digit_runs_are_not_searched(digits: str) -> None:
    assert not carries_cpf(digits)


@pytest.mark.parametrize("text", ["５２９９８２２４７２５", CPF + "\n", "0" * 11, "1234567890", ""])
def test_what_is_no_cpf(text: str) -> None:
    assert not is_valid_cpf(text)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"external_ref": CPF, "cpf": "1"}, "validation_failed"),
        ({"external_ref": CPF, "onboard_ref": CPF, "cpf": "0" * 11}, "external_ref_looks_like_cpf"),
        ({"external_ref": "taken", "onboard_ref": CPF, "cpf": "0" * 11}, "onboard_ref_looks_like_cpf"),
        ({"external_ref": "taken", "cpf": "0" * 11}, "cpf_invalid"),
        ({"external_ref": "taken", "cpf": CPF}, "external_ref_conflict"),
        ({"external_ref": "free", "cpf": CPF}, "cpf_conflict"),
    ],
)
def test_precedence_on_create(partner: Partner, body: dict[str, str], code: str) -> None:
    partner.person("taken", cpf=CPF)
    response = partner.send("POST", "/v1/subjects", body)
    assert code_of(response) == code
    assert CPF not in response.text


def test_names_are_free_in_the_other_environment(tenant: Tenant, partner: Partner) -> None:
    partner.person("p-1", cpf=CPF)
    live = tenant.partner("live")
    assert live.person("p-1", cpf=CPF)["livemode"] is True
    assert live.get("/v1/subjects", external_ref="p-1")["data"][0]["livemode"] is True


def test_pages_hold_still_under_inserts(partner: Partner) -> None:
    made = []
    for number in range(7):
        partner.cloud.clock.forward(ms=number % 2)
        made.append(partner.person(f"p{number}")["subject_id"])
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = partner.get("/v1/subjects", limit=3, **cursor)
        seen += [item["subject_id"] for item in page["data"]]
        partner.cloud.clock.forward(ms=1)
        partner.person()
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(seen) == sorted(made)
    assert len(partner.get("/v1/subjects", external_ref="p3")["data"]) == 1
    assert partner.get("/v1/subjects", external_ref="nobody")["data"] == []
    assert partner.get("/v1/subjects", status="active")["data"] == []


def test_cursors_are_bound(tenant: Tenant, partner: Partner) -> None:
    for _ in range(3):
        partner.person()
    cursor = partner.get("/v1/subjects", limit=1)["next_cursor"]
    assert len(partner.get("/v1/subjects", limit=200, cursor=cursor)["data"]) == 2
    changed = cursor[:-3] + ("A" if cursor[-3] != "A" else "B") + cursor[-2:]
    for text in (changed, "x", "", "a b", "=", cursor + "=", cursor * 10):
        assert code_of(partner.send("GET", "/v1/subjects", params={"cursor": text})) == "invalid_cursor"
    other = {"cursor": cursor, "status": "active"}
    assert code_of(partner.send("GET", "/v1/subjects", params=other)) == "invalid_cursor"
    assert code_of(partner.send("GET", "/v1/devices", params={"cursor": cursor})) == "invalid_cursor"
    live = tenant.partner("live")
    assert code_of(live.send("GET", "/v1/subjects", params={"cursor": cursor})) == "invalid_cursor"
    partner.cloud.clock.forward(s=31 * 24 * 3600)
    assert code_of(partner.send("GET", "/v1/subjects", params={"cursor": cursor})) == "cursor_expired"


@pytest.mark.parametrize("subject_id", ["x", "0" * 32, "{00000000-0000-4000-8000-000000000000}", "%00"])
def test_a_malformed_id_is_a_missing_person(partner: Partner, subject_id: str) -> None:
    assert code_of(partner.send("GET", f"/v1/subjects/{subject_id}")) == "subject_not_found"


def test_upper_case_ids(partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    assert partner.get(f"/v1/subjects/{subject_id.upper()}")["subject_id"] == subject_id


def test_consents(partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    path = f"/v1/subjects/{subject_id}/consents"
    granted = partner.post(path, {"purpose": "identification", "evidence": EVIDENCE})
    assert granted["granted_at"] == "2026-01-02T02:04:05.000Z"
    again = partner.post(path, {"purpose": "identification", "evidence": EVIDENCE}, 200)
    assert again == granted
    revoked = partner.delete(f"{path}/identification")
    assert revoked == granted | {
        "status": "revoked",
        "revoked_at": rfc3339(partner.cloud.clock.ms),
    }
    partner.cloud.clock.forward(s=5)
    assert partner.delete(f"{path}/identification") == revoked
    regranted = partner.post(path, {"purpose": "identification", "evidence": EVIDENCE})
    assert regranted["consent_id"] != granted["consent_id"]
    partner.post(path, {"purpose": "enrollment", "evidence": EVIDENCE})
    subject = partner.get(f"/v1/subjects/{subject_id}")
    assert subject["consents"] == [
        {"purpose": "enrollment", "status": "granted"},
        {"purpose": "identification", "status": "granted"},
    ]
    assert subject["status"] == "pending_enrollment"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"purpose": "payment"}, "/purpose"),
        ({"evidence": EVIDENCE | {"evidence_sha256": "A" * 64}}, "/evidence/evidence_sha256"),
        ({"evidence": EVIDENCE | {"accepted_at": "2026-01-02 03:04:05Z"}}, "/evidence/accepted_at"),
        ({"evidence": EVIDENCE | {"accepted_at": "1700000000"}}, "/evidence/accepted_at"),
        ({"evidence": EVIDENCE | {"accepted_at": "2026-01-02T03:04:60Z"}}, "/evidence/accepted_at"),
        ({"evidence": EVIDENCE | {"accepted_at": "2126-01-02T03:04:00Z"}}, "/evidence/accepted_at"),
        ({"evidence": EVIDENCE | {"x": 1}}, "/evidence"),
    ],
)
def test_bad_consents(partner: Partner, change: dict[str, object], pointer: str) -> None:
    path = f"/v1/subjects/{partner.person()['subject_id']}/consents"
    response = partner.send("POST", path, {"purpose": "enrollment", "evidence": EVIDENCE} | change)
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


@pytest.mark.parametrize("purpose", ["payment", "enrollment", "x"])
def test_revoking_what_was_never_granted(partner: Partner, purpose: str) -> None:
    path = f"/v1/subjects/{partner.person()['subject_id']}/consents/{purpose}"
    assert code_of(partner.send("DELETE", path)) == "subject_not_found"


def test_a_repeated_request_is_not_executed_again(partner: Partner) -> None:
    first = partner.send("POST", "/v1/subjects", {"external_ref": "p-1"}, key="k")
    again = partner.send("POST", "/v1/subjects", {"external_ref": "p-1"}, key="k")
    assert (first.headers["idempotent-replayed"], again.headers["idempotent-replayed"]) == ("false", "true")
    assert (again.status_code, again.json()) == (201, first.json())
    assert (
        again.headers["location"] == first.headers["location"] == f"/v1/subjects/{first.json()['subject_id']}"
    )
    other = partner.send("POST", "/v1/subjects", {"external_ref": "p-2"}, key="k")
    assert code_of(other) == "idempotency_key_mismatch"
    # The body is compared as bytes; another path or credential is another scope.
    spaced = partner.send("POST", "/v1/subjects", content='{"external_ref": "p-1" }', key="k")
    assert code_of(spaced) == "idempotency_key_mismatch"


def test_refusals_are_recorded_too(partner: Partner) -> None:
    partner.person("taken")
    body = {"external_ref": "taken"}
    first = partner.send("POST", "/v1/subjects", body, key="k")
    again = partner.send("POST", "/v1/subjects", body, key="k")
    assert (first.status_code, again.status_code) == (409, 409)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json()


def test_the_same_key_on_two_persons(partner: Partner) -> None:
    bodies = {"purpose": "enrollment", "evidence": EVIDENCE}
    ids = [partner.person()["subject_id"] for _ in range(2)]
    answers = [partner.send("POST", f"/v1/subjects/{one}/consents", bodies, key="k").json() for one in ids]
    assert [answer["subject_id"] for answer in answers] == ids


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_malformed_idempotency_keys(partner: Partner, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    response = partner.send("POST", "/v1/subjects", {"external_ref": "a"}, headers=headers)
    assert code_of(response) == "invalid_request"


def test_takeover_after_a_minute(tenant: Tenant, partner: Partner) -> None:
    body = b'{"external_ref":"p-1"}'

    def claim(tx, vault, now):  # type: ignore[no-untyped-def]
        return idempotency.claim(
            tx,
            vault,
            credential=f"key:{partner.key_id}",
            method="POST",
            path="/v1/subjects",
            key="k",
            body=body,
            now_ms=now,
        )

    tenant.cloud.operate(claim)
    response = partner.send("POST", "/v1/subjects", content=body, key="k")
    assert (code_of(response), response.json()["retryable"]) == ("idempotency_in_progress", True)
    tenant.cloud.clock.forward(ms=idempotency.TAKEOVER_MS)
    assert partner.send("POST", "/v1/subjects", content=body, key="k").status_code == 201


def test_keys_are_forgotten_after_a_day(partner: Partner) -> None:
    partner.send("POST", "/v1/subjects", {"external_ref": "p-1"}, key="k")
    partner.cloud.clock.forward(ms=idempotency.KEEP_MS)
    response = partner.send("POST", "/v1/subjects", {"external_ref": "p-2"}, key="k")
    assert response.status_code == 201


def test_erasing_and_idempotency(partner: Partner) -> None:
    first = partner.send("POST", "/v1/subjects", {"external_ref": "p-1"}, key="create")
    subject_id = first.json()["subject_id"]
    erased = partner.send("DELETE", f"/v1/subjects/{subject_id}", key="erase")
    assert erased.headers["idempotent-replayed"] == "false"
    again = partner.send("DELETE", f"/v1/subjects/{subject_id}", key="erase")
    assert (again.json(), again.headers["idempotent-replayed"]) == (erased.json(), "true")
    assert partner.send("DELETE", f"/v1/subjects/{subject_id}").status_code == 404
    receipt = erased.json()["signed_receipt"]["receipt"]
    assert receipt["erased"] == ["external_ref"]
    assert "retained" not in receipt
    assert erased.json()["propagation"]["status"] == "complete"
    again = partner.send("POST", "/v1/subjects", {"external_ref": "p-1"}, key="create")
    assert again.status_code == 201
    assert again.json()["subject_id"] != subject_id


def test_blocking(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
    person = partner.person()
    subject_id = person["subject_id"]
    device.enrol(partner, subject_id)
    environment = tenant.environment("test")
    cloud = tenant.cloud
    blocked = cloud.operate(
        lambda tx, vault, now: operator.block_subject(
            tx, vault, environment, subject_id, reason="lost_card", now_ms=now
        )
    )
    assert (blocked["status"], blocked["block"]["reason"]) == ("blocked", "lost_card")
    session = partner.send("POST", "/v1/enrollment-sessions", {"subject_id": subject_id})
    assert code_of(session) == "subject_state_conflict"
    unblocked = cloud.operate(
        lambda tx, vault, now: operator.unblock_subject(tx, vault, environment, subject_id, now_ms=now)
    )
    assert (unblocked["status"], unblocked["block"]) == ("active", None)
    deltas = device.get("/v1/gallery/deltas?epoch=1&after_seq=2")["data"]
    assert [delta["op"] for delta in deltas] == ["suspend", "resume"]


@pytest.mark.parametrize("reason", [f"CPF {CPF}", "see 529.982.247-25", "x" * 201, "lost\ncard"])
def test_a_reason_that_partners_must_not_be_shown(tenant: Tenant, partner: Partner, reason: str) -> None:
    subject_id = partner.person()["subject_id"]
    environment = tenant.environment("test")

    def block(tx, vault, now):  # type: ignore[no-untyped-def]
        return operator.block_subject(tx, vault, environment, subject_id, reason=reason, now_ms=now)

    with pytest.raises(OperatorError, match="no CPF") as refused:
        tenant.cloud.operate(block)
    assert reason not in str(refused.value)
    assert partner.get(f"/v1/subjects/{subject_id}")["block"] is None


def test_revoking_identification_suspends_and_granting_resumes(device: SimDevice, partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id)
    path = f"/v1/subjects/{subject_id}/consents"
    partner.delete(f"{path}/identification")
    subject = partner.get(f"/v1/subjects/{subject_id}")
    assert subject["status"] == "blocked"
    assert subject["block"]["reason"] == "identification_consent_revoked"
    snapshot = device.get("/v1/gallery/snapshot")
    assert [entry["suspended"] for entry in snapshot["data"]] == [True, True]
    partner.post(path, {"purpose": "identification", "evidence": EVIDENCE})
    assert partner.get(f"/v1/subjects/{subject_id}")["block"] is None


def test_revoking_enrollment_destroys_the_templates(device: SimDevice, partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id)
    partner.delete(f"/v1/subjects/{subject_id}/consents/enrollment")
    subject = partner.get(f"/v1/subjects/{subject_id}")
    assert (subject["status"], subject["enrollment"], subject["gallery_seq"]) == (
        "pending_enrollment",
        None,
        3,
    )
    deltas = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")["data"]
    assert [delta["op"] for delta in deltas] == ["noop", "noop", "tombstone"]
    # Erased later, a device that was away must still learn of it: another tombstone follows.
    receipt = partner.delete(f"/v1/subjects/{subject_id}")
    assert receipt["signed_receipt"]["receipt"]["gallery"]["seq"] == 4
    deltas = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")["data"]
    assert [delta["op"] for delta in deltas] == ["noop", "noop", "noop", "tombstone"]


def test_the_sweep_counts_what_it_deletes(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    person = partner.person()
    device.enrol(partner, person["subject_id"])
    partner.session(person["subject_id"])
    device.upload({"signed_verdict": device.verdict(person["subject_ref"])})
    cloud = tenant.cloud
    late = parse_rfc3339("2030-01-01T00:00:00Z")
    assert late is not None
    assert cloud.operate(lambda tx, _, now: sweep(tx, now)).shown["verdicts"] == 0
    counts = cloud.operate(lambda tx, _, __: sweep(tx, late))
    assert counts.shown == {"idempotency": 6, "deltas": 2, "events": 1, "verdicts": 1, "sessions": 1}
    response = device.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0")
    assert (response.status_code, response.json()["snapshot_seq"]) == (410, 2)
