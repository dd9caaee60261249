"""Edges of the contract's HTTP: ids in any case, conditions, and instants at either end of the calendar."""

import time

import pytest

from cloud_client.reference_server.contract.times import EARLIEST_MS, LATEST_MS, parse_rfc3339, rfc3339
from cloud_client.reference_server.web.api.etags import none_matches
from tests.cloud_client.server.server_harness import Cloud, Partner, code_of

EVIDENCE = {"method": "paper", "terms_version": "v1", "evidence_sha256": "0" * 64}


def shouted(subject_id: str) -> list[str]:
    """The id in other spellings of the same path."""
    return [subject_id.upper(), subject_id.replace("-", "%2D"), subject_id.upper().replace("-", "%2d")]


def test_an_id_in_any_case_is_one_request(partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    body = {"purpose": "identification", "evidence": EVIDENCE | {"accepted_at": "2026-01-31T12:00:00Z"}}
    first = partner.send("POST", f"/v1/subjects/{subject_id}/consents", body, key="once")
    assert (first.status_code, first.headers["idempotent-replayed"]) == (201, "false")
    for spelling in shouted(subject_id):
        again = partner.send("POST", f"/v1/subjects/{spelling}/consents", body, key="once")
        assert (again.headers["idempotent-replayed"], again.content) == ("true", first.content)
    revoked = partner.send("DELETE", f"/v1/subjects/{subject_id.upper()}/consents/identification", key="r")
    again = partner.send("DELETE", f"/v1/subjects/{subject_id}/consents/identification", key="r")
    assert (again.headers["idempotent-replayed"], again.content) == ("true", revoked.content)
    erased = partner.send("DELETE", f"/v1/subjects/{subject_id.upper()}", key="e")
    again = partner.send("DELETE", f"/v1/subjects/{subject_id}", key="e")
    assert (again.headers["idempotent-replayed"], again.content) == ("true", erased.content)


def test_ids_that_have_one_spelling_have_it(partner: Partner) -> None:
    assert (
        code_of(partner.send("POST", "/v1/devices/GATE-1/revoke", {"reason": "lost"})) == "device_not_found"
    )
    assert code_of(partner.send("GET", f"/v1/verdicts/{'A' * 32}")) == "verdict_not_found"
    assert code_of(partner.send("DELETE", f"/v1/subjects/{'A' * 32}", key="x")) == "subject_not_found"


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        (['"a"'], False),
        (['W/"a"'], False),
        (["*"], False),
        ([" * "], False),
        (['"b", "a"'], False),
        (['"b"', 'W/"a"'], False),
        ([', ,"b",, "a",'], False),
        (['"b,c", "a"'], False),
        (['"b"'], True),
        (['"b,"a""'], True),
        ([], True),
        ([""], True),
        ([","], True),
        (["a"], True),
        (['w/"a"'], True),
        (['"a'], True),
        (['"a" "b"'], True),
        (['*, "a"'], True),
        (['"A"'], True),
    ],
)
def test_if_none_match(header: list[str], sent: bool) -> None:
    assert none_matches('"a"', header) is sent
    assert none_matches('W/"a"', header) is sent


def test_a_long_condition_costs_no_more_than_its_length() -> None:
    def cost(size: int, text: str) -> float:
        began = time.thread_time()
        for _ in range(20):
            assert none_matches('"a"', [text * size + "!"])
        return time.thread_time() - began

    for text in ('"b",', " ", ",", '"b" ', ' , "b"'):
        small = min(cost(2000, text) for _ in range(7))
        assert min(cost(8000, text) for _ in range(7)) < 16 * small


def test_the_keys_are_not_sent_again(cloud: Cloud) -> None:
    keys = cloud.send("GET", "/v1/keys")
    etag = keys.headers["etag"]
    for header in ("*", etag, f"W/{etag}", f'"other", W/{etag}'):
        for method in ("GET", "HEAD"):
            again = cloud.send(method, "/v1/keys", headers={"If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    for header in ('"other"', "nonsense", f"{etag}x"):
        again = cloud.send("GET", "/v1/keys", headers={"If-None-Match": header})
        assert (again.status_code, again.content) == (200, keys.content)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1970-01-01T00:00:00+01:00", -3_600_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("0000-01-01T00:00:00Z", EARLIEST_MS),
        ("0000-02-29T12:00:00.5Z", EARLIEST_MS + (59 * 24 + 12) * 3_600_000 + 500),
        ("9999-12-31T23:59:59.999Z", LATEST_MS),
        ("9999-12-31T23:59:59.999-00:01", LATEST_MS + 60_000),
        ("1900-02-28T23:59:59-00:00", -2_203_891_201_000),
        ("1900-02-29T00:00:00Z", None),
        ("2026-06-30T23:59:60Z", None),
        ("2026-06-30T24:00:00Z", None),
        ("2026-06-31T00:00:00Z", None),
        ("2026-06-30T00:00:00+24:00", None),
        ("10000-01-01T00:00:00Z", None),
        ("-001-01-01T00:00:00Z", None),
    ],
)
def test_instants(text: str, at_ms: int | None) -> None:
    assert parse_rfc3339(text) == at_ms
    if at_ms is not None and EARLIEST_MS <= at_ms <= LATEST_MS:
        assert parse_rfc3339(rfc3339(at_ms)) == at_ms


@pytest.mark.parametrize(
    "early", ["0000-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "1969-07-20T20:17:40Z"]
)
def test_a_list_may_begin_before_1970_and_end_after_9999(partner: Partner, early: str) -> None:
    window = {"from": early, "to": "9999-12-31T23:59:59-23:59"}
    assert partner.get("/v1/verdicts", **window)["data"] == []
    page = partner.send("GET", "/v1/verdicts", params={"from": window["to"], "to": window["from"]})
    assert code_of(page) == "invalid_request"


def test_a_consent_on_old_paper(partner: Partner) -> None:
    path = f"/v1/subjects/{partner.person()['subject_id']}/consents"

    refused = partner.send(
        "POST",
        path,
        {"purpose": "enrollment", "evidence": EVIDENCE | {"accepted_at": "0000-01-01T00:00:00+00:01"}},
    )
    assert (code_of(refused), refused.json()["errors"][0]["pointer"]) == (
        "validation_failed",
        "/evidence/accepted_at",
    )
    body = {"purpose": "enrollment", "evidence": EVIDENCE | {"accepted_at": "1969-12-31T23:30:00-01:00"}}
    assert partner.post(path, body)["granted_at"] == "1970-01-01T00:30:00.000Z"
    body = {"purpose": "identification", "evidence": EVIDENCE | {"accepted_at": "0000-01-01T00:00:00Z"}}
    assert partner.post(path, body)["granted_at"] == "0000-01-01T00:00:00.000Z"
