"""Inside the virtual machine: a USB device of two bulk endpoints (functionfs), as a validator's firmware is.

    python3 -m tools.rig.hil.bulk_gadget bridge    # between the endpoints and a pty, where a validator starts
    python3 -m tools.rig.hil.bulk_gadget echo      # every transfer that comes goes back; its size is shown

Firmware of the strict kind: it waits for the short or empty packet that ends a transfer, and never sends an
empty packet itself. From the standard library alone; plugged in and pulled out by writing the gadget's `UDC`.
"""

import contextlib
import os
import pty
import select
import struct
import subprocess
import sys
import threading
import tty
from pathlib import Path

GADGET = Path("/sys/kernel/config/usb_gadget/palm-bulk")
FOLDER = Path("/run/hil-bulk-endpoints")
PTY = Path("/run/hil-bulk")
VENDOR, PRODUCT = "1209", "0001"
TRANSFER_BYTES = 16_384
_FULL_SPEED, _HIGH_SPEED = 1, 2
_DESCRIPTORS_V2, _STRINGS = 3, 2
_ENABLE, _DISABLE = 2, 3
_EVENT_BYTES = 12


def make_gadget() -> None:
    """The device's descriptors in configfs, its functionfs mounted."""
    files = {
        "idVendor": f"0x{VENDOR}",
        "idProduct": f"0x{PRODUCT}",
        "bcdUSB": "0x0200",
        "strings/0x409/serialnumber": "HIL",
        "configs/c.1/MaxPower": "100",
    }
    (GADGET / "functions/ffs.link").mkdir(parents=True)
    for folder in ("strings/0x409", "configs/c.1"):
        (GADGET / folder).mkdir(parents=True)
    for name, text in files.items():
        (GADGET / name).write_text(text)
    (GADGET / "configs/c.1/ffs.link").symlink_to(GADGET / "functions/ffs.link")
    FOLDER.mkdir()
    subprocess.run(["/bin/mount", "-t", "functionfs", "link", str(FOLDER)], check=True)


def describe(ep0: int) -> None:
    """One interface, vendor class, subclass "L", protocol "1"; endpoint 1 to the host, 2 from it."""
    interface = struct.pack("<BBBBBBBBB", 9, 4, 0, 0, 2, 0xFF, 0x4C, 0x31, 0)

    def ends(packet_bytes: int) -> bytes:
        return b"".join(struct.pack("<BBBBHB", 7, 5, address, 2, packet_bytes, 0) for address in (0x81, 0x02))

    body = struct.pack("<II", 3, 3) + interface + ends(64) + interface + ends(512)
    header = struct.pack("<III", _DESCRIPTORS_V2, 12 + len(body), _FULL_SPEED | _HIGH_SPEED)
    os.write(ep0, header + body)
    os.write(ep0, struct.pack("<IIII", _STRINGS, 16, 0, 0))


def serve(ep0: int, mode: str) -> None:
    """Follow the bus: whenever the host has configured the device, carry bytes until it is gone."""
    gone = threading.Event()
    work: list[threading.Thread] = []
    while event := os.read(ep0, _EVENT_BYTES):
        if event[8] == _ENABLE:
            gone = threading.Event()
            work = [threading.Thread(target=_BY_MODE[mode], args=(gone,), daemon=True)]
            work[0].start()
        elif event[8] == _DISABLE:
            gone.set()
            for thread in work:
                thread.join()
            work = []


def bridge(gone: threading.Event) -> None:
    """A new pty each time: who has it open sees the cable go."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    PTY.unlink(missing_ok=True)
    PTY.symlink_to(os.ttyname(slave))
    to_host, from_host = _endpoints()

    def down() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(from_host, TRANSFER_BYTES):
                os.write(master, data)

    reading = threading.Thread(target=down, daemon=True)
    reading.start()
    with contextlib.suppress(OSError):
        while not gone.is_set():
            if select.select([master], [], [], 0.05)[0]:
                os.write(to_host, os.read(master, TRANSFER_BYTES))
    reading.join()
    PTY.unlink()
    for descriptor in (slave, master, to_host, from_host):
        os.close(descriptor)


def echo(_gone: threading.Event) -> None:
    to_host, from_host = _endpoints()
    with contextlib.suppress(OSError):
        while True:
            data = os.read(from_host, TRANSFER_BYTES)
            print(len(data), flush=True)
            os.write(to_host, data)
    for descriptor in (to_host, from_host):
        os.close(descriptor)


_BY_MODE = {"bridge": bridge, "echo": echo}


def _endpoints() -> tuple[int, int]:
    return os.open(FOLDER / "ep1", os.O_WRONLY), os.open(FOLDER / "ep2", os.O_RDONLY)


def main() -> None:
    if not GADGET.exists():
        make_gadget()
    ep0 = os.open(FOLDER / "ep0", os.O_RDWR)
    describe(ep0)
    print("ready", flush=True)
    serve(ep0, sys.argv[1])


if __name__ == "__main__":
    main()
