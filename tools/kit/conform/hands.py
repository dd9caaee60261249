"""Where hands, and deeds that the cable cannot do, come from: a person at the device, or a program.

`show` never waits: while a hand comes, the session has to be kept alive.
"""

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tools.kit.conform.end_under_test import DEEDS, Deed

HAND_PROGRAM_S = 60.0
"""A program that shows a hand and is not done by then has failed."""
PERSON_MS, PROGRAM_MS = 8_000, 3_000
CANNOT = 3
"""Exit code of a hook program that does not do this deed."""


class HandError(Exception):
    """A program that shows hands or does a deed failed; the message says how."""


@dataclass(frozen=True)
class OperatorHand:
    """Asks a person; `tell` prints a line, `confirm` waits for Enter."""

    tell: Callable[[str], None]
    confirm: Callable[[str], None]
    settles_ms: int = PERSON_MS
    tireless: bool = False

    def show(self) -> None:
        self.tell("Hold a palm before the device now, and keep it there.")

    def away(self) -> Callable[[], bool]:
        """Waits: every rule begins a session of its own after this."""
        self.confirm("Take the hand away, then press Enter.")
        return lambda: True


@dataclass
class ProgramHand:
    """Starts `COMMAND show`, and `COMMAND away` once that has ended and the hand is to leave."""

    command: str
    settles_ms: int = PROGRAM_MS
    tireless: bool = True
    _showing: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def show(self) -> None:
        self._showing = self._start("show")

    def away(self) -> Callable[[], bool]:
        steps = self._leaving()
        return lambda: next(steps, True)

    def _leaving(self) -> Iterator[bool]:
        """False as long as the hand is there."""
        if self._showing is not None:
            yield from self._ending("show", self._showing)
        self._showing = None
        yield from self._ending("away", self._start("away"))

    def _start(self, what: str) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen([*shlex.split(self.command), what])
        except (OSError, ValueError) as error:
            raise HandError(f"--hand-source: {self.command} {what}: {error}") from None

    def _ending(self, what: str, process: "subprocess.Popen[bytes]") -> Iterator[bool]:
        called, until_s = f"--hand-source: {self.command} {what}", time.monotonic() + HAND_PROGRAM_S
        while (code := _code_of(process, until_s, called)) is None:
            yield False
        if code != 0:
            raise HandError(f"{called} ended with exit code {code}")


def _code_of(process: "subprocess.Popen[bytes]", until_s: float, called: str) -> int | None:
    """Its exit code, None while it is at work; raises HandError when it is so for too long."""
    code = process.poll()
    if code is None and time.monotonic() > until_s:
        process.kill()
        process.wait()
        raise HandError(f"{called} took over {HAND_PROGRAM_S:.0f} s")
    return code


@dataclass(frozen=True)
class ProgramHook:
    """Runs `COMMAND DEED`: exit code 0 when it is done, 3 when it cannot be done here."""

    command: str

    def begin(self, deed: Deed) -> Callable[[], bool | None]:
        try:
            process = subprocess.Popen([*shlex.split(self.command), deed.value])
        except (OSError, ValueError) as error:
            raise HandError(f"--hook: {self.command} {deed}: {error}") from None
        until_s = time.monotonic() + HAND_PROGRAM_S

        def finished() -> bool | None:
            code = _code_of(process, until_s, f"--hook: {self.command} {deed}")
            if code not in (None, 0, CANNOT):
                raise HandError(f"--hook: {self.command} {deed} ended with exit code {code}")
            return None if code is None else code == 0

        return finished


@dataclass(frozen=True)
class OperatorHook:
    """Asks a person; `confirm` says what to do, waits, and answers whether it was done."""

    confirm: Callable[[str], bool]

    def begin(self, deed: Deed) -> Callable[[], bool | None]:
        said: list[bool] = []
        question = f"Please {DEEDS[deed]}. Is it done?"
        # A thread, because the session has to be kept alive while the person is at work.
        asking = threading.Thread(target=lambda: said.append(self.confirm(question)), daemon=True)
        asking.start()

        def finished() -> bool | None:
            if asking.is_alive():
                return None
            return said == [True]

        return finished
