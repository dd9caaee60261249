"""1 MiB of mail over the cable, and three things to hold it against.

`bare`: as many bytes there and back, each chunk answered before the next, by two loops of read and write. It
delimits nothing and checks nothing.
`framed`: the same exchange between two loops that put the same fragments into frames and check them: COBS,
CRC-32 and nothing more. No cable that may damage bytes can do with less.
`floor`: what the contract asks of both ends for every chunk (base64, JSON, COBS, CRC-32, and back, also of
the answer), done with the standard library's C code in one loop without a state, a clock or a port, and the
bare exchange added to it. No program in this language can be faster, unless it does both ends' work at once.
"""

import asyncio
import base64
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from link1.bodies import MAX_CHUNK_BYTES, Box, MailAck, MailChunk, MailState
from link1.envelope import MessageType, encode_message
from link1.frames import CRC_BYTES, HEADER_BYTES, MAX_PAYLOAD_BYTES, FrameDecoder, cobs_decode, cobs_encode
from link1.validator.end import ValidatorEnd
from link1.validator.events import MailAckReceived, ValidatorEvent
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.link_rig import ACK_FRAME, bare_exchange, peer, wire_frames, with_validator

MIB = 1 << 20
RECORD_BYTES = 512 * 1024
RUNS = 5
_FLOOR_CHUNKS = 500


@dataclass(frozen=True)
class MailExchange:
    """One exchange as it goes over the wire: a chunk there, its answer back."""

    message: bytes
    answer: bytes


def measure_mail() -> dict[str, float]:
    """MiB/s of each, and how many times longer than each of the three mail takes; the best of the runs, which
    take turns so that a busy moment of the machine meets all of them."""
    data = os.urandom(MIB)
    chunk = _typical_chunk(data)
    up, down = (
        sum(map(len, wire_frames(message))) + len(ACK_FRAME) for message in (chunk.message, chunk.answer)
    )
    count = MIB // RECORD_BYTES * -(-RECORD_BYTES // MAX_CHUNK_BYTES)
    runs = [
        (
            _mail_run(data),
            sum(bare_exchange(up, down, count)),
            _framed_run(chunk, count),
            _least_work(chunk) * count,
        )
        for _ in range(RUNS)
    ]
    ours_s, bare_s, framed_s, work_s = (min(run[i] for run in runs) for i in range(4))
    floor_s = bare_s + work_s
    return {
        "mib_per_s": round(1 / ours_s, 2),
        "us": round(ours_s / count * 1e6),
        "bare_mib_per_s": round(1 / bare_s, 2),
        "bare_us": round(bare_s / count * 1e6),
        "ratio": round(ours_s / bare_s, 2),
        "framed_mib_per_s": round(1 / framed_s, 2),
        "ratio_to_framed": round(ours_s / framed_s, 2),
        "floor_mib_per_s": round(1 / floor_s, 2),
        "floor_us": round(work_s / count * 1e6),
        "ratio_to_floor": round(ours_s / floor_s, 2),
    }


def _chunk_at(data: bytes, offset: int) -> MailChunk:
    seq, within = divmod(offset, RECORD_BYTES)
    size = min(MAX_CHUNK_BYTES, RECORD_BYTES - within)
    return MailChunk(Box.IN, seq + 1, within, RECORD_BYTES, data[offset : offset + size])


def _typical_chunk(data: bytes) -> MailExchange:
    ack = MailAck(1, 100 * MAX_CHUNK_BYTES, MailState.MORE, 0)
    return MailExchange(
        encode_message(MessageType.MAIL, _chunk_at(data, 99 * MAX_CHUNK_BYTES).to_obj()),
        encode_message(MessageType.MAIL_ACK, ack.to_obj()),
    )


def _mail_run(data: bytes) -> float:
    """Seconds for 1 MiB of mail to a device that takes all of it."""
    begun = ended = 0.0
    sent = 0

    def send(end: ValidatorEnd) -> None:
        nonlocal sent
        chunk = _chunk_at(data, sent)
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
        if sent == MIB:
            ended = time.perf_counter()
            return True
        send(end)
        return False

    with peer("device") as descriptor:
        asyncio.run(with_validator(descriptor, begin, step))
    return ended - begun


def _framed_run(chunk: MailExchange, count: int) -> float:
    """Seconds for so many chunks between two loops that frame and check, and do nothing else."""
    with peer("framed", chunk.answer.decode("ascii")) as descriptor:
        decoder, times = FrameDecoder(), []
        for _ in range(count + 1):
            begun = time.perf_counter()
            rest = b"".join([ACK_FRAME, *wire_frames(chunk.message)])
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            frames = 0
            while frames < 2:  # the ACK and the answer
                frames += len(decoder.feed(os.read(descriptor, 65_536)))
            times.append(time.perf_counter() - begun)
    return sum(times[1:])  # the first one waited for the program to start


def _least_work(chunk: MailExchange) -> float:
    """Seconds of both ends' work on one chunk and its answer: the best of three rounds."""
    data = base64.b64decode(json.loads(chunk.message)["body"]["data_b64"])
    head = bytes(HEADER_BYTES)

    def carry(message: bytes) -> bytes:
        pieces = []
        for at in range(0, len(message), MAX_PAYLOAD_BYTES):
            body = head + message[at : at + MAX_PAYLOAD_BYTES]
            raw = cobs_decode(cobs_encode(body + zlib.crc32(body).to_bytes(CRC_BYTES, "big"))) or b""
            if zlib.crc32(raw[:-CRC_BYTES]) != int.from_bytes(raw[-CRC_BYTES:], "big"):
                raise BenchFailed("the floor's checksum does not hold")
            pieces.append(raw[HEADER_BYTES:-CRC_BYTES])
        return b"".join(pieces)

    def ack() -> None:
        raw = cobs_decode(cobs_encode(head + zlib.crc32(head).to_bytes(CRC_BYTES, "big"))) or b""
        zlib.crc32(raw[:-CRC_BYTES])

    def once() -> None:
        body = {"box": "in", "seq": 1, "offset": 0, "total": 1, "data_b64": base64.b64encode(data).decode()}
        read = json.loads(carry(json.dumps({"v": 1, "type": "mail", "body": body}).encode()))
        base64.b64decode(read["body"]["data_b64"], validate=True)
        ack()
        json.loads(carry(json.dumps(json.loads(chunk.answer)).encode()))
        ack()

    return min(_seconds_each(once) for _ in range(3))


def _seconds_each(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    for _ in range(_FLOOR_CHUNKS):
        run()
    return (time.perf_counter() - begun) / _FLOOR_CHUNKS
