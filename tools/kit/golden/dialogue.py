"""A whole dialogue between the two real ends with fixed keys, nonces and times, frame by frame.

Session, handshake, one passage to the turn of the turnstile; then the device restarts, as after a power
cut, asks for its verdict's outcome, and gets it. Played in simulated time by `link1`'s own ends.
"""

from dataclasses import dataclass, field

from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.envelope import Role
from link1.events import DeviceEvent, PassageReceived, Proven, RequestReceived
from link1.objects import GuideHint, LastVerdict, Request, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import ValidatorDesk, accept_all
from link1.validator.end import ValidatorEnd
from link1.validator.memory import DeskMemory
from tools.kit.golden.values import (
    AT_MS,
    DBD_ID,
    DEVICE_ID,
    DEVICE_KEY,
    GATE_ID,
    VALIDATOR_KEY,
    counted,
    status_of,
    verdict_on,
)

THINKS_MS = 180
"""Between the request and the verdict, and between opening and the turn."""


def golden_device() -> DeviceEnd:
    """The device's end at the beginning of the dialogue."""
    return DeviceEnd(
        device_id=DEVICE_ID,
        gate_id=GATE_ID,
        dbd_id=DBD_ID,
        verdict_key=DEVICE_KEY,
        validator_keys=lambda kid, _at: VALIDATOR_KEY.public if kid == VALIDATOR_KEY.kid else None,
        random=counted("dialogue device"),
    )


def golden_desk(clock: "DialogueClock") -> ValidatorDesk:
    """The validator's desk at the beginning of the dialogue."""
    random = counted("dialogue validator")
    end = ValidatorEnd(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=VALIDATOR_KEY,
        device_keys=lambda kid, _at: DEVICE_KEY.public if kid == DEVICE_KEY.kid else None,
        passage_sensor=True,
        random=random,
    )
    return ValidatorDesk(
        end,
        decide=accept_all,
        memory=DeskMemory(),
        save=lambda _memory: None,
        wall_ms=lambda: AT_MS + clock.now_ms,
        random=random,
        turn_after_ms=THINKS_MS,
    )


def next_frame(end: DeviceEnd | ValidatorDesk, now_ms: int) -> bytes:
    """What `end` has to say next, one frame at a time, however many it would put into one write."""
    end.data_to_send(now_ms, 1)
    return end.data_to_send(now_ms)


@dataclass
class DialogueClock:
    now_ms: int = 0


@dataclass
class Dialogue:
    """Two ends on a cable without delay. `lines` is what went over it, in order."""

    clock: DialogueClock = field(default_factory=DialogueClock)
    lines: list[JsonObject] = field(default_factory=list)
    device: DeviceEnd = field(default_factory=golden_device)
    verdict: JsonObject | None = None
    verdict_due_ms: int | None = None
    passed: bool = False
    restarted: bool = False
    _asked: Request | None = None

    def play(self) -> list[JsonObject]:
        """From both ports opening to the last answer after the restart."""
        desk = golden_desk(self.clock)
        desk.arm(15_000, 0)
        desk.port_opened(0)
        self.device_does(self.device.port_opened(0))
        while self.clock.now_ms < 10_000:
            self._exchange(desk)
            if self.passed and self.restarted:
                return self.lines
            if self.passed:
                self.restart()
                continue
            deadlines = [self.verdict_due_ms, self.device.next_deadline_ms(), desk.next_deadline_ms()]
            self.clock.now_ms = min(deadline for deadline in deadlines if deadline is not None)
            self.device_does(self.device.tick(self.clock.now_ms))
            desk.tick(self.clock.now_ms)
            self.decide()
        raise AssertionError("the dialogue does not come to its end")

    def restart(self) -> None:
        """Closing and opening the port is what the validator sees of a restart."""
        self.passed, self.restarted = False, True
        self.device_does(self.device.port_closed(self.clock.now_ms))
        self.device_does(self.device.port_opened(self.clock.now_ms))

    def _exchange(self, desk: ValidatorDesk) -> None:
        """Carry frames until neither end has anything to say now."""
        now_ms, moved = self.clock.now_ms, True
        while moved:
            from_device = next_frame(self.device, now_ms)
            if from_device:
                self.device_does(self.device.sent(len(from_device), now_ms))
                self._note(Role.DEVICE, from_device)
                desk.receive(from_device, now_ms)
            from_desk = next_frame(desk, now_ms)
            if from_desk:
                desk.sent(len(from_desk), now_ms)
                self._note(Role.VALIDATOR, from_desk)
                self.device_does(self.device.receive(from_desk, now_ms))
            moved = bool(from_device or from_desk)

    def _note(self, sender: Role, data: bytes) -> None:
        self.lines.append({"at_ms": self.clock.now_ms, "from": sender.value, "hex": data.hex()})

    def device_does(self, events: list[DeviceEvent]) -> None:
        """In place of the rest of a device: a status, a hint, a verdict, a question."""
        for event in events:
            match event:
                case Proven():
                    self._greet()
                case RequestReceived(request, _):
                    self._asked, self.verdict_due_ms = request, self.clock.now_ms + THINKS_MS
                    self.device.send_guide(request.txn_id, GuideHint.SHOW_HAND)
                case PassageReceived():
                    self.passed = True
                case _:
                    pass

    def _greet(self) -> None:
        last = LastVerdict(1, object_ref(self.verdict)) if self.verdict else None
        self.device.send_status(status_of("", AT_MS + self.clock.now_ms, last))
        if last is not None:
            self.device.send_resolve([last.verdict_ref])

    def decide(self) -> None:
        """Send the verdict once it is due."""
        if self._asked is None or self.verdict_due_ms is None or self.clock.now_ms < self.verdict_due_ms:
            return
        verdict = verdict_on(self._asked, VerdictResult.MATCH, AT_MS + self.clock.now_ms)
        self.verdict = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
        self.verdict_due_ms = None
        self.device.send_verdict(self.verdict)
