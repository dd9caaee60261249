"""A whole device against the real reference server: `palmd` and `palm-syncd` as processes, provisioned by the
command, with a pty for a cable and, where asked for, a simulated validator that carries mail."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from device.config.config import DeviceConfig, load_config, write_config
from device.errors import IpcError
from device.trust.keystore import KeyStore
from device.values.status import CoreStatus, read_status
from tests.device.reference_cloud import DBD_ID, DBD_KEY, GATE_ID, Server
from tests.device.whole_device import nobody
from tests.palmctl import PALMCTL
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.verdict_latency import FolderWriter


@dataclass
class ServedDevice:
    """Its folder, its configuration, what writes its camera's pictures, and the processes that run."""

    folder: Path
    device_id: str
    config: DeviceConfig
    keys: KeyStore
    writer: FolderWriter
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.config.device.state_dir

    def start(self, name: str) -> None:
        """`palmd` or `syncd`."""
        program = {"palmd": "device.core.main", "syncd": "device.syncd.main"}[name]
        self._start(name, [sys.executable, "-m", program, "--config", str(self.folder / "device.toml")])

    def start_validator(self, port: str, server: Server) -> None:
        """A simulated validator at the other end, which carries the mail."""
        key_file = self.folder / "validator.key"
        if not key_file.exists():
            descriptor = os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600)
            os.write(descriptor, DBD_KEY.seed)
            os.close(descriptor)
        api_key = server.office.headers["Authorization"].removeprefix("Bearer ")
        self._start(
            "validator",
            [
                *PALMCTL, "dbd", "simulate", "--port", port,
                "--dbd-id", DBD_ID, "--gate-id", GATE_ID, "--key-file", str(key_file), "--device-pub-b64",
                self.keys.verdict.public.b64, "--json", "--server", server.url, "--api-key-stdin",
            ],
            given=api_key.encode() + b"\n",
        )  # fmt: skip

    def _start(self, name: str, command: list[str], given: bytes = b"") -> None:
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        self.processes[name] = process

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(20)

    def status(self) -> CoreStatus:
        """What `palmctl status` reads. Raises IpcError while no core answers."""
        return read_status(self.config.control_socket)

    def says(self, wanted: Callable[[CoreStatus], object]) -> bool:
        """Whether a core answers, with a status of this kind."""
        try:
            return bool(wanted(self.status()))
        except IpcError:
            return False

    def answers(self) -> bool:
        return self.says(lambda _told: True)

    def health(self) -> set[str]:
        """The words; none while no core answers."""
        return set(self.status().words) if self.answers() else set()


@contextmanager
def served_device(
    folder: Path, server: Server, device_id: str, *, network: bool = True
) -> Iterator[tuple[ServedDevice, str]]:
    """The device, provisioned, nothing started; and the validator's end of its cable."""
    folder.mkdir()
    writer = FolderWriter(folder / "camera")
    writer.put(nobody())
    server.provision(
        folder, device_id, "--camera", f"file:{folder / 'camera'}", "--link-port", str(folder / "cable")
    )
    config = load_config(folder / "device.toml")
    if not network:
        config = replace(config, cloud=None)
        write_config(folder / "device.toml", config)
    device = ServedDevice(folder, device_id, config, KeyStore.open(config.keys_dir), writer)
    with ExitStack() as stack:
        pair = stack.enter_context(PtyPair())
        (folder / "cable").symlink_to(pair.left)
        try:
            yield device, pair.right
        finally:
            for name in list(device.processes):
                device.kill(name)
