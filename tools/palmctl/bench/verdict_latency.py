"""Hand steadily in view → verdict at the validator, through the real daemon, camera files and a pty.

The clock starts when the first picture of the held hand appears in the folder that the camera follows, so
the camera's own pacing counts; it stops when the validator has the verdict. Films are of two kinds: a hand
that comes in as hands do, for which the verdict may be there before the hand is quite still (a time below
zero), and a hand that is there from one picture to the next, of which nothing was seen before.
"""

import asyncio
import os
import pty
import time
import tty
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from device.config.config import load_config
from device.values.status import read_status
from link1.canonical import JsonObject, b64_encode
from link1.envelope import Message, MessageType, Role
from link1.handshake import Identity
from link1.keys import PublicKey
from link1.objects import Decision, Request, Verdict, VerdictDecision
from link1.session import DrivenEnd, PeerProven, Served, Session, SessionEvent
from link1.signed import Kind, object_ref, sign_object, verify_object
from link1.transport.pump import CablePump
from link1.transport.serial_port import Port, SerialPort
from tools.palmctl.bench.board import DBD_ID, GATE_ID, Board
from tools.palmctl.bench.daemon import BenchFailed, Running, running_palmd

Picture = NDArray[np.uint8]
Beside = Callable[[Running], Coroutine[Any, Any, None]]
"""Other work during the passages, which may look at the daemon."""
FILM_FPS = 30
CAMERA_FPS = 1000
"""How often the folder is asked for a new picture, which adds at most 1 ms to what a camera takes."""
FILES_KEPT = 8
"""Pictures in the folder: whenever it is asked, all of their names are read."""
TTL_MS = 20_000
ANSWER_WITHIN_S = 5.0
ASKED_BEFORE_S = 0.1
"""A validator asks before the hand comes: a request that meets the first picture would have missed it."""
AFTER_LEAVING_S = 0.45
"""Long enough here for a hand to be seen to have left: the last one, or one that was there at the start."""


@dataclass(frozen=True)
class Film:
    """Encoded pictures of one passage; the hand is held from index `steady` up to `leaves`."""

    kind: str
    pictures: tuple[bytes, ...]
    steady: int
    leaves: int


class BenchValidator(DrivenEnd[None]):
    """The validator's side as far as the bench needs it: asks, and decides each verdict. It keeps nothing."""

    def __init__(self, board: Board) -> None:
        def device_key(kid: str, _at_ms: int | None) -> PublicKey | None:
            return board.verdict_key if kid == board.verdict_key.kid else None

        identity = Identity(Role.VALIDATOR, DBD_ID, GATE_ID, board.validator_key)
        super().__init__(Session(identity, None, device_key, os.urandom))
        self._board = board
        self._decided = 0
        self.serving = asyncio.Event()
        self.answered = asyncio.Event()
        self.verdict_at_s = 0.0
        self.decision = ""

    def ask(self) -> None:
        """Open the gate's next passage."""
        self.answered.clear()
        request = Request(
            txn_id=os.urandom(16).hex(),
            gate_id=GATE_ID,
            dbd_id=DBD_ID,
            nonce_b64=b64_encode(os.urandom(16)),
            issued_at_ms=time.time_ns() // 1_000_000,
            ttl_ms=TTL_MS,
        )
        self._say(MessageType.REQUEST, Kind.REQUEST, request.to_obj())

    def _follow(self, session_events: Sequence[SessionEvent]) -> list[None]:
        for event in session_events:
            match event:
                case PeerProven():
                    self._session.send(MessageType.READY, {"passage_sensor": False})
                case Served(Message(MessageType.STATUS, wrapper)):
                    if verify_object(Kind.STATUS, wrapper, self._board.verdict_key)["serving"]:
                        self.serving.set()
                case Served(Message(MessageType.VERDICT, wrapper)):
                    self._decide(wrapper)
                case _:
                    pass
        return []

    def _decide(self, wrapper: JsonObject) -> None:
        verdict = Verdict.from_obj(verify_object(Kind.VERDICT, wrapper, self._board.verdict_key))
        self.verdict_at_s = time.perf_counter()
        self.decision = str(verdict.decision)
        self._decided += 1
        accepted = verdict.decision is VerdictDecision.ACCEPT
        decision = Decision(
            txn_id=verdict.txn_id,
            gate_id=verdict.gate_id,
            dbd_id=verdict.dbd_id,
            nonce_b64=verdict.nonce_b64,
            verdict_ref=object_ref(wrapper),
            reason="ok" if accepted else "not_recognised",
            outcome="LIBERAR" if accepted else "BLOQUEAR",
            actuated=accepted,
            decision_seq=self._decided,
            decided_at_ms=time.time_ns() // 1_000_000,
        )
        self._say(MessageType.DECISION, Kind.DECISION, decision.to_obj())
        self.answered.set()

    def _say(self, type_: MessageType, kind: Kind, obj: JsonObject) -> None:
        self._session.send(type_, sign_object(kind, obj, self._board.validator_key))


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
    beside: Beside | None = None,
    after: Callable[[Film], None] | None = None,
    apart_s: float = AFTER_LEAVING_S,
) -> dict[str, Any]:
    """Play `films` one after the other before a running device; figures in milliseconds.

    `beside` runs in the same loop while they play, begun when the device serves and cancelled at the end.
    `after` is called after each film, while the device has no new picture; after `STALL_MS` of that it would
    report its camera. `apart_s`: how long no one is in view between two films, and before the first.
    """
    writer = FolderWriter(camera, FILES_KEPT)
    writer.clear()
    writer.put(empty)
    with _pty_at(cable) as port, running_palmd(board.config_path) as palmd:
        work = None if beside is None else partial(beside, palmd)
        return asyncio.run(_passages(board, films, empty, writer, port, work, after, apart_s))


@contextmanager
def _pty_at(path: Path) -> Iterator[Port]:
    """The other end of a pty that `path` leads to; what is written without a reader waits in the kernel."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    path.unlink(missing_ok=True)
    path.symlink_to(os.ttyname(slave))
    with os.fdopen(master, "r+b", buffering=0) as end, os.fdopen(slave, "rb", buffering=0):
        yield SerialPort(str(path), end)


class FolderWriter:
    """Adds pictures to the folder that the camera follows, which holds the last `kept` of them."""

    def __init__(self, folder: Path, kept: int = 60) -> None:
        self._folder = folder
        self._kept = kept
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
        old = self._folder / f"{self._number - self._kept:08d}.jpg"
        old.unlink(missing_ok=True)


async def _passages(  # noqa: PLR0917 - of one call, spread over a loop
    board: Board,
    films: Sequence[Film],
    empty: bytes,
    writer: FolderWriter,
    port: Port,
    work: Callable[[], Coroutine[Any, Any, None]] | None,
    after: Callable[[Film], None] | None,
    apart_s: float,
) -> dict[str, Any]:
    gate = BenchValidator(board)
    pump: CablePump[None] = CablePump(gate, lambda: port, on_event=lambda _: None)
    running = asyncio.create_task(pump.run())
    also: list[asyncio.Task[None]] = []
    latencies: dict[str, list[float]] = {}
    decisions: dict[str, int] = {}
    try:
        async with asyncio.timeout(20):
            await gate.serving.wait()
        await _nobody(empty, writer, apart_s)
        if work is not None:
            also.append(asyncio.create_task(work()))
        for film in films:
            gate.ask()
            pump.kick()
            await _nobody(empty, writer, ASKED_BEFORE_S)
            steady_at_s = await _play(film, writer, gate.answered)
            latencies.setdefault(film.kind, []).append((gate.verdict_at_s - steady_at_s) * 1000)
            decisions[gate.decision] = decisions.get(gate.decision, 0) + 1
            await _nobody(empty, writer, apart_s - ASKED_BEFORE_S)
            if after is not None:
                await asyncio.to_thread(after, film)
            for task in (task for task in also if task.done()):
                task.result()
                raise BenchFailed("the load that should run during the passages ended before them")
        status = await asyncio.to_thread(read_status, load_config(board.config_path).control_socket)
    finally:
        for task in (running, *also):
            task.cancel()
        await asyncio.gather(running, *also, return_exceptions=True)
    inside = status.latency.to_obj()
    return {
        "passages": sum(len(values) for values in latencies.values()),
        "decisions": decisions,
        "by_film_ms": {kind: spread(values) for kind, values in latencies.items()},
        "samples_ms": {kind: [round(value, 1) for value in values] for kind, values in latencies.items()},
        "inside_p50_ms": round(inside["p50_us"] / 1000, 1),
        "inside_p99_ms": round(inside["p99_us"] / 1000, 1),
        "stages_ms": {name: round(us / 1000, 2) for name, us in inside["stages_us"].items()},
    }


async def _nobody(empty: bytes, writer: FolderWriter, lasts_s: float) -> None:
    ends_s = time.perf_counter() + lasts_s
    while time.perf_counter() < ends_s:
        writer.put(empty)
        await asyncio.sleep(1 / FILM_FPS)


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
