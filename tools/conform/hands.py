"""Where hands come from when a device is tested: a person at the device, or a program that shows one.

`show` never waits: while a hand comes, the session has to be kept alive.
"""

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

HAND_PROGRAM_S = 60.0
"""A program that shows a hand and is not done by then has failed."""
PERSON_MS, PROGRAM_MS = 8_000, 3_000


class HandError(Exception):
    """The program that shows hands failed; the message says how."""


@dataclass(frozen=True)
class OperatorHand:
    """Asks a person; `tell` prints a line, `confirm` waits for Enter."""

    tell: Callable[[str], None]
    confirm: Callable[[str], None]
    settles_ms: int = PERSON_MS

    def show(self) -> None:
        self.tell("Hold a palm before the device now, and keep it there.")

    def away(self) -> None:
        self.confirm("Take the hand away, then press Enter.")


@dataclass
class ProgramHand:
    """Starts `COMMAND show`, and later waits for it and runs `COMMAND away`."""

    command: str
    settles_ms: int = PROGRAM_MS
    _showing: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def show(self) -> None:
        self._showing = self._start("show")

    def away(self) -> None:
        if self._showing is not None:
            self._end("show", self._showing)
        self._showing = None
        self._end("away", self._start("away"))

    def _start(self, what: str) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen([*shlex.split(self.command), what])
        except (OSError, ValueError) as error:
            raise HandError(f"--hand-source: {self.command} {what}: {error}") from None

    def _end(self, what: str, process: "subprocess.Popen[bytes]") -> None:
        try:
            code = process.wait(HAND_PROGRAM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise HandError(
                f"--hand-source: {self.command} {what} took over {HAND_PROGRAM_S:.0f} s"
            ) from None
        if code != 0:
            raise HandError(f"--hand-source: {self.command} {what} ended with exit code {code}")
