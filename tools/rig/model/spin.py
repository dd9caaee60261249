"""Runs of the models `session.pml` and `passage.pml` in Spin: the bounds of each, and what it must find.

Each run compiles a model with bounds (`-D…`) and searches it. A run of the model itself must find nothing; a
run of a mutant, which leaves one rule out, must find the claim broken that the rule is there for. Spin and
gcc are needed.

Spin: https://spinroot.com/spin/Man/
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Final

FOLDER: Final = Path(__file__).parent
DEPTH: Final = 2_000_000
_DEFECT = re.compile(r"^pan:1: (.*?) \(at depth", re.MULTILINE)
_STATES = re.compile(r"^ *(\d+) states, stored", re.MULTILINE)
_REACHED = re.compile(r"depth reached (\d+)")
_INCOMPLETE = ("bound", "truncated", "max search depth too small", "out of memory")


class SpinSearch(Enum):
    """How a run searches. Values: options of gcc, of the search, and the size of its table (log2)."""

    SAFETY = (("-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", "-DMEMLIM=4000"), (), 24)
    """Every state, for a broken assertion."""
    LIVENESS = (("-DCOLLAPSE", "-DMEMLIM=4000"), ("-a",), 24)
    """Every state, for a run that never comes to the end that the claim at the foot of the model names."""
    BITSTATE = (("-DSAFETY", "-DNOCLAIM", "-DBITSTATE"), (), 30)
    """States known by two bits each, for an assertion: it may miss some, and reaches further."""


class SpinMissing(Exception):
    """Spin or gcc is not installed."""


class SpinFailed(Exception):
    """Spin or gcc did not take the model, or a search ended early."""


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One run. `defines`: the model's bounds. `breaks`: a part of the assertion that must be found broken
    (`cycle` for a run that never ends well), None where nothing may be found."""

    model: str
    search: SpinSearch
    defines: tuple[str, ...]
    breaks: str | None = None

    @property
    def mutant(self) -> str | None:
        return next((name.removeprefix("MUTANT_") for name in self.defines if "MUTANT_" in name), None)


@dataclass(frozen=True, slots=True)
class Searched:
    """The outcome of a run. `defect` is what Spin found, None for nothing; times in seconds."""

    run: ModelRun
    defect: str | None
    states: int
    depth: int
    seconds: float

    @property
    def as_expected(self) -> bool:
        if self.run.breaks is None or self.defect is None:
            return self.run.breaks is self.defect
        return self.run.breaks in self.defect


def _runs(model: str, search: SpinSearch, *bounds: str) -> tuple[ModelRun, ...]:
    return tuple(ModelRun(model, search, tuple(bound.split())) for bound in bounds)


def _mutants(model: str, search: SpinSearch, bounds: str, **breaks: str) -> tuple[ModelRun, ...]:
    return tuple(
        ModelRun(model, search, (*bounds.split(), f"MUTANT_{name}"), broken)
        for name, broken in breaks.items()
    )


QUICK: Final = (
    *_runs("session", SpinSearch.SAFETY, "RESTARTS=1 FAULTS=1"),
    *_runs("session", SpinSearch.LIVENESS, "RESTARTS=1 FAULTS=0"),
    *_runs("passage", SpinSearch.SAFETY, "RESTARTS=1 RESETS=0 HURRY=1"),
    *_runs("passage", SpinSearch.LIVENESS, "RESTARTS=1 RESETS=0 HURRY=0"),
)
"""A few seconds: what `make test` runs."""

WHOLE: Final = (
    *_runs(
        "session",
        SpinSearch.SAFETY,
        "RESTARTS=2 FAULTS=1",
        "RESTARTS=1 FAULTS=2",
        "RESTARTS=0 FAULTS=0 REPLAYS=1",
        "RESTARTS=1 FAULTS=0 REPLAYS=1 REPLAY_ALL",
    ),
    *_runs("session", SpinSearch.LIVENESS, "RESTARTS=1 FAULTS=1", "RESTARTS=2 FAULTS=0"),
    *_runs("session", SpinSearch.BITSTATE, "RESTARTS=3 FAULTS=0"),
    *_runs(
        "passage",
        SpinSearch.SAFETY,
        "RESTARTS=2 RESETS=1 HURRY=1",
        "RESTARTS=1 RESETS=0 HURRY=1 ROLLBACKS=1",
        "RESTARTS=1 RESETS=0 HURRY=0 FORGED=1",
        "RESTARTS=0 RESETS=1 HURRY=0 FORGED=2",
    ),
    *_runs(
        "passage",
        SpinSearch.LIVENESS,
        "RESTARTS=1 RESETS=1 HURRY=1",
        "RESTARTS=0 RESETS=1 HURRY=0 FORGED=1",
    ),
    *_runs("passage", SpinSearch.BITSTATE, "REQUESTS=3 RESTARTS=1 RESETS=1 HURRY=0"),
)

MUTANTS: Final = (
    *_mutants(
        "session",
        SpinSearch.SAFETY,
        "RESTARTS=1 FAULTS=1",
        ANY_RSTACK="whole==tag",
        DATA_WHILE_RESETTING="whole==tag",
        MID_NOT_COMPARED="mid==expected",
        TAG_KEPT="expected",
    ),
    *_mutants(
        "session",
        SpinSearch.SAFETY,
        "RESTARTS=0 FAULTS=0 REPLAYS=1",
        SESS_NOT_COMPARED="whole==tag",
        FIRST_BYTE_REPEATED="whole==tag",
    ),
    *_mutants(
        "session",
        SpinSearch.SAFETY,
        "RESTARTS=1 FAULTS=0 REPLAYS=1 REPLAY_ALL",
        NONCE_NOT_COMPARED="nonce",
        PROOF_NOT_AWAITED="proven[me]",
    ),
    *_mutants(
        "session",
        SpinSearch.LIVENESS,
        "RESTARTS=0 FAULTS=1",
        NO_RETRANSMISSION="cycle",
        RECEIVER_KEPT="cycle",
        RST_ONCE="cycle",
    ),
    *_mutants(
        "passage",
        SpinSearch.SAFETY,
        "RESTARTS=1 RESETS=1 HURRY=1",
        END_FORGOTTEN="told",
        HAND_FORGOTTEN="hand_of",
        HAND_NOT_SPENT="hand_of",
        OPEN_NOT_COMPARED="over",
        OPENED_BEFORE_DURABLE="actuated",
        PUSHED="session_of",
        REQUEST_FORGOTTEN="verdict_of[deciding]",
        SENT_BEFORE_DURABLE="verdict_of[opening]",
        UNKNOWN_WHILE_OPEN="disowned",
    ),
    *_mutants(
        "passage", SpinSearch.SAFETY, "RESTARTS=0 RESETS=1 HURRY=0 FORGED=1", COPY_JUDGED_AGAIN="actuated"
    ),
    *_mutants(
        "passage", SpinSearch.SAFETY, "RESTARTS=1 RESETS=0 HURRY=0 ROLLBACKS=1", SEQ_NOT_COMPARED="acted_last"
    ),
    *_mutants("passage", SpinSearch.LIVENESS, "RESTARTS=1 RESETS=1 HURRY=0", NO_RESOLVE="cycle"),
)


def searched(run: ModelRun) -> Searched:
    """Compile and search. Raises SpinMissing, SpinFailed."""
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            raise SpinMissing(f"{program} is not installed (Debian's packages spin and gcc)")
    begun = monotonic()
    with tempfile.TemporaryDirectory(prefix="spin-") as place:
        options, arguments, table = run.search.value
        _must(place, "spin", "-a", *(f"-D{name}" for name in run.defines), str(FOLDER / f"{run.model}.pml"))
        # A small search and a mutant end within thousands of states: compiling is what takes long.
        level, table = ("-O2", table) if run in WHOLE else ("-O0", 20)
        _must(place, "gcc", level, "-w", *options, "-o", "pan", "pan.c")
        # -E: a state in which nothing can happen is judged by the claims, not for itself.
        said = _must(place, "./pan", "-E", *arguments, f"-m{DEPTH}", f"-w{table}")
    if any(word in said for word in _INCOMPLETE):
        raise SpinFailed(f"the search of {run} is not complete:\n{said}")
    states, depth, defect = _STATES.search(said), _REACHED.search(said), _DEFECT.search(said)
    if states is None or depth is None:
        raise SpinFailed(f"cannot read what the search of {run} printed:\n{said}")
    return Searched(
        run,
        None if defect is None else defect[1],
        int(states[1]),
        int(depth[1]),
        monotonic() - begun,
    )


def table_of(found: Iterator[Searched]) -> Iterator[str]:
    """A line for each run, as it ends."""
    yield f"{'model':8} {'search':9} {'bounds':46} {'states':>10} {'depth':>6} {'seconds':>8}  found"
    for one in found:
        bounds = " ".join(name for name in one.run.defines if "MUTANT_" not in name)
        name = bounds if one.run.mutant is None else f"mutant {one.run.mutant}"
        verdict = "nothing" if one.defect is None else one.defect
        wrong = "" if one.as_expected else "  <-- NOT AS EXPECTED"
        yield (
            f"{one.run.model:8} {one.run.search.name.lower():9} {name:46} {one.states:>10,} {one.depth:>6,} "
            f"{one.seconds:>8.1f}  {verdict}{wrong}"
        )


def _must(place: str, *command: str) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    # Spin writes a parser even for a model that it could not read.
    if done.returncode != 0 or "Error:" in said:
        raise SpinFailed(f"{' '.join(command)} failed:\n{said}")
    return said
