"""The access log: one line an answer, by route template, never a query, a body or a credential.

Lines are written together, a few times a second: a write for every line costs a tenth of a request.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Final, TextIO

FLUSH_S: Final = 0.2
_LINES: Final = 500


@dataclass(frozen=True, slots=True)
class Served:
    """What is told of a request once it is answered."""

    method: str
    template: str
    status: int
    took_s: float
    request_id: str


class AccessLog:
    """Writes lines to a stream; used on a running loop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._second, self._stamp = 0, ""
        self._flushing: asyncio.TimerHandle | None = None

    def note(self, served: Served) -> None:
        """Add the line of one answer."""
        at_ms = time.time_ns() // 1_000_000
        if at_ms // 1000 != self._second:
            self._second = at_ms // 1000
            self._stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._second))
        self._lines.append(
            f"{self._stamp},{at_ms % 1000:03d} palm.cloud.access {served.method} {served.template} "
            f"{served.status} {served.took_s * 1000:.1f} ms {served.request_id}\n"
        )
        if len(self._lines) >= _LINES:
            self.flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what is there."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        lines, self._lines = self._lines, []
        # Where the log's own disk is full the lines are lost; requests are answered all the same.
        with contextlib.suppress(OSError):
            self._stream.write("".join(lines))
            self._stream.flush()
