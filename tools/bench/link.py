"""`palmctl bench link`: what the cable costs, each figure beside a baseline in the same run.

Both ends are processes of their own on a pseudo-terminal: this one is the validator, `tools.bench.link_peer`
the device. A baseline sends as many bytes as the protocol puts on the wire, over the same kind of terminal,
with nothing around them.
"""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import tty
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from link1.bodies import MAX_CHUNK_BYTES, Box, MailChunk
from link1.canonical import b64_encode
from link1.envelope import MessageType, encode_message
from link1.errors import TransportError
from link1.events import DeviceProven, MailAckReceived, ValidatorEvent, VerdictReceived
from link1.frames import (
    CRC_BYTES,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Channel,
    Frame,
    FrameDecoder,
    FrameKind,
    cobs_decode,
    cobs_encode,
    encode_frame,
)
from link1.objects import Request
from link1.signed import Kind, sign_object
from link1.transport.pump import CablePump
from link1.validator_end import ValidatorEnd
from tools.bench.link_faults import measure_cuts, measure_faults
from tools.bench.link_peer import DBD_ID, DEVICE_KEY, GATE_ID, VALIDATOR_KEY
from tools.bench.programs import BenchFailed

MIB = 1 << 20
CODEC_FRAMES = 4_000
WITHIN_S = 60.0


def run_link_bench(*, requests: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """All figures, in the order of the summary; raises BenchFailed."""
    tell("codec")
    codec = measure_codec()
    tell(f"{requests} requests over a pty, beside a bare echo")
    round_trip = measure_round_trip(requests)
    tell("1 MiB of mail over a pty, beside a bare exchange")
    mail = measure_mail()
    tell("damaged, lost and doubled pieces")
    faults = measure_faults()
    tell("cuts")
    return {
        "codec": codec,
        "round_trip": round_trip,
        "mail": mail,
        "faults": faults,
        "cuts": measure_cuts(),
    }


# ---- codec


def measure_codec() -> dict[str, float]:
    """MB/s of payload through encoder and decoder, and through nothing but COBS and CRC-32."""
    payload = os.urandom(MAX_PAYLOAD_BYTES)
    frame = Frame(FrameKind.DATA, Channel.MAIL, 7, 3, 0, 2, payload)

    def ours() -> None:
        decoder = FrameDecoder()
        for _ in range(CODEC_FRAMES):
            if not decoder.feed(encode_frame(frame)):
                raise BenchFailed("the decoder dropped an honest frame")

    body = bytes(HEADER_BYTES) + payload

    def plain() -> None:
        for _ in range(CODEC_FRAMES):
            encoded = cobs_encode(body + zlib.crc32(body).to_bytes(CRC_BYTES, "big"))
            raw = cobs_decode(encoded) or b""
            if zlib.crc32(raw[:-CRC_BYTES]) != int.from_bytes(raw[-CRC_BYTES:], "big"):
                raise BenchFailed("the baseline's checksum does not hold")

    size = CODEC_FRAMES * MAX_PAYLOAD_BYTES / 1e6
    ours_s, plain_s = (min(_seconds(run) for _ in range(3)) for run in (ours, plain))
    return {
        "mb_per_s": round(size / ours_s, 1),
        "plain_mb_per_s": round(size / plain_s, 1),
        "ratio": round(ours_s / plain_s, 2),
    }


def _seconds(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


# ---- the two ends


class PtyMaster:
    """This side of a pseudo-terminal as a `Port`."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._fd = descriptor

    def fileno(self) -> int:
        return self._fd

    def read(self, max_bytes: int) -> bytes:
        try:
            return os.read(self._fd, max_bytes)
        except BlockingIOError:
            return b""
        except OSError:
            raise TransportError("the device of the bench is gone") from None

    def write(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    def unsent(self) -> int:
        return 0

    def close(self) -> None:
        """The terminal belongs to who opened it."""


@contextmanager
def peer(*arguments: str) -> Iterator[int]:
    """The other program on a new pseudo-terminal; yields the descriptor of this side."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    process = subprocess.Popen([sys.executable, "-m", "tools.bench.link_peer", os.ttyname(slave), *arguments])
    try:
        yield master
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(master)
        os.close(slave)


async def with_validator(
    descriptor: int,
    begin: Callable[[ValidatorEnd], None],
    step: Callable[[ValidatorEnd, ValidatorEvent], bool],
) -> None:
    """Run the near end: `begin` once the device is proven, then `step` for each event until it is True."""
    end = ValidatorEnd(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=VALIDATOR_KEY,
        device_keys=lambda kid, _at_ms: DEVICE_KEY.public if kid == DEVICE_KEY.kid else None,
        passage_sensor=False,
        random=os.urandom,
    )
    done = asyncio.Event()

    def on_event(event: ValidatorEvent) -> None:
        if isinstance(event, DeviceProven):
            begin(end)
        elif step(end, event):
            done.set()

    pump: CablePump[ValidatorEvent] = CablePump(end, lambda: PtyMaster(descriptor), on_event=on_event)
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


def wire_bytes(message: bytes) -> int:
    """Bytes that a message has on the wire: its fragments, framed."""
    slices = [message[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(message), MAX_PAYLOAD_BYTES)]
    return sum(
        len(encode_frame(Frame(FrameKind.DATA, Channel.MAIL, 1, 1, index, len(slices), piece)))
        for index, piece in enumerate(slices)
    )


ACK_BYTES = len(encode_frame(Frame(FrameKind.ACK, Channel.MAIL, 1, 1)))


# ---- request → verdict


def measure_round_trip(requests: int) -> dict[str, Any]:
    """Milliseconds from a request to its verdict, with and without the journal's fsync before it, and of a
    bare echo of as many bytes."""
    times: list[float] = []
    sizes = [0, 0]
    asked_at = 0.0

    def ask(end: ValidatorEnd) -> None:
        nonlocal asked_at
        number = len(times)
        request = Request(
            txn_id=os.urandom(16).hex(),
            gate_id=GATE_ID,
            dbd_id=DBD_ID,
            nonce_b64=b64_encode(os.urandom(16)),
            issued_at_ms=1_700_000_000_000 + number,
            ttl_ms=15_000,
        )
        wrapper = sign_object(Kind.REQUEST, request.to_obj(), VALIDATOR_KEY)
        sizes[0] = wire_bytes(encode_message(MessageType.REQUEST, wrapper)) + ACK_BYTES
        asked_at = time.perf_counter()
        if not end.send_request(wrapper):
            raise BenchFailed("the link took no request")

    def step(end: ValidatorEnd, event: ValidatorEvent) -> bool:
        if not isinstance(event, VerdictReceived):
            return False
        times.append(time.perf_counter() - asked_at)
        sizes[1] = wire_bytes(encode_message(MessageType.VERDICT, event.wrapper)) + ACK_BYTES
        if len(times) == requests:
            return True
        ask(end)
        return False

    with tempfile.TemporaryDirectory() as folder, peer("durable", folder) as descriptor:
        asyncio.run(with_validator(descriptor, ask, step))
    durable = _spread_ms(times)
    times.clear()
    with peer("device") as descriptor:
        asyncio.run(with_validator(descriptor, ask, step))
    ours, bare = _spread_ms(times), _spread_ms(bare_exchange(sizes[0], sizes[1], requests))
    return {
        "ours_ms": ours,
        "durable_ms": durable,
        "bare_echo_ms": bare,
        "bytes": {"up": sizes[0], "down": sizes[1]},
        "p99_above_bare_ms": round(ours["p99"] - bare["p99"], 3),
    }


def _spread_ms(times: list[float]) -> dict[str, float]:
    ordered = sorted(seconds * 1000 for seconds in times)
    return {
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 3),
    }


# ---- mail


def measure_mail() -> dict[str, float]:
    """1 MiB of mail to the device in chunks, each answered before the next, and as many bare bytes; the best
    of three runs of each."""
    runs = [_mail_run() for _ in range(3)]
    ours_s, bare_s = min(run[0] for run in runs), min(run[1] for run in runs)
    return {
        "mib_per_s": round(1 / ours_s, 2),
        "bare_mib_per_s": round(1 / bare_s, 2),
        "ratio": round(ours_s / bare_s, 2),
    }


def _mail_run() -> tuple[float, float]:
    """Seconds for 1 MiB: as mail, and bare."""
    data = os.urandom(MIB)
    record = 512 * 1024
    sizes = [0, 0]
    begun = ended = 0.0

    def chunk_at(offset: int) -> MailChunk:
        seq, within = divmod(offset, record)
        size = min(MAX_CHUNK_BYTES, record - within)
        return MailChunk(Box.IN, seq + 1, within, record, data[offset : offset + size])

    sent = 0

    def send(end: ValidatorEnd) -> None:
        nonlocal sent
        chunk = chunk_at(sent)
        sent += len(chunk.data)
        if not end.send_mail(chunk):
            raise BenchFailed("the link took no mail")

    def begin(end: ValidatorEnd) -> None:
        nonlocal begun
        begun = time.perf_counter()
        send(end)

    def step(end: ValidatorEnd, event: ValidatorEvent) -> bool:
        nonlocal ended
        if not isinstance(event, MailAckReceived):
            return False
        if not sizes[0]:
            sizes[0] = wire_bytes(encode_message(MessageType.MAIL, chunk_at(0).to_obj())) + ACK_BYTES
            sizes[1] = wire_bytes(encode_message(MessageType.MAIL_ACK, event.ack.to_obj())) + ACK_BYTES
        if sent == MIB:
            ended = time.perf_counter()
            return True
        send(end)
        return False

    with peer("device") as descriptor:
        asyncio.run(with_validator(descriptor, begin, step))
    chunks = 2 * -(-record // MAX_CHUNK_BYTES)
    return ended - begun, sum(bare_exchange(sizes[0], sizes[1], chunks))


# ---- in words


def summary(figures: dict[str, Any]) -> list[str]:
    """What a person reads."""
    codec, trip, mail = figures["codec"], figures["round_trip"], figures["mail"]
    ours, durable, bare = (trip[name] for name in ("ours_ms", "durable_ms", "bare_echo_ms"))
    lines = [
        f"codec              {codec['mb_per_s']} MB/s, plain COBS and CRC {codec['plain_mb_per_s']} MB/s",
        f"request → verdict  p50 {ours['p50']} ms, p99 {ours['p99']} ms, bare echo p99 {bare['p99']} ms",
        f"  after its fsync  p50 {durable['p50']} ms, p99 {durable['p99']} ms",
        f"mail, 1 MiB        {mail['mib_per_s']} MiB/s, bare exchange {mail['bare_mib_per_s']} MiB/s",
    ]
    for fault in figures["faults"]:
        counts = f"{fault['verdicts']} verdicts, {fault['decided_once']} decided exactly once"
        lines.append(f"{fault['name']:18} {counts}, {fault['damaged']} pieces spoilt")
    for cut in figures["cuts"]:
        served = f"served again after {cut['served_after_ms']} ms"
        lines.append(f"cut of {cut['cut_s']:>5} s     {served}; {cut['lost']} lost, {cut['doubled']} doubled")
    return lines
