"""Releases by network: taken in order, switched only while an offer of the last day names them, withdrawn
when the service says so, and taken again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device.core.device_operations import release_states
from device.errors import Outdated, TrustError
from device.platform.files import with_checksum
from device.updates.desk import UpdateDesk
from device.updates.manifest import Offer
from device.updates.state import OFFER_HOLDS_MS, SHIPPED, GalleryFacts, starting
from device.updates.store import UpdateStore
from link1.canonical import JsonObject
from link1.errors import FormatError, SignatureError
from link1.keys import SigningKey
from tests.device.updates.test_update_desk import CHUNK, model, one_life, run, settled
from tests.device.updates.update_setting import (
    OFFERS,
    SIGNER,
    now_ms,
    offer,
    packed_files,
    read_offer,
    release,
    signed,
)
from tools.cloud.pack_release import chunk_bodies

MODEL = model()
APP_NAME = "palm-access-device"


def app(release_seq: int, **changed: Any) -> tuple[bytes, JsonObject]:
    with packed_files(VERSION="9.9.9") as payload:
        named = {"kind": "app", "name": APP_NAME, "version": "9.9.9"}
        obj = release(payload, release_seq, **(named | changed))
        return payload, signed(obj, not_after_ms=now_ms() + 2 * OFFER_HOLDS_MS)


def model_release(release_seq: int) -> JsonObject:
    return signed(release(MODEL, release_seq))


async def fetched(desk: UpdateDesk, payload: bytes, most: int = 1_000) -> None:
    """Fetch what the desk asks for, as the carrier does."""
    while most and (wanted := await desk.wanted_chunk()) is not None:
        most -= 1
        bodies = {body["index"]: body for body in chunk_bodies(payload, wanted[0], CHUNK)}
        await desk.take_chunk(bodies[wanted[1]])
    await settled()


def states(desk: UpdateDesk) -> list[tuple[str, int, str, str]]:
    return [(one.kind, one.release_seq, one.state, one.code) for one in release_states(desk)]


class Shifted:
    """The device's clock, ahead of the machine's."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.ahead_ms


async def test_software_is_fetched_and_handed_over_and_a_cut_fetch_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    payload, wrapper = app(7)

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload, most=1)
        assert states(desk) == [("app", 7, "receiving", "")]
        assert desk.have == 1
    async with one_life(tmp_path) as desk:
        assert (desk.have, await desk.wanted_chunk()) == (1, (7, 1))
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload)
        assert states(desk) == [("app", 7, "verified", "")]
        assert (tmp_path / "updates" / "app" / "manifest.json").exists()
    async with one_life(tmp_path, app_version="9.9.9") as desk:
        assert states(desk) == [("app", 7, "trial", "")]
        await desk.app_outcome(7, "")
        assert states(desk) == [("app", 7, "running", "")]
        await desk.take_offer(read_offer(wrapper))  # the service has not heard of it yet
        assert states(desk) == [("app", 7, "running", "")]
    async with one_life(tmp_path) as desk:
        assert states(desk) == [("app", 7, "failed", "replaced")]


async def test_software_waits_for_an_offer_that_names_it_and_was_issued_in_the_last_day(
    tmp_path: Path,
) -> None:
    payload, wrapper = app(7)
    clock = Shifted()
    staged = tmp_path / "updates" / "app" / "manifest.json"

    async with one_life(tmp_path, now_ms=clock) as desk:
        await desk.take_offer(read_offer(wrapper))
        clock.ahead_ms = OFFER_HOLDS_MS + 60_000
        await fetched(desk, payload)
        assert states(desk) == [("app", 7, "verified", "")]
        assert not staged.exists()
    async with one_life(tmp_path, now_ms=clock) as desk:
        await settled()
        assert states(desk) == [("app", 7, "verified", "")]
        assert not staged.exists()
        await desk.take_offer(read_offer(wrapper, issued_at_ms=clock()))
        await settled()
        assert staged.exists()


@pytest.mark.parametrize("by_offer", [True, False])
async def test_a_halted_release_is_withdrawn_and_may_be_taken_again(tmp_path: Path, by_offer: bool) -> None:
    payload, wrapper = app(7)

    async def halted(desk: UpdateDesk) -> None:
        if by_offer:
            await desk.take_offer(read_offer())
        else:
            await desk.withdraw(7)

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload, most=2)
        await halted(desk)
        assert states(desk) == [("app", 7, "withdrawn", "")]
        assert await desk.wanted_chunk() is None
        assert not list((tmp_path / "updates" / "incoming").iterdir())
        assert UpdateStore(tmp_path).load(1) == desk.state
        await desk.take_offer(read_offer(wrapper))
        assert (desk.have, states(desk)) == (0, [("app", 7, "receiving", "")])
        await fetched(desk, payload)
        assert states(desk) == [("app", 7, "verified", "")]
        await halted(desk)
        assert states(desk) == [("app", 7, "withdrawn", "")]
        assert not (tmp_path / "updates" / "app").exists()


async def test_software_that_runs_is_not_withdrawn(tmp_path: Path) -> None:
    payload, wrapper = app(7)

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload)
    async with one_life(tmp_path, app_version="9.9.9") as desk:
        await desk.take_offer(read_offer())
        await desk.withdraw(7)
        assert states(desk) == [("app", 7, "trial", "")]


async def test_software_that_waited_through_a_long_power_cut_is_withdrawn_before_it_is_installed(
    tmp_path: Path,
) -> None:
    payload, wrapper = app(7)
    clock = Shifted()

    async with one_life(tmp_path, now_ms=clock) as desk:
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload)
    clock.ahead_ms = OFFER_HOLDS_MS + 60_000
    async with one_life(tmp_path, now_ms=clock) as desk:
        assert states(desk) == [("app", 7, "withdrawn", "")]
        assert not (tmp_path / "updates" / "app").exists()
        await desk.take_offer(read_offer(wrapper, issued_at_ms=clock()))
        await fetched(desk, payload)
        assert states(desk) == [("app", 7, "verified", "")]


async def test_a_waiting_model_is_withdrawn_too_and_does_not_switch_without_its_offer(tmp_path: Path) -> None:
    clock = Shifted()
    facts = GalleryFacts(2, "palm-2")

    async with one_life(tmp_path, now_ms=clock) as desk:
        await desk.take_offer(read_offer(model_release(7)))
        await fetched(desk, MODEL)
        assert states(desk) == [("model", 7, "verified", "")]
        assert desk.wants_other_model(facts)
        clock.ahead_ms = OFFER_HOLDS_MS + 60_000
        assert not desk.wants_other_model(facts)
        assert desk.state is not None
        assert starting(desk.state, facts, "palm-gen-4", clock()).model == SHIPPED
        switched = starting(desk.state, facts, "palm-gen-4", now_ms())
        assert (switched.model, switched.by_network) == (7, ())
        await desk.take_offer(read_offer(model_release(7), issued_at_ms=clock()))
        assert desk.wants_other_model(facts)
        await desk.take_offer(read_offer(issued_at_ms=clock()))
        assert not desk.wants_other_model(facts)
        assert (states(desk), desk.model_id) == ([("model", 7, "withdrawn", "")], "palm-gen-4")
        assert not list((tmp_path / "models").iterdir())


async def test_what_mail_or_a_stick_brings_needs_no_offer(tmp_path: Path) -> None:
    payload, wrapper = app(7)

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper))
        await fetched(desk, payload, most=1)
        await desk.take_manifest(wrapper)
        await desk.take_offer(read_offer())
        assert states(desk) == [("app", 7, "receiving", "")]
        for body in chunk_bodies(payload, 7, CHUNK):
            await desk.take_chunk(body)
        await settled()
        assert (tmp_path / "updates" / "app" / "manifest.json").exists()


async def test_one_kind_does_not_shut_out_the_other_and_each_is_brought_to_its_end(tmp_path: Path) -> None:
    payload, wrapper = app(9)

    async with one_life(tmp_path) as desk:
        both = read_offer(wrapper, model_release(7))
        await desk.take_offer(both)
        assert states(desk) == [("model", 7, "receiving", "")]
        await fetched(desk, MODEL)
        await desk.take_offer(both)
        await fetched(desk, payload)
        assert states(desk) == [("app", 9, "verified", ""), ("model", 7, "verified", "")]
        await desk.app_outcome(9, "")
        await desk.take_offer(read_offer(model_release(8)))
        assert states(desk) == [
            ("app", 9, "failed", "replaced"),  # by what this test runs
            ("model", 8, "receiving", ""),
        ]


async def test_mail_of_one_kind_after_the_other_loses_neither(tmp_path: Path) -> None:
    payload, wrapper = app(6)

    async with one_life(tmp_path) as desk:
        await desk.take_manifest(model_release(7))
        for body in chunk_bodies(MODEL, 7, CHUNK):
            await desk.take_chunk(body)
        await desk.take_manifest(wrapper)  # while the model is being tested
        for body in chunk_bodies(payload, 6, CHUNK):
            await desk.take_chunk(body)
        await settled()
        assert states(desk) == [("app", 6, "verified", ""), ("model", 7, "verified", "")]


async def test_a_release_that_cannot_be_taken_has_failed_and_its_number_is_used(tmp_path: Path) -> None:
    _, wrapper = app(7, min_app_version="99.0")

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper, model_release(8)))
        assert states(desk) == [("model", 8, "receiving", ""), ("app", 7, "failed", "app_too_old")]
        await fetched(desk, MODEL)
        await desk.take_offer(read_offer(wrapper))
        assert ("app", 7, "failed", "app_too_old") in states(desk)


async def test_a_manifest_that_no_root_vouches_for_or_no_offer_names_is_left_out(tmp_path: Path) -> None:
    _, wrapper = app(7)
    forged = signed(wrapper["manifest_obj"], root=SIGNER)

    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(forged))
        await desk.take_offer(read_offer(wrapper, release_seqs=[8]))
        assert states(desk) == []


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"device_id": "dev-2"}, TrustError),
        ({"key": SigningKey.from_seed(b"\x99" * 32)}, TrustError),
        ({"issued_at_ms": 5}, Outdated),
        ({"release_seqs": ["7"]}, FormatError),
        ({"release_seqs": list(range(1, 100))}, FormatError),
        ({"v": 2}, FormatError),
    ],
)
def test_an_offer_for_another_device_of_another_signer_or_an_old_one_is_refused(
    changed: dict[str, Any], error: type[Exception]
) -> None:
    newest = Offer(now_ms() - 1_000, ())
    assert OFFERS.read(offer(), newest).offer.release_seqs == ()
    with pytest.raises(error):
        OFFERS.read(offer(**changed), newest)


def test_a_clock_that_is_hours_behind_brings_no_old_offer_back() -> None:
    newest = Offer(now_ms() + 3 * 3_600_000, ())
    with pytest.raises(Outdated):
        OFFERS.read(offer(), newest)
    assert OFFERS.read(offer(), Offer(now_ms() + 25 * 3_600_000, ())).offer.release_seqs == ()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer: answer["offer"].update(sig_b64=offer(v=3)["offer"]["sig_b64"]),
        lambda answer: answer["offer"]["offer_obj"].update(release_seqs=[9]),
        lambda answer: answer.update(next_after_s=5),
        lambda answer: answer.update(data=[1]),
        lambda answer: answer.update(data=[{}] * 3),
        lambda answer: answer.pop("attest_due"),
        lambda answer: answer.update(offer=None),
    ],
)
def test_an_answer_outside_the_contract_is_refused_as_a_whole(spoil: Callable[[JsonObject], object]) -> None:
    answer = offer()
    spoil(answer)
    with pytest.raises((FormatError, SignatureError)):
        OFFERS.read(answer, None)


def test_a_state_of_earlier_software_is_read_and_earlier_software_reads_this_one(tmp_path: Path) -> None:
    async def taken(desk: UpdateDesk) -> None:
        await desk.take_offer(read_offer(model_release(7)))
        await fetched(desk, MODEL)

    state = run(tmp_path, taken).state
    assert state is not None
    store, path = UpdateStore(tmp_path), tmp_path / "updates/state.json"
    assert store.load(1) == state and state.model == SHIPPED
    obj = json.loads(path.read_text())
    required = ("receiving", "app", "slots", "model", "previous", "waiting", "home_epoch", "trial", "failed")
    assert obj["release_seq"] == 7 and obj.keys() >= set(required)
    for later in ("app_seq", "model_seq", "installed", "withdrawn", "offer", "by_network"):
        obj.pop(later, None)
    del obj["sha256"]
    path.write_text(json.dumps(with_checksum(obj)))
    of_earlier = store.load(1)
    assert (of_earlier.app_seq, of_earlier.model_seq, of_earlier.slots) == (7, 7, state.slots)
