"""The programs of the demonstration: started as a user would start them, and always stopped."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tools.rig.demo.errors import DemoFailed

STOP_AFTER_S = 10.0
"""A program that has not ended so long after SIGTERM is killed, and that is reported."""


def module(name: str, *arguments: str) -> list[str]:
    """The command line of one of the project's programs in this very environment."""
    return [sys.executable, "-m", name, *arguments]


def palmctl(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Run `palmctl … --json` to its end and return the object it printed."""
    command = module("tools.palmctl.main", *arguments, "--json")
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise DemoFailed(
            f"palmctl {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr.strip()}"
        )
    answer = json.loads(done.stdout)
    if not isinstance(answer, dict):
        raise DemoFailed(f"palmctl {' '.join(arguments[:2])} printed no JSON object")
    return answer


class Program:
    """A running program. Its stderr goes to a log; lines on its stdout are JSON objects."""

    def __init__(
        self, name: str, command: list[str], logs: Path, environment: dict[str, str], stdin: str | None = None
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | environment,
            )
        if stdin is not None and self._process.stdin is not None:
            self._process.stdin.write(stdin)
            self._process.stdin.close()
        self._reader = threading.Thread(target=self._read, name=f"{name}-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (PIPE was asked for above)
        with self.log.open("a", encoding="utf-8") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if line.startswith("{"):
                    self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_line(self, wanted: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        """The next JSON line that `wanted` takes; what comes before it is passed over."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise DemoFailed(
                    f"{self.name} did not say what was expected in {within_s:.0f} s; see {self.log}"
                ) from None
            if line is None:
                raise DemoFailed(f"{self.name} ended early; see {self.log}")
            if wanted(line):
                return line

    def stop(self) -> int:
        """End it with SIGTERM, or SIGKILL when it does not listen; returns its exit code."""
        self._process.terminate()
        try:
            code = self._process.wait(STOP_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing when it has ended."""
        self._process.send_signal(number)

    def json_lines(self) -> Iterator[dict[str, Any]]:
        """The JSON lines that are there and were not taken yet."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return
            if line is not None:
                yield line

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None


class RunningPrograms:
    """Starts programs and remembers them, so that all of them end when its context does."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        stdin: str | None = None,
    ) -> Program:
        """Start a program; `stdin` is all that it reads there."""
        program = Program(name, command, self.logs, environment or {}, stdin)
        self.programs.append(program)
        return program

    def start_daemon(self, name: str, command: list[str], within_s: float) -> Program:
        """Start a program that notifies its service manager when it is ready, and wait for that."""
        with notify_socket(self.logs.parent / f"{name}.notify") as (address, channel):
            program = self.start(name, command, {"NOTIFY_SOCKET": address})
            deadline = time.monotonic() + within_s
            while True:
                channel.settimeout(0.2)
                try:
                    if b"READY=1" in channel.recv(4096):
                        return program
                except TimeoutError:
                    if not program.running:
                        raise DemoFailed(f"{name} ended before it was ready; see {program.log}") from None
                    if time.monotonic() > deadline:
                        raise DemoFailed(
                            f"{name} was not ready in {within_s:.0f} s; see {program.log}"
                        ) from None

    def stop(self) -> dict[str, int]:
        """End all programs, the last started first; returns their exit codes."""
        return {program.name: program.stop() for program in reversed(self.programs)}

    def stop_cleanly(self) -> None:
        """The same; raises DemoFailed when one of them ends with anything but 0."""
        failed = {name: code for name, code in self.stop().items() if code != 0}
        if failed:
            raise DemoFailed(
                f"{', '.join(failed)} did not end cleanly (exit codes {failed}); see {self.logs}"
            )


@contextmanager
def notify_socket(path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The listening end of sd_notify(3)."""
    path.unlink(missing_ok=True)  # of an earlier start of the same program
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        yield str(path), channel
