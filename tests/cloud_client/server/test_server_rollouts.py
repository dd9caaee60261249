"""Releases that go out in waves: who is offered what, when the next wave opens, and what halts it."""

from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from cloud_client.reference_server.contract.bodies import RegisterDevice, read_model
from cloud_client.reference_server.domain.devices import registration, releases, rollouts
from cloud_client.reference_server.domain.devices.rollout_rules import first_of
from cloud_client.reference_server.domain.mailbox import inbox
from cloud_client.reference_server.domain.tenancy.callers import ProvisioningCaller
from cloud_client.reference_server.errors import OperatorError, StoreUnavailable
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import b64_decode
from link1.keys import PublicKey
from link1.signed import Kind, verify_object
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.rollout_harness import CHUNK, PAYLOAD, Rolled, report
from tests.cloud_client.server.server_database import database_words, on_sqlite
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of
from tests.cloud_client.server.test_server_lists import Noted
from tests.cloud_client.server.test_server_verdicts import item
from tools.cloud.command import cloud as command

UPDATES = "/v1/devices/self/updates"
_DAY_MS = 24 * 3600 * 1000


def fleet(tenant: Tenant, count: int) -> dict[str, SimDevice]:
    return {f"gate-{number}": tenant.device(f"gate-{number}") for number in range(count)}


def offer_of(device: SimDevice) -> list[int]:
    """The release_seqs that a device is offered; what it is answered agrees with itself."""
    answer = device.get(UPDATES)
    keys = {key["kid"]: key for key in device.cloud.send("GET", "/v1/keys").json()["keys"]}
    key = keys[answer["offer"]["signer_kid"]]
    assert key["use"] == ["device_status"]
    offer = verify_object(Kind.UPDATE_OFFER, answer["offer"], PublicKey.from_b64(key["pub_b64"]))
    assert offer.keys() == {"v", "device_id", "release_seqs", "issued_at_ms"}
    assert (offer["v"], offer["device_id"]) == (1, device.device_id)
    assert offer["issued_at_ms"] == device.cloud.clock.ms
    assert [item["manifest_obj"]["release_seq"] for item in answer["data"]] == offer["release_seqs"]
    assert all(item["signer_cert_b64"] for item in answer["data"])
    seqs: list[int] = offer["release_seqs"]
    assert seqs == sorted(seqs)
    return seqs


def chunk_path(rolled: Rolled, index: int = 0) -> str:
    return f"/v1/updates/{rolled.release_seq}/chunks/{index}"


def test_a_release_is_fetched_chunk_by_chunk(tenant: Tenant) -> None:
    device, rolled = tenant.device(), Rolled(tenant)
    assert offer_of(device) == []
    assert code_of(device.send("GET", chunk_path(rolled))) == "update_not_found"
    rolled.start()
    assert offer_of(device) == [rolled.release_seq]
    answers = [device.get(chunk_path(rolled, index)) for index in range(rolled.manifest["chunk_count"])]
    assert [(answer["release_seq"], answer["index"]) for answer in answers] == [
        (rolled.release_seq, index) for index in range(len(answers))
    ]
    chunks = [b64_decode(answer["data_b64"]) for answer in answers]
    assert b"".join(chunks) == PAYLOAD
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/updates/{seq}/chunks/99", "/v1/updates/{seq}/chunks/00", "/v1/updates/{seq}/chunks/-1",
        "/v1/updates/{seq}/chunks/x", "/v1/updates/{seq}/chunks/%32%20", "/v1/updates/0/chunks/0",
        "/v1/updates/0{seq}/chunks/0", "/v1/updates/abc/chunks/0",
        "/v1/updates/99999999999999999999/chunks/0",
        "/v1/updates/{seq}/chunks/99999999999999999999", "/v1/updates/4242/chunks/0",
    ],
)  # fmt: skip
def test_everything_else_is_the_same_404(tenant: Tenant, path: str) -> None:
    device, rolled = tenant.device(), Rolled(tenant)
    rolled.start()
    response = device.send("GET", path.format(seq=rolled.release_seq))
    assert (response.status_code, code_of(response)) == (404, "update_not_found")


def test_neither_route_takes_a_query(tenant: Tenant) -> None:
    device, rolled = tenant.device(), Rolled(tenant)
    rolled.start()
    for path in (UPDATES, chunk_path(rolled)):
        response = device.send("GET", f"{path}?a=1")
        assert (response.status_code, code_of(response)) == (400, "invalid_request")


def test_a_chunk_costs_a_fifth_of_a_request(tmp_path: Any) -> None:
    with closing(Cloud(tmp_path / "data", rate_scale=1.0)) as cloud:
        tenant = cloud.new_tenant()
        device, rolled = tenant.device(), Rolled(tenant)
        rolled.start()
        cloud.clock.forward(s=60)
        answers = [device.send("GET", chunk_path(rolled)).status_code for _ in range(103)]
        assert answers == [200] * 100 + [429] * 3


def test_others_get_nothing(tenant: Tenant, cloud: Cloud) -> None:
    """Not the device of another wave, environment or tenant; and what is signed names one device."""
    devices, rolled = fleet(tenant, 10), Rolled(tenant)
    live = tenant.device("gate-live", "live")
    stranger = cloud.new_tenant().device()
    rolled.start(waves=(10, 100))
    (first,) = rolled.members()
    for device in (*devices.values(), live, stranger):
        expected = [rolled.release_seq] if device.device_id == first and device in devices.values() else []
        assert offer_of(device) == expected
        assert device.send("GET", chunk_path(rolled)).status_code == (200 if expected else 404)


def test_waves_open_when_their_devices_are_well(tenant: Tenant) -> None:
    devices, rolled = fleet(tenant, 10), Rolled(tenant)
    shown = rolled.start(waves=(10, 50, 100), soak_s=600)
    ranked = first_of(rolled.release_seq, devices, 100)
    assert (shown["state"], shown["wave"], rolled.members()) == ("running", 1, ranked[:1])
    first = devices[ranked[0]]
    rolled.say(first, None)
    for state in ("receiving", "verified", "trial", "running"):
        rolled.say(first, state)
        assert rolled.status()["wave"] == 1
    tenant.cloud.clock.forward(s=599)
    rolled.say(first, "running")
    assert rolled.status()["wave"] == 1
    tenant.cloud.clock.forward(s=5)
    rolled.say(first, "running")
    assert rolled.status()["wave"] == 2
    assert sorted(rolled.members()) == sorted(ranked[:5])
    assert [wave["devices"] for wave in rolled.status()["waves"]] == [1, 5, 0]
    assert [wave["running"] for wave in rolled.status()["waves"]] == [1, 1, 0]
    for device_id in ranked[1:5]:
        rolled.say(devices[device_id], "running")
    tenant.cloud.clock.forward(s=600)
    for device in devices.values():
        rolled.say(device, "running" if device.device_id in ranked[:5] else None)
    assert rolled.status()["wave"] == 3
    # A device that comes now is offered it at once, and one that comes when all is done too.
    late = tenant.device("late")
    assert offer_of(late) == [rolled.release_seq]
    for device in (*devices.values(), late):
        rolled.say(device, "running")
    tenant.cloud.clock.forward(s=600)
    for device in (*devices.values(), late):
        rolled.say(device, "running")
    assert rolled.status()["state"] == "done"
    assert offer_of(tenant.device("later")) == [rolled.release_seq]
    # Who runs it is not offered it again.
    assert offer_of(late) == []


def test_a_release_below_what_ran_or_failed_is_not_offered(tenant: Tenant) -> None:
    device, rolled = tenant.device(), Rolled(tenant)
    rolled.start()
    other_kind = [rolled.update("running", kind="model", release_seq=rolled.release_seq + 9)]
    rolled.say(device, None, updates=other_kind)
    assert offer_of(device) == [rolled.release_seq]
    rolled.say(device, None, updates=[rolled.update("receiving", release_seq=rolled.release_seq + 9)])
    assert offer_of(device) == [rolled.release_seq]
    rolled.say(device, None, updates=[rolled.update("failed", release_seq=rolled.release_seq, code="x")])
    assert offer_of(device) == []


def test_the_newest_of_each_kind(tenant: Tenant, device: SimDevice) -> None:
    old, new, model = Rolled(tenant), Rolled(tenant), Rolled(tenant, "model")
    old.start()
    with pytest.raises(OperatorError, match="one app at a time"):
        new.start()
    model.start()
    assert offer_of(device) == [old.release_seq, model.release_seq]
    old.say(device, "running")
    tenant.cloud.clock.forward(s=3600)
    for _ in range(4):
        old.say(device, "running")
        tenant.cloud.clock.forward(s=3600)
    assert old.status()["state"] == "done"
    new.start()
    assert offer_of(device) == [new.release_seq, model.release_seq]
    new.halt()
    assert offer_of(device) == [model.release_seq]


def test_a_failure_halts_a_wave_of_one(tenant: Tenant) -> None:
    device, rolled = tenant.device(), Rolled(tenant)
    rolled.start()
    rolled.say(device, "receiving")
    rolled.say(device, "failed", updates=[rolled.update("failed", code="self_test")])
    shown = rolled.status()
    assert (shown["state"], shown["reason"]) == ("halted", "1 of 1 devices are bad: 1 failed, 0 silent")
    assert shown["waves"][0] == {"percent": 1, "devices": 1, "running": 0, "failed": 1, "silent": 0}
    assert device.send("GET", chunk_path(rolled)).status_code == 404
    rolled.say(device, "withdrawn")
    assert rolled.status()["devices"][0]["state"] == "withdrawn"


def test_two_of_ten_halt_and_one_holds(tenant: Tenant) -> None:
    devices, rolled = fleet(tenant, 10), Rolled(tenant)
    rolled.start(waves=(100,), soak_s=0)
    names = list(devices)
    rolled.say(devices[names[0]], "failed", updates=[rolled.update("failed")])
    for name in names[1:9]:
        rolled.say(devices[name], "running")
    assert rolled.status()["state"] == "running"
    rolled.say(devices[names[9]], "failed", updates=[rolled.update("failed")])
    assert rolled.status()["state"] == "halted"


def test_silence_after_taking_it_is_bad(tenant: Tenant) -> None:
    devices, rolled = fleet(tenant, 3), Rolled(tenant)
    rolled.start(waves=(100,), silence_s=300)
    one, two, three = devices.values()
    rolled.say(one, "trial")
    rolled.say(two, "receiving")
    tenant.cloud.clock.forward(s=299)
    rolled.tick()
    assert rolled.status()["state"] == "running"
    tenant.cloud.clock.forward(s=1)
    # Anything that it signs is heard.
    two.get(UPDATES)
    assert rolled.status()["waves"][0]["silent"] == 1
    rolled.tick()
    assert rolled.status()["state"] == "running"
    tenant.cloud.clock.forward(s=300)
    rolled.tick()
    shown = rolled.status()
    assert (shown["state"], shown["reason"]) == ("halted", "2 of 3 devices are bad: 0 failed, 2 silent")
    assert three.device_id in rolled.members()


def test_a_device_that_stops_serving_is_bad_and_who_never_did_is_not(tenant: Tenant) -> None:
    devices, rolled = fleet(tenant, 2), Rolled(tenant)
    stops, never = devices.values()
    rolled.start(waves=(100,), silence_s=300, soak_s=0)
    rolled.say(stops, None, serving=True)
    rolled.say(never, None, serving=False)
    for device in (stops, never):
        rolled.say(device, "running", serving=False)
    assert rolled.status()["waves"][0] == {
        "percent": 100, "devices": 2, "running": 2, "failed": 0, "silent": 0
    }  # fmt: skip
    tenant.cloud.clock.forward(s=300)
    for device in (never, stops):
        rolled.say(device, "running", serving=False)
    assert rolled.status()["waves"][0]["failed"] == 1
    rolled.say(stops, "running", serving=True)
    tenant.cloud.clock.forward(s=5)
    rolled.tick()
    assert rolled.status()["state"] == "done"


def test_a_model_counts_once_it_is_verified(tenant: Tenant) -> None:
    device, rolled = tenant.device(), Rolled(tenant, "model")
    rolled.start(waves=(100,), soak_s=0)
    rolled.say(device, "verified", model_id="palm-now")
    assert rolled.status()["state"] == "done"
    app = Rolled(tenant)
    app.start(waves=(100,), soak_s=0)
    app.say(device, "verified")
    assert app.status()["state"] == "running"


def test_pause_resume_and_who_is_left_out(tenant: Tenant) -> None:
    devices, rolled = fleet(tenant, 4), Rolled(tenant)
    rolled.start(waves=(50, 100), soak_s=0)
    first, second = (devices[name] for name in rolled.members())
    rolled.pause()
    with pytest.raises(OperatorError, match="paused"):
        rolled.pause()
    rolled.say(first, "running")
    rolled.say(second, "running")
    tenant.cloud.clock.forward(s=60)
    rolled.tick()
    assert (rolled.status()["state"], len(rolled.members())) == ("paused", 2)
    assert offer_of(second) == []
    rolled.say(first, "failed", updates=[rolled.update("failed")])
    rolled.say(second, "failed", updates=[rolled.update("failed")])
    assert rolled.status()["state"] == "halted"
    with pytest.raises(OperatorError, match="halted"):
        rolled.halt()
    shown = rolled.resume()
    assert (shown["state"], shown["reason"]) == ("running", None)
    assert [wave["devices"] for wave in shown["waves"]] == [0, 0]
    with pytest.raises(OperatorError, match="running"):
        rolled.resume()
    assert rolled.halt()["reason"] == "halted by an operator"
    with pytest.raises(OperatorError, match="once"):
        rolled.start()


def test_a_wave_that_no_device_is_left_of_opens_again_with_the_next(tenant: Tenant, partner: Partner) -> None:
    devices, rolled = fleet(tenant, 3), Rolled(tenant)
    rolled.start(waves=(1, 100), soak_s=60)
    (bad,) = rolled.members()
    rolled.say(devices[bad], "failed")
    assert rolled.resume()["state"] == "running"
    tenant.cloud.clock.forward(s=60)
    rolled.tick()
    (lost,) = set(rolled.members()) - {bad}
    rolled.say(devices[lost], "trial")
    partner.post(f"/v1/devices/{lost}/revoke", {"reason": "lost"}, 200)
    tenant.cloud.clock.forward(s=60)
    rolled.tick()
    (good,) = set(rolled.members()) - {bad}
    assert good != lost
    rolled.say(devices[good], "running")
    tenant.cloud.clock.forward(s=50)
    rolled.say(devices[good], "running", uptime_s=110)
    assert rolled.status()["wave"] == 1  # it soaks as any other
    tenant.cloud.clock.forward(s=10)
    rolled.say(devices[good], "running", uptime_s=120)
    assert rolled.status()["wave"] == 2


def test_a_rollout_that_was_begun_without_devices_takes_the_first_that_comes(tenant: Tenant) -> None:
    rolled = Rolled(tenant)
    rolled.start(soak_s=0)
    device = tenant.device()
    tenant.cloud.clock.forward(s=5)
    rolled.tick()
    assert offer_of(device) == [rolled.release_seq]


def test_a_registration_costs_the_same_in_any_fleet(tenant: Tenant) -> None:
    rolled = Rolled(tenant)
    rolled.start(waves=(100,))

    def statements(name: str) -> int:
        device, token = SimDevice(tenant, name), tenant.token(name)
        body = read_model(RegisterDevice, device.registration(token))
        holder = ProvisioningCaller(token, rolled.environment, name)

        def work(tx: Tx, vault: Vault, now: int) -> int:
            noted = Noted(tx)
            registration.register(noted, vault, holder, body, now)
            return len(noted.asked)

        count: int = tenant.cloud.operate(work)
        return count

    first = statements("first")
    fleet(tenant, 20)
    assert statements("last") == first
    assert {"first", "last", "gate-0", "gate-19"} <= set(rolled.members())


def test_a_clock_that_is_set_back_keeps_no_failure_from_halting(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    device, rolled = tenant.device(), Rolled(tenant)
    rolled.start(waves=(100,))
    rolled.say(device, "trial")
    own_cloud.clock.step(_DAY_MS)
    rolled.say(device, "trial", uptime_s=70)
    assert rolled.status()["state"] == "running"
    own_cloud.clock.step(-_DAY_MS)
    rolled.say(device, "failed", uptime_s=80)
    assert rolled.status()["state"] == "halted"


def test_a_revoked_device_counts_for_nothing(tenant: Tenant, partner: Partner) -> None:
    devices, rolled = fleet(tenant, 2), Rolled(tenant)
    rolled.start(waves=(100,), soak_s=0)
    one, two = devices.values()
    rolled.say(one, "trial")
    partner.post(f"/v1/devices/{one.device_id}/revoke", {"reason": "lost"}, 200)
    rolled.say(two, "running")
    assert (rolled.status()["state"], rolled.members()) == ("done", [two.device_id])
    # With new keys it takes it from the start.
    assert offer_of(tenant.device(one.device_id)) == [rolled.release_seq]


def verdicts(device: SimDevice, accepted: int, refused: int) -> None:
    signed = [device.verdict("a" * 32) for _ in range(accepted)] + [device.verdict() for _ in range(refused)]
    for start in range(0, len(signed), 100):
        device.upload(*(item(verdict) for verdict in signed[start : start + 100]))


@pytest.mark.parametrize(
    ("took", "others", "halted"),
    [
        ((270, 30), (297, 3), True),
        ((297, 3), (270, 30), True),
        ((297, 3), (297, 3), False),
        ((290, 10), (297, 3), False),  # 2.3 % apart, which chance does
        ((269, 30), (297, 3), False),  # too few
        ((270, 30), (296, 3), False),
    ],
)
def test_another_share_of_accepted_palms_halts(
    tenant: Tenant, took: tuple[int, int], others: tuple[int, int], halted: bool
) -> None:
    devices, rolled = fleet(tenant, 4), Rolled(tenant)
    rolled.start(waves=(50, 100), soak_s=3600)
    first, second = (devices[name] for name in rolled.members())
    other, idle = (device for name, device in devices.items() if name not in rolled.members())
    del idle
    verdicts(first, 0, 50)  # before it took it: one of the others, in an hour of their own
    tenant.cloud.clock.forward(s=3600)
    rolled.say(first, None)
    rolled.say(first, "running")
    verdicts(first, *took)
    verdicts(other, *others)
    tenant.cloud.clock.forward(s=5)
    rolled.say(second, None)
    shown = rolled.status()
    assert shown["state"] == ("halted" if halted else "running")
    if halted:
        assert "verdicts accept" in shown["reason"]
        rolled.resume()
        tenant.cloud.clock.forward(s=5)
        rolled.tick()
        assert rolled.status()["state"] == "running"


def test_after_resume_only_later_verdicts_count(tenant: Tenant) -> None:
    """Verdicts of before it, which a gate hands in later, do not halt it once more."""
    devices, rolled = fleet(tenant, 2), Rolled(tenant)
    rolled.start(waves=(50, 100))
    (first,) = (devices[name] for name in rolled.members())
    (other,) = (device for device in devices.values() if device is not first)
    rolled.say(first, None)
    rolled.say(first, "running")
    accepted, refused = [other.verdict("a" * 32) for _ in range(300)], [first.verdict() for _ in range(300)]
    tenant.cloud.clock.forward(s=5)
    rolled.halt()
    rolled.resume()
    for device, signed in ((other, accepted), (first, refused)):
        for begin in range(0, 300, 100):
            device.upload(*(item(verdict) for verdict in signed[begin : begin + 100]))
    tenant.cloud.clock.forward(s=5)
    rolled.tick()
    assert rolled.status()["state"] == "running"
    verdicts(other, 300, 0)
    verdicts(first, 0, 300)
    tenant.cloud.clock.forward(s=5)
    rolled.tick()
    assert rolled.status()["state"] == "halted"


def by_mail(device: SimDevice, partner: Partner) -> Mailbox:
    """A device that is heard by mail, and was on the network an hour ago."""
    box = Mailbox(device)
    device.cloud.clock.forward(s=3600)
    box.hand_in(partner, box.report())
    return box


def test_a_device_without_a_network_is_sent_it(tenant: Tenant, partner: Partner) -> None:
    device, online = tenant.device("gate-mail"), tenant.device("gate-net")
    rolled = Rolled(tenant, payload=PAYLOAD * 5)
    box = by_mail(device, partner)
    online.get(UPDATES)
    box.fetch(partner)
    rolled.start(waves=(100,))
    rolled.tick()
    rolled.tick()
    letters = [(kind, body) for kind, body in box.fetch(partner) if "update" in kind]
    assert [kind for kind, _ in letters] == ["svc.update.manifest"] + ["svc.update.chunk"] * (
        rolled.manifest["chunk_count"]
    )
    assert letters[0][1]["manifest_obj"] == rolled.manifest
    assert b"".join(b64_decode(body["data_b64"]) for _, body in letters[1:]) == PAYLOAD * 5
    assert Mailbox(online).records(partner) == []
    # It says by mail that it runs it.
    gallery = {"stream": rolled.environment.stream, "epoch": 1, "seq": 0}
    rolled.say(online, "running")
    box.hand_in(partner, box.report(**report(updates=[rolled.update("running")], gallery=gallery)))
    assert [state["state"] for state in rolled.status()["devices"]] == ["running", "running"]


def test_mail_of_a_halted_release_is_taken_back(tenant: Tenant, partner: Partner) -> None:
    device = tenant.device("gate-mail")
    rolled = Rolled(tenant, payload=PAYLOAD * 5)
    box = by_mail(device, partner)
    rolled.start(waves=(100,))
    rolled.tick()
    before = box.records(partner, limit=200)
    rolled.halt()
    after = box.records(partner, limit=200)
    assert [record["post"]["seq"] for record in after] == [record["post"]["seq"] for record in before]
    assert not any("update" in kind for kind, _ in box.fetch(partner))
    # It goes on where it was halted: the whole of it is mailed again.
    rolled.resume()
    rolled.tick()
    assert sum("update" in kind for kind, _ in box.fetch(partner)) == rolled.manifest["chunk_count"] + 1


def test_a_release_that_was_withdrawn_is_mailed_once(tenant: Tenant, partner: Partner) -> None:
    """A device says that it dropped a release in every report, until the manifest reaches it again."""
    device, rolled = tenant.device("gate-mail"), Rolled(tenant, payload=PAYLOAD * 5)
    whole = rolled.manifest["chunk_count"] + 1
    box = by_mail(device, partner)
    rolled.start(waves=(100,))
    rolled.tick()
    assert sum("update" in kind for kind, _ in box.fetch(partner)) == whole
    rolled.halt()
    dropped = report(updates=[rolled.update("withdrawn")])

    def say_again(uptime_s: int) -> None:
        gallery = {"stream": rolled.environment.stream, "epoch": 1, "seq": 0}
        box.hand_in(partner, box.report(**dropped | {"uptime_s": uptime_s, "gallery": gallery}))
        rolled.tick()

    say_again(60)
    rolled.resume()
    for uptime_s in (120, 180, 240):
        say_again(uptime_s)
    assert sum("update" in kind for kind, _ in box.fetch(partner)) == whole
    # It was halted again before a report said that the device had begun with it.
    rolled.halt()
    say_again(300)
    rolled.resume()
    say_again(360)
    assert sum("update" in kind for kind, _ in box.fetch(partner)) == whole


def test_a_halt_holds_at_once_and_mail_is_taken_back_in_steps(
    tenant: Tenant, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever becomes of the command: a server goes on with what is left."""
    device, rolled = tenant.device("gate-mail"), Rolled(tenant, payload=PAYLOAD * 5)
    box = by_mail(device, partner)
    rolled.start(waves=(100,))
    rolled.tick()
    replace, room = inbox.replace, rollouts.MAIL_STEP

    def cut_off(*given: Any, **named: Any) -> None:
        nonlocal room
        if room == 0:
            raise StoreUnavailable("database: gone")
        room -= 1
        replace(*given, **named)

    monkeypatch.setattr(inbox, "replace", cut_off)
    place = ["--tenant", tenant.tenant_id, "--mode", "test", "--data", str(tenant.cloud.data.path)]
    if isinstance(tenant.cloud.data.database, str):
        place += database_words(tenant.cloud.data.database)
    done = CliRunner().invoke(command, ["release", "halt", str(rolled.release_seq), *place])
    assert done.exit_code == 1
    assert rolled.status()["state"] == "halted"
    left = sum("update" in kind for kind, _ in box.fetch(partner))
    assert left == rolled.manifest["chunk_count"] + 1 - rollouts.MAIL_STEP > 0
    monkeypatch.undo()
    rolled.tick()
    assert not any("update" in kind for kind, _ in box.fetch(partner))


@on_sqlite
def test_what_is_taken_back_is_found_in_its_order(tenant: Tenant) -> None:
    """Else each step would sort all that is left."""
    rolled = Rolled(tenant)
    rolled.start()
    rolled.halt()

    def plan(tx: Tx, vault: Vault, now: int) -> list[str]:
        noted = Noted(tx)
        rollouts.take_back(noted, vault, rolled.environment, now)
        (asked,) = [(sql, params) for sql, params in noted.asked if "JOIN mail_boxes" in sql]
        return [row["detail"] for row in tx.all(f"EXPLAIN QUERY PLAN {asked[0]}", **asked[1])]

    lines = tenant.cloud.operate(plan)
    assert any("inbox_undelivered (tenant_id=? AND release_seq=?)" in line for line in lines)
    assert not any("TEMP B-TREE" in line or line.startswith("SCAN") for line in lines)


def test_no_rollout_begins_or_goes_on_below_a_release_that_was_offered(tenant: Tenant) -> None:
    """A device that took the newer one takes none below it, and the wave would never open."""
    device, halted, old, new = tenant.device(), Rolled(tenant), Rolled(tenant), Rolled(tenant)
    halted.start()
    halted.halt()
    new.start()
    new.say(device, "running")
    new.halt()
    for below in (old.start, halted.resume):
        with pytest.raises(OperatorError, match=f"release {new.release_seq} was rolled out already"):
            below()
    again = Rolled(tenant)
    Rolled(tenant, "model").start()  # each kind counts by itself
    again.start()
    assert again.release_seq in offer_of(device)


def test_release_seqs_rise(tenant: Tenant) -> None:
    rolled = Rolled(tenant)
    cloud, environment = tenant.cloud, rolled.environment

    def next_seq(given: int | None) -> int:
        seq: int = cloud.operate(lambda tx, _, now: releases.next_seq(tx, environment, given, now))
        return seq

    for given in (rolled.release_seq, 1):
        with pytest.raises(OperatorError, match="above"):
            next_seq(given)
    assert next_seq(rolled.release_seq + 1) == rolled.release_seq + 1
    assert next_seq(None) == cloud.clock.ms // 1000
