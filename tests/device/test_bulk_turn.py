"""Bulk work waits for the hand before the camera, but not for ever."""

import asyncio

import pytest

from device import bulk_turn
from device.bulk_turn import BulkTurn


def test_without_a_hand_bulk_work_begins_at_once() -> None:
    async def story() -> None:
        turn = BulkTurn()
        async with asyncio.timeout(1):
            await turn.wait()

    asyncio.run(story())


def test_it_begins_when_the_hand_has_gone() -> None:
    async def story() -> None:
        turn = BulkTurn()
        turn.hand_seen(True)
        waiting = asyncio.create_task(turn.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        turn.hand_seen(False)
        async with asyncio.timeout(1):
            await waiting

    asyncio.run(story())


def test_a_hand_that_stays_does_not_stop_the_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_turn, "LONGEST_WAIT_S", 0.01)

    async def story() -> None:
        turn = BulkTurn()
        turn.hand_seen(True)
        async with asyncio.timeout(5):
            await turn.wait()

    asyncio.run(story())
