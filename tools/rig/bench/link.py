"""`palmctl bench link`: what the cable costs, each figure with a baseline of the same run.

`tools.rig.bench.link_rig` has the two ends, `tools.rig.bench.link_mail` the mail.
"""

import asyncio
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any

from link1.canonical import b64_encode
from link1.envelope import MessageType, encode_message
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
from link1.validator.end import ValidatorEnd
from link1.validator.events import ValidatorEvent, VerdictReceived
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.link_faults import measure_cuts, measure_faults
from tools.rig.bench.link_mail import measure_mail
from tools.rig.bench.link_peer import DBD_ID, GATE_ID, VALIDATOR_KEY
from tools.rig.bench.link_rig import ACK_BYTES, bare_exchange, peer, wire_bytes, with_validator

CODEC_FRAMES = 4_000


def run_link_bench(*, requests: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """All figures, in the order of the summary; raises BenchFailed."""
    tell("codec")
    codec = measure_codec()
    tell(f"{requests} requests over a pty, and a bare echo")
    round_trip = measure_round_trip(requests)
    tell("1 MiB of mail over a pty, a bare exchange and an exchange in checked frames")
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


# ---- in words


def summary(figures: dict[str, Any]) -> list[str]:
    """What a person reads."""
    codec, trip, mail = figures["codec"], figures["round_trip"], figures["mail"]
    ours, durable, bare = (trip[name] for name in ("ours_ms", "durable_ms", "bare_echo_ms"))
    lines = [
        f"codec              {codec['mb_per_s']} MB/s, plain COBS and CRC {codec['plain_mb_per_s']} MB/s",
        f"request → verdict  p50 {ours['p50']} ms, p99 {ours['p99']} ms, bare echo p99 {bare['p99']} ms",
        f"  after its fsync  p50 {durable['p50']} ms, p99 {durable['p99']} ms",
        f"mail, 1 MiB        {mail['mib_per_s']} MiB/s",
        f"  bare exchange    {mail['bare_mib_per_s']} MiB/s, ratio {mail['ratio']}",
        f"  in frames only   {mail['framed_mib_per_s']} MiB/s, ratio {mail['ratio_to_framed']}",
        f"  least work       {mail['floor_mib_per_s']} MiB/s, ratio {mail['ratio_to_floor']}",
        f"  a chunk takes    {mail['us']} µs; bare exchange {mail['bare_us']}, least work {mail['floor_us']}",
    ]
    for fault in figures["faults"]:
        counts = f"{fault['verdicts']} verdicts, {fault['decided_once']} decided exactly once"
        lines.append(f"{fault['name']:18} {counts}, {fault['damaged']} pieces spoilt")
    for cut in figures["cuts"]:
        served = f"served again after {cut['served_after_ms']} ms"
        lines.append(f"cut of {cut['cut_s']:>5} s     {served}; {cut['lost']} lost, {cut['doubled']} doubled")
    return lines
