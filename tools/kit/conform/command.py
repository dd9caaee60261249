"""What `palmctl dbd conform` does: opens the port, runs the rules, prints findings, gives the exit code."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from link1.canonical import JsonObject
from link1.transport.serial_port import Port
from tools.kit.conform.cable_line import PortLine
from tools.kit.conform.end_under_test import Setup
from tools.kit.conform.rules import ConformanceRule, RuleFinding, RuleResult
from tools.kit.conform.runner import counters_beside, make_bench, run_rules

FAILED, NOT_ALL_TRIED = 1, 4
"""Exit codes; 2 is wrong usage and 3 no answer."""


def conform(
    setup: Setup,
    open_port: Callable[[], Port],
    key_file: Path,
    rules: Sequence[ConformanceRule],
    report: Callable[[RuleFinding], None],
) -> Counter[RuleResult]:
    """Run `rules` at the port that is opened; `report` is called with each finding.

    Raises NobodyThere, HandError, TransportError, and FormatError for a damaged file of counters.
    """
    counters = counters_beside(key_file)
    cable = PortLine(open_port)
    tally: Counter[RuleResult] = Counter()
    with closing(cable):
        bench = make_bench(setup, cable, counters, wall_ms, os.urandom)
        for finding in run_rules(bench, rules):
            tally[finding.result] += 1
            report(finding)
    return tally


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def as_json(finding: RuleFinding) -> str:
    return json.dumps(finding.to_obj(), ensure_ascii=False)


def as_text(finding: RuleFinding) -> str:
    """One line, and what to know of what did not pass."""
    rule = finding.rule
    head = f"{finding.result:9}  {rule.id:32} {rule.section}"
    if finding.result is RuleResult.PASS:
        return head
    rest = [
        f"           says      {rule.sentence}",
        f"           expected  {rule.expected}",
    ]
    if finding.result is RuleResult.FAIL:
        return "\n".join([head, *rest, f"           found     {finding.found}"])
    return f"{head}\n           to do     {finding.found}"


def summary(tally: Counter[RuleResult], left_out: int) -> JsonObject:
    """The counts of a run; `left_out` rules were not chosen."""
    return {
        "passed": tally[RuleResult.PASS],
        "failed": tally[RuleResult.FAIL],
        "not_tried": tally[RuleResult.NOT_TRIED],
        "left_out": left_out,
    }


def exit_code(tally: Counter[RuleResult]) -> int:
    """0 only when every rule that was chosen was tried and passed."""
    if tally[RuleResult.FAIL]:
        return FAILED
    return NOT_ALL_TRIED if tally[RuleResult.NOT_TRIED] else 0


def listing(rules: Sequence[ConformanceRule]) -> Iterator[JsonObject]:
    """The rules themselves, to be read before a run."""
    for rule in rules:
        yield {"id": rule.id, "section": rule.section, "sentence": rule.sentence, "expected": rule.expected}
