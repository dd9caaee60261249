"""The soak's own judgement: it must see what was lost, doubled or grown, or its silence says nothing."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.rig.soak import growth as growth_module
from tools.rig.soak.audit import Seen, findings, in_journal
from tools.rig.soak.bad_cable import BadCable
from tools.rig.soak.chaos import Chaos, TimedFault
from tools.rig.soak.growth import Growth
from tools.rig.soak.run import MOST_COUNT_PER_H, grown

JOURNAL = [(1, "a"), (2, "b"), (3, "c")]


def seen(*refs: str) -> Seen:
    told = Seen()
    for ref in refs:
        told.take({"verdict_ref": ref, "decision": "accept", "outcome": "LIBERAR", "verified": True})
    return told


def cloud(*refs: str, word: str = "complete") -> list[dict[str, Any]]:
    return [{"verdict_id": ref, "reconciliation": word} for ref in refs]


def test_all_is_well() -> None:
    assert findings(seen("a", "c"), JOURNAL, cloud("a", "b", "c")) == []


@pytest.mark.parametrize(
    ("told", "journal", "records", "problem"),
    [
        (seen("a", "d"), JOURNAL, cloud("a", "b", "c"), "not in the journal"),
        (seen("a", "a"), JOURNAL, cloud("a", "b", "c"), "more than once"),
        (seen("a"), [(1, "a"), (3, "c")], cloud("a", "c"), "gaps or repeats"),
        (seen("a"), JOURNAL, cloud("a", "b"), "not in the cloud"),
        (seen("a"), JOURNAL, cloud("a", "b", "c", "x"), "in the cloud are not in the journal"),
        (seen("a"), JOURNAL, cloud("a", "a", "b", "c"), "twice"),
        (seen("a"), JOURNAL, cloud("a", "b", "c", word="conflict"), "in conflict"),
    ],
)
def test_what_was_lost_or_doubled_is_seen(
    told: Seen, journal: list[tuple[int, str]], records: list[dict[str, Any]], problem: str
) -> None:
    assert any(problem in text for text in findings(told, journal, records))


def test_a_verdict_that_was_not_acted_on_moves_no_gate() -> None:
    told = seen("a")
    told.take(
        {
            "event": "verdict_not_acted_on",
            "verdict_ref": "a",
            "decision": "accept",
            "outcome": "BLOQUEAR",
            "verified": True,
        }
    )
    assert findings(told, JOURNAL, cloud("a", "b", "c")) == []


def test_the_journal_is_read_as_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE verdicts (seq INTEGER, ref TEXT)")
        db.executemany("INSERT INTO verdicts VALUES (?, ?)", JOURNAL)
    assert in_journal(path) == JOURNAL


def test_growth_is_seen_through_lives_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth_module, "WARM_UP_S", 0.0)
    growing = Growth()
    lives = growing.lives["palmd"]
    for life, level in ((1, 100_000), (2, 50_000)):
        for tick in range(100):
            rss_kib = level + tick * 10 + (5_000 if tick % 3 else 0)  # comes and goes
            lives[life].append((tick * 5.0, (rss_kib, 20, 7)))
    slopes = growing.slopes("palmd")
    assert slopes is not None
    assert slopes["rss_kib_per_h"] == pytest.approx(7_200, rel=0.02)  # 10 KiB every 5 s
    assert slopes["descriptors_per_h"] == slopes["threads_per_h"] == 0
    assert abs(slopes["rss_kib_per_h"] - 7_200) < 3 * slopes["rss_kib_per_h_error"] + 50
    assert slopes["descriptors_per_h_error"] == 0


@pytest.mark.parametrize(("every", "wrong"), [(1_000, []), (4, ["palm-syncd gains 180 descriptors an hour"])])
def test_a_connection_that_happens_to_be_open_is_no_leak(
    every: int, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lives of four minutes, in which two more are open at the end, or one is lost every 20 s."""
    monkeypatch.setattr(growth_module, "WARM_UP_S", 0.0)
    growing = Growth()
    for life in (1, 2):
        for tick in range(48):
            open_now = 15 + tick // every + (2 if tick >= 40 else 0) * (every == 1_000)
            growing.lives["palm-syncd"][life].append((tick * 5.0, (40_000, open_now, 1)))
    slopes = growing.slopes("palm-syncd")
    assert slopes is not None
    assert slopes["descriptors_per_h"] > MOST_COUNT_PER_H
    assert grown({"palm-syncd": slopes}) == wrong


def test_every_fault_comes_in_turn_and_the_second_half_spares_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("tools.rig.soak.chaos.time.monotonic", lambda: now_s)
    done: list[str] = []

    def noted(what: str) -> Callable[[], None]:
        return lambda: done.append(what)

    faults = [
        TimedFault("cut", noted("cut"), noted("mended"), 1.0, 1.0),
        TimedFault("killed", noted("killed"), noted("nothing"), 0.0, 0.0, deadly=True),
    ]
    chaos = Chaos(faults, seed=1, tell=lambda _text: None)
    for _ in range(400):
        now_s += 0.2
        chaos.look()
    assert done.count("cut") == done.count("killed") or abs(done.count("cut") - done.count("killed")) == 1
    chaos.calm()
    assert done.count("cut") == done.count("mended")
    chaos.spare_lives = True
    done.clear()
    for _ in range(400):
        now_s += 0.2
        chaos.look()
    assert "cut" in done
    assert "killed" not in done


def test_a_bad_cable_damages_and_can_be_pulled_and_put_back(tmp_path: Path) -> None:
    cable = BadCable(tmp_path / "device", tmp_path / "validator", seed=1)
    try:
        assert cable.device.exists()
        cable.unplug()
        assert not cable.device.is_symlink()
        cable.plug()
        assert cable.validator.exists()
        cable.noisy = True
        pieces = [cable.carry(bytes(100)) for _ in range(2_000)]
        damaged = [piece for piece in pieces if piece != bytes(100)]
        assert all(len(piece) == 100 for piece in pieces)
        assert 5 <= len(damaged) <= 60
        cable.cut = True
        assert cable.carry(b"x") == b""
    finally:
        cable.unplug()
