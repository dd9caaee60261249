"""A validator whose clock is wrong, or whose key is made known late: what it signed still counts."""

from link1.keys import SigningKey
from link1.signed import object_ref
from tests.cloud_client.server.server_harness import Tenant, decision, passage
from tests.cloud_client.server.test_server_verdicts import item, states

DAY_MS = 24 * 3600 * 1000


def test_the_key_counts_at_its_own_time_or_at_receipt(tenant: Tenant) -> None:
    """After a change of keys the clock of the validator is years behind, and the new key signs."""
    older = tenant.add_dbd()
    partner, device = tenant.partner(), tenant.device(passage_sensor=True)
    tenant.cloud.clock.forward(s=60)
    newer = tenant.add_dbd()
    verdict = device.verdict()
    slow = decision(verdict, newer, decided_at_ms=1)
    device.upload(item(verdict, decided=slow, passed=passage(verdict, newer, at_ms=2)))
    assert states(partner) == ["complete"]
    # The proof names the key that verifies it, not the one that counted in 1970.
    proof = partner.get(f"/v1/verdicts/{object_ref(verdict)}")
    assert proof["verification"]["dbd_sign_key"]["kid"] == newer.kid
    # The older key counts neither at the receipt nor at the time it gives.
    late = device.verdict()
    device.upload(item(late, decided=decision(late, older)))
    assert sorted(states(partner)) == ["complete", "conflict"]


def test_a_key_that_is_made_known_later(tenant: Tenant) -> None:
    """What was kept unverified is verified when the device sends it again, as it may."""
    key = SigningKey.generate()
    partner, device = tenant.partner(), tenant.device()
    verdict = device.verdict()
    whole = item(verdict, decided=decision(verdict, key))
    device.upload(whole)
    assert states(partner) == ["conflict"]
    tenant.add_dbd(key)
    device.upload(whole)
    assert states(partner) == ["complete"]


def test_a_late_decision_ends_not_knowing(tenant: Tenant) -> None:
    key = tenant.add_dbd()
    partner, device = tenant.partner(), tenant.device(passage_sensor=True)
    opened, closed = device.verdict(), device.verdict()
    device.upload(item(opened, outcome_unknown=True), item(closed, outcome_unknown=True))
    assert states(partner) == ["outcome_unknown"] * 2
    shut = decision(closed, key, outcome="BLOQUEAR", actuated=False)
    device.upload(item(opened, decided=decision(opened, key)), item(closed, decided=shut))
    found = partner.get("/v1/verdicts")["data"]
    assert {entry["verdict_id"]: entry["reconciliation"] for entry in found} == {
        object_ref(opened): "awaiting_passage",
        object_ref(closed): "complete",
    }
    # Saying again that it is not known takes nothing back.
    device.upload(item(opened, outcome_unknown=True))
    assert "outcome_unknown" not in states(partner)
