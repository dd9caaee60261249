"""Hand steadily in view → verdict at the validator, through the real daemon, camera files and a pty.

The clock starts when the first picture of the held hand appears in the folder that the camera follows, so
the camera's own pacing counts; it stops when the validator has the verdict. Films are of two kinds: a hand
that comes in as hands do, for which the verdict may be there before the hand is quite still (a time below
zero), and a hand that is there from one picture to the next, of which nothing was seen before.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from device.config.config import load_config
from device.values.status import read_status
from link1.events import StatusReceived
from link1.transport.pty_pair import PtyPair
from link1.transport.pump import CablePump, monotonic_ms
from link1.transport.serial_port import open_port
from link1.validator.desk import DeskEvent, ValidatorDesk, VerdictAnswered, accept_all
from link1.validator.end import ValidatorEnd
from link1.validator.memory import DeskMemory
from tools.palmctl.bench.board import DBD_ID, GATE_ID, Board
from tools.palmctl.bench.daemon import BenchFailed, running_palmd

Picture = NDArray[np.uint8]
FILM_FPS = 30
CAMERA_FPS = 120
"""How often the folder is asked for a new picture: a waiting camera adds at most 8 ms."""
TTL_MS = 20_000
ANSWER_WITHIN_S = 5.0
AFTER_LEAVING_S = 0.45
"""Long enough for the hand to be seen to have left."""


@dataclass(frozen=True)
class Film:
    """Encoded pictures of one passage; the hand is held from index `steady` up to `leaves`."""

    kind: str
    pictures: tuple[bytes, ...]
    steady: int
    leaves: int


@dataclass
class BenchValidator:
    """The validator's side, as far as the bench needs it."""

    proven: asyncio.Event = field(default_factory=asyncio.Event)
    verdict: asyncio.Event = field(default_factory=asyncio.Event)
    verdict_at_s: float = 0.0
    decision: str = ""


def encode(pictures: Sequence[Picture]) -> tuple[bytes, ...]:
    """JPEG at quality 95, as a camera would send them."""
    return tuple(
        cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes() for picture in pictures
    )


def measure_latency(
    board: Board,
    films: Sequence[Film],
    empty: bytes,
    camera: Path,
    cable: Path,
    *,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> dict[str, Any]:
    """Play `films` one after the other before a running device; figures in milliseconds.

    `beside` runs in the same loop while they play, begun when the device serves and cancelled at the end.
    """
    with PtyPair() as pair:
        cable.unlink(missing_ok=True)
        cable.symlink_to(pair.left)
        writer = FolderWriter(camera)
        writer.clear()
        writer.put(empty)
        with running_palmd(board.config_path):
            return asyncio.run(_passages(board, films, empty, writer, pair.right, beside))


class FolderWriter:
    """Adds pictures to the folder that the camera follows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.make_folder()

    def make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove what another writer left: a daemon that finds its names takes ours for shown before."""
        for old in self._folder.iterdir():
            old.unlink()

    def put(self, picture: bytes) -> None:
        self._number += 1
        hidden = self._folder / f".{self._number:08d}.jpg"
        hidden.write_bytes(picture)
        hidden.rename(self._folder / f"{self._number:08d}.jpg")
        old = self._folder / f"{self._number - 60:08d}.jpg"
        old.unlink(missing_ok=True)


async def _passages(  # noqa: PLR0917 - of one call, spread over a loop
    board: Board,
    films: Sequence[Film],
    empty: bytes,
    writer: FolderWriter,
    port: str,
    beside: Callable[[], Coroutine[Any, Any, None]] | None,
) -> dict[str, Any]:
    gate = BenchValidator()

    def on_event(event: DeskEvent) -> None:
        if isinstance(event, StatusReceived) and event.status.serving:
            gate.proven.set()
        elif isinstance(event, VerdictAnswered):
            gate.verdict_at_s = time.perf_counter()
            gate.decision = str(event.verdict.decision)
            gate.verdict.set()

    desk = _desk(board)
    pump: CablePump[DeskEvent] = CablePump(desk, lambda: open_port(port), on_event=on_event)
    running = asyncio.create_task(pump.run())
    also: list[asyncio.Task[None]] = []
    latencies: dict[str, list[float]] = {}
    decisions: dict[str, int] = {}
    try:
        async with asyncio.timeout(20):
            await gate.proven.wait()
        if beside is not None:
            also.append(asyncio.create_task(beside()))
        for film in films:
            gate.verdict.clear()
            for event in desk.arm(TTL_MS, monotonic_ms()):
                on_event(event)
            pump.kick()
            steady_at_s = await _play(film, writer, gate.verdict)
            latencies.setdefault(film.kind, []).append((gate.verdict_at_s - steady_at_s) * 1000)
            decisions[gate.decision] = decisions.get(gate.decision, 0) + 1
            writer.put(empty)
            await asyncio.sleep(AFTER_LEAVING_S)
            _still_running(also)
        status = await asyncio.to_thread(read_status, load_config(board.config_path).control_socket)
    finally:
        for task in (running, *also):
            task.cancel()
        await asyncio.gather(running, *also, return_exceptions=True)
    return _figures(latencies, decisions, status.latency.to_obj())


def _still_running(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()
            raise BenchFailed("the load that should run during the passages ended before them")


async def _play(film: Film, writer: FolderWriter, answered: asyncio.Event) -> float:
    """Show a film at its pace, the hand held until the gate has answered; returns when its first steady
    picture appeared."""
    begun = time.perf_counter()
    shown = count()

    async def show(picture: bytes) -> None:
        await asyncio.sleep(max(0.0, begun + next(shown) / FILM_FPS - time.perf_counter()))
        writer.put(picture)

    for picture in film.pictures[: film.steady]:
        await show(picture)
    steady_at_s = 0.0
    for number, picture in enumerate(cycle(film.pictures[film.steady : film.leaves])):
        if number >= film.leaves - film.steady and answered.is_set():
            break
        await show(picture)
        steady_at_s = steady_at_s or time.perf_counter()
        if time.perf_counter() - steady_at_s > ANSWER_WITHIN_S:
            raise BenchFailed(f"a hand before the camera got no verdict within {ANSWER_WITHIN_S:g} s")
    for picture in film.pictures[film.leaves :]:
        await show(picture)
    return steady_at_s


def _desk(board: Board) -> ValidatorDesk:
    end = ValidatorEnd(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=board.validator_key,
        device_keys=lambda kid, _at_ms: board.verdict_key if kid == board.verdict_key.kid else None,
        passage_sensor=False,
        random=os.urandom,
    )
    return ValidatorDesk(
        end,
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=board.validator_key,
        decide=accept_all,
        memory=DeskMemory(),
        save=lambda _memory: None,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=os.urandom,
        turn_after_ms=None,
    )


def _figures(
    latencies: dict[str, list[float]], decisions: dict[str, int], inside: dict[str, Any]
) -> dict[str, Any]:
    return {
        "passages": sum(len(values) for values in latencies.values()),
        "decisions": decisions,
        "by_film_ms": {kind: spread(values) for kind, values in latencies.items()},
        "samples_ms": {kind: [round(value, 1) for value in values] for kind, values in latencies.items()},
        "inside_p50_ms": round(inside["p50_us"] / 1000, 1),
        "inside_p99_ms": round(inside["p99_us"] / 1000, 1),
        "stages_ms": {name: round(us / 1000, 2) for name, us in inside["stages_us"].items()},
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, median, 99th percentile and extremes, rounded to a tenth."""
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": round(median(ordered), 1),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 1),
        "min": round(ordered[0], 1),
        "max": round(ordered[-1], 1),
    }
