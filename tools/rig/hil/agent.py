"""Inside the virtual machine: does what the host asks over a virtio port, one JSON line an answer.

Runs as root under Debian's own python3, from the standard library alone, so that it shares nothing with what
is being tested. Requests: `{"op": …, …}`; answers: `{"ok": true, …}` or `{"ok": false, "why": …}`.
"""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tools.rig.hil.screen import Screen

PORT = Path("/dev/virtio-ports/hil")


def now_s() -> float:
    """Seconds since the machine started; both ends of every span are measured by this one clock."""
    return time.monotonic()


class Spawned:
    """A program whose lines are kept with the time at which each came."""

    def __init__(self, argv: list[str]) -> None:
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((now_s(), line.rstrip("\n")))


class Agent:
    """The table of operations."""

    def __init__(self) -> None:
        self._films: dict[str, list[bytes]] = {}
        self._screen: Screen | None = None
        self._spawned: dict[str, Spawned] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = getattr(self, "do_" + str(request.pop("op")), None)
        if operation is None:
            raise ValueError("no such operation")
        result: dict[str, Any] = operation(**request)
        return result

    def do_run(self, argv: list[str], timeout_s: float) -> dict[str, Any]:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
        return {"rc": done.returncode, "stdout": done.stdout[-60_000:], "stderr": done.stderr[-4_000:]}

    def do_write(self, path: str, text: str) -> dict[str, Any]:
        at = now_s()
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(text)
        return {"at_s": at}

    def do_spawn(self, name: str, argv: list[str]) -> dict[str, Any]:
        self._spawned[name] = Spawned(argv)
        return {"pid": self._spawned[name].process.pid}

    def do_lines(self, name: str, after: int) -> dict[str, Any]:
        spawned = self._spawned[name]
        return {"lines": spawned.lines[after:], "rc": spawned.process.poll(), "now_s": now_s()}

    def do_stop(self, name: str) -> dict[str, Any]:
        spawned = self._spawned.pop(name)
        spawned.process.terminate()
        try:
            return {"rc": spawned.process.wait(20)}
        except subprocess.TimeoutExpired:
            spawned.process.kill()
            return {"rc": spawned.process.wait()}

    def do_screen(self, node: str, films: str, picture_bytes: int) -> dict[str, Any]:
        """Read the films and begin to show the first picture of `empty` on a V4L2 output."""
        for path in sorted(Path(films).iterdir()):
            data = path.read_bytes()
            self._films[path.stem] = [
                data[at : at + picture_bytes] for at in range(0, len(data), picture_bytes)
            ]
        self._screen = Screen(self._films["empty"][0])
        threading.Thread(target=self._screen.run, args=(node,), daemon=True).start()
        return {"films": list(self._films)}

    def do_play(self, film: str, repeat: int) -> dict[str, Any]:
        """A film, each picture `repeat` times, then the empty scene again."""
        pictures = [picture for picture in self._films[film] for _ in range(repeat)]
        self._shown_by().play([*pictures, *self._films["empty"]])
        return {"pictures": len(pictures), "at_s": now_s()}

    def do_shown(self) -> dict[str, Any]:
        screen = self._shown_by()
        return {"shown": screen.shown, "waiting": screen.waiting, "error": screen.error, "at_s": now_s()}

    def _shown_by(self) -> Screen:
        if self._screen is None:
            raise ValueError("no screen yet")
        return self._screen

    def do_time(self) -> dict[str, Any]:
        return {"at_s": now_s()}

    def do_sleep(self, seconds: float) -> dict[str, Any]:
        time.sleep(seconds)
        return {"at_s": now_s()}


def main() -> None:
    agent = Agent()
    with PORT.open("r+b", buffering=0) as port:
        port.write(b'{"ok": true, "hello": 1}\n')
        held = b""
        while True:
            data = port.read(65_536)
            if not data:
                time.sleep(0.05)  # the host is not there yet: a virtio port then reads as ended
                continue
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                answer = memoryview(_answer(agent, line) + b"\n")
                while answer:
                    answer = answer[port.write(answer) :]


def _answer(agent: Agent, line: bytes) -> bytes:
    try:
        return json.dumps({"ok": True} | agent.answer(json.loads(line))).encode()
    except Exception as error:  # noqa: BLE001 — the host reports every failure of the agent
        return json.dumps({"ok": False, "why": f"{type(error).__name__}: {error}"}).encode()


if __name__ == "__main__":
    main()
