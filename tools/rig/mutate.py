"""`make mutate`: a sample of small faults in the cores, each of which a test must find.

One fault at a time is put into a copy of the checkout: a comparison turned round or moved by one, `and` for
`or`, a condition negated, a number off by one, a statement left out. Then the quickest tests of that file
run. A fault that no test finds is printed with its line; some change nothing that can be seen.

    python -m tools.rig.mutate --each 8 --seed 1 [FILE …]
"""

import ast
import copy
import difflib
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("cloud_client", "device", "gallery", "link1", "models", "tools", "tests", "docs")
TESTS: Final = {
    "link1/link.py": ("tests/link1/test_link.py",),
    "link1/channels.py": ("tests/link1/test_link.py", "tests/link1/test_no_room.py"),
    "link1/handshake.py": ("tests/link1/test_handshake.py", "tests/link1/test_device_end.py"),
    "device/passage/engine.py": ("tests/device/passage",),
    "device/passage/after_verdict.py": ("tests/device/passage",),
    "device/journal/journal.py": (
        "tests/device/journal/test_journal.py",
        "tests/device/journal/test_rollback.py",
    ),
    "gallery/stream.py": ("tests/gallery/test_gallery_stream.py",),
    "gallery/freshness.py": (
        "tests/gallery/test_gallery_freshness.py",
        "tests/gallery/test_freshness_clocks.py",
    ),
}
"""A core, and its quickest tests."""
TIME_LIMIT_S: Final = 300
_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
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
}


@dataclass(frozen=True, slots=True)
class PlantedMutant:
    """A file with one fault: the whole text, and the line that differs."""

    file: str
    text: str
    line: str


def faults_of(file: str, source: str) -> Iterator[PlantedMutant]:
    """Every fault that can be planted in a module, one at a time; `source` is its text."""
    tree = ast.parse(source)
    plain = ast.unparse(tree)
    for number, node in enumerate(ast.walk(tree)):
        for kind in range(_kinds(node)):
            changed = copy.deepcopy(tree)
            _plant(next(n for at, n in enumerate(ast.walk(changed)) if at == number), kind)
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text != plain:
                different = difflib.ndiff(plain.splitlines(), text.splitlines())
                line = " → ".join(one[2:].strip() for one in different if one[:1] in "+-")
                yield PlantedMutant(file, text, line)


def _kinds(node: ast.AST) -> int:
    """How many faults can be planted in a node."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _TURNED:
            return 1
        case ast.BoolOp() | ast.If() | ast.IfExp():
            return 1
        case ast.Constant(value=bool()):
            return 1
        case ast.Constant(value=int()):
            return 1
        case ast.FunctionDef(body=body) | ast.For(body=body) | ast.With(body=body):
            return sum(_can_be_left_out(one) for one in body)
        case _:
            return 0


def _can_be_left_out(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False  # a docstring
        case ast.Expr() | ast.Assign() | ast.AugAssign():
            return True
        case _:
            return False


def _plant(node: ast.AST, kind: int) -> None:
    match node:
        case ast.Compare(ops=[op]):
            node.ops = [_TURNED[type(op)]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.FunctionDef() | ast.For() | ast.With():
            places = [place for place, one in enumerate(node.body) if _can_be_left_out(one)]
            node.body[places[kind]] = ast.Pass()
        case _:
            pass


def is_found(place: Path, fault: PlantedMutant) -> bool:
    """Whether the tests of the file fail with the fault in the copy `place`, whole again after it."""
    file = place / fault.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(fault.text, encoding="utf-8")
    try:
        return _tests_fail(place, fault.file)
    finally:
        file.write_text(sound, encoding="utf-8")


def _tests_fail(place: Path, file: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *TESTS[file]]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, timeout=TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


@click.command()
@click.argument("files", nargs=-1)
@click.option("--each", default=8, show_default=True, help="Faults in each file.")
@click.option("--seed", default=1, show_default=True, help="Which faults.")
def main(*, files: tuple[str, ...], each: int, seed: int) -> None:
    """Plant faults in a copy of the cores. Exit code 1: a test fails without a fault."""
    found = planted = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        place = Path(folder)
        for name in PACKAGES:
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "conftest.py"):
            shutil.copy(ROOT / name, place / name)
        for file in files or TESTS:
            if _tests_fail(place, file):
                raise click.ClickException(f"the tests of {file} fail without a fault")
            every = list(faults_of(file, (ROOT / file).read_text(encoding="utf-8")))
            for fault in random.Random(seed).sample(every, min(each, len(every))):  # noqa: S311
                planted += 1
                killed = is_found(place, fault)
                found += killed
                if not killed:
                    click.echo(f"not found: {file}: {fault.line}")
            click.echo(f"{file}: {len(every)} faults could be planted; so far {found} of {planted} found")


if __name__ == "__main__":
    main()
