"""Enrollment sessions: short codes, every way they end, palms that are refused or held."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
from click.testing import CliRunner

from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery.palm_index import PalmIndex, PalmProbe, PalmsFound
from cloud_client.reference_server.domain.people import enrollments
from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.engines import connect_store
from cloud_client.reference_server.store.vault import Vault
from tests.cloud_client.server.server_database import everything_in, on_sqlite
from tests.cloud_client.server.server_harness import (
    MODEL_ID,
    Cloud,
    Partner,
    SimDevice,
    Tenant,
    code_of,
    vector,
)
from tests.cloud_client.server.test_server_lists import Noted
from tools.cloud.command import cloud as command

T = TypeVar("T")


def test_a_short_code_stands_for_the_token(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
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


def test_sessions_end_in_every_way(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
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
    device: SimDevice, partner: Partner, change: dict[str, object], code: str
) -> None:
    session = partner.session(partner.person()["subject_id"])
    body = device.enrolment(session["token"], {"L": vector(1), "R": vector(2)}) | change
    assert code_of(device.send("POST", "/v1/enrollments", body)) == code
    assert partner.get(f"/v1/enrollment-sessions/{session['session_id']}")["status"] == "open"


@pytest.mark.parametrize(
    "hands", [{"L": vector(1)}, {"L": vector(1), "R": bytes(2048)}, {"L": b"", "R": b""}]
)
def test_other_palms_than_asked_for(device: SimDevice, partner: Partner, hands: dict[str, bytes]) -> None:
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
def test_a_palm_that_resembles_another_persons(
    tenant: Tenant, device: SimDevice, partner: Partner, approved: bool
) -> None:
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


def test_consent_given_again_counts_although_the_palms_are_held(
    tenant: Tenant, device: SimDevice, partner: Partner
) -> None:
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id, seed=20)
    session = partner.session(subject_id)
    partner.delete(f"/v1/subjects/{subject_id}/consents/identification")
    body = device.enrolment(session["token"], {"L": vector(2), "R": vector(77)})
    device.post("/v1/enrollments", body, 202)

    def state() -> tuple[str, list[bool]]:
        suspended = [entry["suspended"] for entry in device.get("/v1/gallery/snapshot")["data"]]
        return partner.get(f"/v1/subjects/{subject_id}")["status"], suspended

    assert state() == ("active", [False] * 4)
    environment = tenant.environment("test")
    tenant.cloud.operate(
        lambda tx, _, now: operator.reject_session(tx, environment, session["session_id"], now)
    )
    assert state() == ("active", [False] * 4)


def test_palms_that_were_held_never_replace_later_ones(tenant: Tenant, partner: Partner) -> None:
    device, environment = tenant.device(), tenant.environment("test")
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    subject_id = partner.person()["subject_id"]

    def hold(seed: int) -> str:
        session = partner.session(subject_id)
        body = device.enrolment(session["token"], {"L": vector(2), "R": vector(seed)})
        held: str = device.post("/v1/enrollments", body, 202)["session_id"]
        return held

    def approve(session_id: str) -> str:
        work = operator.approve_session
        tenant.cloud.operate(lambda tx, vault, now: work(tx, vault, environment, session_id, now))
        return state(session_id)

    def state(session_id: str) -> str:
        status: str = partner.get(f"/v1/enrollment-sessions/{session_id}")["status"]
        return status

    first = hold(77)
    tenant.cloud.clock.forward(s=1)
    later = device.enrol(partner, subject_id, seed=20)["session_id"]
    assert (state(first), state(later)) == ("cancelled", "completed")
    with pytest.raises(OperatorError, match="not in review"):
        approve(first)
    tenant.cloud.clock.forward(s=1)
    second = hold(78)
    tenant.cloud.clock.forward(s=1)
    third = hold(79)
    assert (approve(second), state(third)) == ("completed", "review")
    assert approve(third) == "completed"


@on_sqlite
@pytest.mark.parametrize("how", ["reject", "cancel"])
def test_palms_that_were_held_are_cleared_from_the_files(own_cloud: Cloud, how: str) -> None:
    tenant = own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    session = partner.session(partner.person()["subject_id"])
    body = device.enrolment(session["token"], {"L": vector(2), "R": vector(77)})
    device.post("/v1/enrollments", body, 202)
    held = own_cloud.operate(
        lambda tx, *_: tx.scalar("SELECT review_ct FROM sessions WHERE review_ct IS NOT NULL")
    )
    assert held[100:400] in everything_in(own_cloud.data.database)
    # The file stays open, or SQLite would clear it by itself; a server might use the log just then.
    idle, _ = own_cloud.data.open(own_cloud.clock.ms)
    own_cloud.api.store.close()
    words = ["--tenant", tenant.tenant_id, "--mode", "test", "--data", str(own_cloud.data.path)]
    with closing(idle):
        assert CliRunner().invoke(command, ["session", how, session["session_id"], *words]).exit_code == 0
        assert held[100:400] not in everything_in(own_cloud.data.database)


def enrolled_by_hand(tenant: Tenant, subject_id: str, seed: int) -> None:
    """As another process would, between two steps of a request."""
    environment = tenant.environment("test")

    def add(tx: Tx, vault: Vault, now: int) -> None:
        person = persons.load_by_id(tx, vault, environment, subject_id)
        gallery_log.add_templates(tx, environment, person, MODEL_ID, [("L", vector(seed))], now_ms=now)

    tenant.cloud.operate(add)


def destroyed_by_hand(tenant: Tenant, subject_id: str, _seed: int) -> None:
    environment = tenant.environment("test")

    def remove(tx: Tx, vault: Vault, now: int) -> None:
        person = persons.load_by_id(tx, vault, environment, subject_id)
        gallery_log.remove_templates(tx, environment, person, now, destroy=True)

    tenant.cloud.operate(remove)


@pytest.mark.parametrize(
    ("meanwhile", "status"),
    [(enrolled_by_hand, 202), (destroyed_by_hand, 201)],
)
def test_who_comes_and_goes_after_the_search_counts(
    own_cloud: Cloud,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[Tenant, str, int], None],
    status: int,
) -> None:
    """The search is done ahead of the transaction that enrols."""
    tenant = own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    other, new = (partner.person()["subject_id"] for _ in range(2))
    seed = 4 if meanwhile is enrolled_by_hand else 2
    device.enrol(partner, other, seed=1)  # vectors 2 and 3
    session = partner.session(new)
    index = own_cloud.api.service.palms
    search = index.search

    def searched(*given: Any) -> Any:
        found = search(*given)
        monkeypatch.undo()
        meanwhile(tenant, other, seed)
        return found

    monkeypatch.setattr(index, "search", searched)
    body = device.enrolment(session["token"], {"L": vector(seed), "R": vector(77)})
    device.post("/v1/enrollments", body, status)


def test_palms_are_read_and_compared_outside_the_transaction(
    own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else everybody's writes would wait while a server that has just begun decrypts all palms."""
    tenant = own_cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    for seed in range(1, 4):
        device.enrol(partner, partner.person()["subject_id"], seed=seed)
    own_cloud.restart()
    store, asked = own_cloud.api.store, list[str]()
    write = store.write

    async def noting(work: Callable[[Tx], T], **how: Any) -> T:
        def noted(tx: Tx) -> T:
            seen = Noted(tx)
            try:
                return work(seen)
            finally:
                asked.extend(sql for sql, _ in seen.asked)

        return await write(noted, **how)

    monkeypatch.setattr(store, "write", noting)
    device.enrol(partner, partner.person()["subject_id"], seed=9)
    assert any("INSERT INTO templates" in sql for sql in asked)
    assert not [sql for sql in asked if "vector_ct" in sql and "SELECT t." in sql]
    assert not [sql for sql in asked if "SELECT template_id FROM" in sql]


def test_forgetting_waits_for_no_search(own_cloud: Cloud) -> None:
    """It is done on the loop; what is being loaded is dropped right after."""
    tenant = own_cloud.new_tenant()
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    gone, stays = (partner.person()["subject_id"] for _ in range(2))
    for seed, subject_id in enumerate((gone, stays), 1):
        device.enrol(partner, subject_id, seed=seed)
    index, vault = PalmIndex(), own_cloud.api.service.vault
    reading, go_on = threading.Event(), threading.Event()

    class Slow(Noted):
        def one(self, sql: str, **params: Any) -> Row | None:
            if "vector_ct" in sql:
                reading.set()
                assert go_on.wait(20)
            return super().one(sql, **params)

    with closing(connect_store(own_cloud.data.database)) as store:
        with ThreadPoolExecutor(1) as threads:
            loading = threads.submit(
                lambda: read_once(own_cloud, lambda tx: index.catch_up(Slow(tx), vault, environment))
            )
            assert reading.wait(20)
            index.forget(environment.stream, gone)
            go_on.set()
            assert loading.result(20) is False

        def alike(seed: int) -> int:
            probe = PalmProbe("nobody", (vector(seed),), 0.9)
            with store.reading() as tx:
                return len(index.search(tx, vault, environment, probe).template_ids)

        # The database has both, so that both are found, whatever was dropped in between.
        assert [alike(seed) for seed in (2, 3, 4, 5, 6)] == [1, 1, 1, 1, 0]


def test_a_load_that_breaks_off_is_taken_up_where_it_broke_off(own_cloud: Cloud) -> None:
    """A database or a key-management token that is away for a moment leaves no palm twice, and none out."""
    tenant = own_cloud.new_tenant()
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    people = [partner.person()["subject_id"] for _ in range(3)]
    for seed, subject_id in enumerate(people, 1):
        device.enrol(partner, subject_id, seed=seed)
    index, vault = PalmIndex(), own_cloud.api.service.vault

    class Breaking(Noted):
        left = 4

        def one(self, sql: str, **params: Any) -> Row | None:
            if "vector_ct" in sql:
                self.left -= 1
                if self.left < 0:
                    raise StoreUnavailable("away")
            return super().one(sql, **params)

    def found() -> list[int]:
        probes = [PalmProbe("other", (vector(seed),), 0.9) for seed in range(2, 8)]
        return [len(read_once(own_cloud, partial(search, probe=probe)).template_ids) for probe in probes]

    def search(tx: Tx, probe: PalmProbe) -> PalmsFound:
        return index.search(tx, vault, environment, probe)

    with pytest.raises(StoreUnavailable):
        read_once(own_cloud, lambda tx: index.catch_up(Breaking(tx), vault, environment))
    assert found() == [1] * 6
    partner.delete(f"/v1/subjects/{people[0]}")
    assert found() == [0, 0, 1, 1, 1, 1]


def read_once(cloud: Cloud, work: Callable[[Tx], T]) -> T:
    with closing(connect_store(cloud.data.database)) as store, store.reading() as tx:
        return work(tx)


def test_the_index_is_what_the_database_has(own_cloud: Cloud) -> None:
    """Through enrolments, repeated ones, erasures that it hears of or not, and a rebuilt epoch."""
    tenant = own_cloud.new_tenant()
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    index, vault, rng = PalmIndex(), own_cloud.api.service.vault, np.random.default_rng(1)
    seeds: dict[str, int] = {}

    def found(seed: int) -> int:
        probe = PalmProbe("nobody", (vector(2 * seed), vector(2 * seed + 1)), 0.9)
        return len(read_once(own_cloud, lambda tx: index.search(tx, vault, environment, probe)).template_ids)

    for seed in range(1, 25):
        subject_id = partner.person()["subject_id"]
        device.enrol(partner, subject_id, seed=seed)
        seeds[subject_id] = seed
        victim = str(rng.choice([*seeds]))
        match int(rng.integers(6)):
            case 0:
                partner.delete(f"/v1/subjects/{victim}")
                del seeds[victim]
            case 1:
                partner.delete(f"/v1/subjects/{victim}/consents/enrollment")
                index.forget(environment.stream, victim)
                del seeds[victim]
            case 2:
                seeds[victim] = 100 + seed
                device.enrol(partner, victim, seed=seeds[victim])
                index.forget(environment.stream, victim)  # late word of something before
            case 3:
                own_cloud.operate(lambda tx, _, now: operator.new_epoch(tx, environment, MODEL_ID, now))
        held = {seed for seed in (*range(1, 25), *range(101, 125)) if found(seed) == 2}
        assert held == set(seeds.values())
