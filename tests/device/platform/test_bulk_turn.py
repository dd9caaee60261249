"""Bulk work waits for the hand before the camera, but not for ever."""

import threading

from device.platform.threads import BulkTurn


def test_without_a_hand_bulk_work_begins_at_once() -> None:
    BulkTurn().wait()


def test_it_begins_when_the_hand_has_gone() -> None:
    turn = BulkTurn(longest_wait_s=60)
    turn.hand_seen(True)
    waiting = threading.Thread(target=turn.wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    turn.hand_seen(False)
    waiting.join(5)
    assert not waiting.is_alive()


def test_it_waits_for_the_frame_that_is_examined() -> None:
    turn = BulkTurn(longest_wait_s=60)
    waiting = threading.Thread(target=turn.wait)
    with turn.examining():
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_hand_that_stays_does_not_stop_the_gallery() -> None:
    turn = BulkTurn(longest_wait_s=0.01)
    turn.hand_seen(True)
    turn.wait()
