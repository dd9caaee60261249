"""What a validator acts on, LINK/1 §4: a real device end, a real desk, and verdicts of every wrong kind."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from link1.canonical import JsonObject, b64_encode
from link1.device_end import DeviceEnd
from link1.envelope import ABOUT_MESSAGE, MessageType
from link1.events import (
    CancelReceived,
    DecisionReceived,
    ErrorReceived,
    PassageReceived,
    Proven,
    RequestReceived,
    UnknownReceived,
)
from link1.objects import Decision, ErrorCode, Request, Verdict, VerdictDecision
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import (
    MAX_HELD_ANSWERS,
    Choice,
    PassageReported,
    RequestEnded,
    RequestSent,
    ValidatorDesk,
    VerdictAnswered,
)
from link1.validator.memory import MAX_ANSWERED, DeskMemory
from tests.link1.cable import (
    DEVICE_KEY,
    STRANGER_KEY,
    Cable,
    Script,
    make_device,
    make_validator,
    mixed_faults,
    request,
    seeded,
    send_as,
    verdict_for,
)
from tests.link1.fuzz_validator import device_hello, device_proof


def open_for_accept(verdict: Verdict) -> Choice:
    if verdict.decision is VerdictDecision.ACCEPT:
        return Choice("LIBERAR", "ok", actuated=True)
    return Choice("BLOQUEAR", "not_recognised", actuated=False)


@dataclass
class Gate:
    """A device end and a validator's desk on one cable."""

    sensor: bool = False
    seed: int = 7
    memory: DeskMemory = field(default_factory=DeskMemory)
    saved: list[DeskMemory] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device: DeviceEnd = make_device()
        self.desk = ValidatorDesk(
            make_validator(passage_sensor=self.sensor),
            decide=open_for_accept,
            memory=self.memory,
            save=self.saved.append,
            wall_ms=lambda: 1_700_000_000_000,
            random=seeded(self.seed),
            turn_after_ms=300 if self.sensor else None,
        )
        self.cable = Cable(self.device, self.desk)
        self.cable.open()
        self.cable.run(500)
        assert any(isinstance(event, Proven) for event in self.cable.left_events)

    @property
    def at_device(self) -> list[Any]:
        return self.cable.left_events

    def arm(self, ttl_ms: int = 15_000) -> Request:
        self.cable.right_reports(self.desk.arm(ttl_ms, self.cable.now_ms))
        self.cable.run(50)
        return next(e.request for e in reversed(self.at_device) if isinstance(e, RequestReceived))

    def say(self, verdict: Verdict, key: Any = DEVICE_KEY) -> str:
        wrapper = sign_object(Kind.VERDICT, verdict.to_obj(), key)
        assert self.device.send_verdict(wrapper)
        self.cable.run(50)
        return object_ref(wrapper)

    def decisions(self) -> list[Decision]:
        return [event.decision for event in self.at_device if isinstance(event, DecisionReceived)]

    def answers(self) -> list[VerdictAnswered]:
        return [event for event in self.cable.right_events if isinstance(event, VerdictAnswered)]

    def reset(self) -> None:
        self.cable.left_reports(self.device.port_opened(self.cable.now_ms))
        self.cable.run(1_500)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_the_first_copy_in_time_for_the_open_request_is_acted_on_once(gate: Gate) -> None:
    asked = gate.arm()
    ref = gate.say(verdict_for(asked))
    (decision,) = gate.decisions()
    assert (decision.actuated, decision.outcome, decision.verdict_ref) == (True, "LIBERAR", ref)
    assert (decision.txn_id, decision.nonce_b64) == (asked.txn_id, asked.nonce_b64)
    assert gate.saved[-1].highest_verdict_seq == 1
    assert gate.answers()[0].refused is None


def test_a_repeat_gets_the_same_decision_byte_for_byte_and_moves_nothing(gate: Gate) -> None:
    asked = gate.arm()
    gate.say(verdict_for(asked))
    gate.say(verdict_for(asked))
    first, again = [event.wrapper for event in gate.at_device if isinstance(event, DecisionReceived)]
    assert first == again
    assert [answer.refused for answer in gate.answers()] == [None, "repeat"]
    assert gate.saved[-1].decision_seq == 1


def test_a_second_verdict_of_one_txn_is_stale(gate: Gate) -> None:
    asked = gate.arm()
    gate.say(verdict_for(asked))
    gate.say(verdict_for(asked, seq=2))
    assert [(d.actuated, d.reason) for d in gate.decisions()] == [(True, "ok"), (False, "stale")]


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce_b64": b64_encode(b"x" * 16)},
        {"issued_at_ms": 1},
        {"ttl_ms": 14_999},
    ],
    ids=["nonce", "issued_at_ms", "ttl_ms"],
)
def test_a_verdict_that_differs_from_the_request_is_stale_and_the_request_stays_open(
    changes: dict[str, Any],
) -> None:
    gate = Gate()
    asked = gate.arm()
    gate.say(verdict_for(asked, **changes))
    assert [(d.actuated, d.reason) for d in gate.decisions()] == [(False, "stale")]
    gate.say(verdict_for(asked, seq=2))
    assert gate.decisions()[-1].actuated


@pytest.mark.parametrize("late_by_ms", [0, 60])
def test_a_verdict_is_acted_on_until_two_seconds_past_the_ttl(late_by_ms: int, gate: Gate) -> None:
    asked = gate.arm(ttl_ms=5_000)  # arm lets 50 ms pass
    gate.cable.run(5_000 + 2_000 - 51 + late_by_ms)
    gate.say(verdict_for(asked))
    assert gate.decisions()[0].actuated is (late_by_ms == 0)
    ended = [e for e in gate.cable.right_events if isinstance(e, RequestEnded)]
    assert [e.why for e in ended] == ([] if late_by_ms == 0 else ["no_answer"])


def test_a_verdict_for_a_replaced_or_foreign_request_is_stale(gate: Gate) -> None:
    first = gate.arm()
    second = gate.arm()
    assert first.txn_id != second.txn_id
    gate.say(verdict_for(first))
    assert [(d.actuated, d.reason, d.txn_id) for d in gate.decisions()] == [(False, "stale", first.txn_id)]
    gate.say(verdict_for(second, seq=2))
    assert gate.decisions()[-1].actuated


def test_a_verdict_that_crosses_a_cancel_is_answered_and_not_acted_on(gate: Gate) -> None:
    asked = gate.arm()
    wrapper = sign_object(Kind.VERDICT, verdict_for(asked).to_obj(), DEVICE_KEY)
    gate.device.send_verdict(wrapper)
    gate.cable.right_reports(gate.desk.cancel())
    gate.cable.run(100)
    assert CancelReceived(asked.txn_id) in gate.at_device
    assert [(d.actuated, d.reason) for d in gate.decisions()] == [(False, "stale")]


def test_a_verdict_seq_at_or_below_the_highest_acted_on_is_stale_even_after_a_restart(gate: Gate) -> None:
    gate.say(verdict_for(gate.arm(), seq=5))
    again = Gate(memory=gate.saved[-1], seed=8)
    for seq, acted_on in ((5, False), (4, False), (9, True)):
        again.say(verdict_for(again.arm(), seq=seq))
        assert again.decisions()[-1].actuated is acted_on
    assert [decision.decision_seq for decision in again.decisions()] == [2, 3, 4]


def test_a_device_with_new_keys_starts_its_verdict_seq_anew() -> None:
    memory = DeskMemory(decision_seq=3, device_kid=STRANGER_KEY.kid, highest_verdict_seq=900)
    gate = Gate(memory=memory)
    gate.say(verdict_for(gate.arm(), seq=1))
    assert gate.decisions()[0].actuated
    assert gate.decisions()[0].decision_seq == 4


@pytest.mark.parametrize(
    ("changes", "key", "code"),
    [
        ({}, STRANGER_KEY, "bad_signature"),
        ({"gate_id": "gate-2"}, DEVICE_KEY, "wrong_gate"),
        ({"dbd_id": "dbd-2"}, DEVICE_KEY, "wrong_gate"),
        ({"device_id": "dev-2"}, DEVICE_KEY, "wrong_gate"),
    ],
    ids=["signature", "gate", "validator", "device"],
)
def test_a_verdict_that_does_not_hold_is_refused_at_the_end(
    changes: dict[str, Any], key: Any, code: str
) -> None:
    gate = Gate()
    asked = gate.arm()
    gate.say(verdict_for(asked, **changes), key)
    assert gate.decisions() == []
    assert ErrorReceived(code, "verdict", None) in gate.at_device
    gate.say(verdict_for(asked))
    assert gate.decisions()[0].actuated


def test_after_a_reset_the_identical_request_goes_out_again(gate: Gate) -> None:
    asked = gate.arm()
    gate.reset()
    requests = [event for event in gate.at_device if isinstance(event, RequestReceived)]
    assert [r.request for r in requests] == [asked, asked]
    assert requests[0].wrapper == requests[1].wrapper
    assert [e.again for e in gate.cable.right_events if isinstance(e, RequestSent)] == [False, True]
    gate.say(verdict_for(asked))
    assert gate.decisions()[0].actuated


@pytest.mark.parametrize("code", [ErrorCode.EXPIRED, ErrorCode.CANCELLED, ErrorCode.TXN_CONFLICT])
@pytest.mark.parametrize("about", [MessageType.REQUEST, ABOUT_MESSAGE])
def test_an_error_about_the_open_request_ends_it(code: ErrorCode, about: str, gate: Gate) -> None:
    asked = gate.arm()

    def complain(txn_id: str | None) -> None:
        body = {"code": code, "about": about} | ({} if txn_id is None else {"txn_id": txn_id})
        send_as(gate.device, MessageType.ERROR, body)
        gate.cable.run(50)

    complain("f" * 32)
    if about == ABOUT_MESSAGE:
        complain(None)  # about any message at all
    assert not any(isinstance(event, RequestEnded) for event in gate.cable.right_events), "another txn"
    complain(asked.txn_id)
    assert gate.desk.open_txn_id is None
    gate.say(verdict_for(asked))
    assert not gate.decisions()[0].actuated


def test_a_turn_is_reported_only_after_opening_and_with_a_sensor() -> None:
    gate = Gate(sensor=True)
    ref = gate.say(verdict_for(gate.arm()))
    gate.say(verdict_for(gate.arm(), seq=2, accept=False))
    gate.cable.run(1_000)
    (passage,) = [event.passage for event in gate.at_device if isinstance(event, PassageReceived)]
    assert (passage.verdict_ref, passage.passed, passage.cause, passage.dbd_event_seq) == (
        ref,
        True,
        "giro",
        1,
    )
    assert [type(e) for e in gate.cable.right_events if isinstance(e, PassageReported)] == [PassageReported]
    assert gate.saved[-1].dbd_event_seq == 1
    assert gate.desk.idle


# ---- resolve


def test_resolve_gets_decision_and_passage_again_byte_for_byte() -> None:
    gate = Gate(sensor=True)
    ref = gate.say(verdict_for(gate.arm()))
    gate.cable.run(1_000)
    before: list[JsonObject] = [
        e.wrapper for e in gate.at_device if isinstance(e, DecisionReceived | PassageReceived)
    ]
    gate.reset()
    gate.at_device.clear()
    gate.device.send_resolve([ref])
    gate.cable.run(100)
    assert [e.wrapper for e in gate.at_device if isinstance(e, DecisionReceived | PassageReceived)] == before


def test_what_was_never_acted_on_is_unknown(gate: Gate) -> None:
    ref = gate.say(verdict_for(gate.arm()))
    gate.at_device.clear()
    gate.device.send_resolve([ref, "0" * 32])
    gate.cable.run(100)
    assert [type(event) for event in gate.at_device] == [DecisionReceived, UnknownReceived] or [
        type(event) for event in gate.at_device
    ] == [UnknownReceived, DecisionReceived]
    assert UnknownReceived(("0" * 32,)) in gate.at_device


def test_after_a_change_of_the_key_what_is_not_remembered_is_met_with_silence(gate: Gate) -> None:
    ref = gate.say(verdict_for(gate.arm(), seq=7))
    first = gate.decisions()[0].to_obj()
    again = Gate(memory=gate.saved[-1].under_key(STRANGER_KEY.kid), seed=8)
    again.device.send_resolve([ref, "f" * 32])
    again.cable.run(1_000)
    assert [decision.to_obj() for decision in again.decisions()] == [first]
    assert not any(isinstance(event, UnknownReceived) for event in again.at_device)
    again.say(verdict_for(again.arm(), seq=7))
    assert (again.decisions()[-1].actuated, again.decisions()[-1].decision_seq) == (False, 1)


def test_unknown_waits_while_a_request_is_open_whose_verdict_it_may_be(gate: Gate) -> None:
    asked = gate.arm()
    lost = sign_object(Kind.VERDICT, verdict_for(asked).to_obj(), DEVICE_KEY)
    gate.reset()
    gate.device.send_resolve([object_ref(lost), "0" * 32])
    gate.cable.run(100)
    assert not any(isinstance(event, UnknownReceived) for event in gate.at_device)
    gate.device.send_verdict(lost)  # the stored verdict, as the repeated request asks for it
    gate.cable.run(100)
    assert gate.decisions()[0].actuated
    assert UnknownReceived(("0" * 32,)) in gate.at_device


def test_a_desk_that_has_forgotten_stays_silent() -> None:
    gate = Gate(memory=DeskMemory(decision_seq=100, device_kid=DEVICE_KEY.kid, highest_verdict_seq=100))
    gate.device.send_resolve(["0" * 32])
    gate.cable.run(100)
    assert not any(isinstance(event, UnknownReceived) for event in gate.at_device)


def test_thirty_two_answers_are_given_again_though_only_sixteen_may_wait(gate: Gate) -> None:
    refs = [gate.say(verdict_for(gate.arm(), seq=seq)) for seq in range(1, MAX_ANSWERED + 1)]
    gate.reset()
    gate.at_device.clear()
    gate.device.send_resolve(refs)
    gate.cable.run(1_000)
    assert [decision.verdict_ref for decision in gate.decisions()] == refs


def test_memory_survives_its_file() -> None:
    gate = Gate(sensor=True)
    gate.say(verdict_for(gate.arm()))
    gate.cable.run(1_000)
    assert DeskMemory.from_obj(gate.saved[-1].to_obj()) == gate.saved[-1]


# ---- everything at once, over a bad cable


class KeepsVerdicts:
    """The least that a device must do: a verdict for each txn, kept, given again, asked after."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.by_txn: dict[str, JsonObject] = {}
        self.open_refs: list[str] = []
        gate.cable.on_left = self._on_event

    def _on_event(self, event: object) -> None:
        device = self.gate.device
        match event:
            case Proven() if self.open_refs:
                device.send_resolve(self.open_refs[:32])
            case RequestReceived(asked, _):
                if asked.txn_id not in self.by_txn:
                    verdict = verdict_for(asked, seq=len(self.by_txn) + 1)
                    self.by_txn[asked.txn_id] = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
                    self.open_refs.append(object_ref(self.by_txn[asked.txn_id]))
                device.send_verdict(self.by_txn[asked.txn_id])
            case DecisionReceived(decision, _) if decision.verdict_ref in self.open_refs:
                self.open_refs.remove(decision.verdict_ref)
            case UnknownReceived(verdict_refs):
                self.open_refs = [ref for ref in self.open_refs if ref not in verdict_refs]
            case _:
                pass


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_cable_no_verdict_is_lost_and_none_is_acted_on_twice(seed: int, gate: Gate) -> None:
    device = KeepsVerdicts(gate)
    cuts = random.Random(seed)
    for number in range(120):
        if gate.desk.open_txn_id is None and len(device.by_txn) < 30:
            gate.cable.right_reports(gate.desk.arm(5_000, gate.cable.now_ms))
        gate.cable.to_left = mixed_faults(seed + number, 0.15)
        gate.cable.to_right = mixed_faults(seed - number, 0.15)
        if cuts.random() < 0.1:
            gate.cable.cut()
        gate.cable.run(cuts.choice([20, 300, 2_500]))
    gate.cable.mend()
    gate.cable.run(12_000)
    gate.reset()  # what is still open is asked after
    gate.cable.run(12_000)
    acted_on = [answer.verdict_ref for answer in gate.answers() if answer.refused is None]
    assert len(acted_on) == len(set(acted_on)) > 10
    assert device.open_refs == []
    assert {object_ref(wrapper) for wrapper in device.by_txn.values()} >= set(acted_on)


def test_a_device_that_says_verdicts_and_acknowledges_nothing_fills_no_memory() -> None:
    script = Script(gate := make_validator())
    desk = ValidatorDesk(
        gate,
        decide=open_for_accept,
        memory=DeskMemory(),
        save=lambda _memory: None,
        wall_ms=lambda: 1_700_000_000_000,
        random=seeded(1),
        turn_after_ms=None,
    )
    script.end = desk
    script.open()
    said = dict(script.take_messages())
    script.send("hello", device_hello())
    script.send("prove", device_proof(said["hello"]))
    assert gate.proven
    script.auto_ack = False
    for number in range(1, 3 * MAX_HELD_ANSWERS):
        verdict = verdict_for(request(number), number)
        script.send("verdict", sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY))
    assert desk.memory.decision_seq == 3 * MAX_HELD_ANSWERS - 1
    assert desk.held_answers == MAX_HELD_ANSWERS
