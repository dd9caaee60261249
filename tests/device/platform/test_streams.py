"""Programs that begin without their standard streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
[device]
id = "gate-7"
gate_id = "g7"
dbd_id = "d7"
"""
STREAMS_AFTER = """
import os, sys
from {module} import main
main([*sys.argv[2:]])
open(sys.argv[1], "w").write("".join(os.readlink(f"/proc/self/fd/{{number}}") + "\\n" for number in range(3)))
"""


@pytest.mark.parametrize(
    ("module", "options"), [("device.core.palmd", ("--check",)), ("device.syncd.main", ())], ids=str
)
def test_a_daemon_gives_no_file_the_number_of_a_closed_stream(
    module: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """A library that writes to standard error would write into it."""
    config, found = tmp_path / "device.toml", tmp_path / "found"
    config.write_text(CONFIG)
    program = [sys.executable, "-c", STREAMS_AFTER.format(module=module), str(found)]
    subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *program, *options, "--config", config],
        check=True,
        timeout=60,
    )
    assert found.read_text().split() == [os.devnull] * 3
