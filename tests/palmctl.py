"""`palmctl`, as tests call it: in a process of its own, or in this one."""

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner

from tools.palmctl.main import main

PALMCTL = [sys.executable, "-m", "tools.palmctl.main"]


def ran(*words: str, timeout_s: float = 60.0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own, once it has ended, and what it said."""
    return subprocess.run(
        [*PALMCTL, *words], capture_output=True, text=True, timeout=timeout_s, check=False, **options
    )


def printed(*words: str) -> Any:
    """What a command prints with ``--json``; it must succeed."""
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
