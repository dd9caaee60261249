"""A device whose service is the test: `palmd` as a process, a camera folder, and the carrier's socket.

What the carrier would take to the service comes here first, so a test sees it, answers it, or does not.
"""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from device.config.config import CloudSection, EnrolmentSection, write_config
from device.errors import IpcError
from device.platform.ipc import IpcClient, ask_core
from models.synthesis.person import make_person
from models.synthesis.scene import passage, show_qr
from tests.device.whole_device import CAMERA_FPS, FRAMES_IN, FRAMES_OUT, WITHIN_S, Device, make_device
from tools.palmctl.bench.verdict_latency import encode
from tools.rig.bench.films import PLACE

TOKEN = "tok_" + "A" * 28
SHORT_CODE = "4F7K-9QRT"

Answer = tuple[int, str, dict[str, Any]]
"""Status, code, body. A status of -1: no answer at all."""
COMPLETED: Answer = (201, "", {"status": "completed", "subject_ref": "ab" * 16})
SILENCE: Answer = (-1, "", {})


def qr_code(session_id: str) -> str:
    return f"SVC1:ENR:{session_id}:{TOKEN}"


def redeemed(**changed: Any) -> Answer:
    """A session of its own."""
    session = {
        "session_id": str(uuid.uuid4()),
        "token": TOKEN,
        "hands_required": ["L", "R"],
        "dataset_collection": False,
        "terms_version": "v1",
        "expires_at_ms": 4_000_000_000_000,
    }
    return 200, "", session | changed


@cache
def palm(seed: int, hand: str, occasion: int = 1) -> tuple[bytes, ...]:
    """A generated person holds out a hand for a second."""
    side: Any = hand
    film = passage(
        make_person(seed),
        side,
        occasion,
        frames_in=FRAMES_IN,
        frames_held=CAMERA_FPS,
        frames_out=FRAMES_OUT,
        scene_seed=PLACE,
    )
    return encode(list(film))


def code_film(payload: str) -> tuple[bytes, ...]:
    return encode(list(show_qr(payload, 1, 14, scene_seed=PLACE)))


@dataclass
class Service:
    """Answers what the device asks of its service, in a thread of its own; remembers what it was asked."""

    socket: Path
    redeem: Answer = field(default_factory=redeemed)
    enrol: Answer = COMPLETED
    codes: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    taken: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator["Service"]:
        threads = [
            threading.Thread(target=self._serve, args=(kind,), daemon=True)
            for kind in ("redeem", "enrolment")
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(WITHIN_S)

    def _serve(self, kind: str) -> None:
        asyncio.run(self._carry(kind))

    async def _carry(self, kind: str) -> None:
        try:
            client = await IpcClient.connect(self.socket)
            while not self._stop.is_set():
                await self._errand(client, kind)
            client.close()
        except IpcError:
            return  # the core was killed, as tests here do

    async def _errand(self, client: IpcClient, kind: str) -> None:
        asked = await client.call(f"{kind}.next", wait_ms=100, timeout_s=WITHIN_S)
        if asked.header["ticket"] == 0:
            return
        body = json.loads(asked.payload)
        status, code, answer = self.redeem if kind == "redeem" else self.enrol
        if kind == "redeem":
            self.codes.append(body["short_code"])
        else:
            self.bodies.append(body)
            self.taken.set()
        if status < 0:
            await asyncio.sleep(0.05)
            return
        ticket = asked.header["ticket"]
        payload = json.dumps(answer).encode()
        await client.call(
            f"{kind}.done", payload, ticket=ticket, status=status, code=code, timeout_s=WITHIN_S
        )


def make_kiosk(folder: Path, *, consent: str = "screen", has_cloud: bool = True) -> Device:
    """A provisioned device that people enrol at. Its [cloud] is nowhere: the test is the carrier."""
    device = make_device(folder)
    config = replace(
        device.config,
        cloud=CloudSection("http://127.0.0.1:1", None) if has_cloud else None,
        enrolment=EnrolmentSection(("L", "R"), consent),
    )
    write_config(device.board.config_path, config)
    return replace(device, config=config)


@dataclass
class Person:
    """Stands before a kiosk and does what the screen says."""

    device: Device
    seed: int = 41

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = ask_core(
            self.device.control_socket, "enrolment.state", after=0, wait_ms=0
        ).header["state"]
        return state

    def waits_for(
        self, wanted: Callable[[dict[str, Any]], bool], within_s: float = WITHIN_S
    ) -> dict[str, Any]:
        """Until the screen shows it."""
        seq, deadline = 0, time.monotonic() + within_s
        while time.monotonic() < deadline:
            told = ask_core(
                self.device.control_socket, "enrolment.state", timeout_s=WITHIN_S, after=seq, wait_ms=500
            ).header
            seq = told["seq"]
            if wanted(told["state"]):
                state: dict[str, Any] = told["state"]
                return state
        raise AssertionError(f"the screen still shows {self.state()}")

    def waits_for_step(self, *steps: str) -> dict[str, Any]:
        return self.waits_for(lambda state: state["step"] in steps)

    def shows(self, hand: str, *, occasion: int = 1) -> None:
        """Hold out one hand when it is asked for."""

        def wanted(state: dict[str, Any]) -> bool:
            return state["step"] == "show_hand" and bool(state["hand"] == hand)

        self.waits_for(wanted)
        with self.device.hand(palm(self.seed, hand, occasion)):
            self.waits_for(lambda state: not wanted(state))

    def shows_both(self) -> None:
        for hand in ("L", "R"):
            self.shows(hand)

    def holds_code(self, session_id: str) -> None:
        """Until the terms are shown: the screen may still show how the enrolment before ended."""
        self.waits_until_ready()
        with self.device.hand(code_film(qr_code(session_id))):
            self.waits_for_step("consent")

    def waits_until_ready(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while ask_core(self.device.control_socket, "enrolment.state", after=0, wait_ms=0).header["unready"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def types(self, code: str = SHORT_CODE) -> None:
        self.waits_until_ready()
        ask_core(self.device.control_socket, "enrolment.begin", short_code=code)

    def accepts(self, *more: str) -> None:
        version = self.waits_for_step("consent")["terms_version"]
        purposes = ["enrollment", "identification", *more]
        ask_core(self.device.control_socket, "enrolment.accept", terms_version=version, purposes=purposes)

    def does(self, op: str) -> None:
        ask_core(self.device.control_socket, op)
