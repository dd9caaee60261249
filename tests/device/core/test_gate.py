"""The gate with its journal, its mail and a validator, without camera and daemon."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from device.core.gate import MAX_ASKING, Gate
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.trust.trust import Pinned
from device.values.transactions import TxnMemory
from link1.events import CancelReceived, Down
from link1.link_states import DownReason
from link1.objects import GalleryMark
from link1.signed import Kind, sign_object
from link1.validator.events import VerdictReceived
from tests.device.carrier_setting import MODEL_ID
from tests.device.core.small_disk import no_file_may_grow_beyond
from tests.device.core_makers import GALLERY, good_sighting
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


def test_a_missing_answer_that_the_disk_refused_is_mailed_when_it_takes_something_again(
    tmp_path: Path,
) -> None:
    """Mail carries no verdict whose answer is still awaited, and only the device knows that none came."""
    mailed = Mailed(tmp_path)
    log = tmp_path / "journal.db-wal"

    async def story() -> None:
        async with mailed.running() as living:
            gate = gate_of(living)

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
            assert [e for e in living.cable.right_events if isinstance(e, VerdictReceived)]
            with no_file_may_grow_beyond(log.stat().st_size):
                living.clock.now_ms += POLICY.decision_timeout_ms
                gate.tick()
                await gate.finish()
            assert HealthWord.STORE_FAULT in gate.health.words
            gate.journal_is_back()
            await gate.finish()
            await living.carry_until(lambda: mailed.office.verdict_seqs() == [1])
            (items,) = (body["items"] for type_, body in mailed.office.read.values() if "items" in body)
            assert items[0]["outcome_unknown"] is True

    asyncio.run(story())


def test_a_flood_of_cancels_makes_few_reads_and_none_after_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone in the cable can forge them, and a verdict waits for the journal behind what they ask."""
    mailed, read = Mailed(tmp_path), Journal.find_txn
    asked: list[str] = []

    def counted(journal: Journal, txn_id: str) -> TxnMemory | None:
        asked.append(txn_id)
        return read(journal, txn_id)

    monkeypatch.setattr(Journal, "find_txn", counted)

    async def story() -> None:
        async with mailed.running() as living:
            gate, busy = gate_of(living), threading.Event()
            await living.carry()
            await gate.finish()

            async def flood_while_the_journal_is_busy(*, session_ends: bool) -> None:
                busy.clear()
                waiting = asyncio.create_task(living.threads[0].do(busy.wait))
                await asyncio.sleep(0)
                for number in range(1_000):
                    gate.on_cable_event(CancelReceived(f"{number:032x}"))
                await asyncio.sleep(0)
                if session_ends:
                    gate.on_cable_event(Down(DownReason.PEER_RESET, proven=True))
                busy.set()
                await waiting
                await gate.finish()

            await flood_while_the_journal_is_busy(session_ends=True)
            assert asked == []
            for _ in range(2):
                asked.clear()
                await flood_while_the_journal_is_busy(session_ends=False)
                assert asked == [f"{number:032x}" for number in range(MAX_ASKING)]

    asyncio.run(story())
