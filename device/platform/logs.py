"""A bound on the log: a repeated message is written a few times a minute, and then counted.

A loose cable or a failing disk would otherwise write the same line for as long as it lasts, and displace
everything else from the machine's journal.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST: Final = 5
WINDOW_S: Final = 60.0
MAX_KINDS: Final = 512
"""Kinds of messages remembered at a time; the oldest is forgotten first."""
LONGEST_LINE: Final = 400
"""Characters kept of a line that a library writes."""

_STDERR: Final = 2
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kind:
    since_s: float
    said: int = 0
    left_out: int = 0


class RepeatLimit(logging.Filter):
    """Lets `BURST` messages of a kind pass in `WINDOW_S`; the next one later says how many were left out.

    A kind is a logger, a level and the message before its values are put in.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        key = (record.name, record.levelno, record.getMessage() if text == "%s" else text)
        now_s = self._now_s()
        kind = self._kinds.get(key)
        if kind is None or now_s - kind.since_s >= WINDOW_S:
            left_out = kind.left_out if kind is not None else 0
            self._kinds.pop(key, None)
            kind = self._kinds[key] = _Kind(now_s)
            if len(self._kinds) > MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]
            if left_out:
                record.msg, record.args = f"{record.getMessage()} ({left_out} more like it left out)", None
        kind.said += 1
        if kind.said > BURST:
            kind.left_out += 1
            return False
        return True


def log_to_stderr() -> None:
    """Write the log of this daemon to standard error, with the bound."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatLimit())
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=[handler])


def bound_libraries() -> None:
    """Put what libraries write to standard error into this log, and so under its bound: libjpeg and FFmpeg
    write a line for every damaged picture. A crash is still written there directly, with its stacks."""
    own = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(own)
    sys.stderr = own
    faulthandler.enable(own)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # a full pipe loses a line, and holds up no library
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_relay, args=(reading,), name="stderr", daemon=True).start()


def release_libraries() -> None:
    """Before another program takes the place of this process: its standard error is the one from before."""
    os.dup2(sys.stderr.fileno(), _STDERR)


def _relay(reading: int) -> None:
    while said := os.read(reading, 65_536):
        for line in said.decode("utf-8", "replace").splitlines():
            if line.strip():
                _log.warning("a library says: %s", line.strip()[:LONGEST_LINE])
    os.close(reading)
