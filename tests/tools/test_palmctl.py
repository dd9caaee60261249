"""The command line as a whole: every command answers --help, and at once."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tools.palmctl.main import main


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group below `command`, as it is typed."""
    if not isinstance(command, click.Group):
        return [path]
    context = click.Context(command)
    found = [path]
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += commands(child, (*path, name))
    return found


@pytest.mark.parametrize("words", commands(main), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.output


def test_help_imports_nothing_heavy() -> None:
    """What makes --help slow is imports; a timing would say the same less reliably."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tools.palmctl.main import main\n"
        "CliRunner().invoke(main, ['--help'])\n"
        "print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "cv2", "faiss", "onnxruntime", "httpx", "starlette", "pydantic", "nacl", "sqlite_utils"}
    assert heavy.isdisjoint(done.stdout.split())


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["nonsense"]).exit_code == 2
