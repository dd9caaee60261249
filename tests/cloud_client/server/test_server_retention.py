"""`palmctl cloud sweep --now`: each kind of record goes at its hour, not a millisecond before, and really."""

from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from cloud_client.contract import SIGNATURE_SKEW_S
from cloud_client.http_signature import new_nonce, sign_request
from cloud_client.reference_server.contract.times import parse_rfc3339, rfc3339
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import retention
from cloud_client.reference_server.ops.retention import STEP_ROWS
from cloud_client.reference_server.store.base import Tx
from tests.cloud_client.server.server_database import ENGINE, database_words, everything_in
from tests.cloud_client.server.server_harness import START_MS, Cloud, code_of
from tests.palmctl import printed
from tools.cloud.command import cloud as command

_DAY_MS = 24 * 3600 * 1000


def sweep(cloud: Cloud, at_ms: int) -> dict[str, int]:
    """What the command prints."""
    where = ["--data", str(cloud.data.path)]
    if isinstance(cloud.data.database, str):
        where += database_words(cloud.data.database)
    counts: dict[str, int] = printed("cloud", "sweep", "--now", rfc3339(at_ms), *where)
    return counts


def only(**counts: int) -> dict[str, int]:
    return {"idempotency": 0, "deltas": 0, "events": 0, "verdicts": 0, "sessions": 0} | counts


def test_each_record_has_its_hour(own_cloud: Cloud) -> None:
    cloud = own_cloud
    tenant = cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    person = partner.person()
    device.enrol(partner, person["subject_id"])
    session = partner.session(person["subject_id"], expires_in_s=900)
    verdicts = [device.verdict(person["subject_ref"]) for _ in range(3)]
    device.upload(*({"signed_verdict": verdict} for verdict in verdicts))
    first = partner.get("/v1/verdicts", limit=1)
    assert len(first["data"]) == 1
    # Nothing has been forward yet: everything is of the same moment.
    assert cloud.clock.ms == START_MS

    def status() -> Any:
        return partner.get(f"/v1/enrollment-sessions/{session['session_id']}")["status"]

    assert sweep(cloud, START_MS + 900_000 - 1) == only()
    assert sweep(cloud, START_MS + 900_000) == only(sessions=1)
    assert (status(), session["status"]) == ("expired", "open")

    # Registration, person, two sessions, enrolment and batch were keyed.
    assert sweep(cloud, START_MS + _DAY_MS - 1) == only()
    assert sweep(cloud, START_MS + _DAY_MS) == only(idempotency=6)

    assert sweep(cloud, START_MS + 7 * _DAY_MS - 1) == only()
    assert len(device.get("/v1/gallery/deltas?epoch=1&after_seq=0")["data"]) == 2
    assert sweep(cloud, START_MS + 7 * _DAY_MS) == only(deltas=2)
    gone = device.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=0")
    assert (code_of(gone), gone.json()["snapshot_seq"]) == ("history_expired", 2)
    # The gallery itself has no end.
    assert len(device.get("/v1/gallery/snapshot")["data"]) == 2

    assert sweep(cloud, START_MS + 30 * _DAY_MS - 1) == only()
    assert sweep(cloud, START_MS + 30 * _DAY_MS) == only(events=3)

    end_ms = parse_rfc3339(rfc3339(START_MS).replace("2026-09-", "2027-10-"))
    assert end_ms is not None
    assert sweep(cloud, end_ms - 1) == only()
    assert len(partner.get("/v1/verdicts")["data"]) == 3
    assert verdicts[0]["verdict"]["txn_id"].encode() in everything_in(cloud.data.database)
    assert sweep(cloud, end_ms) == only(verdicts=3)
    assert partner.get("/v1/verdicts")["data"] == []
    assert (
        code_of(partner.send("GET", f"/v1/verdicts/{first['data'][0]['verdict_id']}")) == "verdict_not_found"
    )
    if ENGINE == "sqlite":
        everything = everything_in(cloud.data.database)
        assert not [one for one in verdicts if one["verdict"]["txn_id"].encode() in everything]
    cloud.clock.forward(ms=end_ms - START_MS + 1)
    late = partner.send("GET", "/v1/verdicts", params={"limit": "1", "cursor": first["next_cursor"]})
    assert code_of(late) == "cursor_expired"
    assert sweep(cloud, end_ms + 1) == only()


def test_a_nonce_is_remembered_as_long_as_its_signature_is_good(own_cloud: Cloud) -> None:
    """Of a device whose clock is ahead by all that it may be: `created` counts whole seconds."""
    cloud, device = own_cloud, own_cloud.new_tenant().device()
    target, ahead_s = "/v1/devices/self/status", cloud.clock.ms // 1000 + SIGNATURE_SKEW_S
    signed = sign_request(
        "GET", "cloud.test", target, "", None, key=device.http_key, created_s=ahead_s, nonce=new_nonce()
    )
    assert cloud.send("GET", target, headers=signed).status_code == 200
    cloud.clock.forward(ms=2 * SIGNATURE_SKEW_S * 1000 + 999)
    sweep(cloud, cloud.clock.ms)
    assert code_of(cloud.send("GET", target, headers=signed)) == "unauthenticated"


def test_a_month_without_that_day(own_cloud: Cloud) -> None:
    """Thirteen calendar months: what was decided on 31 January 2027 ends with February 2028."""
    cloud = own_cloud
    decided_ms = parse_rfc3339("2027-01-31T12:00:00Z")
    assert decided_ms is not None
    cloud.clock.forward(ms=decided_ms - START_MS)
    device = cloud.new_tenant().device()
    device.upload({"signed_verdict": device.verdict()})

    def swept(text: str) -> int:
        at_ms = parse_rfc3339(text)
        assert at_ms is not None
        return sweep(cloud, at_ms)["verdicts"]

    assert swept("2028-02-29T23:59:59Z") == 0
    assert swept("2028-03-01T00:00:00Z") == 1


def test_verdicts_go_by_the_clock_of_the_service(own_cloud: Cloud) -> None:
    """A gate whose clock is years off opens all the same, and its verdicts are billed like others."""
    cloud = own_cloud
    tenant = cloud.new_tenant()
    partner, device = tenant.partner(), tenant.device()
    for text in ("2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", rfc3339(START_MS), "2099-01-01T00:00:00Z"):
        device.upload({"signed_verdict": device.verdict(decided_at_ms=parse_rfc3339(text))})

    def listed() -> int:
        cursor, count = None, 0
        while True:
            page = partner.get("/v1/verdicts", order="asc", limit=1, **({"cursor": cursor} if cursor else {}))
            count, cursor = count + len(page["data"]), page["next_cursor"]
            if not page["has_more"]:
                return count

    assert sweep(cloud, START_MS + _DAY_MS)["verdicts"] == 0
    assert listed() == 4
    assert sweep(cloud, START_MS + 400 * _DAY_MS)["verdicts"] == 4
    assert listed() == 0


def test_a_gate_that_rested_longer_than_verdicts_are_kept_goes_on_with_its_chain(own_cloud: Cloud) -> None:
    cloud = own_cloud
    tenant = cloud.new_tenant()
    partner, device, other = tenant.partner(), tenant.device(), tenant.device("other")
    device.upload(*({"signed_verdict": device.verdict()} for _ in range(3)))
    other.upload({"signed_verdict": other.verdict()})
    lost = other.verdict()
    cloud.clock.forward(ms=400 * _DAY_MS)
    assert sweep(cloud, cloud.clock.ms)["verdicts"] == 4
    for gate in (device, device, other):
        cloud.clock.forward(s=1)
        gate.upload({"signed_verdict": gate.verdict()})
    states = [one["reconciliation"] for one in partner.get("/v1/verdicts", order="asc")["data"]]
    assert states == ["awaiting_decision", "awaiting_decision", "conflict"]  # of which one is missing
    other.upload({"signed_verdict": lost})
    assert {one["reconciliation"] for one in partner.get("/v1/verdicts")["data"]} == {"awaiting_decision"}
    cloud.clock.forward(ms=400 * _DAY_MS)
    assert sweep(cloud, cloud.clock.ms)["verdicts"] == 4
    device.upload({"signed_verdict": device.verdict()})
    cloud.clock.forward(s=1)
    device.upload({"signed_verdict": device.verdict(prev_ref="f" * 32)})
    states = [one["reconciliation"] for one in partner.get("/v1/verdicts", order="asc")["data"]]
    assert states == ["awaiting_decision", "conflict"]


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_was_wrong_for_a_while_makes_no_gap_in_the_log(own_cloud: Cloud, days: int) -> None:
    cloud = own_cloud
    tenant = cloud.new_tenant()
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    subject_id = partner.person()["subject_id"]

    def change(work: Any) -> None:
        cloud.operate(lambda tx, vault, now: work(tx, vault, environment, subject_id, now_ms=now))

    device.enrol(partner, subject_id)
    cloud.clock.forward(ms=days * _DAY_MS)
    change(partial(operator.block_subject, reason=None))
    cloud.clock.forward(ms=-days * _DAY_MS)
    change(operator.unblock_subject)
    cloud.clock.forward(ms=7 * _DAY_MS - 1000)
    change(partial(operator.block_subject, reason=None))
    for at_ms in (cloud.clock.ms, cloud.clock.ms + 1000):
        sweep(cloud, at_ms)
        for after_seq in range(6):
            answer = device.send("GET", f"/v1/gallery/deltas?epoch=1&after_seq={after_seq}")
            if answer.status_code == 410:
                assert code_of(answer) == "history_expired"
                continue
            seqs = [delta["seq"] for delta in answer.json()["data"]]
            assert seqs == list(range(after_seq + 1, 6))


def test_sweep_wants_a_moment(own_cloud: Cloud) -> None:
    for text in ("tomorrow", "2030-01-01", "2030-01-01T00:00:00", "1700000000"):
        done = CliRunner().invoke(
            command, ["sweep", "--now", text, "--data", str(own_cloud.data.path), "--json"]
        )
        assert (done.exit_code, done.stdout) == (2, "")


def test_a_sweep_deletes_some_at_a_time_and_a_log_from_its_beginning(own_cloud: Cloud) -> None:
    environment = own_cloud.new_tenant().environment("test")
    count = STEP_ROWS + STEP_ROWS // 2

    def fill(tx: Tx, *_: object) -> None:
        for number in range(count):
            tx.run(
                """INSERT INTO deltas (stream, epoch, seq, op, digest, head, created_ms)
                   VALUES (:stream, 1, :seq, 'noop', :digest, :digest, :created_ms)""",
                stream=environment.stream,
                seq=number + 1,
                digest=bytes(32),
                created_ms=START_MS,
            )

    own_cloud.operate(fill)
    first = own_cloud.operate(lambda tx, _, now: retention.sweep(tx, now + 7 * _DAY_MS))
    assert (first.shown["deltas"], first.more) == (STEP_ROWS, True)
    left = own_cloud.operate(lambda tx, *_: [row["seq"] for row in tx.all("SELECT seq FROM deltas")])
    assert sorted(left) == list(range(STEP_ROWS + 1, count + 1))
    assert sweep(own_cloud, START_MS + 7 * _DAY_MS) == only(deltas=count - STEP_ROWS)
