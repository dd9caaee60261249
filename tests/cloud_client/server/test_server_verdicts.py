"""Verdict upload, reconciliation in its five values, the list and the proof."""

from typing import Any

import pytest

from cloud_client.reference_server.ops import commands as operator
from link1.keys import SigningKey
from link1.signed import Kind, object_ref, sign_object
from tests.cloud_client.server.server_harness import Partner, SimDevice, Tenant, code_of, decision, passage


@pytest.fixture
def dbd(tenant: Tenant) -> SigningKey:
    return tenant.add_dbd()


@pytest.fixture
def device(tenant: Tenant, dbd: SigningKey) -> SimDevice:
    return tenant.device()


@pytest.fixture
def turnstile(tenant: Tenant, dbd: SigningKey) -> SimDevice:
    """A device at a gate with a turn sensor."""
    return tenant.device("turnstile", passage_sensor=True)


def states(partner: Partner) -> list[str]:
    """Reconciliation of every record, oldest first."""
    return [item["reconciliation"] for item in partner.get("/v1/verdicts", order="asc")["data"]]


def item(verdict: Any, *, decided: Any = None, passed: Any = None, **more: Any) -> dict[str, Any]:
    parts = {"signed_verdict": verdict, "signed_decision": decided, "signed_passage": passed}
    return {name: part for name, part in parts.items() if part is not None} | more


def test_what_arrives_in_pieces_is_completed(turnstile: SimDevice, partner: Partner, dbd: SigningKey) -> None:
    verdict = turnstile.verdict()
    assert turnstile.upload(item(verdict))["accepted"] == [object_ref(verdict)]
    assert states(partner) == ["awaiting_decision"]
    assert turnstile.upload(item(verdict, outcome_unknown=True))["duplicates"] == [object_ref(verdict)]
    assert states(partner) == ["outcome_unknown"]
    turnstile.upload(item(verdict, decided=decision(verdict, dbd)))
    assert states(partner) == ["awaiting_passage"]
    turnstile.upload(item(verdict, passed=passage(verdict, dbd)))
    assert states(partner) == ["complete"]
    record = partner.get("/v1/verdicts")["data"][0]
    assert (record["dbd"]["outcome"], record["passage"]["cause"]) == ("LIBERAR", "giro")
    proof = partner.get(f"/v1/verdicts/{record['verdict_id']}")
    assert proof["signed_passage"] == passage(verdict, dbd)


def test_members_of_a_later_version_are_shown_as_they_were_signed(
    device: SimDevice, partner: Partner, dbd: SigningKey
) -> None:
    parts = device.verdict()["verdict"]
    verdict = device.verdict(
        later={"a": [1, None, "x"]},
        pad=parts["pad"] | {"cues": ["depth"]},
        gallery=parts["gallery"] | {"age_ms": 5},
    )
    decided = decision(verdict, dbd, later="x")
    assert device.upload(item(verdict, decided=decided))["rejected"] == []
    proof = partner.get(f"/v1/verdicts/{object_ref(verdict)}")
    assert (proof["signed_verdict"], proof["signed_decision"]) == (verdict, decided)


def test_a_turnstile_waits_for_the_turn(turnstile: SimDevice, partner: Partner, dbd: SigningKey) -> None:
    verdict = turnstile.verdict()
    turnstile.upload(item(verdict, decided=decision(verdict, dbd)))
    assert states(partner) == ["awaiting_passage"]
    turnstile.cloud.clock.forward(s=1)
    refused = turnstile.verdict()
    closed = decision(refused, dbd, outcome="BLOQUEAR", actuated=False, reason="no_balance")
    turnstile.upload(item(refused, decided=closed))
    assert states(partner)[-1] == "complete"


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict_ref": "0" * 32},
        {"txn_id": "0" * 32},
        {"nonce_b64": "AAAAAAAAAAAAAAAAAAAAAQ=="},
        {"gate_id": "other"},
        {"actuated": False},
        {"outcome": "BLOQUEAR"},
    ],
)
def test_signed_objects_that_do_not_agree(
    device: SimDevice, partner: Partner, dbd: SigningKey, changes: dict[str, Any]
) -> None:
    verdict = device.verdict()
    answer = device.upload(item(verdict, decided=decision(verdict, dbd, **changes)))
    assert answer["rejected"] == []
    assert states(partner) == ["conflict"]


@pytest.mark.parametrize("actuated", [False, True])
def test_a_validator_may_have_outcomes_of_its_own(
    device: SimDevice, partner: Partner, dbd: SigningKey, actuated: bool
) -> None:
    verdict = device.verdict()
    words = {"outcome": "ESCORTED_7", "reason": "with_a_guest"}
    device.upload(item(verdict, decided=decision(verdict, dbd, actuated=actuated, **words)))
    assert states(partner) == ["complete"]
    assert partner.get("/v1/verdicts")["data"][0]["dbd"]["outcome"] == "ESCORTED_7"


def test_an_unknown_validator_key_is_kept_unverified(device: SimDevice, partner: Partner) -> None:
    verdict = device.verdict()
    answer = device.upload(item(verdict, decided=decision(verdict, SigningKey.generate())))
    assert answer["rejected"] == []
    assert states(partner) == ["conflict"]
    record = partner.get("/v1/verdicts")["data"][0]
    assert record["dbd"]["outcome"] == "LIBERAR"


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [(0, "1970-01-01T00:00:00.000Z"), *((at, "9999-12-31T23:59:59.999Z") for at in (2**50, 2**53 - 1))],
)
def test_the_clock_of_a_validator_costs_no_decision(
    turnstile: SimDevice, partner: Partner, dbd: SigningKey, at_ms: int, shown: str
) -> None:
    verdict = turnstile.verdict()
    parts = (decision(verdict, dbd, decided_at_ms=at_ms), passage(verdict, dbd, at_ms=at_ms))
    assert turnstile.upload(item(verdict, decided=parts[0], passed=parts[1]))["rejected"] == []
    assert states(partner) == ["complete"]
    record = partner.get("/v1/verdicts")["data"][0]
    assert (record["dbd"]["decided_at"], record["passage"]["at"]) == (shown, shown)
    proof = partner.get(f"/v1/verdicts/{object_ref(verdict)}")
    assert (proof["signed_decision"], proof["signed_passage"]) == parts


def test_bad_parts_do_not_cost_the_verdict(device: SimDevice, partner: Partner, dbd: SigningKey) -> None:
    verdict = device.verdict()
    forged = decision(verdict, dbd) | {"sig_b64": decision(verdict, dbd, reason="x")["sig_b64"]}
    answer = device.upload(item(verdict, decided=forged, passed={"passage": {}}))
    assert answer["accepted"] == [object_ref(verdict)]
    assert answer["rejected"] == [
        {"index": 0, "code": "bad_decision"},
        {"index": 0, "code": "bad_passage"},
    ]
    assert states(partner) == ["awaiting_decision"]


def test_a_second_decision_is_a_dispute(device: SimDevice, partner: Partner, dbd: SigningKey) -> None:
    verdict = device.verdict()
    device.upload(item(verdict, decided=decision(verdict, dbd)))
    device.upload(item(verdict, decided=decision(verdict, dbd)))
    assert states(partner) == ["complete"]
    device.upload(item(verdict, decided=decision(verdict, dbd, decision_seq=2)))
    assert states(partner) == ["conflict"]


@pytest.mark.parametrize("unknown_first", [False, True])
def test_a_second_decision_by_an_unknown_key_is_a_dispute_in_any_order(
    device: SimDevice, partner: Partner, dbd: SigningKey, unknown_first: bool
) -> None:
    verdict = device.verdict()
    given = [decision(verdict, dbd), decision(verdict, SigningKey.generate(), decision_seq=2)]
    for each in reversed(given) if unknown_first else given:
        device.upload(item(verdict, decided=each))
    assert states(partner) == ["conflict"]
    assert partner.get(f"/v1/verdicts/{object_ref(verdict)}")["signed_decision"] == given[0]


@pytest.mark.parametrize("unknown_first", [False, True])
def test_a_second_passage_by_an_unknown_key_is_a_dispute_in_any_order(
    turnstile: SimDevice, partner: Partner, dbd: SigningKey, unknown_first: bool
) -> None:
    verdict = turnstile.verdict()
    decided = decision(verdict, dbd)
    given = [passage(verdict, dbd), passage(verdict, SigningKey.generate(), at_ms=1)]
    for each in reversed(given) if unknown_first else given:
        turnstile.upload(item(verdict, decided=decided, passed=each))
    assert states(partner) == ["conflict"]
    assert partner.get(f"/v1/verdicts/{object_ref(verdict)}")["signed_passage"] == given[0]


def test_gaps_in_the_chain(device: SimDevice, partner: Partner, dbd: SigningKey) -> None:
    first, second, third = (device.verdict() for _ in range(3))
    done = [item(verdict, decided=decision(verdict, dbd)) for verdict in (first, second, third)]
    device.upload(done[0], done[2])
    assert sorted(states(partner)) == ["complete", "conflict"]
    device.upload(done[1])
    assert states(partner) == ["complete"] * 3
    fourth = device.verdict(prev_ref="f" * 32)
    device.upload(item(fourth, decided=decision(fourth, dbd)))
    assert "conflict" in states(partner)


def test_one_seq_twice(device: SimDevice, partner: Partner) -> None:
    first = device.verdict()
    device.upload(item(first))
    device.seq = 0
    rival = device.verdict(prev_ref="0" * 32)
    answer = device.upload(item(rival))
    assert answer["rejected"] == [{"index": 0, "code": "seq_conflict"}]
    assert states(partner) == ["conflict"]
    assert code_of(partner.send("GET", f"/v1/verdicts/{object_ref(rival)}")) == "verdict_not_found"


def test_a_receipt_names_a_verdict_that_is_kept_as_evidence(device: SimDevice, partner: Partner) -> None:
    person, other = (partner.post("/v1/subjects", {"external_ref": name}) for name in ("p-1", "p-2"))
    device.upload(item(device.verdict()))
    device.seq = 0
    rival = device.verdict(person["subject_ref"], prev_ref="0" * 32)
    assert device.upload(item(rival))["rejected"] == [{"index": 0, "code": "seq_conflict"}]
    erased = [partner.delete(f"/v1/subjects/{each['subject_id']}") for each in (person, other)]
    receipts = [answer["signed_receipt"]["receipt"] for answer in erased]
    assert [receipt.get("retained") for receipt in receipts] == [["verdict_proofs"], None]


def test_refused_items(tenant: Tenant, device: SimDevice) -> None:
    good = device.verdict()
    other = tenant.device("gate-2")
    foreign = tenant.cloud.new_tenant().device("gate-1")
    forged = good | {"sig_b64": device.verdict()["sig_b64"]}
    borrowed = sign_object(Kind.VERDICT, good["verdict"] | {"device_id": "gate-2"}, device.verdict_key)
    answer = device.upload(
        item(good),
        item(forged),
        item(other.verdict()),
        item(foreign.verdict()),
        item(borrowed),
        item(good | {"extra": 1}),
        {"signed_verdict": good, "x": 1},
        {"signed_verdict": good, "outcome_unknown": 1},
        "text",
        item(device.verdict(verdict_seq=0)),
        item(device.verdict(decided_at_ms=2**53 - 1)),
    )
    assert answer["accepted"] == [object_ref(good)]
    assert [entry["code"] for entry in answer["rejected"]] == [
        "bad_signature",
        "wrong_device",
        "unknown_signer",
        "wrong_device",
        "malformed",
        "malformed",
        "malformed",
        "malformed",
        "malformed",
        "malformed",
    ]


@pytest.mark.parametrize("count", [0, 101])
def test_batches_have_1_to_100_items(device: SimDevice, count: int) -> None:
    response = device.send("POST", "/v1/verdicts/batch", {"items": [{}] * count})
    assert code_of(response) == "validation_failed"


def test_lists_and_filters(device: SimDevice, partner: Partner) -> None:
    refs = []
    for _ in range(5):
        device.cloud.clock.forward(s=1)
        verdict = device.verdict()
        refs.append(object_ref(verdict))
        device.upload(item(verdict))
    listed = partner.get("/v1/verdicts", limit=2)
    assert [entry["verdict_id"] for entry in listed["data"]] == refs[:2:-1]
    rest = partner.get("/v1/verdicts", limit=200, cursor=listed["next_cursor"])
    assert [entry["verdict_id"] for entry in rest["data"]] == refs[2::-1]
    times = [entry["decided_at"] for entry in partner.get("/v1/verdicts", order="asc")["data"]]
    window = partner.get("/v1/verdicts", **{"from": times[1], "to": times[3]})["data"]
    assert [entry["verdict_id"] for entry in window] == [refs[2], refs[1]]
    assert partner.get("/v1/verdicts", **{"from": times[1], "to": times[1]})["data"] == []
    assert partner.get("/v1/verdicts", decision="accept")["data"] == []
    assert len(partner.get("/v1/verdicts", device_id="gate-1", gate_id="g1")["data"]) == 5
    assert partner.get("/v1/verdicts", subject_id="00000000-0000-4000-8000-000000000000")["data"] == []
    for query in ({"from": times[3], "to": times[1]}, {"from": "2026-01-01"}, {"order": "up"}):
        assert code_of(partner.send("GET", "/v1/verdicts", params=query)) == "invalid_request"
    turned = {"cursor": listed["next_cursor"], "order": "asc"}
    assert code_of(partner.send("GET", "/v1/verdicts", params=turned)) == "invalid_cursor"


def test_the_key_that_counted_then_proves_it(
    tenant: Tenant, device: SimDevice, partner: Partner, dbd: SigningKey
) -> None:
    early = device.verdict()
    device.upload(item(early, decided=decision(early, dbd)))
    tenant.cloud.clock.forward(s=60)
    newer = tenant.add_dbd()
    proof = partner.get(f"/v1/verdicts/{object_ref(early)}")
    assert proof["verification"]["dbd_sign_key"]["kid"] == dbd.kid
    late = device.verdict()
    device.upload(item(late, decided=decision(late, dbd)))
    assert states(partner) == ["complete", "conflict"]
    status = device.get("/v1/devices/self/status")["device_status_obj"]
    assert [key["kid"] for key in status["dbd_keys"]] == [newer.kid, dbd.kid]
    assert status["dbd_keys"][1]["not_before_ms"] == 0
    tenant.cloud.clock.forward(s=60)
    tenant.add_dbd(dbd)  # the earlier one again: another window, and its first stays
    status = device.get("/v1/devices/self/status")["device_status_obj"]
    assert [key["kid"] for key in status["dbd_keys"]] == [dbd.kid, newer.kid, dbd.kid]
    ends = [(key["not_before_ms"], key["not_after_ms"]) for key in status["dbd_keys"]]
    assert ends == [(ends[1][1], None), (ends[2][1], ends[0][0]), (0, ends[1][0])]
    proof = partner.get(f"/v1/verdicts/{object_ref(early)}")
    assert proof["verification"]["dbd_sign_key"]["kid"] == dbd.kid


def test_malformed_verdict_ids(partner: Partner, tenant: Tenant) -> None:
    for name in ("x", "A" * 32, "0" * 31, "0" * 32):
        assert code_of(partner.send("GET", f"/v1/verdicts/{name}")) == "verdict_not_found"
    assert operator.show_root(tenant.cloud.api.service.vault)["kid"]
