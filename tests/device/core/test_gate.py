"""The gate with its journal, its mail and a validator, without camera and daemon."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from device.core.gate import MAX_ASKING, MAX_CANCELS_ASKING, Gate
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.trust.trust import Pinned
from device.values.transactions import StoredVerdict, TxnMemory
from link1.bodies import MAX_REFS
from link1.events import (
    CancelReceived,
    DecisionReceived,
    Down,
    ErrorReceived,
    PassageReceived,
    UnknownReceived,
)
from link1.link_states import DownReason
from link1.objects import GalleryMark
from link1.signed import Kind, sign_object
from link1.validator.events import ResolveReceived, VerdictReceived
from tests.device.carrier_setting import MODEL_ID
from tests.device.core.small_disk import no_file_may_grow_beyond
from tests.device.core_makers import GALLERY, good_sighting, make_decision, make_passage
from tests.device.mail.mail_setting import Living, Mailed
from tests.device.passage.engine_bench import ALL_WELL, POLICY
from tests.device.trust.pinned_makers import registered
from tests.link1.cable import DEVICE_KEY, VALIDATOR_KEY, device_status, request


def gate_of(living: Living) -> Gate:
    """A gate on the cable and the journal of a device that has no network."""
    end, desk = living.desk.end, living.desk

    def proven() -> None:
        desk.session_began()
        end.send_status(device_status(mail=desk.marks))

    def fault(error: BaseException) -> None:
        raise error

    def mark() -> GalleryMark:
        return GALLERY

    gate = Gate(
        end=end,
        journal=living.journal,
        journal_thread=living.threads[0],
        mail=desk,
        pinned=Pinned(replace(registered(), device_id="dev-1", gate_id="gate-1", dbd_id="dbd-1")),
        policy=POLICY,
        verdict_key=DEVICE_KEY,
        model_id=MODEL_ID,
        gallery_mark=mark,
        health=Health(lambda _words: None),
        clock=living.clock,
        capture_wanted=lambda _wanted: None,
        validator_proven=proven,
        news_for_upload=lambda: None,
        passed=lambda _verdict, _total_ms, _stage_ms: None,
        kick_cable=lambda: None,
        cannot_go_on=fault,
    )
    living.cable.on_left = gate.on_cable_event
    return gate


async def one_verdict(mailed: Mailed, living: Living, gate: Gate) -> VerdictReceived:
    """A request, a hand, and the verdict at the validator."""

    async def carry() -> None:
        await living.carry()
        await gate.finish()

    await carry()
    gate.conditions(ALL_WELL)
    asked = sign_object(Kind.REQUEST, request().to_obj(), VALIDATOR_KEY)
    assert mailed.validator is not None
    assert mailed.validator.end.send_request(asked)
    await carry()
    gate.sighted(good_sighting(living.clock.now_ms))
    await gate.finish()
    await carry()
    (received,) = [e for e in living.cable.right_events if isinstance(e, VerdictReceived)]
    return received


@asynccontextmanager
async def busy_journal(living: Living) -> AsyncIterator[None]:
    """Inside, the journal's thread has something to do."""
    busy = threading.Event()
    waiting = asyncio.create_task(living.threads[0].do(busy.wait))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        busy.set()
        await waiting


async def stored_of(living: Living, received: VerdictReceived) -> StoredVerdict:
    """What the journal has of the verdict that reached the validator."""
    memory = await living.threads[0].do(lambda: living.journal.find_txn(received.verdict.txn_id))
    assert memory is not None and memory.verdict is not None
    return memory.verdict


@pytest.mark.parametrize("said", ["nothing", "unknown", "decision and passage"])
async def test_what_the_disk_refused_of_an_answer_is_mailed_when_it_takes_something_again(
    tmp_path: Path, said: str
) -> None:
    """Mail carries no verdict whose answer is still awaited. Only the device knows that none came; and a
    validator that has answered may have forgotten when it is asked again."""
    mailed = Mailed(tmp_path)
    log = tmp_path / "journal.db-wal"
    async with mailed.running() as living:
        gate = gate_of(living)

        async def time_is_over() -> None:
            living.clock.now_ms += POLICY.decision_timeout_ms
            gate.tick()
            await gate.finish()

        received = await one_verdict(mailed, living, gate)
        stored = await stored_of(living, received)
        with no_file_may_grow_beyond(log.stat().st_size):
            match said:
                case "nothing":
                    await time_is_over()
                case "unknown":
                    gate.on_cable_event(UnknownReceived((received.verdict_ref,)))
                case _:
                    gate.on_cable_event(DecisionReceived(*make_decision(stored)))
                    gate.on_cable_event(PassageReceived(*make_passage(stored)))
            await gate.finish()
        assert HealthWord.STORE_FAULT in gate.health.words
        gate.journal_is_back()
        await gate.finish()
        await time_is_over()
        await living.carry_until(lambda: mailed.office.verdict_seqs() == [1])
        (items,) = (body["items"] for type_, body in mailed.office.read.values() if "items" in body)
        answered = {"signed_decision", "signed_passage"}
        expected = answered if said == "decision and passage" else {"outcome_unknown"}
        assert items[0].keys() & {*answered, "outcome_unknown"} == expected


async def test_a_wrong_decision_that_the_disk_refused_is_kept_when_it_takes_something_again(
    tmp_path: Path,
) -> None:
    mailed = Mailed(tmp_path)
    async with mailed.running() as living:
        gate = gate_of(living)
        stored = await stored_of(living, await one_verdict(mailed, living, gate))
        wrong, wrapper = make_decision(stored, verdict_ref="0" * 64)
        with no_file_may_grow_beyond((tmp_path / "journal.db-wal").stat().st_size):
            gate.on_cable_event(DecisionReceived(wrong, wrapper))
            await gate.finish()
        gate.journal_is_back()
        await gate.finish()
        kept = await living.threads[0].do(
            lambda: living.journal.record_evidence("decision", wrapper, wrong.txn_id)
        )
        assert not kept, "it is evidence already"


async def test_a_flood_of_cancels_makes_few_reads_and_none_after_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone in the cable can forge them, and a verdict waits for the journal behind what they ask."""
    mailed, read = Mailed(tmp_path), Journal.find_txn
    asked: list[str] = []

    def counted(journal: Journal, txn_id: str) -> TxnMemory | None:
        asked.append(txn_id)
        return read(journal, txn_id)

    monkeypatch.setattr(Journal, "find_txn", counted)
    async with mailed.running() as living:
        gate = gate_of(living)
        await living.carry()
        await gate.finish()

        async def flood_while_the_journal_is_busy(*, session_ends: bool) -> None:
            async with busy_journal(living):
                for number in range(1_000):
                    gate.on_cable_event(CancelReceived(f"{number:032x}"))
                await asyncio.sleep(0)
                if session_ends:
                    gate.on_cable_event(Down(DownReason.PEER_RESET, proven=True))
            await gate.finish()

        await flood_while_the_journal_is_busy(session_ends=True)
        assert asked == []
        for _ in range(2):
            asked.clear()
            await flood_while_the_journal_is_busy(session_ends=False)
            assert asked == [f"{number:032x}" for number in range(MAX_CANCELS_ASKING)]


async def test_a_flood_of_unknowns_makes_few_writes_and_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone in the cable can forge them, and each waits with 32 verdict_refs."""
    refs: list[str] = []

    def counted(_journal: Journal, of_one: Sequence[str]) -> None:
        refs.extend(of_one)

    monkeypatch.setattr(Journal, "record_disowned", counted)
    async with Mailed(tmp_path).running() as living:
        gate = gate_of(living)
        for _ in range(2):
            refs.clear()
            async with busy_journal(living):
                for number in range(1_000):
                    gate.on_cable_event(UnknownReceived((f"{number:032x}",)))
            await gate.finish()
            assert refs == [f"{number:032x}" for number in range(MAX_REFS)]


async def test_a_cancel_behind_the_answers_to_a_resolve_is_answered(tmp_path: Path) -> None:
    """It was acknowledged: where it was dropped, the request stayed armed until its ttl ended."""
    mailed = Mailed(tmp_path)
    async with mailed.running() as living:
        gate = gate_of(living)
        received = await one_verdict(mailed, living, gate)
        decision, wrapper = make_decision(await stored_of(living, received))
        async with busy_journal(living):
            for _ in range(2 * MAX_REFS):
                gate.on_cable_event(DecisionReceived(decision, wrapper))
            gate.on_cable_event(CancelReceived("ab" * 16))
        await gate.finish()
        await living.carry()
        assert ErrorReceived("cancelled", "cancel", None) in living.cable.right_events


@pytest.mark.parametrize("signed", [True, False])
async def test_a_decision_that_finds_no_room_is_asked_for_again(tmp_path: Path, signed: bool) -> None:
    """It was acknowledged, so the validator does not send it again by itself. Cancels leave it its room."""
    mailed = Mailed(tmp_path)
    async with mailed.running() as living:
        gate = gate_of(living)
        received = await one_verdict(mailed, living, gate)
        decision, wrapper = make_decision(await stored_of(living, received))
        async with busy_journal(living):
            for number in range(MAX_ASKING):
                txn_id = f"f{number:031x}"
                gate.on_cable_event(
                    DecisionReceived(replace(decision, txn_id=txn_id), wrapper)
                    if signed
                    else CancelReceived(txn_id)
                )
            gate.on_cable_event(DecisionReceived(decision, wrapper))
        await gate.finish()
        await living.carry()
        memory = await living.threads[0].do(lambda: living.journal.find_txn(decision.txn_id))
        assert memory is not None and (memory.decision_ref is None) is signed
        asked = [e.verdict_refs for e in living.cable.right_events if isinstance(e, ResolveReceived)]
        assert asked == ([(decision.verdict_ref,)] if signed else [])
