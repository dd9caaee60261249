"""Reports of devices: what is taken, in which order, what of it is shown, and what is never kept."""

import json
import os
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_client.reference_server.contract.bodies import MAX_SAFE_INTEGER
from cloud_client.reference_server.ops import commands as operator
from link1.canonical import JsonObject
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.rollout_harness import report
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of

PATH = "/v1/devices/self/report"


def sent(device: SimDevice, **changes: Any) -> None:
    """A report that is taken, sent when the rate allows it."""
    device.cloud.clock.forward(s=5)
    device.post(PATH, report(**changes), 204)


def shown(device: SimDevice) -> Any:
    environment = device.tenant.environment(device.mode)
    return device.cloud.operate(
        lambda tx, _, now: operator.show_device(tx, environment, device.device_id, now)
    )


def listed(partner: Partner) -> Any:
    (found,) = partner.get("/v1/devices")["data"]
    return found


def test_a_report_is_shown(device: SimDevice, partner: Partner) -> None:
    assert shown(device)["report"] is None
    assert (shown(device)["received_at_ms"], shown(device)["counters"]) == (None, {})
    sent(device)
    found = shown(device)
    assert (found["report"], found["received_at_ms"]) == (report(), device.cloud.clock.ms)
    assert found["device"] == listed(partner)
    assert found["device"]["app"] == report()["app"]
    assert found["device"]["model_id"] == "palm-gen-5"
    assert found["device"]["health"] == ["CAMERA_FAULT", "KEY_UNATTESTED"]


def test_what_is_unknown_is_ignored_and_never_kept(device: SimDevice) -> None:
    secret = "txn-4711"
    body = report(counters={"frames": 1, "secret.count": secret, "verdicts.accept.NO_MATCH": 2})
    body["extra"] = {"txn_id": [secret]}
    for part in ("app", "link", "queues", "board", "camera"):
        body[part]["extra"] = secret
    body["updates"] = [
        {"kind": "app", "name": "n", "release_seq": 1, "state": "failed", "code": "x", "why": secret}
    ]
    body["gallery"] = {"stream": "s", "epoch": 1, "seq": 0, "extra": secret}
    device.post(PATH, body, 204)
    found = shown(device)
    assert "extra" not in json.dumps(found)
    assert secret not in json.dumps(found)
    assert found["counters"] == {"frames": 1}
    kept = device.cloud.operate(lambda tx, *_: tx.all("SELECT * FROM device_reports"))
    assert all(secret not in str(dict(row)) for row in kept)


def places() -> list[tuple[str, Any]]:
    """Bodies that are outside the contract, by where."""
    wrong: list[tuple[str, Any]] = [
        ("v", 2), ("v", True), ("v", 1.5), ("boot_id", "A" * 32), ("boot_id", "0" * 31), ("at_ms", -1),
        ("at_ms", 2**53), ("uptime_s", "60"), ("uptime_s", None), ("serving", 1), ("app", None),
        ("app", {"pkg": "p"}), ("app", {"pkg": "p", "version": ""}), ("model_id", "a b"),
        ("model_id", "m" * 129), ("model_id", "m\n"), ("thr_id", 5), ("config_seq", 1.5),
        ("health", ["lower"]), ("health", ["W" * 33]), ("health", [f"W{i}" for i in range(33)]),
        ("health", "OK"), ("gallery", {}), ("gallery", {"stream": "s", "epoch": 1, "seq": -1}),
        ("link", {"up": None, "dbd_id": None}), ("link", {"up": True}), ("queues", {"verdicts": 1}),
        ("board", {"temperature_c": 201, "storage_free_mib": 1, "memory_free_mib": 1}),
        ("board", {"temperature_c": -101, "storage_free_mib": 1, "memory_free_mib": 1}),
        ("board", {"temperature_c": None, "storage_free_mib": None}), ("camera", {"fps": None}),
        ("camera", {}), ("counters", []), ("counters", {"frames": -1}), ("counters", {"frames": "1"}),
        ("counters", {f"c{i}": 0 for i in range(129)}), ("updates", [{}]),
    ]  # fmt: skip
    update = {"kind": "app", "name": "n", "release_seq": 1, "state": "running"}
    changes: list[JsonObject] = [
        {"kind": "other"}, {"name": ""}, {"release_seq": -1}, {"state": "gone"}, {"code": "UPPER"},
        {"code": None}, {"code": "c" * 33},
    ]  # fmt: skip
    wrong += [("updates", [update | change]) for change in changes]
    wrong.append(("updates", [update] * 9))
    return wrong


@pytest.mark.parametrize(("name", "value"), places())
def test_what_is_outside_the_contract_is_refused(device: SimDevice, name: str, value: Any) -> None:
    response = device.send("POST", PATH, report(**{name: value}))
    assert (response.status_code, code_of(response)) == (422, "validation_failed")
    assert all(error["pointer"].startswith(f"/{name}") for error in response.json()["errors"])
    assert shown(device)["report"] is None


@pytest.mark.parametrize("name", report().keys())
def test_every_member_is_required(device: SimDevice, name: str) -> None:
    body = report()
    del body[name]
    response = device.send("POST", PATH, body)
    assert response.json()["errors"] == [{"pointer": f"/{name}", "code": "required"}]


def test_the_limits_are_taken(device: SimDevice) -> None:
    update = {"kind": "model", "name": "n" * 128, "release_seq": MAX_SAFE_INTEGER, "state": "withdrawn"}
    sent(
        device,
        health=[f"W{i}" for i in range(32)],
        counters={f"c{i}": 0 for i in range(127)} | {"frames": MAX_SAFE_INTEGER},
        updates=[update] * 8,
        board={"temperature_c": -100, "storage_free_mib": None, "memory_free_mib": None},
        camera=None,
        link={"up": False, "dbd_id": None},
        model_id="~" * 128,
    )
    assert shown(device)["device"]["model_id"] == "~" * 128


def test_a_report_has_8_kib(device: SimDevice) -> None:
    room = 8192 - len(json.dumps(report(extra="")))
    device.post(PATH, report(extra="x" * room), 204)
    device.cloud.clock.forward(s=5)
    response = device.send("POST", PATH, report(extra="x" * (room + 1)))
    assert (response.status_code, code_of(response)) == (413, "payload_too_large")
    device.cloud.clock.forward(s=5)
    device.post(PATH, report(extra=[0] * 2400), 204)


def test_one_in_five_seconds_after_a_burst_of_six(tmp_path: Any) -> None:
    with closing(Cloud(tmp_path / "data", rate_scale=1.0)) as cloud:
        tenant = cloud.new_tenant()
        device, other = tenant.device(), tenant.device("gate-2")
        cloud.clock.forward(s=60)
        answers = [device.send("POST", PATH, report()).status_code for _ in range(8)]
        assert answers == [204] * 6 + [429] * 2
        assert other.send("POST", PATH, report()).status_code == 204
        cloud.clock.forward(s=5)
        answers = [device.send("POST", PATH, report()).status_code for _ in range(2)]
        assert answers == [204, 429]


def test_only_the_newest_key_is_remembered(device: SimDevice) -> None:
    first = report(uptime_s=1)
    for key, body in (("k1", first), ("k2", report(uptime_s=2))):
        assert device.send("POST", PATH, body, key=key).headers["Idempotent-Replayed"] == "false"
    assert device.send("POST", PATH, report(uptime_s=2), key="k2").headers["Idempotent-Replayed"] == "true"
    wrong = device.send("POST", PATH, report(uptime_s=3), key="k2")
    assert code_of(wrong) == "idempotency_key_mismatch"
    # The older one is carried out once more, and is the older one.
    assert device.send("POST", PATH, first, key="k1").headers["Idempotent-Replayed"] == "false"
    assert shown(device)["report"]["uptime_s"] == 2


def test_the_order_is_by_boot_and_uptime(device: SimDevice) -> None:
    boots = [f"{i:032x}" for i in range(1, 20)]
    sent(device, boot_id=boots[0], uptime_s=100, at_ms=5)
    sent(device, boot_id=boots[0], uptime_s=99, at_ms=9, health=["OLDER"])
    assert shown(device)["report"]["uptime_s"] == 100
    sent(device, boot_id=boots[0], uptime_s=100, at_ms=1, health=["EQUAL"])
    assert shown(device)["report"]["health"] == ["EQUAL"]
    sent(device, boot_id=boots[1], uptime_s=1)
    sent(device, boot_id=boots[0], uptime_s=5000)
    assert shown(device)["report"]["boot_id"] == boots[1]
    for boot in boots[2:17]:
        sent(device, boot_id=boot, uptime_s=1)
    sent(device, boot_id=boots[0], uptime_s=5000)
    assert shown(device)["report"]["boot_id"] == boots[16]
    # Sixteen are remembered: with the next one the first is forgotten.
    sent(device, boot_id=boots[17], uptime_s=1)
    sent(device, boot_id=boots[1], uptime_s=5000)
    assert shown(device)["report"]["boot_id"] == boots[17]
    sent(device, boot_id=boots[0], uptime_s=5000)
    assert shown(device)["report"]["boot_id"] == boots[0]


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), max_size=5))
def test_totals_add_up_and_never_fall(cloud: Cloud, runs: list[list[int]]) -> None:
    """Against a count by hand: each boot begins at 0, and so does one whose counter fell."""
    device, total = cloud.new_tenant().device(), 0
    for boots, values in enumerate(runs):
        last = 0
        for uptime, value in enumerate(values):
            sent(device, boot_id=f"{boots:032x}", uptime_s=uptime, counters={"frames": value})
            total += value - last if value >= last else value
            last = value
            assert shown(device)["counters"] == {"frames": total}


def test_a_counter_that_was_left_out_goes_on(device: SimDevice) -> None:
    for uptime, counters in enumerate(({"frames": 7}, {"pad.fail": 1}, {"frames": 9})):
        sent(device, uptime_s=uptime, counters=counters)
    assert shown(device)["counters"] == {"frames": 9, "pad.fail": 1}


def test_the_services_own_words(device: SimDevice, partner: Partner) -> None:
    sent(device, health=["OFFLINE", "CABLE_DOWN"])
    assert listed(partner)["health"] == ["CABLE_DOWN", "KEY_UNATTESTED"]
    device.cloud.clock.forward(s=899)
    assert "OFFLINE" not in listed(partner)["health"]
    device.cloud.clock.forward(s=1)
    assert listed(partner)["health"] == ["CABLE_DOWN", "KEY_UNATTESTED", "OFFLINE"]
    device.get("/v1/devices/self/status")
    assert "OFFLINE" not in listed(partner)["health"]
    device.cloud.clock.forward(s=60)
    tenant_id = device.tenant.tenant_id
    made = device.cloud.operate(
        lambda tx, vault, _: operator.set_tenant(
            tx, vault, tenant_id, terms_version=None, duplicate_cosine=None, offline_after_s=60
        )
    )
    assert made["offline_after_s"] == 60
    assert "OFFLINE" in listed(partner)["health"]
    # Mail counts too: when it comes, not when it was sealed. What was seen before does not.
    box = Mailbox(device)
    record = box.report()
    box.hand_in(partner, record)
    assert "OFFLINE" not in listed(partner)["health"]
    device.cloud.clock.forward(s=61)
    box.hand_in(partner, record)
    assert "OFFLINE" in listed(partner)["health"]


def test_the_gallery_is_acknowledged_and_never_falls(device: SimDevice, partner: Partner) -> None:
    device.enrol(partner, partner.person()["subject_id"])
    stream = device.tenant.environment("test").stream

    def after(uptime_s: int = 60, **gallery: Any) -> tuple[int, int]:
        sent(device, gallery=gallery or None, uptime_s=uptime_s)
        found = listed(partner)["gallery"]
        return found["epoch"], found["seq"]

    assert after(stream=stream, epoch=1, seq=1) == (1, 1)
    assert after(stream="other", epoch=1, seq=2) == (1, 1)
    assert after(stream="~/+" * 42, epoch=1, seq=2) == (1, 1)
    assert after(stream=stream, epoch=2, seq=0) == (1, 1)
    assert after(stream=stream, epoch=1, seq=99) == (1, 1)
    assert after(stream=stream, epoch=1, seq=0) == (1, 1)
    assert after() == (1, 1)
    # An older report changes nothing else, and acknowledges.
    assert after(stream=stream, epoch=1, seq=2, uptime_s=1) == (1, 2)
    assert shown(device)["report"]["uptime_s"] == 60


def test_a_totem_acknowledges_nothing(tenant: Tenant, partner: Partner) -> None:
    totem = tenant.device(kind="totem")
    sent(totem, gallery={"stream": tenant.environment("test").stream, "epoch": 1, "seq": 0})
    assert listed(partner)["gallery"]["synced_at"] is None


def test_a_report_by_mail_obeys_the_same_order(device: SimDevice, partner: Partner) -> None:
    box = Mailbox(device)
    gallery = box_gallery(device)
    sent(device, uptime_s=100)
    box.hand_in(partner, box.report(**report(uptime_s=99, health=["LATE"], gallery=gallery)))
    assert shown(device)["report"]["uptime_s"] == 100
    box.hand_in(partner, box.report(**report(uptime_s=101, health=["NEWS"], gallery=gallery)))
    assert shown(device)["report"] == report(uptime_s=101, health=["NEWS"], gallery=gallery)
    # Without a boot_id it counts as it comes, and leaves the report alone.
    box.hand_in(partner, box.report(health=["PLAIN"], model_id="m-9"))
    assert (listed(partner)["health"], listed(partner)["model_id"]) == (["KEY_UNATTESTED", "PLAIN"], "m-9")
    assert shown(device)["report"]["uptime_s"] == 101
    refused = box.hand_in(partner, box.report(**report(serving="yes", gallery=gallery)))["rejected"]
    assert [item["code"] for item in refused] == ["malformed"]


def box_gallery(device: SimDevice) -> JsonObject:
    return {"stream": device.tenant.environment("test").stream, "epoch": 1, "seq": 0}


def test_new_keys_report_from_the_start(tenant: Tenant, device: SimDevice, partner: Partner) -> None:
    sent(device, updates=[{"kind": "app", "name": "n", "release_seq": 5, "state": "running"}])
    partner.post("/v1/devices/gate-1/revoke", {"reason": "other"}, 200)
    assert device.send("POST", PATH, report()).status_code == 401
    again = tenant.device("gate-1")
    assert (shown(again)["report"], shown(again)["counters"]) == (None, {"frames": 10})
    sent(again, boot_id=os.urandom(16).hex(), counters={"frames": 1})
    assert shown(again)["counters"] == {"frames": 11}


def test_garbage(device: SimDevice) -> None:
    assert code_of(device.send("POST", PATH, [report()])) == "validation_failed"
    assert device.send("GET", PATH).status_code == 405
    assert code_of(device.send("POST", PATH + "?a=1", report())) == "invalid_request"
