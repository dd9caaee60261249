"""Which program makes the byte code of a package."""

import sys
from pathlib import Path

import pytest

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.interpreters import interpreter, minor_version


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(folder: Path, says: str) -> Path:
    program = folder / "python3.99"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return program


def test_the_one_that_runs_makes_its_own(tmp_path: Path) -> None:
    assert interpreter(minor_version(), "bookworm", tmp_path) == Path(sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_another_is_taken_from_path(on_path: Path) -> None:
    program = put(on_path, "echo 3.99")
    assert interpreter("3.99", "trixie", on_path / "cache") == program


@pytest.mark.parametrize("says", ["echo 3.98", "echo 'pyenv: python3.99: command not found' >&2; exit 127"])
def test_what_only_has_its_name_is_not_taken(on_path: Path, says: str) -> None:
    put(on_path, says)
    with pytest.raises(PackagingError, match=r"put a python3\.99 on PATH"):
        interpreter("3.99", "trixie", on_path / "cache")
