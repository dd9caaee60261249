"""listVerdictChanges: a back office that goes by it loses nothing, however late and mixed a gate delivers."""

import random
from collections import Counter
from typing import Any

import pytest

from link1.keys import SigningKey
from link1.signed import object_ref
from tests.cloud_client.server.server_harness import (
    Cloud,
    Partner,
    SimDevice,
    Tenant,
    code_of,
    decision,
    passage,
)
from tests.cloud_client.server.test_server_verdicts import item

DAY_S = 24 * 3600


class Poller:
    """As docs/tutorials/BACKOFFICE.md advises: pages until has_more is false, then from the last cursor."""

    def __init__(self, partner: Partner, limit: int = 3) -> None:
        self.partner, self.limit = partner, limit
        self.cursor: str | None = None
        self.seen: Counter[str] = Counter()
        self.states: dict[str, str] = {}

    def poll(self) -> list[str]:
        found: list[str] = []
        while True:
            params: dict[str, Any] = {"limit": self.limit}
            page = self.partner.get(
                "/v1/verdict-changes", **params, **({"cursor": self.cursor} if self.cursor else {})
            )
            found += [record["verdict_id"] for record in page["data"]]
            self.states |= {record["verdict_id"]: record["reconciliation"] for record in page["data"]}
            self.cursor = page["next_cursor"]
            if not page["has_more"]:
                self.seen.update(found)
                return found


@pytest.fixture
def key(tenant: Tenant) -> SigningKey:
    return tenant.add_dbd()


def whole(gate: SimDevice, key: SigningKey) -> dict[str, Any]:
    verdict = gate.verdict()
    return item(verdict, decided=decision(verdict, key))


@pytest.mark.parametrize("seed", range(3))
def test_each_verdict_exactly_once_however_late(
    tenant: Tenant, partner: Partner, key: SigningKey, seed: int
) -> None:
    rng = random.Random(seed)
    gates = [tenant.device(f"gate-{number}") for number in range(4)]
    poller = Poller(partner, limit=rng.choice([1, 3, 200]))
    kept: list[tuple[SimDevice, dict[str, Any]]] = []
    everything: set[str] = set()
    for _ in range(25):
        tenant.cloud.clock.forward(s=rng.choice([0, 1, 3600]))
        for gate in gates:
            kept += [(gate, whole(gate, key)) for _ in range(rng.randrange(3))]
        rng.shuffle(kept)
        # Some are handed in at once, some days later; a gate keeps the order it likes.
        taken = rng.randrange(len(kept) + 1)
        handed, kept = kept[:taken], kept[taken:]
        for gate, one in handed:
            everything |= set(gate.upload(one)["accepted"])
        if rng.random() < 0.7:
            poller.poll()
    tenant.cloud.clock.forward(s=40 * DAY_S)
    for gate, one in kept:
        everything |= set(gate.upload(one)["accepted"])
    poller.poll()
    assert set(poller.seen) == everything
    assert len(everything) > 30
    # A gap in a gate's chain is a conflict until it is filled; then the record comes again as what it is.
    listed = {
        record["verdict_id"]: record["reconciliation"]
        for record in partner.get("/v1/verdicts", limit=200)["data"]
    }
    assert poller.states == listed
    assert set(listed.values()) == {"complete"}
    assert poller.poll() == []


def test_in_order_of_arrival_each_is_seen_once(tenant: Tenant, partner: Partner, key: SigningKey) -> None:
    """The gate that was away for a day hands in what it decided before all that was seen already."""
    away, here = tenant.device("away"), tenant.device("here")
    poller = Poller(partner)
    assert poller.poll() == []
    old = [whole(away, key) for _ in range(5)]
    tenant.cloud.clock.forward(s=DAY_S)
    new = [whole(here, key) for _ in range(5)]
    for one in new:
        here.upload(one)
        tenant.cloud.clock.forward(ms=1)
    assert poller.poll() == [object_ref(one["signed_verdict"]) for one in new]
    away.upload(*old)
    assert sorted(poller.poll()) == sorted(object_ref(one["signed_verdict"]) for one in old)
    assert set(poller.seen.values()) == {1}


def test_what_changes_comes_again(tenant: Tenant, partner: Partner, key: SigningKey) -> None:
    gate = tenant.device(passage_sensor=True)
    poller = Poller(partner)
    verdict = gate.verdict()
    verdict_id = object_ref(verdict)
    stages = [
        (item(verdict), "awaiting_decision"),
        (item(verdict, outcome_unknown=True), "outcome_unknown"),
        (item(verdict, decided=decision(verdict, key)), "awaiting_passage"),
        (item(verdict, passed=passage(verdict, key)), "complete"),
    ]
    for uploaded, state in stages:
        gate.upload(uploaded)
        assert (poller.poll(), poller.states[verdict_id]) == ([verdict_id], state)
        gate.upload(uploaded)
        assert poller.poll() == []
    gate.upload(item(verdict, decided=decision(verdict, key, decision_seq=9)))
    assert (poller.poll(), poller.states[verdict_id]) == ([verdict_id], "conflict")


def test_an_erasure_is_a_change_of_the_persons_records(
    tenant: Tenant, partner: Partner, key: SigningKey
) -> None:
    gate, poller = tenant.device(), Poller(partner)
    person = partner.person("account-17")
    gate.enrol(partner, person["subject_id"])
    theirs, others = gate.verdict(person["subject_ref"]), gate.verdict()
    gate.upload(item(theirs), item(others))
    assert sorted(poller.poll()) == sorted([object_ref(theirs), object_ref(others)])
    before = poller.cursor
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    assert poller.poll() == [object_ref(theirs)]
    (again,) = partner.get("/v1/verdict-changes", cursor=before)["data"]
    assert "external_ref" not in again and "subject_id" not in again
    partner.delete(f"/v1/subjects/{partner.person()['subject_id']}")
    assert poller.poll() == []


def test_the_clock_goes_back_and_the_store_too(own_cloud: Cloud) -> None:
    """Numbers never fall with the clock; after a restore they are above those that were given out before."""
    tenant = own_cloud.new_tenant()
    gate, key, poller = tenant.device(), tenant.add_dbd(), Poller(tenant.partner())
    gate.upload(whole(gate, key))
    poller.poll()
    own_cloud.clock.ms -= 500
    gate.upload(whole(gate, key))
    assert len(poller.poll()) == 1
    own_cloud.clock.ms += 1000
    # The counter as a backup of an hour ago has it.
    tenant.cloud.operate(
        lambda tx, *_: tx.run(
            "UPDATE streams SET verdict_change_no = 1 WHERE tenant_id = :id", id=tenant.tenant_id
        )
    )
    gate.upload(whole(gate, key))
    assert len(poller.poll()) == 1


def test_cursors_of_changes(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner = tenant.partner()
    first = partner.get("/v1/verdict-changes")
    assert (first["data"], first["has_more"]) == ([], False)
    cursor = first["next_cursor"]
    assert partner.get("/v1/verdict-changes", cursor=cursor)["data"] == []
    elsewhere = partner.send("GET", "/v1/verdicts", params={"cursor": cursor})
    assert code_of(elsewhere) == "invalid_cursor"
    foreign = tenant.partner("live").send("GET", "/v1/verdict-changes", params={"cursor": cursor})
    assert code_of(foreign) == "invalid_cursor"
    unknown = partner.send("GET", "/v1/verdict-changes", params={"gate_id": "g1"})
    assert code_of(unknown) == "invalid_request"
    scoped = tenant.partner(scopes=["devices:read"]).send("GET", "/v1/verdict-changes")
    assert code_of(scoped) == "insufficient_scope"
    own_cloud.clock.forward(s=389 * DAY_S)
    assert partner.get("/v1/verdict-changes", cursor=cursor)["data"] == []
    own_cloud.clock.forward(s=2 * DAY_S)
    late = partner.send("GET", "/v1/verdict-changes", params={"cursor": cursor})
    assert code_of(late) == "cursor_expired"


def test_others_are_not_in_it(tenant: Tenant, partner: Partner) -> None:
    live = tenant.device("live-gate", "live")
    live.upload(item(live.verdict()))
    assert Poller(partner).poll() == []
    assert len(Poller(tenant.partner("live")).poll()) == 1
