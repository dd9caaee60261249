"""The stream: golden hashes, round trips, and everything a page must not be."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_client.reference_server.domain.gallery.deltas import delta_obj, make_delta
from gallery.errors import PageRefused, RefusalCode
from gallery.stream import (
    MAX_DELTA_PAGE_BYTES,
    MAX_SNAPSHOT_PAGE_BYTES,
    Delta,
    DeltaPage,
    Entry,
    Head,
    KeyOf,
    Op,
    SnapshotPage,
    digest_of,
    entry_sha256,
    follow_chain,
    head_zero,
    next_head,
    read_delta_page,
    read_snapshot_page,
    state_of,
    verify_head,
)
from link1.canonical import JsonObject, b64_encode
from link1.errors import FormatError
from link1.keys import SigningKey
from link1.signed import Kind, sign_object
from tests.gallery.gallery_service import NOW_MS, Service, encode, entry, subject_ref


def filled() -> Service:
    service = Service()
    service.upsert(entry(1, 1, onboard_ref="token-1"), entry(1, 2), entry(2, 3))
    service.suspend(2)
    service.tombstone(1)
    service.noop()
    return service


def code_of(data: bytes, service: Service) -> RefusalCode:
    with pytest.raises(PageRefused) as refused:
        read_delta_page(data, service.key_of)
    return refused.value.code


def test_the_hashes_are_those_of_the_contract() -> None:
    """Written out by hand from the formulas, with sorted JSON as the canonical form."""
    prefix = b"svc.gallery.head.v1\x00"
    zero = hashlib.sha256(prefix + b'{"epoch":3,"stream":"t1.live"}').digest()
    assert head_zero("t1.live", 3) == zero
    salt = bytes(range(16))
    fields: JsonObject = {"seq": 1, "op": "tombstone", "subject_ref": subject_ref(9)}
    digest = hashlib.sha256(
        salt + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    ).digest()
    assert digest_of(fields, salt) == digest
    assert make_delta(1, Op.TOMBSTONE, salt=salt, subject_ref=subject_ref(9)).digest == digest
    assert next_head(zero, digest) == hashlib.sha256(prefix + zero + digest).digest()
    objs = [entry(1, 1).to_obj(), entry(1, 2).to_obj()]
    hashes = [
        hashlib.sha256(json.dumps(o, sort_keys=True, separators=(",", ":")).encode()).digest() for o in objs
    ]
    assert [entry_sha256(o) for o in objs] == hashes
    assert state_of(hashes) == hashlib.sha256(b"".join(hashes)).digest()
    assert state_of([]) == hashlib.sha256(b"").digest()


def test_round_trips() -> None:
    service = filled()
    for delta in service.log:
        assert Delta.from_obj(delta_obj(delta)) == delta
    for one in (entry(1, 1), entry(2, 2, onboard_ref="a/b+c=", suspended=True)):
        assert Entry.from_obj(one.to_obj()) == one
    head = Head("s", 2, 5, bytes(32), 7, NOW_MS, bytes(32))
    assert Head.from_obj(head.to_obj()) == head
    assert "onboard_ref" not in entry(1, 1).to_obj()


def test_a_page_leads_from_any_point_of_its_log() -> None:
    service = filled()
    page = read_delta_page(service.deltas(), service.key_of)
    for seq in range(service.seq + 1):
        assert follow_chain(page, seq=seq, head=service.heads[seq]) == tuple(service.log[seq:])


def test_members_of_later_versions_stay_under_the_digest() -> None:
    fields: JsonObject = {"seq": 1, "op": "suspend", "subject_ref": subject_ref(1), "reason": "lost"}
    salt = bytes(16)
    obj = {**fields, "salt_b64": b64_encode(salt), "digest": digest_of(fields, salt).hex()}
    assert Delta.from_obj(obj).subject_ref == subject_ref(1)
    with pytest.raises(PageRefused):
        Delta.from_obj({**obj, "reason": "found"})


@pytest.mark.parametrize(
    "member", ["seq", "op", "subject_ref", "vector_b64", "hand", "salt_b64", "suspended"]
)
def test_nothing_in_a_delta_can_be_changed(member: str) -> None:
    service = Service()
    service.upsert(entry(1, 1))
    other = {
        "seq": 2,
        "op": "noop",
        "subject_ref": subject_ref(2),
        "vector_b64": entry(1, 2).to_obj()["vector_b64"],
        "hand": "L",
        "salt_b64": b64_encode(bytes(16)),
        "suspended": True,
    }
    page = service.deltas_obj()
    page["data"][0][member] = other[member]
    assert code_of(encode(page), service) is RefusalCode.BAD_CHAIN


def test_deltas_dropped_repeated_swapped_or_compacted_by_a_carrier() -> None:
    service = filled()
    page = service.deltas_obj()
    data = page["data"]
    assert code_of(encode({**page, "data": data[:2] + data[3:]}), service) is RefusalCode.GAP
    assert code_of(encode({**page, "data": [*data, data[-1]]}), service) is RefusalCode.GAP
    assert code_of(encode({**page, "data": data[:-1]}), service) is RefusalCode.BAD_CHAIN
    forged = dict(data[3], digest="00" * 32, op="noop")
    del forged["salt_b64"], forged["subject_ref"]
    parsed = read_delta_page(encode({**page, "data": [*data[:3], forged, *data[4:]]}), service.key_of)
    with pytest.raises(PageRefused) as refused:
        follow_chain(parsed, seq=0, head=service.heads[0])
    assert refused.value.code is RefusalCode.BAD_CHAIN


def test_a_carrier_may_hide_what_a_delta_said_only_where_the_head_vouches_for_it() -> None:
    """A compacted delta verifies by its digest; the digest itself cannot be changed (above)."""
    service = filled()
    assert service.log[0].op is Op.NOOP
    assert service.log[0].salt is None
    page = read_delta_page(service.deltas(), service.key_of)
    assert len(follow_chain(page, seq=0, head=service.heads[0])) == service.seq


def test_heads_of_strangers_and_of_other_kinds() -> None:
    service = filled()
    stranger = Service(key=SigningKey.from_seed(b"\x01" * 32))
    for wrapper in (
        stranger.head(0),
        {**stranger.head(0), "signer_kid": service.key.kid},
        {**service.head(), "head_obj": {**service.head()["head_obj"], "seq": 1}},
    ):
        with pytest.raises(PageRefused) as refused:
            verify_head(wrapper, service.key_of)
        assert refused.value.code is RefusalCode.BAD_SIGNATURE
    as_config = sign_object(Kind.CONFIG, service.head()["head_obj"], service.key)
    wrong: list[object] = [as_config, None, [], "head", {**service.head(), "extra": 1}, service.head(v=2)]
    wrong += [service.head(epoch=True), service.head(head="A" * 64), service.head(count=-1)]
    for bad in wrong:
        with pytest.raises(PageRefused) as refused:
            verify_head(bad, service.key_of)
        assert refused.value.code is RefusalCode.MALFORMED


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(512),
        np.full(512, np.nan),
        np.r_[1.0, np.full(511, np.inf)],
        np.r_[1.002, np.zeros(511)],
        np.r_[0.998, np.zeros(511)],
        np.full(512, 1e38),
    ],
)
def test_vectors_that_are_none(values: np.ndarray) -> None:
    obj = entry(1, 1).to_obj()
    with np.errstate(over="ignore"), pytest.raises(FormatError):
        Entry.from_obj({**obj, "vector_b64": b64_encode(values.astype("<f4").tobytes())})


def test_vectors_at_the_edge_of_their_length() -> None:
    for length in (0.9995, 1.0005):
        one = replace(entry(1, 1), vector=struct.pack("<512f", length, *[0.0] * 511))
        assert Entry.from_obj(one.to_obj()) == one


@pytest.mark.parametrize(
    "change",
    [
        {"template_id": "AB" * 16},
        {"subject_ref": "1"},
        {"hand": "l"},
        {"hand": None},
        {"model_id": ""},
        {"model_id": "a b"},
        {"vector_b64": 5},
        {"onboard_ref": None},
        {"onboard_ref": "ü"},
        {"suspended": 0},
    ],
)
def test_entries_that_are_none(change: JsonObject) -> None:
    with pytest.raises(FormatError) as error:
        Entry.from_obj({**entry(1, 1).to_obj(), **change})
    found = str(next(iter(change.values())))
    assert len(found) < 3 or found not in str(error.value)


def test_sizes_are_capped_before_parsing() -> None:
    service = filled()
    assert code_of(b" " * (MAX_DELTA_PAGE_BYTES + 1), service) is RefusalCode.MALFORMED
    with pytest.raises(PageRefused):
        read_snapshot_page(b" " * (MAX_SNAPSHOT_PAGE_BYTES + 1), service.key_of)
    noop = Service().log
    page = {**service.deltas_obj(), "data": [{}] * 501}
    assert noop == []
    assert code_of(encode(page), service) is RefusalCode.MALFORMED


def test_the_largest_page_of_the_contract_fits() -> None:
    service = Service()
    one = entry(1, 1, onboard_ref="x" * 128, model_id="m" * 64)
    service.upsert(*[one] * 500)
    data = service.deltas(limit=500)
    assert len(data) < MAX_DELTA_PAGE_BYTES
    assert len(read_delta_page(data, service.key_of).deltas) == 500


def test_a_page_of_more_items_than_the_contract_has_is_refused() -> None:
    service = Service()
    service.upsert(*[entry(1, 1)] * 501)
    assert code_of(service.deltas(limit=501), service) is RefusalCode.MALFORMED
    many = Service()
    many.upsert(*(entry(number, number) for number in range(201)))
    assert len(read_snapshot_page(many.snapshot(200)[0], many.key_of).entries) == 200
    with pytest.raises(PageRefused):
        read_snapshot_page(many.snapshot(201)[0], many.key_of)


def test_a_page_of_more_bytes_than_the_contract_has_is_refused() -> None:
    service = filled()
    pages = (
        (read_delta_page, service.deltas(), MAX_DELTA_PAGE_BYTES),
        (read_snapshot_page, service.snapshot()[0], MAX_SNAPSHOT_PAGE_BYTES),
    )
    assert [most for _, _, most in pages] == [2 * 1024 * 1024, 1024 * 1024]
    for read, page, most in pages:
        assert read(page + b" " * (most - len(page)), service.key_of).head.seq == service.seq
        with pytest.raises(PageRefused, match="at most"):
            read(page + b" " * (most + 1 - len(page)), service.key_of)


def test_a_delta_is_made_with_what_its_kind_carries() -> None:
    for op in (Op.UPSERT, Op.TOMBSTONE, Op.SUSPEND, Op.RESUME):
        with pytest.raises(ValueError, match="carries"):
            make_delta(1, op, salt=bytes(16))


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=200), st.integers(0, 2**32)))
def test_garbage_is_refused_and_nothing_else_escapes(garbage: bytes | int) -> None:
    service = filled()
    if isinstance(garbage, int):  # flip one bit of a good page, anywhere
        flipped = bytearray(service.deltas())
        place = garbage % (8 * len(flipped))
        flipped[place // 8] ^= 1 << (place % 8)
        garbage = bytes(flipped)
    readers: list[Callable[[bytes, KeyOf], DeltaPage | SnapshotPage]] = [read_delta_page, read_snapshot_page]
    for read in readers:
        try:
            head = read(garbage, service.key_of).head
        except PageRefused:
            continue
        assert head.to_obj() == service.head()["head_obj"]


def test_snapshots_stand_by_rising_template_id_and_carry_a_state() -> None:
    service = Service()
    service.upsert(entry(1, 1), entry(1, 2), entry(2, 3))
    (page,) = service.snapshot_objs()
    assert [one.entry for one in read_snapshot_page(encode(page), service.key_of).entries] == list(
        service.live.values()
    )
    for bad in (
        {**page, "data": page["data"][::-1]},
        {**page, "data": page["data"][:1] * 2},
        {**page, "head": service.head()},
        {**page, "has_more": 1},
        {**page, "data": None},
        {**page, "data": [5]},
    ):
        with pytest.raises(PageRefused) as refused:
            read_snapshot_page(encode(bad), service.key_of)
        assert refused.value.code is RefusalCode.MALFORMED
