"""Programs that are started again when they end, as systemd does it."""

import signal
import time
from pathlib import Path

from tools.rig.demo.programs import Program

RESTART_AFTER_S = 1.0


class Supervised:
    """One program under its service manager; `look` is called again and again."""

    def __init__(self, name: str, command: list[str], logs: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.starts = 0
        self.unexpected: list[int] = []
        """Unexpected exit codes."""
        self._command = command
        self._logs = logs
        self._environment = environment
        self._expected = False
        self._down_until_s: float | None = None
        self.program = self._start()

    def _start(self) -> Program:
        self.starts += 1
        self._expected = False
        return Program(self.name, self._command, self._logs, self._environment)

    def kill(self, number: signal.Signals = signal.SIGKILL, *, stay_down_s: float = 0.0) -> None:
        """End it, and keep it down for a while."""
        self._expected = True
        self._down_until_s = time.monotonic() + max(stay_down_s, RESTART_AFTER_S)
        self.program.signal(number)

    def look(self) -> None:
        """Start it again when it has ended."""
        code = self.program.exit_code
        if code is None:
            return
        now_s = time.monotonic()
        if self._down_until_s is None:
            self._down_until_s = now_s + RESTART_AFTER_S
        if not self._expected:
            self.unexpected.append(code)
            self._expected = True
        if now_s >= self._down_until_s:
            self._down_until_s = None
            self.program = self._start()

    def stop(self) -> int:
        return self.program.stop()
