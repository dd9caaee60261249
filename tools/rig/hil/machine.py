"""The virtual machine and the line to the agent in it."""

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tools.rig.hil.errors import HilError
from tools.rig.hil.image import Image

QEMU = "qemu-system-x86_64"
SWTPM = "swtpm"
_TPM = ("-tpmdev", "emulator,id=tpm,chardev=tpm", "-device", "tpm-tis,tpmdev=tpm")
MEMORY_MIB = 2_048
BOOT_WITHIN_S = 600.0
"""The only time by the host's clock: it separates a machine that hangs from a slow one."""
ANSWER_WITHIN_S = 300.0


@dataclass(frozen=True)
class FinishedProgram:
    """A program that has ended in the machine."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class PrintedLine:
    """A line that a program printed, and when, by the machine's clock."""

    at_s: float
    text: str


class Machine:
    """A running virtual machine; every method asks its agent and waits for the answer."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._held = b""

    def ask(self, op: str, **members: Any) -> dict[str, Any]:
        """One operation of tools/rig/hil/agent.py; raises HilError when it fails."""
        self._channel.sendall(json.dumps({"op": op} | members).encode() + b"\n")
        answer = self.read_answer(ANSWER_WITHIN_S)
        if not answer.pop("ok"):
            raise HilError(f"{op} failed in the machine: {answer['why']}")
        return answer

    def read_answer(self, within_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while b"\n" not in self._held:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise HilError(f"the machine did not answer within {within_s:.0f} s")
            self._channel.settimeout(left_s)
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                raise HilError("the machine is gone; its last output is in build/hil/console.log")
            self._held += data
        line, self._held = self._held.split(b"\n", 1)
        return cast("dict[str, Any]", json.loads(line))

    def run(self, *argv: str, timeout_s: float = 60.0, check: bool = True) -> FinishedProgram:
        """Run a program there; `timeout_s` by the machine's clock."""
        answer = self.ask("run", argv=argv, timeout_s=timeout_s)
        done = FinishedProgram(answer["rc"], answer["stdout"], answer["stderr"])
        if check and done.rc != 0:
            raise HilError(f"{' '.join(argv)} ended with {done.rc}: {(done.stderr or done.stdout)[-500:]}")
        return done

    def write(self, path: str, text: str) -> float:
        """Write a file there; when that began, by the machine's clock."""
        return float(self.ask("write", path=path, text=text)["at_s"])

    def now_s(self) -> float:
        return float(self.ask("time")["at_s"])

    def sleep(self, seconds: float) -> float:
        """Let the machine's time pass; what time it is then."""
        return float(self.ask("sleep", seconds=seconds)["at_s"])

    def power_off(self) -> None:
        """Shut the machine down in order; returns when it is off."""
        self.run("systemctl", "poweroff")
        self._channel.settimeout(ANSWER_WITHIN_S)
        try:
            while self._channel.recv(1 << 16):
                pass
        except TimeoutError:
            raise HilError("the machine did not shut down") from None

    def spawn(self, name: str, argv: Sequence[str]) -> "MachineProgram":
        self.ask("spawn", name=name, argv=list(argv))
        return MachineProgram(self, name)


class MachineProgram:
    """A program that runs in the machine; its lines come with the machine's time."""

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine = machine
        self.name = name
        self.lines: list[PrintedLine] = []

    def read(self) -> list[PrintedLine]:
        """All lines so far."""
        answer = self._machine.ask("lines", name=self.name, after=len(self.lines))
        self.lines += [PrintedLine(at_s, text) for at_s, text in answer["lines"]]
        return self.lines

    def stop(self) -> int:
        return int(self._machine.ask("stop", name=self.name)["rc"])


@contextmanager
def software_tpm(state: Path) -> Iterator[Path]:
    """A TPM 2.0 for one run of the machine, kept in the folder `state`. Yields its control socket."""
    if shutil.which(SWTPM) is None:
        raise HilError(f"{SWTPM} not found; apt install swtpm")
    state.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="palm-hil-tpm-") as folder:
        control = Path(folder) / "control"
        options = ("--tpm2", "--tpmstate", f"dir={state}", "--ctrl", f"type=unixio,path={control}")
        log = ("--log", f"file={state}/log")
        process = subprocess.Popen(
            [SWTPM, "socket", *options, *log], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while not control.exists():
                if process.poll() is not None:
                    raise HilError(f"{SWTPM} ended with {process.returncode}; see {state}/log")
                time.sleep(0.02)
            yield control
        finally:
            process.kill()
            process.wait()


@contextmanager
def running(image: Image, console: Path, tpm: Path | None = None) -> Iterator[Machine]:
    """Start the machine, wait for its agent, and end it afterwards in any case.

    `tpm`: the control socket of its TPM.
    """
    if shutil.which(QEMU) is None:
        raise HilError(f"{QEMU} not found; apt install qemu-system-x86")
    with tempfile.TemporaryDirectory(prefix="palm-hil-") as folder:
        path = str(Path(folder) / "agent")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(30)
            with console.open("wb") as log:
                process = subprocess.Popen(
                    _command(image, path, tpm), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            try:
                channel, _ = listener.accept()
                with channel:
                    machine = Machine(channel)
                    machine.read_answer(BOOT_WITHIN_S)
                    yield machine
            except TimeoutError:
                raise HilError(f"{QEMU} does not start; see {console}") from None
            finally:
                process.kill()
                process.wait()


def _command(image: Image, channel: str, tpm: Path | None) -> list[str]:
    # The guest's clock counts its instructions, 1 ns each, so that emulation makes for a board of a thousand
    # million instructions a second, at any speed and load of the host; while it idles, real time passes.
    # KVM is not asked for: where there is one inside another machine it may hang.
    return [
        *(QEMU, "-accel", "tcg", "-icount", "shift=0,sleep=on", "-cpu", "max", "-m", str(MEMORY_MIB)),
        *("-machine", "q35", "-nographic", "-no-reboot", "-nic", "none", "-monitor", "none"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
        *("-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=false"),
        *("-drive", f"file={image.disk},if=virtio,format=raw,cache=unsafe"),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,path={channel}"),
        *("-device", "virtserialport,chardev=agent,name=hil"),
        *("-device", "virtio-rng-pci"),
        *(() if tpm is None else ("-chardev", f"socket,id=tpm,path={tpm}", *_TPM)),
    ]
