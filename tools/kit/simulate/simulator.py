"""A validator for the other end of the cable: the real ValidatorEnd and desk, a policy, and a report.

It arms a request, waits for the verdict, decides by its policy, answers, and arms the next. Its counters
survive restarts in a file next to its key, as LINK/1 §4 requires.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from link1.canonical import JsonObject
from link1.errors import TransportError
from link1.events import Down, ErrorReceived
from link1.keys import PublicKey, SigningKey
from link1.link_states import DownReason
from link1.transport.pump import CablePump, monotonic_ms
from link1.validator.desk import (
    Decide,
    DeskEvent,
    PassageReported,
    RequestEnded,
    RequestSent,
    ValidatorDesk,
    VerdictAnswered,
)
from link1.validator.end import ValidatorEnd
from link1.validator.events import DeviceProven, MessageRefusedByUs, StatusReceived
from link1.validator.mail import InboxSettled, MailUnsupported, OutboxCollected, ValidatorMail
from tools.kit.ports import open_port
from tools.kit.simulate.faults import LATE_DECISION_MS, NO_TURN_AFTER, Fault, FaultOf, FaultyDesk
from tools.kit.simulate.files import load_memory, save_memory, state_path
from tools.kit.simulate.mail_carrier import MailCarrier, OfficeAccess

REARM_AFTER_ERROR_S = 1.0
"""After an error that a new request will not cure by itself, so that two ends never spin."""
GOODBYE_S = 3.0
"""How long the last decision may take to be acknowledged before the simulator ends."""
_GOODBYE_STEP_S = 0.01

Report = Callable[[JsonObject], None]


@dataclass(frozen=True, slots=True)
class SimulatorSetup:
    """The options of one run of the simulator. `passages` None means until interrupted; `office` None carries
    no mail."""

    port: str
    baud: int
    device_key: PublicKey
    key_file: Path
    key: SigningKey
    dbd_id: str
    gate_id: str
    decide: Decide
    passages: int | None
    passage_sensor: bool
    ttl_ms: int = 15_000
    turn_after_ms: int = 300
    forgot: bool = False
    office: OfficeAccess | None = None
    fault_of: FaultOf | None = None


class Simulator:
    """One validator on one port; `run` returns True when all passages were decided."""

    def __init__(self, setup: SimulatorSetup, report: Report) -> None:
        self._setup = setup
        self._report = report
        path = state_path(setup.key_file)
        memory = load_memory(path, setup.key.public, forgot=setup.forgot)
        if setup.forgot:
            save_memory(path, setup.key.kid, memory)  # so that it is said once
        end = ValidatorEnd(
            dbd_id=setup.dbd_id,
            gate_id=setup.gate_id,
            key=setup.key,
            device_keys=lambda kid, _at_ms: setup.device_key if kid == setup.device_key.kid else None,
            passage_sensor=setup.passage_sensor,
            random=os.urandom,
        )
        mail = None if setup.office is None else ValidatorMail(end)
        make_desk: Callable[..., ValidatorDesk] = ValidatorDesk
        if setup.fault_of is not None:
            make_desk = partial(FaultyDesk, fault_of=setup.fault_of)
        self._desk = make_desk(
            end,
            decide=setup.decide,
            memory=memory,
            save=lambda memory: save_memory(path, setup.key.kid, memory),
            wall_ms=lambda: time.time_ns() // 1_000_000,
            random=os.urandom,
            turn_after_ms=setup.turn_after_ms if setup.passage_sensor else None,
            mail=mail,
        )
        self._pump: CablePump[DeskEvent] = CablePump(
            self._desk,
            lambda: open_port(setup.port, baud=setup.baud),
            on_event=self._handle,
            on_port=self._on_port,
        )
        self._carrier = (
            None
            if setup.office is None or mail is None
            else MailCarrier(setup.office, mail, report=report, kick=self._pump.kick)
        )
        self._decided = 0
        self._asked_ns = 0
        self._awaiting_turn: dict[str, JsonObject] = {}
        self._done = asyncio.Event()
        self._stopped = asyncio.Event()
        self._port_error = ""
        self._device_serves = True
        self.met_device = False
        """True once a device has proven who it is."""

    def stop(self) -> None:
        """End before all passages are done."""
        self._stopped.set()

    async def run(self) -> bool:
        self._arm()
        pump = asyncio.create_task(self._pump.run())
        carrier = [] if self._carrier is None else [asyncio.create_task(self._carrier.run())]
        waits = [asyncio.create_task(event.wait()) for event in (self._done, self._stopped)]
        try:
            await asyncio.wait([pump, *carrier, *waits], return_when=asyncio.FIRST_COMPLETED)
            for endless in (pump, *carrier):
                if endless.done():
                    await endless  # it only ends by an error
            if self._done.is_set():
                await self._say_goodbye()
            return self._done.is_set()
        finally:
            for task in [*waits, pump, *carrier]:
                task.cancel()
            await asyncio.gather(pump, *carrier, *waits, return_exceptions=True)

    async def _say_goodbye(self) -> None:
        """Wait until the device has acknowledged the last decision and passage."""
        most_s = GOODBYE_S if self._setup.fault_of is None else GOODBYE_S + LATE_DECISION_MS / 1000
        for _ in range(int(most_s / _GOODBYE_STEP_S)):
            if self._desk.idle:
                return
            await asyncio.sleep(_GOODBYE_STEP_S)

    def _arm(self) -> None:
        if self._setup.passages is not None and self._decided >= self._setup.passages:
            self._done.set()
            return
        for event in self._desk.arm(self._setup.ttl_ms, monotonic_ms()):
            self._handle(event)
        self._pump.kick()

    def _on_port(self, error: TransportError | None) -> None:
        said = "" if error is None else str(error)
        if said != self._port_error:
            self._report({"event": "port", "open": error is None, "detail": said})
        self._port_error = said

    def _handle(self, event: DeskEvent) -> None:
        line = _describe(event)
        if line is not None and not (isinstance(event, Down) and self._done.is_set()):
            self._report(line)
        match event:
            case DeviceProven(device_id):
                self.met_device = True
                if self._carrier is not None:
                    self._carrier.device_met(device_id)
            case InboxSettled() | OutboxCollected() | MailUnsupported() if self._carrier is not None:
                self._carrier.follow(event)
            case RequestSent():
                self._asked_ns = time.monotonic_ns()
            case RequestEnded(_, why):
                at_once = self._device_serves and why in ("expired", "no_answer")
                self._arm_later(0.0 if at_once else REARM_AFTER_ERROR_S)
            case StatusReceived(status):
                self._device_serves = status.serving
            case VerdictAnswered():
                self._on_verdict(event)
            case PassageReported(_, verdict_ref, passed, cause):
                self._finish(self._awaiting_turn.pop(verdict_ref) | {"passed": passed, "cause": cause})
            case _:
                pass

    def _on_verdict(self, answered: VerdictAnswered) -> None:
        verdict, choice = answered.verdict, answered.choice
        line: JsonObject = {
            "txn_id": verdict.txn_id,
            "decision": verdict.decision.value,
            "result": verdict.result.value,
            "verdict_seq": verdict.verdict_seq,
            "verdict_ref": answered.verdict_ref,
            "verified": True,
            "outcome": choice.outcome,
            "reason": choice.reason,
            "actuated": choice.actuated,
            "latency_ms": round((time.monotonic_ns() - self._asked_ns) / 1e6, 3),
            "hints": [hint.value for hint in answered.hints],
            "score_q": verdict.score_q,
            "quality_q": verdict.quality_q,
        }
        for name in ("subject_ref", "onboard_ref", "hand"):
            if (value := getattr(verdict, name)) is not None:
                line[name] = value
        fault = self._fault_of(answered)
        if answered.refused is not None:
            self._report({"event": "verdict_not_acted_on", "why": answered.refused} | line)
            if self._desk.open_txn_id is None and not self._awaiting_turn:
                self._arm_later(0.0)
        elif choice.actuated and self._setup.passage_sensor and fault not in NO_TURN_AFTER:
            self._awaiting_turn[answered.verdict_ref] = line
        else:
            self._finish(line)

    def _fault_of(self, answered: VerdictAnswered) -> Fault | None:
        """What the desk has done wrong about this verdict, which is reported before its passage."""
        if not isinstance(self._desk, FaultyDesk):
            return None
        fault = self._desk.injected.pop(answered.verdict_ref, None)
        if fault is not None:
            self._report({"event": "fault", "fault": fault.value, "verdict_ref": answered.verdict_ref})
        return fault

    def _finish(self, line: JsonObject) -> None:
        self._decided += 1
        self._report(line)
        self._arm_later(0.0)

    def _arm_later(self, delay_s: float) -> None:
        """Not from inside an event: the desk is still at work on it."""
        asyncio.get_running_loop().call_later(delay_s, self._arm_if_none)

    def _arm_if_none(self) -> None:
        if self._desk.open_txn_id is None and not self._done.is_set():
            self._arm()


def _describe(event: DeskEvent) -> JsonObject | None:
    """The report line of an event that is not a passage."""
    line: JsonObject | None
    match event:
        case DeviceProven(device_id, device_kid):
            line = {"event": "link_up", "device_id": device_id, "device_kid": device_kid}
        case Down(reason, proven) if proven or reason in _WORTH_TELLING:
            line = {"event": "link_down", "reason": reason.value}
        case StatusReceived(status):
            line = {"event": "status", "serving": status.serving, "health": list(status.health)}
        case RequestSent(request, again):
            line = {"event": "request", "txn_id": request.txn_id, "again": again}
        case RequestEnded(txn_id, why):
            line = {"event": "request_ended", "txn_id": txn_id, "why": why}
        case MessageRefusedByUs(type_, code):
            line = {"event": "refused", "type": type_.value, "code": code}
        case ErrorReceived(code, about, txn_id):
            line = {"event": "error", "code": code, "about": about, "txn_id": txn_id}
        case _:
            line = None
    return line


_WORTH_TELLING = frozenset({DownReason.UNPAIRED, DownReason.HANDSHAKE_TIMEOUT})
"""Ends of unproven sessions that need a person to act."""
