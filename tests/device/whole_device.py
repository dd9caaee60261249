"""A provisioned device run as its own process, and a validator in the test at the other end of a pty."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, count, cycle, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from device.config.config import (
    CameraSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
    LivenessSection,
    ModelSection,
)
from device.errors import IpcError
from device.platform.ipc import IpcClient
from device.values.status import CoreStatus, read_status
from link1.objects import VerdictResult
from link1.transport.pump import CablePump, monotonic_ms
from link1.transport.serial_port import open_port
from link1.validator.desk import DeskEvent, ValidatorDesk, VerdictAnswered, accept_all
from link1.validator.end import ValidatorEnd
from link1.validator.events import StatusReceived
from link1.validator.mail import ValidatorMail
from link1.validator.memory import DeskMemory
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage
from tests.palmctl import PALMCTL
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID, GATE_ID, Board, Known, make_board
from tools.palmctl.bench.verdict_latency import FolderWriter, encode
from tools.rig.bench.films import PLACE, enrol

E = TypeVar("E", bound=DeskEvent)

WITHIN_S = 30.0
"""Far more than anything takes; a machine that runs other tests beside this one may be slow."""
CAMERA_FPS = 30
MOST_ATTEMPTS = 3
"""A daemon that needs more to see a steady hand is too slow."""
FRAMES_IN = FRAMES_OUT = 6


@cache
def known_people() -> tuple[Known, ...]:
    """One generated person, enrolled."""
    return tuple(enrol(open_embedder(load_manifest(shipped_model_dir())), 0))


@cache
def pictures(seed: int = 0, occasion: int = 9000) -> tuple[bytes, ...]:
    """A passage of a generated person's left palm, which is still for 24 pictures."""
    return encode(
        list(
            passage(
                make_person(seed),
                "L",
                occasion,
                frames_in=FRAMES_IN,
                frames_held=24,
                frames_out=FRAMES_OUT,
                scene_seed=PLACE,
            )
        )
    )


@cache
def nobody() -> bytes:
    return encode(list(empty_scene(PLACE, 1, scene_seed=PLACE)))[0]


@dataclass
class Device:
    """A state directory, a camera folder, and `palmd` while it runs."""

    folder: Path
    board: Board
    config: DeviceConfig
    writer: FolderWriter

    @property
    def control_socket(self) -> Path:
        return self.config.control_socket

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """`palmd`, ready; killed at the end if the test has not ended it."""
        address = str(self.folder / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            Path(address).unlink(missing_ok=True)
            channel.bind(address)
            channel.settimeout(WITHIN_S)
            process = self.popen({"NOTIFY_SOCKET": address})
            try:
                while b"READY=1" not in channel.recv(4096):
                    pass
                yield process
            finally:
                process.kill()
                process.communicate()

    def popen(self, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "device.core.main", "--config", str(self.board.config_path)],
            env=os.environ | (environment or {}),
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def altered(self, program: str) -> Iterator[subprocess.Popen[bytes]]:
        """`palmd`, which `program` alters and begins; killed at the end."""
        words = [sys.executable, "-c", program, "--config", str(self.board.config_path)]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def palmctl(self, *words: str) -> subprocess.Popen[str]:
        """A command of the technician's, which Ctrl-C ends."""
        return subprocess.Popen(
            [
                *("env", "--default-signal=INT"),  # who runs the tests in the background has it ignored
                *PALMCTL,
                *words,
                *("--config", str(self.board.config_path)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_to_end(self) -> tuple[int, str]:
        """Start it where it must refuse to start: exit code and what it says."""
        process = self.popen()
        said = process.communicate(timeout=WITHIN_S)[1]
        return process.returncode, said

    def plug(self, pair: PtyPair) -> str:
        """Plug the device's end in; the validator's end is returned."""
        (self.folder / "cable").unlink(missing_ok=True)
        (self.folder / "cable").symlink_to(pair.left)
        return pair.right

    def status(self) -> CoreStatus:
        return read_status(self.control_socket)

    def health(self) -> dict[str, str]:
        return {note.word: note.detail for note in self.status().health}

    def show(self, film: tuple[bytes, ...]) -> None:
        """Put all pictures of a film before the camera, which plays them at its own pace."""
        for picture in (*film, nobody(), nobody(), nobody()):
            self.writer.put(picture)

    def hand(self, film: tuple[bytes, ...]) -> AbstractContextManager[None]:
        """See `held_hand`."""
        return held_hand(self.writer, film)


@contextmanager
def held_hand(writer: FolderWriter, film: tuple[bytes, ...]) -> Iterator[None]:
    """A person comes and holds the hand still until the body of the `with` has what it waits for: on a
    busy machine a film of one second may be too short. Who gets no answer steps back and tries again,
    each time for twice as long: the device may have missed that the hand of the last passage has left.
    """
    enough = threading.Event()
    still = film[FRAMES_IN:-FRAMES_OUT]

    def play() -> None:
        for turn in count():
            for picture in chain(film[:FRAMES_IN], islice(cycle(still), 5 * CAMERA_FPS << turn)):
                writer.put(picture)
                if enough.wait(1 / CAMERA_FPS):
                    writer.clear()  # a camera that lags does not show the hand for longer
                    break
            for picture in chain(film[-FRAMES_OUT:], repeat(nobody(), 8)):
                writer.put(picture)
            if enough.wait(1 << turn):
                return

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def make_device(
    folder: Path,
    *,
    model_dir: Path | None = None,
    model_id: str | None = None,
    liveness_dir: Path | None = None,
    look: str = "rgb",
    fill_camera: bool = True,
) -> Device:
    """`model_id`: of the gallery's templates, where not the shipped model's."""
    for name in ("state", "run"):
        (folder / name).mkdir()
    camera = folder / "camera"
    config = DeviceConfig(
        device=DeviceSection(DEVICE_ID, GATE_ID, DBD_ID, folder / "state", folder / "run"),
        camera=CameraSection(f"file:{camera}", CAMERA_FPS, look=look),
        link=LinkSection(str(folder / "cable")),
        model=ModelSection(model_dir),
        liveness=LivenessSection(liveness_dir),
    )
    manifest = load_manifest(shipped_model_dir())
    board = make_board(
        folder,
        config,
        model_id=model_id or manifest.model_id,
        thresholds=asdict(manifest.thresholds),
        known=known_people(),
        templates=len(known_people()),
    )
    writer = FolderWriter(camera)
    if fill_camera:
        writer.put(nobody())
    else:
        camera.rmdir()
    return Device(folder, board, config, writer)


class Validator:
    """The validator's desk on a port, and everything that has happened to it."""

    def __init__(self, desk: ValidatorDesk, mail: ValidatorMail, port: str) -> None:
        self.desk = desk
        self.mail = mail
        self.pump: CablePump[DeskEvent] = CablePump(desk, lambda: open_port(port), on_event=self.on_event)
        self.events: list[DeskEvent] = []
        self.news = asyncio.Event()

    def on_event(self, event: DeskEvent) -> None:
        self.events.append(event)
        self.news.set()

    def arm(self, ttl_ms: int) -> None:
        for event in self.desk.arm(ttl_ms, monotonic_ms()):
            self.on_event(event)
        self.pump.kick()

    async def wait_for(self, kind: type[E], wanted: Callable[[E], bool] = lambda _event: True) -> E:
        """The first event of `kind` from here on that `wanted` takes; what came before is let go."""
        seen = 0
        async with asyncio.timeout(WITHIN_S):
            while True:
                for event in self.events[seen:]:
                    seen += 1
                    if isinstance(event, kind) and wanted(event):
                        del self.events[:seen]
                        return event
                self.news.clear()
                await self.news.wait()

    async def wait_serving(self) -> StatusReceived:
        return await self.wait_for(StatusReceived, lambda event: event.status.serving)


@asynccontextmanager
async def validator_at(
    port: str,
    board: Board,
    *,
    carries_mail: bool = False,
    desk_type: type[ValidatorDesk] = ValidatorDesk,
) -> AsyncIterator[Validator]:
    end = ValidatorEnd(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=board.validator_key,
        device_keys=lambda kid, _at_ms: board.verdict_key if kid == board.verdict_key.kid else None,
        passage_sensor=False,
        random=os.urandom,
    )
    mail = ValidatorMail(end)
    desk = desk_type(
        end,
        decide=accept_all,
        memory=DeskMemory(),
        save=lambda _memory: None,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        random=os.urandom,
        turn_after_ms=None,
        mail=mail if carries_mail else None,
    )
    validator = Validator(desk, mail, port)
    task = asyncio.create_task(validator.pump.run())
    try:
        yield validator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def attempts(
    device: Device, validator: Validator, film: tuple[bytes, ...]
) -> AsyncIterator[VerdictAnswered]:
    """The verdicts on a hand that is shown again, at most `MOST_ATTEMPTS` times, while no capture was good: a
    busy machine examines too few pictures in the second and a half that a capture has."""
    for _ in range(MOST_ATTEMPTS):
        validator.arm(20_000)
        with device.hand(film):
            said = await validator.wait_for(VerdictAnswered)
        yield said
        if said.verdict.result is not VerdictResult.POOR_CAPTURE:
            return


async def answered(device: Device, validator: Validator, film: tuple[bytes, ...]) -> VerdictAnswered:
    """The last of the attempts."""
    return [said async for said in attempts(device, validator, film)][-1]


async def ask_carrier(
    device: Device, op: str, payload: bytes = b"", **members: object
) -> tuple[dict[str, Any], bytes]:
    """What the core answers its carrier: header and payload."""
    with closing(await IpcClient.connect(device.config.carrier_socket)) as core:
        answer = await core.call(op, payload, timeout_s=WITHIN_S, **members)
        return answer.header, answer.payload


async def until(what: Callable[[], bool]) -> None:
    """Wait for something that only asking can tell, such as a line of the daemon's status."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                if await asyncio.to_thread(what):
                    return
            except IpcError:
                pass  # not there yet, or just gone
            await asyncio.sleep(0.05)


@asynccontextmanager
async def validator_of(
    device: Device, *, carries_mail: bool = False, desk_type: type[ValidatorDesk] = ValidatorDesk
) -> AsyncIterator[Validator]:
    """The device runs, and a validator is at the other end of its cable."""
    with PtyPair() as pair, device.running():
        port = device.plug(pair)
        async with validator_at(
            port, device.board, carries_mail=carries_mail, desk_type=desk_type
        ) as validator:
            yield validator
