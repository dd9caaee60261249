"""Whatever comes in whatever order: what must hold of the transaction engine holds (LINK/1 §4).

Steps are drawn by weight, so that most runs get somewhere: a validator, a person, a disk and a power switch,
none of them reasonable.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from device.passage.effects import Effect, JournalVerdict, SendError, SendGuide, SendVerdict
from device.passage.engine import Conditions, TransactionEngine
from device.values.recognition import Sighting
from link1.bodies import MAX_REFS
from link1.objects import ErrorCode, Pad, VerdictResult
from tests.device.core_makers import (
    good_sighting,
    make_decision,
    make_passage,
    no_hand,
    poor_sighting,
    txn_id_of,
)
from tests.device.passage.engine_bench import ALL_WELL, POLICY, EngineBench, resolved


class World:
    """The engine, what is around it, and a record of what must not happen."""

    def __init__(self, *, sensor: bool) -> None:
        self.sensor = sensor
        self.conditions = ALL_WELL
        self.bench = EngineBench(passage_sensor=sensor)
        self.camera = True
        self.hand_present = False
        self.hand_since_request = False
        self.answered_by_this_hand = 0
        self.asked_in_session: set[str] = set()
        self.told_ended: set[str] = set()
        self.must_end_ms: dict[str, int] = {}
        self.guided_ms: list[int] = []
        self.checked: list[JournalVerdict] = []
        self.ever_asked: set[str] = set()

    # What may happen

    def ask(self, name: str, ttl_ms: int) -> None:
        txn_id, bench = txn_id_of(name), self.bench
        known = {bench.engine.open_txn_id, *self.being_journaled(bench.held)}
        effects = bench.ask(name, ttl_ms=ttl_ms)
        begun = {bench.engine.open_txn_id, *self.being_journaled([*effects, *bench.held])}
        if txn_id in begun - known:
            self.hand_since_request = self.hand_present
            self.must_end_ms[txn_id] = bench.now_ms + ttl_ms + 1_000
        self.asked_in_session.add(txn_id)
        self.ever_asked.add(txn_id)
        self.look(effects)

    @staticmethod
    def being_journaled(effects: list[Effect]) -> set[str]:
        return {effect.request.txn_id for effect in effects if isinstance(effect, JournalVerdict)}

    def cancel(self, name: str) -> None:
        self.look(self.bench.cancel(name))

    def show(self, sighting: Sighting) -> None:
        if self.camera:
            self.hand_present = self.hand_since_request = True
            self.look(self.bench.see(replace(sighting, at_ms=self.bench.now_ms)))

    def take_away(self) -> None:
        if self.camera:
            self.look(self.bench.see(no_hand()))
            self.hand_present = False
            self.answered_by_this_hand = 0

    def wait(self, ms: int) -> None:
        self.look(self.bench.wait(ms))

    def change(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.camera = conditions.camera
        self.hand_present = self.hand_present and conditions.camera
        self.look(self.bench.conditions(conditions))

    def decide(self, name: str, wrong: bool, actuated: bool) -> None:
        memory = self.bench.memory.get(txn_id_of(name))
        if memory is not None and memory.verdict is not None:
            changes = {"verdict_ref": "e" * 32} if wrong else {}
            self.look(self.bench.decide(make_decision(memory.verdict, actuated=actuated, **changes)))

    def turn(self, name: str) -> None:
        memory = self.bench.memory.get(txn_id_of(name))
        if memory is not None and memory.verdict is not None:
            self.look(self.bench.turn(make_passage(memory.verdict)))

    def disown(self, index: int) -> None:
        if index < len(self.bench.verdicts):
            self.look(self.bench.unknown(self.bench.verdicts[index].ref))

    def reset(self) -> None:
        """The session ends and another begins."""
        self.asked_in_session.clear()
        self.must_end_ms.clear()
        self.look(self.bench.lose_link())
        effects = self.bench.prove()
        self.look(effects)
        assert all(1 <= len(refs) <= MAX_REFS for refs in resolved(effects))

    def store(self, works: bool) -> None:
        self.bench.store_works = works

    def store_hangs(self) -> None:
        self.bench.hold = True

    def store_goes_on(self) -> None:
        self.look(self.bench.release())

    def power_goes(self) -> None:
        """What was durable stays, all else is gone; the hand that is there stays."""
        self.bench.held.clear()
        self.bench.hold = False
        self.bench.engine = TransactionEngine(POLICY, self.conditions, passage_sensor=self.sensor)
        self.bench.engine.restarted()
        self.guided_ms.clear()  # a start takes longer than the second in which hints are counted
        self.reset()

    # What must hold

    def look(self, effects: list[Effect]) -> None:
        for effect in [*effects, *self.bench.held]:
            if isinstance(effect, JournalVerdict) and not any(effect is seen for seen in self.checked):
                self.checked.append(effect)
                self.check_verdict(effect)
        for effect in effects:
            match effect:
                case SendVerdict(txn_id):
                    assert txn_id in self.asked_in_session, "a verdict was pushed into a session"
                    assert txn_id not in self.told_ended, "a verdict for what was told to have ended"
                case SendError(ErrorCode.CANCELLED | ErrorCode.EXPIRED, _, str(txn_id)):
                    assert txn_id in self.ever_asked, "a txn_id whose signature never held"
                    memory = self.bench.memory.get(txn_id)
                    assert memory is None or memory.verdict is None, "an end for what has a verdict"
                    if memory is not None:  # where the store failed, nothing could be remembered
                        self.told_ended.add(txn_id)
                case SendGuide():
                    self.guided_ms.append(self.bench.now_ms)
                case _:
                    pass
        self.check_state()

    def check_verdict(self, effect: JournalVerdict) -> None:
        blind = effect.outcome.result is VerdictResult.NOT_READY and not self.camera
        if not blind:
            assert self.hand_since_request, "a verdict without a hand"
            self.answered_by_this_hand += 1
            assert self.answered_by_this_hand == 1, "one hand got two verdicts"
        person = effect.outcome.subject_ref is not None
        assert person == (effect.outcome.result is VerdictResult.MATCH)

    def check_state(self) -> None:
        engine = self.bench.engine
        if engine.open_txn_id is not None:
            assert self.bench.now_ms < self.must_end_ms[engine.open_txn_id], "a request is open for too long"
        newest = self.guided_ms[-6:]
        assert len(newest) < 6 or newest[-1] - newest[0] >= 1_000, "more than five hints a second"


names = st.sampled_from("abcd")
sightings = st.builds(
    good_sighting,
    score=st.sampled_from([0.1, 0.7]),
    margin=st.sampled_from([0.2, 0.0]),
    pad=st.sampled_from([Pad("pass", "m", 9_000), Pad("fail", "m", 0), Pad("unknown", "m", 0)]),
)
bad_conditions = st.builds(Conditions, st.booleans(), st.booleans(), st.booleans())
arguments: dict[Callable[..., None], tuple[st.SearchStrategy[object], ...]] = {
    World.ask: (names, st.sampled_from([5_000, 1_000, 500])),
    World.show: (sightings | st.builds(poor_sighting),),
    World.wait: (st.sampled_from([1, 50, 250, 1_000, 6_000]),),
    World.cancel: (names,),
    World.decide: (names, st.booleans(), st.booleans()),
    World.turn: (names,),
    World.disown: (st.integers(0, 3),),
    World.change: (st.just(ALL_WELL) | bad_conditions,),
    World.store: (st.booleans(),),
}
weights: dict[Callable[..., None], int] = {
    World.wait: 7,  # first: runs shrink to it
    World.ask: 12,
    World.show: 10,
    World.take_away: 7,
    World.cancel: 3,
    World.decide: 3,
    World.turn: 1,
    World.disown: 1,
    World.change: 2,
    World.reset: 2,
    World.store_hangs: 2,
    World.store_goes_on: 3,
    World.store: 1,
    World.power_goes: 1,
}
# one_of would take equal branches for one; an index into a list with repetitions keeps the weights.
methods = st.sampled_from([method for method, weight in weights.items() for _ in range(weight)])


@settings(max_examples=150)
@given(data=st.data(), sensor=st.booleans(), run=st.lists(methods, min_size=30, max_size=60))
def test_invariants(data: st.DataObject, sensor: bool, run: list[Callable[..., None]]) -> None:
    world = World(sensor=sensor)
    for method in run:
        method(world, *(data.draw(argument) for argument in arguments.get(method, ())))
