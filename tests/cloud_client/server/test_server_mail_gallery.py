"""A gallery that lives on mail alone, and what an erasure takes out of the inboxes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.mail import gallery as mail_gallery
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import retention
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from link1.canonical import JsonObject
from tests.cloud_client.server.mail_harness import Mailbox, MailedGallery
from tests.cloud_client.server.server_harness import (
    MODEL_ID,
    Cloud,
    Partner,
    SimDevice,
    Tenant,
    keys_of,
    vector,
)
from tests.cloud_client.server.test_server_gallery import fill
from tests.cloud_client.server.test_server_mail_send import BUNDLE, MANIFEST, send

DELTAS, PAGE, HEAD = "svc.gallery.deltas", "svc.gallery.snapshot.page", "svc.gallery.head"


def open_gallery(tmp_path: Path, tenant: Tenant) -> MailedGallery:
    keys = keys_of(tenant.cloud)
    gallery = Gallery(
        tmp_path / "gallery",
        data_key=bytes(32),
        model_id=MODEL_ID,
        stream=tenant.environment("test").stream,
        epoch=1,
        gallery_key=keys.get,
        now=GalleryNow(0, tenant.cloud.clock.ms),
    )
    return MailedGallery(gallery, keys)


@pytest.fixture
def kiosk(tenant: Tenant) -> SimDevice:
    """Another device, at which persons enrol."""
    return tenant.device("kiosk")


@pytest.fixture
def mail(tenant: Tenant) -> Mailbox:
    return Mailbox(tenant.device("far-away"))


def round_trip(mail: Mailbox, partner: Partner, mailed: MailedGallery) -> list[str]:
    """Report, and apply what comes; its kinds without the receipt."""
    mail.device.cloud.clock.forward(ms=1)
    mail.hand_in(partner, mail.report(mailed.position))
    kinds = mailed.apply(mail.fetch(partner), mail.device.cloud.clock.ms)
    return [kind for kind in kinds if kind != "svc.post.receipt"]


def test_a_device_without_a_network_follows_the_gallery(
    tenant: Tenant, partner: Partner, kiosk: SimDevice, mail: Mailbox, tmp_path: Path
) -> None:
    mailed = open_gallery(tmp_path, tenant)
    assert round_trip(mail, partner, mailed) == [HEAD]
    assert mailed.heads[-1]["issued_at_ms"] == tenant.cloud.clock.ms
    subject_id = partner.person()["subject_id"]
    kiosk.enrol(partner, subject_id, seed=1)
    fill(tenant, partner, 100)
    assert round_trip(mail, partner, mailed) == [DELTAS, DELTAS]
    assert (mailed.position, mailed.gallery.count) == ((1, 202), 202)
    score = mailed.gallery.search(np.frombuffer(vector(2), "<f4")[None, :]).score
    assert score > 0.99
    receipt = partner.delete(f"/v1/subjects/{subject_id}")
    assert receipt["propagation"]["devices_acknowledged"] == 0
    assert round_trip(mail, partner, mailed) == [DELTAS]
    assert mailed.gallery.count == 200
    assert round_trip(mail, partner, mailed) == [HEAD]
    again = partner.get(f"/v1/erasure-receipts/{receipt['receipt_id']}")
    assert again["propagation"]["devices_acknowledged"] == 1
    listed = {item["device_id"]: item["gallery"] for item in partner.get("/v1/devices")["data"]}
    assert (listed["far-away"]["epoch"], listed["far-away"]["seq"]) == mailed.position
    assert listed["far-away"]["synced_at"] is not None
    mailed.gallery.close()


def test_a_new_epoch_comes_as_a_snapshot(
    tenant: Tenant, partner: Partner, mail: Mailbox, tmp_path: Path
) -> None:
    fill(tenant, partner, 200)
    tenant.cloud.operate(lambda tx, _, now: operator.new_epoch(tx, tenant.environment("test"), MODEL_ID, now))
    mailed = open_gallery(tmp_path, tenant)
    assert round_trip(mail, partner, mailed) == [PAGE, PAGE, PAGE]
    assert (mailed.position, mailed.gallery.count) == ((2, 0), 400)
    mailed.gallery.close()


def test_deltas_that_are_no_longer_kept_come_as_a_snapshot(own_cloud: Cloud, tmp_path: Path) -> None:
    tenant = own_cloud.new_tenant()
    partner, mail = tenant.partner(), Mailbox(tenant.device("far-away"))
    fill(tenant, partner, 3)
    own_cloud.clock.forward(s=7 * 24 * 3600)
    own_cloud.operate(lambda tx, _, now: retention.sweep(tx, now))
    mailed = open_gallery(tmp_path, tenant)
    assert round_trip(mail, partner, mailed) == [PAGE]
    assert (mailed.position, mailed.gallery.count) == ((1, 6), 6)
    mailed.gallery.close()


@pytest.mark.parametrize("whole", [False, True])
def test_a_long_way_takes_several_transactions(
    tenant: Tenant, partner: Partner, mail: Mailbox, tmp_path: Path, monkeypatch: Any, whole: bool
) -> None:
    monkeypatch.setattr(mail_gallery, "PAGE", 3)
    monkeypatch.setattr(mail_gallery, "STEP", 2)
    fill(tenant, partner, 10)
    if whole:
        tenant.cloud.operate(
            lambda tx, _, now: operator.new_epoch(tx, tenant.environment("test"), MODEL_ID, now)
        )
    mailed = open_gallery(tmp_path, tenant)
    assert round_trip(mail, partner, mailed) == [PAGE if whole else DELTAS] * 7
    assert (mailed.position, mailed.gallery.count) == ((2, 0) if whole else (1, 20), 20)
    assert round_trip(mail, partner, mailed) == [HEAD]
    mailed.gallery.close()


@pytest.mark.parametrize("what", ["erasure", "epoch", "revocation"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_happens_between_the_transactions_ends_the_filling(
    tenant: Tenant, partner: Partner, mail: Mailbox, monkeypatch: Any, whole: bool, what: str
) -> None:
    cloud, environment = tenant.cloud, tenant.environment("test")
    monkeypatch.setattr(mail_gallery, "PAGE", 3)
    monkeypatch.setattr(mail_gallery, "STEP", 1)
    fill(tenant, partner, 4)
    if whole:
        cloud.operate(lambda tx, _, now: operator.new_epoch(tx, environment, MODEL_ID, now))
    steps: list[mail_gallery.Filling] = []
    monkeypatch.setattr(
        mail_gallery.Filling, "step", _only_first(mail_gallery.Filling.step, steps), raising=True
    )
    mail.hand_in(partner, mail.report())
    (filling,) = steps
    monkeypatch.undo()
    before = len(mail.records(partner))
    if what == "erasure":
        partner.delete(f"/v1/subjects/{partner.get('/v1/subjects')['data'][0]['subject_id']}")
    elif what == "epoch":
        cloud.operate(lambda tx, _, now: operator.new_epoch(tx, environment, MODEL_ID, now))
    else:
        partner.post(f"{mail.path}/revoke", {"reason": "lost"}, 200)
        before += 1
    assert cloud.operate(lambda tx, _, __: filling.step(tx)) is False
    assert len(mail.records(partner)) == before


def _only_first(step: Any, seen: list[mail_gallery.Filling]) -> Any:
    """A filling whose later steps wait for the test."""

    def first(filling: mail_gallery.Filling, tx: Any, *, first: bool = False) -> bool:
        more: bool = step(filling, tx, first=first)
        assert more
        seen.append(filling)
        return False

    return first


def test_reports_do_not_fill_an_inbox_twice(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    fill(tenant, partner, 2)
    mail.hand_in(partner, mail.report())
    mail.hand_in(partner, mail.report())
    fill(tenant, partner, 1)
    mail.hand_in(partner, mail.report())
    letters = [(kind, body) for kind, body in mail.fetch(partner) if kind != "svc.post.receipt"]
    assert [kind for kind, _ in letters] == [DELTAS, HEAD, DELTAS]
    assert [delta["seq"] for kind, body in letters if kind == DELTAS for delta in body["data"]] == [
        *range(1, 7)
    ]


def test_what_a_device_cannot_have_applied_is_no_acknowledgement(partner: Partner, mail: Mailbox) -> None:
    foreign = {"stream": "other", "epoch": 1, "seq": 0}
    for report in (mail.report((1, 9)), mail.report((7, 0)), mail.report(gallery=foreign)):
        mail.hand_in(partner, report)
        listed = partner.get("/v1/devices")["data"][0]
        assert (listed["gallery"]["epoch"], listed["gallery"]["synced_at"]) == (0, None)
    assert PAGE in [kind for kind, _ in mail.fetch(partner)]


def gallery_letters(mail: Mailbox, partner: Partner) -> list[tuple[str, JsonObject]]:
    return [letter for letter in mail.fetch(partner) if letter[0].startswith("svc.gallery")]


@pytest.mark.parametrize("by_consent", [False, True])
def test_an_erasure_takes_palms_out_of_undelivered_mail(
    tenant: Tenant, partner: Partner, kiosk: SimDevice, mail: Mailbox, tmp_path: Path, by_consent: bool
) -> None:
    mailed = open_gallery(tmp_path, tenant)
    subject_id = partner.person()["subject_id"]
    kiosk.enrol(partner, subject_id)
    fill(tenant, partner, 1)
    mail.hand_in(partner, mail.report())
    before = mail.records(partner)
    if by_consent:
        partner.delete(f"/v1/subjects/{subject_id}/consents/enrollment")
    else:
        partner.delete(f"/v1/subjects/{subject_id}")
    after = mail.records(partner)
    assert [record["post"]["seq"] for record in after] == [record["post"]["seq"] for record in before]
    ((kind, head),) = gallery_letters(mail, partner)
    assert (kind, head["head_obj"]["seq"]) == (HEAD, 5)
    # The next report is answered with everything that is missing, the tombstone included.
    assert round_trip(mail, partner, mailed) == [DELTAS]
    assert (mailed.position, mailed.gallery.count) == ((1, 5), 2)
    mailed.gallery.close()


def test_an_erasure_also_clears_what_was_delivered(
    tenant: Tenant, partner: Partner, kiosk: SimDevice, mail: Mailbox, tmp_path: Path
) -> None:
    mailed = open_gallery(tmp_path, tenant)
    subject_id = partner.person()["subject_id"]
    kiosk.enrol(partner, subject_id)
    round_trip(mail, partner, mailed)
    delivered = len(mail.records(partner))
    mail.hand_in(partner, mail.report(mailed.position))
    partner.delete(f"/v1/subjects/{subject_id}")
    kept = [record["post"]["seq"] for record in mail.records(partner)]
    assert len([seq for seq in kept if seq <= delivered]) == delivered - 1
    assert round_trip(mail, partner, mailed) == [HEAD, DELTAS]
    assert mailed.gallery.count == 0
    mailed.gallery.close()


def test_a_revoked_device_gets_no_more_of_the_gallery(
    tenant: Tenant, partner: Partner, mail: Mailbox
) -> None:
    """Nor a head, which would keep what it has fresh: the wipe takes their places."""
    mail.hand_in(partner, mail.report())
    fill(tenant, partner, 1)
    mail.hand_in(partner, mail.report())
    partner.post(f"{mail.path}/revoke", {"reason": "stolen"}, 200)
    receipt, wipe = "svc.post.receipt", "svc.device.revoke"
    assert [kind for kind, _ in mail.fetch(partner)] == [receipt, wipe, receipt, wipe, wipe]


def test_what_a_revoked_device_refuses_is_not_in_the_way_of_its_wipe(
    tenant: Tenant, partner: Partner, mail: Mailbox
) -> None:
    """Its reports no longer count, so nothing else would ever come under the seq that it refuses."""
    config = device_config.FIRST_CONFIG | {"config_seq": 2}
    chunk = {"release_seq": 1, "index": 0, "data_b64": "YWJj"}
    sent = {"svc.config": config, "svc.update.manifest": MANIFEST, "svc.update.chunk": chunk}
    bundle, wipe = "svc.trust.bundle", "svc.device.revoke"
    for kind, obj in {**sent, bundle: BUNDLE}.items():
        send(tenant, kind, obj, mail.device.device_id)
    partner.post(f"{mail.path}/revoke", {"reason": "stolen"}, 200)
    # A bundle may bring the key that the wipe is signed by.
    assert [kind for kind, _ in mail.fetch(partner)] == [wipe, wipe, wipe, bundle, wipe]


def test_a_bundle_that_was_refused_gives_way_to_the_wipe(
    tenant: Tenant, partner: Partner, mail: Mailbox
) -> None:
    send(tenant, "svc.trust.bundle", BUNDLE, mail.device.device_id)
    mail.hand_in(partner, mail.report(refused=[{"seq": 1, "code": "untrusted"}]))
    partner.post(f"{mail.path}/revoke", {"reason": "stolen"}, 200)
    receipt, wipe = "svc.post.receipt", "svc.device.revoke"
    assert [kind for kind, _ in mail.fetch(partner)] == [wipe, receipt, wipe, wipe]


def test_a_refused_page_is_answered_anew(
    tenant: Tenant, partner: Partner, mail: Mailbox, tmp_path: Path
) -> None:
    """A page that a device cannot use is replaced with the pages behind it; the inbox is never blocked."""
    mailed = open_gallery(tmp_path, tenant)
    fill(tenant, partner, 2)
    mail.hand_in(partner, mail.report())
    at = next(record["post"]["seq"] for record in mail.records(partner) if len(record["ct_b64"]) > 5000)
    mail.applied_seq = at - 1
    mail.hand_in(partner, mail.report(refused=[{"seq": at, "code": "malformed"}]))
    letters = mail.fetch(partner)
    kinds = mailed.apply(letters, tenant.cloud.clock.ms)
    assert [kind for kind in kinds if kind != "svc.post.receipt"] == [HEAD, DELTAS]
    assert mailed.position == (1, 4)
    mailed.gallery.close()


def test_a_head_that_is_refused_again_and_again_gives_way(partner: Partner, mail: Mailbox) -> None:
    mail.hand_in(partner, mail.report())
    mail.applied_seq = 1
    refused = [{"seq": 2, "code": "bad_signature"}]
    kinds = []
    for _ in range(4):
        mail.hand_in(partner, mail.report(refused=refused))
        kinds.append(mail.opened(mail.records(partner, after_seq=1)[0])[0])
        mail.applied_seq = 1
    assert kinds == [HEAD, HEAD, HEAD, "svc.post.receipt"]


def test_refusals_of_one_copy_count_once_until_the_next_copy_is_fetched(
    partner: Partner, mail: Mailbox
) -> None:
    """A device reports every thirty seconds what it refuses; the carrier comes by once in that time."""
    mail.hand_in(partner, mail.report())
    mail.applied_seq = 1
    mail.records(partner, after_seq=1)
    refused = [{"seq": 2, "code": "malformed"}]
    for _ in range(6):
        mail.hand_in(partner, mail.report(refused=refused))
    assert mail.opened(mail.records(partner, after_seq=1)[0])[0] == HEAD
    mail.applied_seq = 1
    kinds = []
    for _ in range(3):
        mail.hand_in(partner, mail.report(refused=refused))
        kinds.append(mail.opened(mail.records(partner, after_seq=1)[0])[0])
        mail.applied_seq = 1
    assert kinds == [HEAD, HEAD, "svc.post.receipt"], "what is refused by itself gives way in the end"


def test_no_palm_lies_open_in_the_inbox(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner, mail = tenant.partner(), Mailbox(tenant.device("far-away"))
    fill(tenant, partner, 1)
    mail.hand_in(partner, mail.report())

    def stored(tx, _vault, _now):  # type: ignore[no-untyped-def]
        return [dict(row) for row in tx.all("SELECT kind, record, body FROM inbox ORDER BY seq")]

    rows = own_cloud.operate(stored)
    assert [row["kind"] for row in rows] == ["svc.post.receipt", DELTAS]
    assert rows[1]["body"] is None
    assert "ct_b64" not in json.loads(rows[1]["record"])
