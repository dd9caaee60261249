"""What `palmctl dbd conform` does: opens the port, runs the rules, prints findings, gives the exit code."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from link1.canonical import JsonObject
from link1.transport.serial_port import open_port
from tools.conform.bench import Setup
from tools.conform.line import PortLine
from tools.conform.rules import Finding, Result, Rule
from tools.conform.runner import counters_beside, make_bench, run_rules


def conform(
    setup: Setup, port: str, key_file: Path, rules: Sequence[Rule], report: Callable[[Finding], None]
) -> Counter[Result]:
    """Run `rules` at a port; `report` is told each finding as it comes.

    Raises NobodyThere, HandError, TransportError, and FormatError for a damaged file of counters.
    """
    counters = counters_beside(key_file)
    opened = open_port(port)
    tally: Counter[Result] = Counter()
    try:
        bench = make_bench(setup, PortLine(opened), counters, wall_ms, os.urandom)
        for finding in run_rules(bench, rules):
            tally[finding.result] += 1
            report(finding)
    finally:
        opened.close()
    return tally


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def as_json(finding: Finding) -> str:
    return json.dumps(finding.to_obj(), ensure_ascii=False)


def as_text(finding: Finding) -> str:
    """One line, and three more for what did not pass."""
    rule = finding.rule
    head = f"{finding.result:4}  {rule.id:32} {rule.section}"
    if finding.result is Result.PASS:
        return head
    rest = [
        f"      says      {rule.sentence}",
        f"      expected  {rule.expected}",
        f"      found     {finding.found}",
    ]
    return "\n".join([head, *(rest if finding.result is Result.FAIL else rest[2:])])


def listing(rules: Sequence[Rule]) -> Iterator[JsonObject]:
    """The rules themselves, for a developer who wants to read before he runs."""
    for rule in rules:
        yield {"id": rule.id, "section": rule.section, "sentence": rule.sentence, "expected": rule.expected}
