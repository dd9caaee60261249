"""A long campaign that may be stopped at any time: `python -m tools.rig.simulation --hours 48 --log FILE`.

The log gets a line of JSON for each range of seeds; the next start sums it up, and goes on with ranges that
no line has. What breaks an invariant is noted, and the campaign goes on.
"""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, filterfalse
from pathlib import Path
from typing import Any

from tools.rig.simulation.plan import WIDER_FROM, plan_of
from tools.rig.simulation.world import RunResult, run

SEEDS = 20
"""In one range."""


def campaign(log: Path, limit_s: float, processes: int) -> int:
    """Exit status: 0 nothing in the whole log broke an invariant, 1 something did."""
    until_s, done = time.monotonic() + limit_s, {line["first"] for line in _lines(log)}
    print(_summary(log), flush=True)
    with log.open("a+") as file:
        file.seek(0)
        if not (file.read() or "\n").endswith("\n"):
            file.write("\n")  # after a piece of a line
    children = []
    for part in range(1, processes):
        child = os.fork()
        if child == 0:
            _work(log, until_s, filterfalse(done.__contains__, _ranges(part, processes)))
            os._exit(0)
        children.append(child)
    _work(log, until_s, filterfalse(done.__contains__, _ranges(0, processes)))
    for child in children:
        os.waitpid(child, 0)
    print(_summary(log))
    return int(any(line["violations"] for line in _lines(log)))


def _ranges(part: int, parts: int) -> Iterator[int]:
    """The first seeds of one process's ranges."""
    return count(WIDER_FROM + part * SEEDS, parts * SEEDS)


def _work(log: Path, until_s: float, ranges: Iterator[int]) -> None:
    commit = _commit()
    for first in ranges:
        line = _line(first, commit)
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if time.monotonic() > until_s:
            return


def _line(first: int, commit: str) -> dict[str, Any]:
    began_s = time.process_time()
    results = [run(plan_of(seed)) for seed in range(first, first + SEEDS)]
    return {
        "commit": commit,
        "first": first,
        "seeds": len(results),
        "hands": sum(result.hands for result in results),
        "verdicts": sum(result.verdicts for result in results),
        "openings": sum(result.actuated for result in results),
        "faults": sum(result.faults for result in results),
        "checks": sum(result.checks for result in results),
        "cpu_s": round(time.process_time() - began_s, 1),
        "violations": [_violation(result) for result in results if result.violation is not None],
    }


def _violation(result: RunResult) -> list[Any]:
    violation = result.violation
    return [result.plan.seed, violation and violation.name, violation and violation.what]


def _summary(log: Path) -> str:
    """What the log holds, for each commit."""
    lines = _lines(log)
    parts = []
    for commit in dict.fromkeys(line["commit"] for line in lines):
        total = Counter[str]()
        mine = [line for line in lines if line["commit"] == commit]
        for line in mine:
            total.update({name: line[name] for name in ("seeds", "verdicts", "openings", "faults", "checks")})
        cpu_s = sum(line["cpu_s"] for line in mine)
        parts.append(
            f"{commit}: {total['seeds']} seeds, {total['verdicts']} verdicts, {total['openings']} openings,"
            f" {total['faults']} faults, {total['checks']} checks in {cpu_s / 3600:.2f} h of CPU"
        )
        parts += [
            f"  seed {seed}: {name}: {what}" for line in mine for seed, name, what in line["violations"]
        ]
    return "\n".join(parts) or "no range of seeds yet"


def _lines(log: Path) -> list[dict[str, Any]]:
    """Every whole line; a program that was stopped may have left a piece."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _commit() -> str:
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
