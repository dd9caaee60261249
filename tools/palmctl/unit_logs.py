"""The daemons' log as journald keeps it, and clear words where there is no journald."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.palmctl.errors import LogsUnavailable, NoJournal

UNITS = ("palmd", "palm-syncd")
BOOTED = Path("/run/systemd/system")
JOURNALS = (Path("/run/log/journal"), Path("/var/log/journal"))
_MOST_CHARACTERS = 500
_OWN_LEVELS = {"CRITICAL": "crit", "ERROR": "err", "WARNING": "warning"}
_LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `at_ms`: epoch milliseconds."""

    at_ms: int
    unit: str
    level: str
    text: str


def journalctl(units: Sequence[str], *options: str) -> list[str]:
    """The command that shows these units, for `read_line`. Raises LogsUnavailable."""
    program = shutil.which("journalctl")
    kept = BOOTED.is_dir() or any(next(place.glob("*/*.journal"), None) for place in JOURNALS)
    if program is None or not kept:
        raise NoJournal(
            "journald does not run here; palmd and palm-syncd write their log to standard error: look where "
            "the program that started them keeps it (a container: docker logs NAME)"
        )
    # All: of a line over 4,096 bytes it would say null.
    shown = ("--quiet", "--no-pager", "--output=json", "--all")
    return [program, *shown, *(f"--unit={unit}.service" for unit in units), *options]


@contextmanager
def following(command: Sequence[str]) -> Iterator[Iterator[LogLine]]:
    """The lines of a `journalctl` command while it runs; ended with the block."""
    with os.fdopen(os.memfd_create("complaints"), "w+") as complaints:  # in memory: a disk may be full
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
        try:
            lines = process.stdout or ()
            yield (line for text in lines if (line := read_line(text)) is not None)
            if process.wait() != 0:
                complaints.seek(0)
                why = complaints.readline(_MOST_CHARACTERS).strip() or f"it ended with {process.returncode}"
                raise LogsUnavailable(
                    f"journalctl failed ({why}); correct --since, or run this as root or as a member of "
                    "systemd-journal"
                )
        finally:
            process.terminate()
            process.wait()


def read_line(text: str) -> LogLine | None:
    """One line of `journalctl --output=json`; None for what is none."""
    try:
        entry = json.loads(text)
        message = entry.get("MESSAGE", "")
        if isinstance(message, list):  # bytes that are no text
            message = bytes(message).decode("utf-8", "replace")
        # What the service manager says of a unit is its own line: it names the unit in UNIT.
        unit = str(entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or "").removesuffix(".service")
        # The daemons write plain lines, which journald takes for information, even with another first word.
        level = _OWN_LEVELS.get(str(message).partition(" ")[0]) or _LEVELS[int(entry.get("PRIORITY", 6))]
        return LogLine(int(entry["__REALTIME_TIMESTAMP"]) // 1000, unit, level, str(message))
    except (ValueError, ArithmeticError, RecursionError, KeyError, TypeError, IndexError, AttributeError):
        return None
