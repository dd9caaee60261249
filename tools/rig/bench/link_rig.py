"""Both ends of the cable as separate processes on a pseudo-terminal, and bare bytes between them.

This process is the validator, `tools.rig.bench.link_peer` the device. A baseline sends as many bytes as the
protocol puts on the wire, over the same kind of terminal.
"""

import asyncio
import io
import os
import pty
import subprocess
import sys
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from link1.frames import MAX_PAYLOAD_BYTES, Channel, Frame, FrameKind, encode_frame
from link1.transport.pump import CablePump
from link1.transport.serial_port import SerialPort
from link1.validator.end import ValidatorEnd
from link1.validator.events import DeviceProven, ValidatorEvent
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.link_peer import new_validator_end

WITHIN_S = 60.0


@contextmanager
def peer(*arguments: str) -> Iterator[int]:
    """The other program on a new pseudo-terminal; yields the descriptor of this side."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.rig.bench.link_peer", os.ttyname(slave), *arguments],
        stdin=subprocess.PIPE,  # ends it with this process
    )
    try:
        with process:
            try:
                yield master
            finally:
                process.kill()
    finally:
        os.close(master)
        os.close(slave)


async def with_validator(
    descriptor: int,
    begin: Callable[[ValidatorEnd], None],
    step: Callable[[ValidatorEnd, ValidatorEvent], bool],
) -> None:
    """Run the near end: `begin` once the device is proven, then `step` for each event until it is True."""
    end = new_validator_end(os.urandom)
    done = asyncio.Event()

    def on_event(event: ValidatorEvent) -> None:
        if isinstance(event, DeviceProven):
            begin(end)
        elif step(end, event):
            done.set()

    os.set_blocking(descriptor, False)

    def port() -> SerialPort:
        return SerialPort("the device of the bench", io.FileIO(descriptor, "r+b", closefd=False))

    pump: CablePump[ValidatorEvent] = CablePump(end, port, on_event=on_event)
    running = asyncio.create_task(pump.run())
    try:
        async with asyncio.timeout(WITHIN_S):
            await done.wait()
    except TimeoutError:
        raise BenchFailed("the device of the bench did not answer") from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def bare_exchange(up: int, down: int, repeats: int) -> list[float]:
    """Seconds of each of `repeats` exchanges of that many bytes."""
    times = []
    with peer("bare", str(up), str(down)) as descriptor:
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            rest = b"x" * up
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            received = 0
            while received < down:
                received += len(os.read(descriptor, 65_536))
            times.append(time.perf_counter() - begun)
    return times[1:]  # the first one waited for the program to start


def wire_frames(message: bytes) -> list[bytes]:
    """The fragments of a message, framed."""
    slices = [message[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(message), MAX_PAYLOAD_BYTES)]
    return [
        encode_frame(Frame(FrameKind.DATA, Channel.MAIL, 1, 1, index, len(slices), piece))
        for index, piece in enumerate(slices)
    ]


def wire_bytes(message: bytes) -> int:
    return sum(map(len, wire_frames(message)))


ACK_FRAME = encode_frame(Frame(FrameKind.ACK, Channel.MAIL, 1, 1))
ACK_BYTES = len(ACK_FRAME)
