"""A board that starts from a card: qemu over a copy of the image, its power a signal."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.rig.hil.machine import MEMORY_MIB, QEMU
from tools.rig.image.build import BOOT_OFFSET, ENTRY, SECTOR

FIRMWARE = Path("/usr/share/ovmf/OVMF.fd")
GROWN_BYTES = 512 << 20
"""The card is this much larger than the image."""
ARGUMENTS = (
    "mitigations=off no_timer_check modules-load=vivid vivid.n_devs=1 "
    "vivid.node_types=0x1 vivid.num_inputs=1 vivid.input_types=0 "
    "systemd.default_timeout_start_sec=900 systemd.service_watchdogs=0"
)
"""V4L2's test driver as the camera; nothing against attacks that an emulated processor does not know, no test
of a timer that a busy host holds up, and services may be as slow as such a processor makes them.
Nothing else of the image is changed."""
HOST = "10.0.2.2"
"""This machine, as qemu's user network shows it to the board."""
PROVISION_FILE = "palm-provision.toml"


@dataclass
class Board:
    """A card in a board. `cable`: the pty that is its end of the validator's cable."""

    card: Path
    cable: str
    power: "subprocess.Popen[bytes] | None" = None
    switched_on_s: float = 0.0
    _read: int = field(default=0, repr=False)

    @property
    def console(self) -> Path:
        return self.card.with_suffix(".console")

    def flash(self, image: Path, provision: str) -> None:
        """Write the image, put the provisioning file on it, and load the camera's driver at boot."""
        shutil.rmtree(self.card, ignore_errors=True)
        subprocess.run(["cp", "--sparse=always", image, self.card], check=True)
        with self.card.open("r+b") as card:
            card.truncate(image.stat().st_size + GROWN_BYTES)
        entry = self.boot_file(ENTRY).decode().replace("quiet", f"quiet {ARGUMENTS}")
        self.put(ENTRY, entry)
        self.put(PROVISION_FILE, provision)

    def put(self, name: str, text: str) -> None:
        """A file on the boot partition, as another machine writes it there."""
        subprocess.run(
            ["mcopy", "-o", "-i", f"{self.card}@@{BOOT_OFFSET}", "-", f"::/{name}"],
            input=text.encode(), check=True,
        )  # fmt: skip

    def boot_file(self, name: str) -> bytes:
        done = subprocess.run(
            ["mtype", "-i", f"{self.card}@@{BOOT_OFFSET}", f"::/{name}"], capture_output=True, check=False
        )
        return done.stdout

    def partition(self, name: str) -> tuple[int, int]:
        """First byte and size, by the table that is on the card now."""
        table = subprocess.run(["sfdisk", "--json", self.card], capture_output=True, check=True).stdout
        for part in json.loads(table)["partitiontable"]["partitions"]:
            if part["name"] == name:
                return part["start"] * SECTOR, part["size"] * SECTOR
        raise AssertionError(f"no partition {name}")

    def digest(self, name: str) -> str:
        start, size = self.partition(name)
        digest = hashlib.sha256()
        with self.card.open("rb") as card:
            card.seek(start)
            for _ in range(size >> 20):
                digest.update(card.read(1 << 20))
        return digest.hexdigest()

    def check_state(self) -> str:
        """What e2fsck says of the state partition once its journal was played. AssertionError for a fault."""
        start, size = self.partition("palm-state")
        part = self.card.with_suffix(".state")
        whole = ["bs=1M", f"skip={start >> 20}", f"count={size >> 20}", "conv=sparse", "status=none"]
        subprocess.run(["dd", f"if={self.card}", f"of={part}", *whole], check=True)
        subprocess.run(["e2fsck", "-p", part], capture_output=True, check=False)
        done = subprocess.run(["e2fsck", "-f", "-n", part], capture_output=True, text=True, check=False)
        part.unlink()
        assert done.returncode == 0, done.stdout
        return done.stdout

    def switch_on(self) -> None:
        self.console.write_bytes(b"")
        self._read = 0
        self.power = subprocess.Popen(
            [
                # Two processors, as a board has at least: the core looks at pictures with all of one.
                *(QEMU, "-accel", "tcg", "-cpu", "max,la57=off", "-smp", "2"),
                *("-machine", "q35", "-m", str(MEMORY_MIB), "-nographic", "-vga", "none", "-monitor", "none"),
                *("-bios", str(FIRMWARE), "-serial", f"file:{self.console}"),
                *("-drive", f"file={self.card},if=virtio,format=raw"),
                *("-nic", "user,model=virtio-net-pci", "-device", "virtio-rng-pci"),
                *("-device", "qemu-xhci", "-chardev", f"serial,id=cable,path={self.cable}"),
                *("-device", "usb-serial,chardev=cable,always-plugged=on"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.switched_on_s = time.monotonic()

    def cut(self) -> None:
        """The power goes."""
        if self.power is not None:
            self.power.kill()
            self.power.wait()
            self.power = None

    def shown(self) -> str:
        """What the console has shown since the power came."""
        with suppress(FileNotFoundError):
            return self.console.read_text(encoding="utf-8", errors="replace")
        return ""

    def wait_shown(self, wanted: Sequence[str], within_s: float) -> str:
        """The first of the texts that the console shows. AssertionError when none comes."""
        while (took_s := self.on_for_s()) < within_s:
            shown = self.shown()
            for text in wanted:
                if text in shown:
                    return text
            assert self.power is not None and self.power.poll() is None, f"qemu ended:\n{shown[-2000:]}"
            time.sleep(0.5)
        raise AssertionError(f"none of {wanted} within {took_s:.0f} s:\n{self.shown()[-3000:]}")

    def on_for_s(self) -> float:
        return time.monotonic() - self.switched_on_s
