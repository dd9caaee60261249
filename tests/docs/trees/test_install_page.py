"""docs/tutorials/INSTALL.md as it stands, on a Debian 12 and on a Debian 13 booted for it: `make deb-test`.

PALM_DOCS_RECORD=FILE writes the page with all that was printed into FILE, to take over what has changed.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.board_in_a_tree import Board
from tests.docs.first_hour import Learned, Place, serve_cloud, told_apart
from tests.docs.page_commands import DOCS, Block, Command, blocks_of, check_shown, rewritten
from tests.packaging.debian_tree import DEBIAN_TREES, EACH_RELEASE, Machine, booted, package_of, unpacked
from tools.rig.demo.programs import RunningPrograms
from tools.rig.packaging.debian_package import DebianRelease

pytestmark = [*DEBIAN_TREES, EACH_RELEASE]
PAGE = DOCS / "tutorials/INSTALL.md"


@pytest.fixture
def machine(release: DebianRelease) -> Iterator[Machine]:
    with unpacked("amd64", release, "first-hour") as root:
        package = package_of(release, "amd64")
        (root / "root" / package.name).hardlink_to(package)
        with booted(root, release) as running:
            yield running


def test_the_first_hour(machine: Machine, tmp_path: Path) -> None:
    learned = Learned()
    service = Place(tmp_path / "service", learned)
    learned["FOLDER"] = str(service.folder)
    elsewhere = "--config device.toml --state-dir state --runtime-dir run"
    bare = Place(service.folder, Learned(), elsewhere)
    board, stage = Board(machine, learned), RunningPrograms(tmp_path)
    printed: list[tuple[Block, list[str]]] = []
    try:
        serve_cloud(stage, service.folder, learned)
        places: dict[str, Callable[[Command], str]] = {
            "board": board.run,
            "board, on a terminal": board.run_on_terminal,
            "validator, runs on": board.run_on,
            "service": service.run,
            "bare board": lambda command: on_the_bare_board(bare, service, command),
        }
        for block in blocks_of(PAGE):
            outputs = []
            if block.kind == "said":
                outputs.append(board.said())
            for command in block.commands:
                outputs.append(places[block.place](command))
                print(f"{block.place}$ {command.text}\n{outputs[-1]}", flush=True)
            printed.append((block, outputs))
    finally:
        board.stop()
        stage.stop()
    keep_or_check(learned, printed)


def on_the_bare_board(bare: Place, service: Place, command: Command) -> str:
    """The other board of the page; the stick is a file in the folder of both."""
    bare.learned["ROOT_KID"] = service.learned.get("ROOT_KID", "")
    told = bare.run(command)
    service.learned["FINGERPRINT"] = bare.learned["FINGERPRINT"]
    return told


def keep_or_check(learned: Learned, printed: list[tuple[Block, list[str]]]) -> None:
    told = [(block, [told_apart(learned, output) for output in outputs]) for block, outputs in printed]
    if record := os.environ.get("PALM_DOCS_RECORD"):
        left = iter(told)
        Path(record).write_text(rewritten(PAGE, lambda _: next(left)[1]), encoding="utf-8")
    for block, outputs in told:
        lines = [command.shown for command in block.commands] or [tuple(block.shown.splitlines())]
        for shown, output in zip(lines, outputs, strict=True):
            check_shown(shown, output)
