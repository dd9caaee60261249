"""The conformance test: our own ends pass every rule, and what cannot be tried is not passed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.envelope import Role
from link1.frames import Frame, FrameDecoder, FrameKind, encode_frame
from link1.validator.desk import STALE
from link1.validator.end import ValidatorEnd
from tests.tools.conform_ends import (
    REVOKED_KEY,
    SimulatedDevice,
    SimulatedValidator,
    StringHand,
    bench_for,
    device,
    findings_of,
    not_passed,
    on_line,
    validator,
)
from tools.kit.conform.rules import RuleResult
from tools.kit.conform.runner import chosen, rules_for, run_rules


def test_our_own_ends_pass_every_rule() -> None:
    for end in (device(passage_sensor=True), validator(passage_sensor=True)):
        findings = findings_of(end, sensor=True)
        assert not_passed(findings) == {}
        assert len(findings) > 100


def test_without_a_turn_sensor_the_rules_on_it_are_not_tried() -> None:
    for end in (device(), validator()):
        untried = not_passed(findings_of(end))
        assert {id_.split(".")[0] for id_ in untried} <= {"passage", "restart"}
        assert all(text.startswith("NOT TRIED") for text in untried.values())


@pytest.mark.parametrize("make", [device, validator])
@pytest.mark.parametrize("alone_ms", [100, 1_100])
def test_an_end_that_resets_before_it_is_met_passes(
    make: Callable[[], SimulatedDevice | SimulatedValidator], alone_ms: int
) -> None:
    """RST comes every 500 ms while nobody is there, and so in the first session that a rule begins."""
    for first in ("handshake.unknown_key", "handshake.wrong_key", "decision.full", "message.sent", "session"):
        assert not_passed(findings_of(make(), first, alone_ms=alone_ms)) == {}


class ChangesItsCounts(SimulatedValidator):
    """Every message begins as the last of four fragments and goes on as the first of two."""

    _frames = FrameDecoder()
    _taken = 0

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        data = super().data_to_send(now_ms, max_bytes)
        self._taken = len(data)
        return b"".join(self._changed(frame) for frame in self._frames.feed(data))

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[Any]:
        del count, in_port
        return super().sent(self._taken, now_ms)

    def _changed(self, frame: Frame) -> bytes:
        if frame.kind is not FrameKind.DATA:
            return encode_frame(frame)
        last = replace(frame, index=3, count=4)
        return encode_frame(last) + encode_frame(replace(frame, index=0, count=2, payload=bytes(1024)))


def test_an_end_that_has_not_pinned_our_key_is_quoted() -> None:
    bench = bench_for(device())
    bench.setup = replace(bench.setup, key=REVOKED_KEY)
    (finding,) = run_rules(bench, chosen(rules_for(Role.DEVICE), ["handshake.prove"]))
    assert "it said error about=hello, code=unpaired" in finding.found


def test_an_end_that_changes_the_count_of_fragments_fails_and_the_test_goes_on() -> None:
    findings = findings_of(validator(desk=ChangesItsCounts), "handshake")
    assert len(findings) > 5
    assert {finding.result for finding in findings} == {RuleResult.FAIL}


class KeepsRevokedSession(DeviceEnd):
    def keys_changed(self, now_ms: int) -> list[Any]:
        return []


def test_an_rst_from_before_the_session_is_none_for_a_revoked_key() -> None:
    findings = findings_of(device(end=KeepsRevokedSession), "key.revoked_in_use", alone_ms=1_100)
    assert [finding.result for finding in findings] == [RuleResult.FAIL]


def test_a_run_is_the_same_every_time() -> None:
    def lines() -> list[JsonObject]:
        return [finding.to_obj() for finding in findings_of(device(), "message", "verdict")]

    assert lines() == lines()


def test_every_rule_says_where_it_comes_from() -> None:
    for role in Role:
        rules = rules_for(role)
        assert len({rule.id for rule in rules}) == len(rules)
        for rule in rules:
            assert rule.section.startswith("§")
            assert rule.sentence
            assert rule.expected


class OpensForNobody(SimulatedValidator):
    def __init__(self, end: ValidatorEnd, **changes: Any) -> None:
        super().__init__(end, decide=lambda _verdict: STALE, **changes)


def test_a_machine_may_take_its_time_to_take_a_hand_away() -> None:
    """Longer than the silence after which a device resets the link."""
    bench, line = on_line(device())
    bench.setup = replace(bench.setup, hand=StringHand(line, leaves_ms=2_500))
    assert not_passed(list(run_rules(bench, chosen(rules_for(Role.DEVICE), ["resolve.many"])))) == {}


def test_a_validator_that_opens_for_nobody_is_not_tried_rather_than_passed() -> None:
    findings = findings_of(validator(OpensForNobody), "opens")
    assert {finding.result for finding in findings} == {RuleResult.NOT_TRIED}


def test_without_a_hand_the_rules_on_verdicts_are_not_tried() -> None:
    bench = bench_for(device())
    bench.setup = replace(bench.setup, hand=None)
    found = list(run_rules(bench, chosen(rules_for(Role.DEVICE), ["verdict"])))
    assert {finding.result for finding in found} == {RuleResult.NOT_TRIED}
    assert "--hand" in found[0].found
