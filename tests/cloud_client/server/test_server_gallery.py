"""The gallery stream as devices see it: deltas, snapshots, compaction, epochs, and a real gallery."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.gallery import snapshots
from cloud_client.reference_server.domain.people import erasure
from cloud_client.reference_server.domain.tenancy import persons as people
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import retention
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.admin.operator_page import views
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from gallery.stream import follow_chain, head_zero, read_delta_page, read_snapshot_page, state_of
from link1.canonical import b64_encode
from tests.cloud_client.server.server_harness import (
    MODEL_ID,
    Cloud,
    Partner,
    SimDevice,
    Tenant,
    code_of,
    keys_of,
    vector,
)


def test_enrolling_again_replaces_the_palms(device: SimDevice, partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id, seed=1)
    device.enrol(partner, subject_id, seed=2)
    deltas = device.get("/v1/gallery/deltas?epoch=1&after_seq=0")["data"]
    assert [delta["op"] for delta in deltas] == ["upsert", "upsert", "tombstone", "upsert", "upsert"]
    snapshot = device.get("/v1/gallery/snapshot")
    shown = {entry["vector_b64"] for entry in snapshot["data"]}
    assert shown == {b64_encode(vector(4)), b64_encode(vector(5))}
    assert snapshot["head"]["head_obj"]["count"] == 2


def fill(tenant: Tenant, partner: Partner, persons: int) -> None:
    """Enrol many persons at once, straight into the log."""
    ids = [partner.person()["subject_id"] for _ in range(persons)]
    environment = tenant.environment("test")

    def work(tx, vault, now):  # type: ignore[no-untyped-def]
        for number, subject_id in enumerate(ids):
            person = people.load_by_id(tx, vault, environment, subject_id)
            palms = [("L", vector(1000 + 2 * number)), ("R", vector(1001 + 2 * number))]
            gallery_log.add_templates(tx, environment, person, MODEL_ID, palms, now_ms=now)

    tenant.cloud.operate(work)


def snapshot_pages(device: SimDevice, first: httpx.Response) -> list[bytes]:
    pages = [first.content]
    while (cursor := json.loads(pages[-1])["next_cursor"]) is not None:
        pages.append(device.send("GET", f"/v1/gallery/snapshot?cursor={cursor}").content)
    return pages


def test_a_snapshot_is_one_state_under_writes(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
    fill(tenant, partner, 104)
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id, seed=1)
    first = device.send("GET", "/v1/gallery/snapshot")
    # While it is read: one person new, one suspended, one enrolled again.
    device.enrol(partner, partner.person()["subject_id"], seed=2)
    partner.delete(f"/v1/subjects/{subject_id}/consents/identification")
    environment = tenant.environment("test")
    keys = keys_of(tenant.cloud)
    pages = [read_snapshot_page(page, keys.get) for page in snapshot_pages(device, first)]
    entries = [entry for page in pages for entry in page.entries]
    assert [len(page.entries) for page in pages] == [200, 10]
    assert not any(entry.entry.suspended for entry in entries)
    assert {page.head.seq for page in pages} == {210}
    assert pages[0].head.count == len(entries)
    assert state_of(entry.sha256 for entry in entries) == pages[-1].head.state
    assert pages[0].head.stream == environment.stream


def test_a_hash_of_a_gallery_that_has_moved_opens_nothing(tenant: Tenant, partner: Partner) -> None:
    device, environment = tenant.device(), tenant.environment("test")
    device.enrol(partner, partner.person()["subject_id"], seed=1)
    operate, now_ms = tenant.cloud.operate, tenant.cloud.clock.ms
    before = operate(lambda tx, *_: snapshots.hashed(tx, environment))
    device.enrol(partner, partner.person()["subject_id"], seed=2)
    assert operate(lambda tx, *_: snapshots.open_hashed(tx, environment, now_ms, before)) is None
    assert operate(lambda tx, *_: snapshots.open_hashed(tx, environment, now_ms, None)) is None
    now = operate(lambda tx, *_: snapshots.hashed(tx, environment))
    opened = operate(lambda tx, *_: snapshots.open_hashed(tx, environment, now_ms, now))
    assert operate(lambda tx, *_: snapshots.open_snapshot(tx, environment, now_ms)) == opened
    assert device.get("/v1/gallery/snapshot")["head"]["head_obj"]["state"] == now.state.hex()


def test_an_erasure_ends_open_snapshots(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
    fill(tenant, partner, 101)
    cursor = device.get("/v1/gallery/snapshot")["next_cursor"]
    target = f"/v1/gallery/snapshot?cursor={cursor}"
    assert len(device.get(target)["data"]) == 2
    for text in ("x", cursor[:-2], "A" * len(cursor)):
        bad = device.send("GET", f"/v1/gallery/snapshot?cursor={text}")
        assert code_of(bad) == "invalid_cursor"
    partner.delete(f"/v1/subjects/{partner.person()['subject_id']}")
    assert code_of(device.send("GET", target)) == "cursor_expired"


def test_an_erasure_that_is_complete_stays_so(own_cloud: Cloud) -> None:
    """Whatever becomes of the devices that were to apply it; what is registered later never had the palm."""
    tenant = own_cloud.new_tenant()
    partner, gate, late = tenant.partner(), tenant.device(), tenant.device("gate-2")
    subject_id = partner.person()["subject_id"]
    gate.enrol(partner, subject_id)
    receipt = partner.delete(f"/v1/subjects/{subject_id}")
    seq = receipt["signed_receipt"]["receipt"]["gallery"]["seq"]

    def how_far() -> tuple[str, int, int, int, list[str]]:
        """By the API, the metric and the operator page."""
        found = partner.get(f"/v1/erasure-receipts/{receipt['receipt_id']}")["propagation"]
        (line,) = own_cloud.operate(lambda tx, *_: views.erasures(tx, tenant.environment("test"))).rows
        assert (line.devices_total, line.devices_done) == (
            found["devices_total"],
            found["devices_acknowledged"],
        )
        pending = own_cloud.operate(lambda tx, *_: erasure.under_way(tx))
        return (found["status"], line.devices_done, line.devices_total, pending, line.waiting_for)

    gate.get(f"/v1/gallery/deltas?epoch=1&after_seq={seq}")
    assert how_far() == ("pending", 1, 2, 1, ["gate-2"])
    late.get(f"/v1/gallery/deltas?epoch=1&after_seq={seq}")
    for kind in ("access", "totem"):
        assert how_far() == ("complete", 2, 2, 0, [])
        partner.post(f"/v1/devices/{gate.device_id}/revoke", {"reason": "other"}, 200)
        assert how_far() == ("complete", 2, 2, 0, [])
        gate = tenant.device(kind=kind)
    assert how_far() == ("complete", 2, 2, 0, [])


def test_the_devices_of_a_complete_erasure_are_counted_and_no_longer_listed(own_cloud: Cloud) -> None:
    """Receipts are kept without end: a figure that is asked for often must not look at every gate of each."""
    tenant = own_cloud.new_tenant()
    partner, gates = tenant.partner(), [tenant.device(f"gate-{number}") for number in range(3)]
    receipts = [partner.delete(f"/v1/subjects/{partner.person()['subject_id']}") for _ in range(9)]
    gates[0].get("/v1/gallery/deltas?epoch=1&after_seq=0")
    partner.post("/v1/devices/gate-1/revoke", {"reason": "lost"}, 200)

    def settled() -> tuple[list[Any], int, int]:
        """How far each receipt is, how many are under way, and how many devices are listed."""

        def work(tx: Tx, *_: object) -> tuple[int, int]:
            after: str | None = ""
            while after is not None:
                after = erasure.settle(tx, after)
            return erasure.under_way(tx), tx.scalar("SELECT count(*) FROM erasure_devices")

        under_way, listed = own_cloud.operate(work)
        shown = [partner.get(f"/v1/erasure-receipts/{one['receipt_id']}")["propagation"] for one in receipts]
        return [tuple(one.values())[:3] for one in shown], under_way, listed

    assert settled() == ([("pending", 3, 1)] * 9, 9, 27)
    gates[2].get("/v1/gallery/deltas?epoch=1&after_seq=0")
    for _ in range(2):
        assert settled() == ([("complete", 3, 2)] * 9, 0, 0)


def test_the_chain_holds_through_pages_and_compaction(
    tenant: Tenant, device: SimDevice, partner: Partner
) -> None:
    people = [partner.person()["subject_id"] for _ in range(4)]
    for number, subject_id in enumerate(people):
        device.enrol(partner, subject_id, seed=number + 1)
    partner.delete(f"/v1/subjects/{people[1]}")
    keys = keys_of(tenant.cloud)
    seq, head, ops, more = 0, head_zero(tenant.environment("test").stream, 1), [], True
    while more:
        target = f"/v1/gallery/deltas?epoch=1&after_seq={seq}&limit=2"
        page = read_delta_page(device.send("GET", target).content, keys.get)
        ops += [str(delta.op) for delta in follow_chain(page, seq=seq, head=head)]
        seq, head, more = page.head.seq, page.head.head, page.has_more
    assert ops == ["upsert"] * 2 + ["noop"] * 2 + ["upsert"] * 4 + ["tombstone"]
    assert page.head.count == 6


@pytest.mark.parametrize("query", ["epoch=2&after_seq=0", "epoch=0&after_seq=0", "epoch=1&after_seq=9"])
def test_history_that_is_not_there(tenant: Tenant, query: str) -> None:
    response = tenant.device().send("GET", f"/v1/gallery/deltas?{query}")
    assert (response.status_code, code_of(response)) == (410, "history_expired")
    assert response.json()["snapshot_seq"] == 0


@pytest.mark.parametrize(
    "query", ["", "epoch=1", "after_seq=0", "epoch=1&after_seq=-1", "epoch=1&after_seq=0&x=1"]
)
def test_bad_delta_queries(tenant: Tenant, query: str) -> None:
    assert code_of(tenant.device().send("GET", f"/v1/gallery/deltas?{query}")) == "invalid_request"


def test_an_acknowledgement_never_falls(device: SimDevice, partner: Partner) -> None:
    device.enrol(partner, partner.person()["subject_id"])
    for after_seq in (2, 1):
        device.get(f"/v1/gallery/deltas?epoch=1&after_seq={after_seq}")
        assert partner.get("/v1/devices")["data"][0]["gallery"]["seq"] == 2


def test_a_new_epoch_is_taken_by_snapshot(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
    subject_id = partner.person()["subject_id"]
    device.enrol(partner, subject_id)
    environment = tenant.environment("test")
    made = tenant.cloud.operate(lambda tx, _, now: operator.new_epoch(tx, environment, None, now))
    assert made == {"stream": environment.stream, "epoch": 2, "seq": 0}
    gone = device.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=2")
    assert code_of(gone) == "history_expired"
    page = read_snapshot_page(device.send("GET", "/v1/gallery/snapshot").content, keys_of(tenant.cloud).get)
    assert (page.head.epoch, page.head.count, len(page.entries)) == (2, 2, 2)
    with pytest.raises(OperatorError, match=r"made with model-1 go, and everyone enrolled \(1\) has to"):
        tenant.cloud.operate(lambda tx, _, now: operator.new_epoch(tx, environment, "model-2", now))
    tenant.cloud.operate(
        lambda tx, _, now: operator.new_epoch(tx, environment, "model-2", now, enrol_again=True)
    )
    assert partner.get(f"/v1/subjects/{subject_id}")["status"] == "pending_enrollment"
    assert device.get("/v1/gallery/snapshot")["data"] == []


def test_an_epoch_of_another_model_changes_who_was_enrolled(tenant: Tenant, partner: Partner) -> None:
    enrolled, never = (partner.person()["subject_id"] for _ in range(2))
    tenant.device().enrol(partner, enrolled)
    before = [partner.get(f"/v1/subjects/{subject_id}")["updated_at"] for subject_id in (enrolled, never)]
    tenant.cloud.clock.forward(s=1)
    for model, moves in ((MODEL_ID, False), ("model-2", True)):
        tenant.cloud.operate(
            lambda tx, _, now, model=model: operator.new_epoch(
                tx, tenant.environment("test"), model, now, enrol_again=True
            )
        )
        after = [partner.get(f"/v1/subjects/{subject_id}")["updated_at"] for subject_id in (enrolled, never)]
        assert [old < new for old, new in zip(before, after, strict=True)] == [moves, False]


def test_a_receipt_names_the_palms_of_a_former_model(tenant: Tenant, partner: Partner) -> None:
    """They are there until the sweep deletes them, and go with the person before that."""
    device, environment = tenant.device(), tenant.environment("test")
    before, after, never = (partner.person()["subject_id"] for _ in range(3))
    for seed, subject_id in enumerate((before, after), 1):
        device.enrol(partner, subject_id, seed=seed)
    tenant.cloud.operate(
        lambda tx, _, now: operator.new_epoch(tx, environment, "model-2", now, enrol_again=True)
    )

    def palms_erased(subject_id: str) -> bool:
        receipt = partner.delete(f"/v1/subjects/{subject_id}")["signed_receipt"]["receipt"]
        return "templates" in receipt["erased"]

    assert palms_erased(before)
    while tenant.cloud.operate(lambda tx, _, now_ms: retention.sweep(tx, now_ms, 500)).more:
        pass
    assert (palms_erased(after), palms_erased(never)) == (False, False)


def test_an_epoch_of_another_model_begins_empty_for_good(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner, device, environment = tenant.partner(), tenant.device(), tenant.environment("test")
    again, revoked, never = (partner.person()["subject_id"] for _ in range(3))
    for seed, subject_id in enumerate((again, revoked, never), 1):
        device.enrol(partner, subject_id, seed=seed)
    for model in ("model-2", MODEL_ID):
        tenant.cloud.operate(
            lambda tx, _, now, model=model: operator.new_epoch(tx, environment, model, now, enrol_again=True)
        )
    device.enrol(partner, again, seed=2)

    def shown() -> tuple[int, int, int]:
        page = read_snapshot_page(
            device.send("GET", "/v1/gallery/snapshot").content, keys_of(tenant.cloud).get
        )
        return page.head.epoch, page.head.count, len(page.entries)

    def stored() -> list[int]:
        counted = "SELECT count(*) FROM {} WHERE stream = :stream"
        counts: list[int] = tenant.cloud.operate(
            lambda tx, _, __: [
                tx.scalar(counted.format(table), stream=environment.stream)
                for table in ("templates", "deltas")
            ]
        )
        return counts

    assert (shown(), stored()) == ((3, 2, 2), [8, 8])
    partner.delete(f"/v1/subjects/{revoked}/consents/enrollment")
    assert stored()[0] == 6
    while tenant.cloud.operate(lambda tx, _, now_ms: retention.sweep(tx, now_ms, 500)).more:
        assert shown() == (3, 2, 2)
    assert (shown(), stored()) == ((3, 2, 2), [2, 3])


def test_a_rotated_signer_is_published_before_it_signs(tenant: Tenant, device: SimDevice) -> None:
    before = device.get("/v1/gallery/snapshot")["head"]["signer_kid"]
    made = tenant.cloud.operate(lambda tx, vault, now: operator.rotate_signer(tx, vault, "gallery", 60, now))
    assert {before, made["kid"]} <= set(keys_of(tenant.cloud))
    assert device.get("/v1/gallery/snapshot")["head"]["signer_kid"] == before
    tenant.cloud.clock.forward(s=60)
    assert device.get("/v1/gallery/snapshot")["head"]["signer_kid"] == made["kid"]
    assert before in keys_of(tenant.cloud)


def test_a_real_gallery_follows(tenant: Tenant, device: SimDevice, partner: Partner, tmp_path: Path) -> None:
    """Snapshot, deltas, suspension and erasure, taken by what runs in the device."""
    fill(tenant, partner, 101)
    cloud = tenant.cloud
    gallery = Gallery(
        tmp_path / "gallery",
        data_key=bytes(32),
        model_id=MODEL_ID,
        stream=tenant.environment("test").stream,
        epoch=1,
        gallery_key=keys_of(cloud).get,
        now=GalleryNow(0, cloud.clock.ms),
    )

    def follow() -> None:
        cloud.clock.forward(ms=1)
        target = f"/v1/gallery/deltas?epoch=1&after_seq={gallery.position.seq}"
        gallery.apply_deltas(device.send("GET", target).content, GalleryNow(1, cloud.clock.ms))

    def score(seed: int) -> float:
        return gallery.search(np.frombuffer(vector(seed), "<f4")[None, :]).score

    first = device.send("GET", "/v1/gallery/snapshot")
    subject_id = partner.person(onboard_ref="tok")["subject_id"]
    device.enrol(partner, subject_id, seed=1)
    for page in snapshot_pages(device, first):
        gallery.apply_snapshot_page(page, GalleryNow(1, cloud.clock.ms))
    assert (gallery.count, gallery.position.seq) == (202, 202)
    follow()
    assert gallery.count == 204
    assert score(2) > 0.99
    partner.delete(f"/v1/subjects/{subject_id}/consents/identification")
    follow()
    assert (gallery.count, gallery.match_count) == (204, 202)
    partner.delete(f"/v1/subjects/{subject_id}")
    follow()
    assert gallery.count == 202
    assert score(2) < 0.5
    gallery.close()
