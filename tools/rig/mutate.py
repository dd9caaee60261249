"""`make mutate`: a share of all small faults in the cores, each of which a test must find.

One fault at a time is put into a copy of the checkout: a comparison turned round or moved by one, `and` for
`or`, a condition negated, plus for minus, a number off by one, a statement left out. Then the quick tests of
that core run in a fork of a process that has imported everything but the project, those first that found the
last faults of that file. A fault that no test finds is printed with its line.

No fault is put where no one could see it: texts of errors, log lines, annotations and decorators.

    python -m tools.rig.mutate --share 0.25 --seed 1 [FILE …]
"""

import ast
import contextlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import pytest
from hypothesis import Phase, settings

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("cloud_client", "device", "gallery", "link1", "models", "tools", "tests", "docs")
CORES: Final = {
    # A program with AddressSanitizer does not start under the limit of memory.
    "link1/*.py": ("tests/link1", "--ignore", "tests/link1/test_c_validator.py"),
    "device/passage/*.py": ("tests/device/passage",),
    "device/journal/*.py": ("tests/device/journal", "tests/device/mail", "tests/device/wipe"),
    "gallery/stream.py gallery/freshness.py": ("tests/gallery",),
    "device/updates/state.py": ("tests/device/updates",),
}
"""The files of a core, and the tests that have to find a fault in them."""
SLOWEST_S: Final = 3.0
"""Tests that take longer are left out."""
LONGEST_TEST_S: Final = 10
"""Processor time of one of the quick tests: with the fault it goes on for ever."""
LIMIT_S: Final = 600
LEAST_FOUND: Final = 0.9
_TURNED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True, slots=True)
class PlantedMutant:
    """A fault: `other` in the place of the node that is at `field` (and `index`, in a list) of `parent`."""

    file: str
    tree: ast.Module
    parent: ast.AST
    field: str
    index: int | None
    other: ast.AST

    @property
    def node(self) -> Any:
        there = getattr(self.parent, self.field)
        return there if self.index is None else there[self.index]

    def __str__(self) -> str:
        return f"{ast.unparse(self.node)} → {ast.unparse(self.other)}"

    def is_drawn(self, seed: int, share: float) -> bool:
        """Whether it is in the sample; other faults, files and lines have no part in that."""
        return random.Random(f"{seed} {self.file} {self}").random() < share  # noqa: S311

    def text(self) -> str:
        """The whole file with the fault."""
        sound = self.node
        self._put(self.other)
        try:
            return ast.unparse(self.tree)
        finally:
            self._put(sound)

    def _put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def faults_of(file: str, source: str) -> Iterator[PlantedMutant]:
    """Every fault that can be planted in a module, one at a time; `source` is its text."""
    tree = ast.parse(source)
    waiting: list[ast.AST] = [tree]
    while waiting:
        parent = waiting.pop()
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(node, ast.AST) and not _unseen(field, node):
                    waiting.append(node)
                    for other in _others(parent, field, node):
                        yield PlantedMutant(file, tree, parent, field, index, other)


def _unseen(field: str, node: ast.AST) -> bool:
    """Whether no fault in the node could be seen from outside."""
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case _:
            return field in ("decorator_list", "annotation", "returns")


def _others(parent: ast.AST, field: str, node: ast.AST) -> Iterator[ast.AST]:
    """What can be put in the place of a node."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Raise():
            if not isinstance(parent, ast.Module | ast.ClassDef):
                yield ast.Pass()
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
            pass  # turned round, it is negated
        case ast.expr() if field == "test":
            yield ast.UnaryOp(ast.Not(), node)
        case _:
            pass
    yield from _turned_round(node)


def _turned_round(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in _TURNED:
            yield ast.Compare(left, [_turned(op)], right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(_turned(op), values)
        case ast.BinOp(left=left, op=op, right=after) if type(op) in _TURNED:
            yield ast.BinOp(left, _turned(op), after)
        case ast.AugAssign(target=target, op=op, value=after) if type(op) in _TURNED:
            yield ast.AugAssign(target, _turned(op), after)
        case _:
            pass


def _turned(op: ast.AST) -> Any:
    return _TURNED[type(op)]()


class QuickTests:
    """The tests of a core, in a copy of the checkout; each run is a fork of this process."""

    def __init__(self, place: Path, folders: tuple[str, ...]) -> None:
        """Raises ClickException when a test fails without a fault."""
        self._place = place
        self._command = [
            *folders,
            "-n0",
            "-xq",
            "-p",
            "no:cacheprovider",
            "-o",
            "timeout=60",
            "-m",
            "not slow and not long",
        ]
        self._order: list[str] = []
        told = self._run()
        if failed := told.get("failed", "they came to no end"):
            raise click.ClickException(f"the tests in {folders} fail without a fault: {failed}")
        took_s = told["took_s"]
        self._order = sorted((test for test in took_s if took_s[test] < SLOWEST_S), key=took_s.__getitem__)
        for name in told["modules"]:
            if name.partition(".")[0] not in PACKAGES:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def find(self, fault: PlantedMutant, changed_at: int) -> bool:
        """Whether a test fails with the fault in the file, which is whole again after it.

        `changed_at` differs in each call: Python tells a changed file by its size and the second.
        """
        file = self._place / fault.file
        sound = file.read_bytes()
        file.write_text(fault.text(), encoding="utf-8")
        os.utime(file, (changed_at, changed_at))
        try:
            told = self._run()
        finally:
            file.write_bytes(sound)
        failed = told.get("failed", "no end")
        if failed in self._order:
            self._order.remove(failed)
            self._order.insert(0, failed)
        return bool(failed)

    def _run(self) -> dict[str, Any]:
        """What the tests tell; empty when they did not come to their end."""
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            os.setsid()
            self._run_here(theirs)
        os.close(theirs)
        told, until = b"", time.monotonic() + LIMIT_S
        while select.select([ours], [], [], max(0, until - time.monotonic()))[0]:
            more = os.read(ours, 1 << 20)
            if not more:
                break
            told += more
        os.close(ours)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what its tests started
        os.waitpid(child, 0)
        return json.loads(told) if told.endswith(b"}") else {}

    def _run_here(self, tell: int) -> None:
        try:
            os.chdir(self._place)
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(quiet, stream)
            for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
                del sys.modules[name]
            sys.path[:] = [str(self._place), *(one for one in sys.path if Path(one or ".").resolve() != ROOT)]
            told = _RunTests(self._order)
            ended = pytest.main(self._command, plugins=[told])
            failed = told.failed or ("" if ended == 0 else "collection")
            answer = {"failed": failed, "took_s": told.took_s, "modules": [] if failed else list(sys.modules)}
            os.write(tell, json.dumps(answer).encode())
        finally:
            os._exit(0)


class _RunTests:
    """A pytest plugin: runs the tests of `order` in that order, or all, and keeps how long each took."""

    def __init__(self, order: list[str]) -> None:
        self.failed = ""
        self.took_s: defaultdict[str, float] = defaultdict(float)
        self._order = order

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order:
            place = {test: at for at, test in enumerate(self._order)}
            items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])

    def pytest_runtest_logstart(self) -> None:
        if self._order:
            signal.setitimer(signal.ITIMER_PROF, LONGEST_TEST_S)  # ends the process

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took_s[report.nodeid] += report.duration
        if report.failed:
            self.failed = report.nodeid


@click.command()
@click.argument("files", nargs=-1)
@click.option("--share", default=0.25, show_default=True, help="How many of all faults, 0 to 1.")
@click.option("--seed", default=1, show_default=True, help="Which faults.")
def main(*, files: tuple[str, ...], share: float, seed: int) -> None:
    """Plant faults in a copy of the cores. Exit code 1: fewer than 90 % are found."""
    settings.register_profile(
        "mutate", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutate")
    total = planted = found = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        place = Path(folder)
        for name in PACKAGES:
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / name, place / name)
        for core, folders in CORES.items():
            every = [
                fault
                for pattern in core.split()
                for path in sorted(ROOT.glob(pattern))
                for fault in faults_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
                if not files or fault.file in files
            ]
            drawn = [fault for fault in every if fault.is_drawn(seed, share)]
            if not drawn:
                continue
            tests, found_here = QuickTests(place, folders), 0
            for at, fault in enumerate(drawn, planted):
                is_found = tests.find(fault, changed_at=at)
                found_here += is_found
                if not is_found:
                    click.echo(f"not found: {fault.file}:{fault.node.lineno}: {fault}")
            click.echo(f"{core}: {len(every)} faults, {len(drawn)} planted, {found_here} found")
            total, planted, found = total + len(every), planted + len(drawn), found + found_here
    click.echo(f"{total} faults, {planted} planted, {found} found")
    sys.exit(found < LEAST_FOUND * planted)


if __name__ == "__main__":
    main()
