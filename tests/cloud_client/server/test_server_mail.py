"""The mailman: sealed records in both directions, carried by the partner."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_client.reference_server.domain.mail import listing as mail_listing
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import retention
from link1.canonical import b64_decode, b64_encode
from link1.envelope import MessageType, Role, encode_message, read_message
from link1.frames import Channel
from link1.keys import PublicKey, SealKey, SigningKey
from link1.signed import Kind, object_ref, sign_object, verify_object
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant, code_of, decision

RECEIPT = "svc.post.receipt"


@pytest.fixture
def mail(device: SimDevice) -> Mailbox:
    return Mailbox(device)


def rejection(answer: Any) -> list[str]:
    return [item["code"] for item in answer["rejected"]]


def test_an_inbox_is_empty_at_first(partner: Partner, mail: Mailbox) -> None:
    assert partner.get(f"{mail.path}/inbox", after_seq=7) == {
        "device_id": "gate-1",
        "data": [],
        "has_more": False,
        "next_after_seq": 7,
    }


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("after_seq=-1", "/after_seq"),
        ("after_seq=9007199254740992", "/after_seq"),
        ("after_seq=1.0", "/after_seq"),
        ("limit=0", "/limit"),
        ("limit=201", "/limit"),
        ("limit=", "/limit"),
    ],
)
def test_this_list_answers_422(partner: Partner, mail: Mailbox, query: str, pointer: str) -> None:
    refused = partner.send("GET", f"{mail.path}/inbox?{query}")
    assert code_of(refused) == "validation_failed"
    assert refused.json()["errors"] == [{"pointer": pointer, "code": "format"}]


def test_what_is_no_parameter_is_still_400(partner: Partner, mail: Mailbox) -> None:
    for query in ("cursor=x", "limit=1&limit=1"):
        assert code_of(partner.send("GET", f"{mail.path}/inbox?{query}")) == "invalid_request"


def test_whose_mail(tenant: Tenant, cloud: Cloud, mail: Mailbox) -> None:
    body = {"records": [mail.report()]}
    for send in (("GET", f"{mail.path}/inbox", None), ("POST", f"{mail.path}/outbox", body)):
        assert code_of(tenant.partner("live").send(*send)) == "livemode_mismatch"
        assert code_of(cloud.new_tenant().partner().send(*send)) == "device_not_found"
        assert code_of(tenant.partner(scopes=["verdicts:read"]).send(*send)) == "insufficient_scope"
    writer = tenant.partner(scopes=["devices:write"])
    assert code_of(writer.send("GET", f"{mail.path}/inbox")) == "insufficient_scope"
    assert code_of(writer.send("GET", "/v1/devices/self/inbox")) == "insufficient_scope"


def test_verdicts_go_through_the_mail(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    """As on the device's own route, and a receipt comes back."""
    dbd = tenant.add_dbd()
    verdict = mail.device.verdict()
    items = [{"signed_verdict": verdict, "signed_decision": decision(verdict, dbd)}, {"bad": 1}]
    record = mail.sealed("svc.verdicts.batch", {"items": items})
    answer = mail.hand_in(partner, record)
    assert answer == {
        "device_id": "gate-1",
        "accepted": [1],
        "duplicates": [],
        "rejected": [],
        "acked_upto_seq": 1,
    }
    (listed,) = partner.get("/v1/verdicts")["data"]
    assert (listed["verdict_id"], listed["reconciliation"]) == (object_ref(verdict), "complete")
    assert mail.fetch(partner) == [(RECEIPT, {"device_id": "gate-1", "acked_upto_seq": 1})]
    again = mail.hand_in(partner, record, record)
    assert (again["accepted"], again["duplicates"], again["acked_upto_seq"]) == ([], [1, 1], 1)
    assert len(partner.get("/v1/verdicts")["data"]) == 1
    assert mail.fetch(partner) == [(RECEIPT, {"device_id": "gate-1", "acked_upto_seq": 1})]


def test_a_wrapper_as_deep_as_a_message_of_the_cable_blocks_no_mail(partner: Partner, mail: Mailbox) -> None:
    """A forged decision: an attacker in the cable may send it to a device, which mails it as evidence."""
    verdict = mail.device.verdict()
    deep: list[Any] = []
    for _ in range(12):
        deep = [deep]
    forged = decision(verdict, SigningKey.generate())
    forged["decision_obj"]["x"] = deep
    message = encode_message(MessageType.DECISION, forged)
    assert read_message(message, Role.VALIDATOR, Channel.CONTROL).body == forged
    item = {"signed_verdict": verdict, "signed_decision": forged}
    batch = mail.sealed("svc.verdicts.batch", {"items": [item]})
    answer = mail.hand_in(
        partner, batch, mail.report(), mail.sealed("svc.verdicts.batch", {"items": [[item]]})
    )
    assert (answer["accepted"], answer["acked_upto_seq"]) == ([1, 2], 2)
    assert answer["rejected"][0]["code"] == "malformed", "nothing in a batch is nested deeper"
    assert mail.device.upload(item)["duplicates"] == [object_ref(verdict)], (
        "the device's own route reads it too"
    )


def test_contents_are_applied_in_the_order_of_their_seqs(partner: Partner, mail: Mailbox) -> None:
    first, second = (
        mail.sealed("svc.verdicts.batch", {"items": [{"signed_verdict": mail.device.verdict()}]})
        for _ in range(2)
    )
    third = mail.report(health=["CAMERA_FAULT"])
    answer = mail.hand_in(partner, third, second)
    assert (answer["accepted"], answer["acked_upto_seq"]) == ([3, 2], 0)
    assert partner.get("/v1/verdicts")["data"] == []
    assert partner.get("/v1/devices")["data"][0]["health"] == ["KEY_UNATTESTED"]
    answer = mail.hand_in(partner, first, first)
    assert (answer["accepted"], answer["duplicates"], answer["acked_upto_seq"]) == ([1], [1], 3)
    assert len(partner.get("/v1/verdicts")["data"]) == 2
    assert partner.get("/v1/devices")["data"][0]["health"] == ["CAMERA_FAULT", "KEY_UNATTESTED"]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_order_the_outcome_is_the_same(cloud: Cloud, data: st.DataObject) -> None:
    tenant = cloud.new_tenant()
    partner, mail = tenant.partner(), Mailbox(tenant.device())
    records = [
        mail.sealed("svc.verdicts.batch", {"items": [{"signed_verdict": mail.device.verdict()}]})
        for _ in range(3)
    ]
    records += [mail.report(health=["TEMPERATURE"]), mail.report(health=["LINK_DOWN"])]
    waiting = data.draw(st.permutations([*range(5), *range(5)]))
    accepted: list[int] = []
    acked = 0
    while waiting:
        size = data.draw(st.integers(1, len(waiting)))
        batch, waiting = waiting[:size], waiting[size:]
        answer = mail.hand_in(partner, *(records[number] for number in batch))
        assert sorted(answer["accepted"] + answer["duplicates"]) == sorted(number + 1 for number in batch)
        accepted += answer["accepted"]
        assert answer["acked_upto_seq"] >= acked
        acked = answer["acked_upto_seq"]
        contiguous = next(seq for seq in range(7) if seq + 1 not in accepted)
        assert acked == contiguous
        assert len(partner.get("/v1/verdicts")["data"]) == min(3, acked)
    assert sorted(accepted) == [1, 2, 3, 4, 5]
    assert "LINK_DOWN" in partner.get("/v1/devices")["data"][0]["health"]
    assert mail.fetch(partner)[-1][0] in {RECEIPT, "svc.gallery.head"}


def test_one_record_in_two_requests_at_once(partner: Partner, mail: Mailbox) -> None:
    content = json.dumps({"records": [mail.report()]})
    headers = {"Authorization": f"Bearer {partner.api_key}", "Content-Type": "application/json"}

    async def both() -> list[Any]:
        http, path = partner.cloud.http, f"{mail.path}/outbox"
        posts = (http.post(path, content=content, headers=headers | {"Idempotency-Key": key}) for key in "ab")
        return [answer.json() for answer in await asyncio.gather(*posts)]

    answers = partner.cloud.run(both())
    assert sorted(len(answer["accepted"]) for answer in answers) == [0, 1]
    assert sorted(len(answer["duplicates"]) for answer in answers) == [0, 1]
    seqs = [record["post"]["seq"] for record in mail.records(partner)]
    assert seqs == [*range(1, len(seqs) + 1)]


def test_another_record_under_a_seq_stays_out(partner: Partner, mail: Mailbox) -> None:
    mail.hand_in(partner, mail.report())
    answer = mail.hand_in(partner, mail.report(health=["LINK_DOWN"]), mail.report(seq=1))
    assert (answer["accepted"], rejection(answer), answer["acked_upto_seq"]) == ([2], ["seq_conflict"], 2)


def test_what_is_refused_record_by_record(partner: Partner, mail: Mailbox) -> None:
    good = mail.report()

    def with_post(**changes: Any) -> dict[str, Any]:
        post = good["post"] | changes
        return good | {
            "sig_b64": sign_object(Kind.POST, post, mail.device.verdict_key)["sig_b64"],
            "post": post,
        }

    other = bytearray(b64_decode(good["ct_b64"]))
    other[-1] ^= 1
    stranger = SigningKey.generate()
    empty = mail.sealed("svc.verdicts.batch", {"items": []}, seq=1)
    bad = {
        "bad_signature": [
            good | {"sig_b64": b64_encode(bytes(64))},
            good | {"post": good["post"] | {"seq": 9}},
        ],
        "unknown_signer": [mail.report(signer=stranger), good | {"signer_kid": "0" * 32}],
        "wrong_destination": [mail.sealed("x", {}, dst="gate-1")],
        "wrong_source": [mail.sealed("x", {}, src="gate-2")],
        "wrong_box": [with_post(box="in")],
        "hash_mismatch": [good | {"ct_b64": b64_encode(bytes(other))}],
        "length_mismatch": [good | {"ct_b64": b64_encode(bytes(other[:-1]))}],
        "unsupported_suite": [with_post(suite="rot13")],
        "malformed": [
            with_post(v=2),
            with_post(ct_len=1),
            mail.report(to=SealKey.generate().public),
            mail.sealed("svc.other", {}),
            mail.sealed("svc.device.report", {}),
            mail.sealed("svc.device.wiped", {"wipe_id": "0" * 32}),
            empty,
        ],
    }
    for code, records in bad.items():
        answer = mail.hand_in(partner, *records)
        assert set(rejection(answer)) == {code}, code
        assert (len(answer["rejected"]), answer["acked_upto_seq"]) == (len(records), 0)
        expected = [{"seq": item["post"]["seq"], "rid": item["post"]["rid"]} for item in records]
        assert [{"seq": item["seq"], "rid": item["rid"]} for item in answer["rejected"]] == expected
    assert mail.hand_in(partner, good)["accepted"] == [1]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"alg": "rsa"}, "/records/0/alg"),
        ({"sig_b64": "AA=="}, "/records/0/sig_b64"),
        ({"ct_b64": "!!!!"}, "/records/0/ct_b64"),
        ({"ct_b64": "A" * 87_388}, "/records/0/ct_b64"),
        ({"ct_b64": "AAB="}, "/records/0/ct_b64"),
        ({"signer_kid": "X"}, "/records/0/signer_kid"),
        ({"signer_cert_b64": None}, "/records/0/signer_cert_b64"),
        ({"more": 1}, "/records/0"),
        ({"post": {}}, "/records/0/post/v"),
    ],
)
def test_faults_of_shape_end_the_request(
    partner: Partner, mail: Mailbox, change: dict[str, Any], pointer: str
) -> None:
    refused = mail.submit(partner, mail.report() | change)
    assert code_of(refused) == "validation_failed"
    assert pointer in {error["pointer"] for error in refused.json()["errors"]}


def test_how_much_fits_into_a_request(partner: Partner, mail: Mailbox) -> None:
    record = mail.report()
    assert code_of(mail.submit(partner)) == "validation_failed"
    assert code_of(mail.submit(partner, *[record] * 33)) == "validation_failed"
    assert mail.submit(partner, *[record] * 32).status_code == 200
    huge = partner.send("POST", f"{mail.path}/outbox", {"records": ["A" * (4 * 1024 * 1024)]})
    assert code_of(huge) == "payload_too_large"
    without_key = partner.send("POST", f"{mail.path}/outbox", {}, headers={"Idempotency-Key": ""})
    assert without_key.status_code == 400


def test_an_answer_is_replayed_and_not_done_twice(partner: Partner, mail: Mailbox) -> None:
    record = mail.report()
    first = mail.submit(partner, record, key="same")
    again = mail.submit(partner, record, key="same")
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert [kind for kind, _ in mail.fetch(partner)].count(RECEIPT) == 1


def test_pages_of_the_inbox(partner: Partner, mail: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        mail.hand_in(partner, mail.report(seq=1))
    whole = mail.records(partner)
    seqs = [record["post"]["seq"] for record in whole]
    assert seqs == list(range(1, len(whole) + 1))
    page = partner.get(f"{mail.path}/inbox", after_seq=1, limit=1)
    assert (page["data"], page["has_more"], page["next_after_seq"]) == ([whole[1]], True, 2)
    # However small an answer has to be, there is a record in it.
    monkeypatch.setattr(mail_listing, "MAX_ANSWER_BYTES", 1)
    page = partner.get(f"{mail.path}/inbox")
    assert (page["data"], page["has_more"], page["next_after_seq"]) == ([whole[0]], True, 1)
    last = partner.get(f"{mail.path}/inbox", after_seq=len(whole) - 1)
    assert (last["data"], last["has_more"]) == ([whole[-1]], False)


def test_records_can_be_checked_by_anybody_and_opened_by_nobody(partner: Partner, mail: Mailbox) -> None:
    mail.hand_in(partner, mail.report())
    record = mail.records(partner)[0]
    assert set(record["post"]) == {
        "v", "rid", "box", "src", "dst", "seq", "created_ms", "suite", "ct_len", "ct_sha256"
    }  # fmt: skip
    assert (record["post"]["box"], record["post"]["src"], record["post"]["dst"]) == ("in", "svc", "gate-1")
    assert b"acked" not in b64_decode(record["ct_b64"])
    assert len(record["signer_cert_b64"]) == 140


def test_health_is_what_the_device_says_and_attestation_what_we_know(partner: Partner, mail: Mailbox) -> None:
    mail.device.cloud.clock.forward(s=60)
    mail.hand_in(partner, mail.report(health=["TEMPERATURE", "KEY_UNATTESTED", "STORAGE_LOW"]))
    (listed,) = partner.get("/v1/devices")["data"]
    assert listed["health"] == ["KEY_UNATTESTED", "STORAGE_LOW", "TEMPERATURE"]
    assert listed["last_seen_at"] > listed["registered_at"]


def test_a_revocation_reaches_a_device_without_a_network(partner: Partner, mail: Mailbox) -> None:
    """The signed wipe comes by mail, and by mail the device says that it is done."""
    late = mail.sealed("svc.verdicts.batch", {"items": [{"signed_verdict": mail.device.verdict()}]})
    partner.post(f"{mail.path}/revoke", {"reason": "stolen"}, 200)
    partner.post(f"{mail.path}/revoke", {"reason": "stolen"}, 200)
    ((kind, body),) = mail.fetch(partner)
    keys = {item["kid"]: item for item in mail.device.cloud.send("GET", "/v1/keys").json()["keys"]}
    assert keys[body["signer_kid"]]["use"] == ["device_status"]
    wipe = body["device_status_obj"]["wipe"]
    assert (kind, body["device_status_obj"]["status"]) == ("svc.device.revoke", "revoked")
    assert rejection(mail.hand_in(partner, late)) == ["unknown_signer"]
    wrong = mail.sealed("svc.device.wiped", {"wipe_id": "0" * 32})
    assert rejection(mail.hand_in(partner, wrong)) == ["malformed"]
    # It does not wait for the records before it, whose signer is dead.
    done = mail.sealed("svc.device.wiped", {"wipe_id": wipe["wipe_id"]}, seq=5)
    assert mail.hand_in(partner, done)["accepted"] == [5]
    assert partner.get("/v1/devices")["data"][0]["status"] == "wiped"
    assert mail.records(partner) == []
    assert mail.hand_in(partner, done)["duplicates"] == [5]
    assert rejection(mail.hand_in(partner, late)) == ["unknown_signer"]
    assert mail.records(partner) == []


def test_new_keys_close_the_old_outbox_and_void_the_inbox(
    tenant: Tenant, partner: Partner, mail: Mailbox
) -> None:
    mail.hand_in(partner, mail.report())
    first_letters = mail.fetch(partner)
    mail.hand_in(partner, mail.report(mail={"in_applied_seq": 1}))
    partner.post(f"{mail.path}/revoke", {"reason": "other"}, 200)
    last_seq = mail.records(partner)[-1]["post"]["seq"]
    second = Mailbox(tenant.device())
    assert len(first_letters) >= 1
    assert second.applied_seq == last_seq
    # What the old keys acknowledged stays for its 30 days, what they did not is gone.
    assert [record["post"]["seq"] for record in second.records(partner)] == [1]
    assert rejection(second.hand_in(partner, mail.report(seq=1))) == ["unknown_signer"]
    assert second.hand_in(partner, second.report(health=["LINK_DOWN"]))["acked_upto_seq"] == 1
    assert second.fetch(partner)[0][0] == RECEIPT
    # The same keys once more get the same seq, whatever has come meanwhile.
    again = second.device.register(tenant.token("gate-1"))
    assert again.json()["mail"]["inbox_next_seq"] == last_seq + 1


def test_acknowledged_records_stay_for_30_days(own_cloud: Cloud) -> None:
    tenant = own_cloud.new_tenant()
    partner, mail = tenant.partner(), Mailbox(tenant.device())
    mail.hand_in(partner, mail.report())
    mail.fetch(partner)
    mail.hand_in(partner, mail.report())
    # An acknowledgement beyond what was sent says nothing, and a smaller one takes nothing back.
    mail.hand_in(partner, mail.report(mail={"in_applied_seq": 10_000}))
    mail.hand_in(partner, mail.report(mail={"in_applied_seq": 0}))

    def seqs() -> list[int]:
        return [record["post"]["seq"] for record in mail.records(partner)]

    before = seqs()
    applied = mail.applied_seq
    own_cloud.clock.forward(s=30 * 24 * 3600 - 1)
    own_cloud.operate(lambda tx, _, now: retention.sweep(tx, now))
    assert seqs() == before
    own_cloud.clock.forward(s=1)
    own_cloud.operate(lambda tx, _, now: retention.sweep(tx, now))
    assert seqs() == [seq for seq in before if seq > applied]
    # A record that was applied so long ago is still known by its seq.
    assert mail.hand_in(partner, mail.report(seq=1))["duplicates"] == [1]


def test_old_seal_keys_still_open(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    tenant.cloud.operate(lambda tx, vault, now: operator.rotate_signer(tx, vault, "seal", 0, now))
    tenant.cloud.operate(lambda tx, vault, now: operator.rotate_signer(tx, vault, "post", 0, now))
    assert mail.hand_in(partner, mail.report())["accepted"] == [1]
    assert mail.fetch(partner)[0][0] == RECEIPT
    newer = Mailbox(tenant.device("gate-2"))
    assert newer.seal_key != mail.seal_key
    assert newer.hand_in(partner, newer.report())["accepted"] == [1]


def test_a_totem_has_mail_too(tenant: Tenant, partner: Partner) -> None:
    totem = Mailbox(tenant.device("totem-1", kind="totem"))
    totem.hand_in(partner, totem.report(gallery=None))
    assert [kind for kind, _ in totem.fetch(partner)] == [RECEIPT]


def test_a_refused_record_is_sealed_anew_and_gives_way_in_the_end(partner: Partner, mail: Mailbox) -> None:
    first = mail.hand_in(partner, mail.report())
    assert first["acked_upto_seq"] == 1
    before = mail.records(partner)[0]
    refused = [{"seq": 1, "code": "unknown_signer"}]
    mail.hand_in(partner, mail.report(refused=refused))
    after = mail.records(partner)[0]
    assert after["post"]["seq"] == before["post"]["seq"]
    assert after["post"]["rid"] != before["post"]["rid"]
    kind, body = mail.opened(after)
    assert (kind, body["acked_upto_seq"]) == (RECEIPT, 1)


def test_signed_objects_in_mail_verify(tenant: Tenant, partner: Partner, mail: Mailbox) -> None:
    mail.hand_in(partner, mail.report())
    heads = [body for kind, body in mail.fetch(partner) if kind == "svc.gallery.head"]
    keys = {item["kid"]: item["pub_b64"] for item in tenant.cloud.send("GET", "/v1/keys").json()["keys"]}
    key = PublicKey.from_b64(keys[heads[0]["signer_kid"]])
    assert verify_object(Kind.GALLERY_HEAD, heads[0], key)["issued_at_ms"] == tenant.cloud.clock.ms


def test_nothing_of_a_record_is_echoed(partner: Partner, mail: Mailbox) -> None:
    refused = mail.submit(partner, mail.report() | {"signer_kid": "secret-looking-value"})
    assert code_of(refused) == "validation_failed"
    assert "secret-looking-value" not in refused.text
