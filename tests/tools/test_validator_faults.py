"""A validator that does one thing wrong: what it does, and that the device's side bears it."""

import random
from pathlib import Path
from typing import Any

import pytest

from link1.errors import FormatError
from link1.events import Down, ErrorReceived
from link1.signed import object_ref
from link1.validator.desk import PassageReported, VerdictAnswered, accept_all
from link1.validator.events import DeviceProven
from link1.validator.memory import DeskMemory
from tests.tools.conform_ends import (
    WALL_MS,
    EndLine,
    SimulatedDevice,
    device,
    validator_end,
)
from tools.kit.commands.dbd import FAULTS
from tools.kit.simulate.faults import Fault, FaultyDesk, in_turn
from tools.kit.simulate.policy import load_policy


class Passage:
    """One passage at a simulated device, by a desk with one fault. `seen`: the desk's events."""

    def __init__(self, fault: Fault | None) -> None:
        self.seen: list[Any] = []
        self.errors: list[str] = []
        self.device: SimulatedDevice = device()
        self.desk = FaultyDesk(
            validator_end(),
            decide=accept_all,
            memory=DeskMemory(),
            save=lambda _memory: None,
            wall_ms=lambda: WALL_MS,
            random=random.Random(3).randbytes,
            turn_after_ms=None,
            fault_of=lambda _verdict: fault,
        )
        self.line = EndLine(self.device)
        self.seen += self.desk.arm(10_000, 1_000) + self.desk.port_opened(1_000)
        self.run(500)
        self.device.hand_comes(self.line.time_ms)
        self.run(9_000)

    def run(self, duration_ms: int) -> None:
        end_ms = self.line.time_ms + duration_ms
        while self.line.time_ms < end_ms:
            now_ms = self.line.time_ms
            self.seen += self.desk.tick(now_ms)
            while data := self.desk.data_to_send(now_ms):
                self.seen += self.desk.sent(len(data), now_ms)
                self.line.write(data)
            due = self.desk.next_deadline_ms()
            wait_ms = end_ms if due is None else min(end_ms, max(due, now_ms + 1))
            self.seen += self.desk.receive(self.line.read(wait_ms), self.line.time_ms)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.of(ErrorReceived)]

    @property
    def recorded(self) -> bool:
        """The device holds the true decision on its verdict."""
        (memory,) = [m for m in self.device.memory.values() if m.verdict is not None]
        (answer,) = self.desk.memory.answered
        return memory.decision_ref == object_ref(answer.decision)


def test_without_a_fault_it_is_the_desk() -> None:
    passage = Passage(None)
    assert passage.recorded
    assert passage.codes == []


@pytest.mark.parametrize(
    ("fault", "codes", "recorded"),
    [
        (Fault.DROP_DECISION, [], False),
        (Fault.LATE_DECISION, [], True),
        (Fault.DUPLICATE_DECISION, [], True),
        (Fault.WRONG_SIGNATURE, ["bad_decision"], True),
        (Fault.WRONG_REF, ["bad_decision"], True),
        (Fault.CONTRADICTING_DECISION, [], True),
        (Fault.NO_PASSAGE, [], True),
        (Fault.RESET_AFTER_VERDICT, [], True),
        (Fault.REPLAY_REQUEST, [], True),
        (Fault.CHANGED_REQUEST, ["txn_conflict"], True),
        (Fault.LATE_CANCEL, [], True),
    ],
)
def test_a_device_bears_every_fault(fault: Fault, codes: list[str], recorded: bool) -> None:
    passage = Passage(fault)
    assert passage.codes == codes
    assert passage.recorded is recorded
    assert len(passage.device.verdicts) == 1
    assert list(passage.desk.injected.values()) == [fault]
    wrong = {Fault.WRONG_SIGNATURE, Fault.WRONG_REF, Fault.CONTRADICTING_DECISION}
    assert len(passage.device.evidence) == (fault in wrong)
    proven = len(passage.of(DeviceProven))
    assert proven == (2 if fault is Fault.RESET_AFTER_VERDICT else 1)
    assert len(passage.of(Down)) == proven - 1
    if fault is Fault.REPLAY_REQUEST:
        assert [event.refused for event in passage.of(VerdictAnswered)] == [None, "repeat"]


def test_a_late_decision_comes_after_the_device_has_given_up_waiting() -> None:
    passage = Passage(Fault.LATE_DECISION)
    assert passage.of(PassageReported) == []
    assert passage.desk.idle


def test_faults_take_turns_and_the_policy_goes_first() -> None:
    one, two = Fault.WRONG_REF, Fault.DROP_DECISION
    verdict: Any = None
    taken = in_turn([one, two])
    assert [taken(verdict) for _ in range(3)] == [one, two, one]
    assert in_turn([])(verdict) is None
    first = in_turn([one], lambda _verdict: two)
    assert first(verdict) is two


def test_a_policy_file_may_name_a_fault(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"rules":[{"when":{},"outcome":"LIBERAR","reason":"ok","fault":"wrong-ref"}]}')
    (verdict,) = [event.verdict for event in Passage(None).of(VerdictAnswered)]
    decide, fault_of = load_policy(str(policy))
    assert (decide(verdict).outcome, fault_of(verdict)) == ("LIBERAR", Fault.WRONG_REF)
    assert load_policy("accept-all")[1](verdict) is None
    policy.write_text('{"rules":[{"when":{},"outcome":"LIBERAR","reason":"ok","fault":"nonsense"}]}')
    with pytest.raises(FormatError, match="policy rule 0"):
        load_policy(str(policy))


def test_the_command_line_knows_every_fault() -> None:
    assert set(FAULTS) == {fault.value for fault in Fault}
