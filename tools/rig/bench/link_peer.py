"""The far end of the cable in `palmctl bench link`: a device whose recognition is stubbed out, or bare bytes.

python -m tools.rig.bench.link_peer PATH device          # a verdict at once; mail acknowledged
python -m tools.rig.bench.link_peer PATH durable FOLDER  # the same, with the real journal before each verdict
python -m tools.rig.bench.link_peer PATH bare UP DOWN    # answers every UP bytes with DOWN bytes
python -m tools.rig.bench.link_peer PATH framed ANSWER   # answers every message, in frames that it checks

It ends with its standard input.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from device.journal.journal import Journal
from device.passage.decision import Outcome, build_verdict
from device.platform.clock import SystemClock
from link1.bodies import MailAck, MailChunk, MailState
from link1.canonical import JsonObject
from link1.device_end import DeviceEnd
from link1.events import DeviceEvent, Proven, RequestReceived
from link1.frames import Channel, Frame, FrameDecoder, FrameKind, encode_frame
from link1.keys import SigningKey
from link1.link import RandomSource
from link1.objects import (
    PREV_REF_OF_FIRST,
    AppVersion,
    DeviceStatus,
    GalleryMark,
    MailMarks,
    Pad,
    Request,
    VerdictResult,
)
from link1.signed import Kind, object_ref, sign_object
from link1.transport.pump import CablePump
from link1.transport.serial_port import open_port
from link1.validator.end import ValidatorEnd
from tools.rig.bench.lifeline import end_with_standard_input

DEVICE_ID, GATE_ID, DBD_ID = "palm-bench", "gate-bench", "dbd-bench"
DEVICE_KEY = SigningKey.from_seed(b"bench: the device's verdict key ")
VALIDATOR_KEY = SigningKey.from_seed(b"bench: the validator's key      ")
MARK = GalleryMark(stream="bench", epoch=1, seq=1, head16="0" * 16)

Sign = Callable[[Request, str], JsonObject]
"""(request, reference of its wrapper) → the signed verdict on it, numbered and chained."""


def signed_verdict(request: Request, seq: int, prev_ref: str) -> JsonObject:
    """Of a device that recognises every palm at once."""
    outcome = Outcome(
        VerdictResult.MATCH,
        score_q=9_000,
        margin_q=3_000,
        quality_q=80,
        pad=Pad("pass", "bench", 9_000),
        attempts=1,
        subject_ref="0" * 32,
        hand="L",
    )
    verdict = build_verdict(
        request,
        outcome,
        device_id=DEVICE_ID,
        verdict_seq=seq,
        prev_ref=prev_ref,
        decided_at_ms=time.time_ns() // 1_000_000,
        model_id="bench",
        thr_id="bench",
        gallery=MARK,
    )
    return sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)


def new_device_end() -> DeviceEnd:
    return DeviceEnd(
        device_id=DEVICE_ID,
        gate_id=GATE_ID,
        dbd_id=DBD_ID,
        verdict_key=DEVICE_KEY,
        validator_keys=lambda kid, _at_ms: VALIDATOR_KEY.public if kid == VALIDATOR_KEY.kid else None,
        random=os.urandom,
    )


def new_validator_end(random: RandomSource) -> ValidatorEnd:
    """The near end of the cable."""
    return ValidatorEnd(
        dbd_id=DBD_ID,
        gate_id=GATE_ID,
        key=VALIDATOR_KEY,
        device_keys=lambda kid, _at_ms: DEVICE_KEY.public if kid == DEVICE_KEY.kid else None,
        passage_sensor=False,
        random=random,
    )


def answer(end: DeviceEnd, event: DeviceEvent, sign: Sign) -> None:
    """What a device without a camera makes of an event: every palm is recognised, all mail is taken."""
    match event:
        case Proven():
            end.send_status(_status())
        case RequestReceived(request, wrapper):
            end.send_verdict(sign(request, object_ref(wrapper)))
        case MailChunk() as chunk:
            so_far = chunk.offset + len(chunk.data)
            whole = so_far == chunk.total
            state = MailState.APPLIED if whole else MailState.MORE
            end.send_mail_ack(MailAck(chunk.seq, 0 if whole else so_far, state, chunk.seq if whole else 0))
        case _:
            pass


def _status() -> DeviceStatus:
    return DeviceStatus(
        device_id=DEVICE_ID,
        nonce_b64="A" * 43 + "=",
        serving=True,
        health=(),
        app=AppVersion("palm-access-device", "bench"),
        model_id="bench",
        thr_id="bench",
        gallery=MARK,
        last=None,
        mail=MailMarks(0, 0, 0),
        at_ms=time.time_ns() // 1_000_000,
    )


async def serve_device(path: str, sign: Sign) -> None:
    """Until the process ends."""
    end = new_device_end()
    pump: CablePump[DeviceEvent] = CablePump(
        end, lambda: open_port(path), on_event=lambda event: answer(end, event, sign)
    )
    await pump.run()


def sign_only() -> Sign:
    """Verdicts that nothing remembers."""
    numbers = itertools.count(1)

    def sign(request: Request, _request_ref: str) -> JsonObject:
        return signed_verdict(request, next(numbers), PREV_REF_OF_FIRST)

    return sign


def sign_into_journal(folder: Path) -> Sign:
    """Verdicts that are durable before they leave."""
    data_key = bytes(32)
    Journal.create(folder / "journal.db", device_id=DEVICE_ID, verdict_kid=DEVICE_KEY.kid, data_key=data_key)
    journal = Journal(
        folder / "journal.db",
        device_id=DEVICE_ID,
        verdict_kid=DEVICE_KEY.kid,
        data_key=data_key,
        clock=SystemClock(),
    )

    def sign(request: Request, request_ref: str) -> JsonObject:
        def build(seq: int, prev_ref: str) -> JsonObject:
            return signed_verdict(request, seq, prev_ref)

        return journal.append_verdict(request.txn_id, request_ref, build).wrapper

    return sign


def serve_bare(path: str, up: int, down: int) -> None:
    """Until the process ends. The terminal is raw already; making it so again would drop what has come."""
    port = os.open(path, os.O_RDWR | os.O_NOCTTY)
    while True:
        received = 0
        while received < up:
            received += len(os.read(port, up - received))
        rest = b"x" * down
        while rest:
            rest = rest[os.write(port, rest) :]


def serve_framed(path: str, answer: bytes) -> None:
    """Until the process ends: an ACK and one answer for each message, which ends with its last fragment."""
    port, decoder = os.open(path, os.O_RDWR | os.O_NOCTTY), FrameDecoder()
    while True:
        for frame in decoder.feed(os.read(port, 65_536)):
            if frame.kind is not FrameKind.DATA or frame.index + 1 < frame.count:
                continue
            rest = encode_frame(Frame(FrameKind.ACK, Channel.MAIL, 1, 1))
            rest += encode_frame(Frame(FrameKind.DATA, Channel.MAIL, 1, 1, payload=answer))
            while rest:
                rest = rest[os.write(port, rest) :]


def main() -> None:
    end_with_standard_input()
    path, mode, *more = sys.argv[1:]
    if mode in ("device", "durable"):
        asyncio.run(serve_device(path, sign_into_journal(Path(more[0])) if more else sign_only()))
    elif mode == "framed":
        serve_framed(path, more[0].encode("ascii"))
    else:
        serve_bare(path, int(more[0]), int(more[1]))


if __name__ == "__main__":
    main()
