"""What a simulated operator makes of verdicts: open for every accept, or rules from a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from link1 import members
from link1.canonical import read_strict
from link1.errors import FormatError
from link1.members import WORD
from link1.objects import Verdict
from link1.plain_file import read_plain_file
from link1.validator.desk import Choice, Decide, accept_all
from tools.kit.simulate.faults import Fault, FaultOf

MAX_POLICY_BYTES = 1 << 20
"""Ten thousand rules; a larger file is a mistake."""


@dataclass(frozen=True, slots=True)
class _PolicyRule:
    when: Mapping[str, str]
    choice: Choice
    fault: Fault | None

    def fits(self, verdict: Verdict) -> bool:
        said = verdict.to_obj()
        return all(said.get(name) == value for name, value in self.when.items())


_CONDITIONS = frozenset({"decision", "result", "subject_ref", "onboard_ref", "hand"})


def load_policy(spec: str) -> tuple[Decide, FaultOf]:
    """`accept-all`, or a file `{"rules":[{"when":{…}, "outcome":…, "reason":…, "actuated":…, "fault":…}]}`.

    The first rule whose `when` members (decision, result, subject_ref, onboard_ref, hand) all equal the
    verdict's decides, and says what is done wrong; without one it is `accept-all`. Raises FormatError or
    OSError.
    """
    rules = _read_rules(spec)

    def rule_for(verdict: Verdict) -> _PolicyRule | None:
        return next((rule for rule in rules if rule.fits(verdict)), None)

    def decide(verdict: Verdict) -> Choice:
        rule = rule_for(verdict)
        return accept_all(verdict) if rule is None else rule.choice

    def fault_of(verdict: Verdict) -> Fault | None:
        rule = rule_for(verdict)
        return None if rule is None else rule.fault

    return decide, fault_of


def _read_rules(spec: str) -> list[_PolicyRule]:
    if spec == "accept-all":
        return []
    obj = read_strict(read_plain_file(Path(spec), MAX_POLICY_BYTES), max_bytes=MAX_POLICY_BYTES)
    return [_read_rule(number, item) for number, item in enumerate(members.array(obj, "rules", 0, 10_000))]


def _read_rule(number: int, item: Any) -> _PolicyRule:
    try:
        rule = members.nested({"rule": item}, "rule")
        when = members.nested(rule, "when")
        if not set(when) <= _CONDITIONS or not all(isinstance(value, str) for value in when.values()):
            raise FormatError(f"when may hold strings for {', '.join(sorted(_CONDITIONS))}")
        outcome = members.text(rule, "outcome", WORD)
        actuated = members.boolean(rule, "actuated") if "actuated" in rule else outcome == "LIBERAR"
        choice = Choice(outcome, members.text(rule, "reason", WORD), actuated)
        fault = Fault(members.one_of(rule, "fault", frozenset(Fault))) if "fault" in rule else None
        return _PolicyRule(when, choice, fault)
    except FormatError as error:
        raise FormatError(f"policy rule {number}: {error}") from None
