"""Generated and mutated bytes against the decoder, the envelope and both ends of the cable.

    python -m tests.link1.fuzz 1000000 [SEED]

Whatever comes in, only the declared errors come out, nothing held grows without bound, and the next honest
frame or session is served. The same seed gives the same inputs, so a failure repeats.
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from link1.canonical import canonical_bytes
from link1.envelope import MessageRefused, MessageType, Role, encode_message, read_message
from link1.frames import MAX_ENCODED_BYTES, Channel, Frame, FrameDecoder, FrameKind, encode_frame
from link1.keys import SigningKey
from link1.link_states import LinkState
from link1.objects import ErrorCode
from link1.signed import Kind, sign_object
from tests.link1.cable import (
    DEVICE_KEY,
    Cable,
    Script,
    decision_for,
    device_status,
    greeted,
    make_device,
    make_validator,
    passage_for,
    proven,
    request,
    verdict_for,
)
from tests.link1.fuzz_both import fuzz_both
from tests.link1.fuzz_validator import MadDevice, answers_a_verdict, messages_of_a_device, serves_again

VALIDATOR_KEY = SigningKey.from_seed(b"v" * 32)
PING = Frame(FrameKind.PING, sess=1)
_JSON_LETTERS = b'{}[]",:\\u0019-eE.tfn \x00\x1f\x7f\x80\xc3\xed\xff'
SHARES = {
    "decoder": 0.4,
    "envelope": 0.35,
    "session": 0.1,
    "validator": 0.1,
    "both": 0.05,
}


def messages() -> list[bytes]:
    """One honest message of every type that is easily made."""
    asked = request()
    verdict = verdict_for(asked)
    signed_verdict = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
    ref = "0" * 32
    bodies: dict[MessageType, Any] = {
        MessageType.REQUEST: sign_object(Kind.REQUEST, asked.to_obj(), VALIDATOR_KEY),
        MessageType.VERDICT: signed_verdict,
        MessageType.DECISION: sign_object(Kind.DECISION, decision_for(verdict, ref).to_obj(), VALIDATOR_KEY),
        MessageType.PASSAGE: sign_object(Kind.PASSAGE, passage_for(verdict, ref).to_obj(), VALIDATOR_KEY),
        MessageType.STATUS: sign_object(Kind.STATUS, device_status().to_obj(), DEVICE_KEY),
        MessageType.CANCEL: {"txn_id": ref},
        MessageType.READY: {"passage_sensor": True},
        MessageType.UNKNOWN: {"verdict_refs": [ref]},
        MessageType.RESOLVE: {"verdict_refs": [ref]},
        MessageType.ERROR: {"code": "malformed", "about": "message"},
        MessageType.GUIDE: {"txn_id": ref, "hint": "closer"},
        MessageType.MAIL: {"box": "in", "seq": 1, "offset": 0, "total": 3, "data_b64": "AAAA"},
        MessageType.MAIL_PULL: {"box": "out", "after_seq": 0, "offset": 0},
        MessageType.HELLO: {"role": "validator", "id": "x", "gate_id": "y", "kid": ref, "nonce_b64": "AA=="},
    }
    return [encode_message(type_, body) for type_, body in bodies.items()]


def frames() -> list[bytes]:
    return [
        encode_frame(Frame(FrameKind.RST, payload=bytes(8))),
        encode_frame(Frame(FrameKind.RSTACK, payload=bytes(range(16)))),
        encode_frame(PING),
        encode_frame(Frame(FrameKind.ACK, Channel.MAIL, 9, 700)),
        encode_frame(Frame(FrameKind.HINT, sess=3, payload=b"hint")),
        encode_frame(Frame(FrameKind.DATA, sess=3, index=0, count=2, payload=bytes(1024))),
        encode_frame(Frame(FrameKind.DATA, sess=3, index=1, count=2, payload=b"x" * 300)),
    ]


def mutate(rng: random.Random, seeds: list[bytes], letters: bytes) -> bytes:
    """Something near one of `seeds`, now and then something of nothing."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(64))
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[place % len(data)] = rng.choice(letters)
            case 1 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                data[place:place] = rng.choice(seeds)[: rng.randrange(40)]
            case 3:
                del data[place : place + rng.randrange(12)]
            case _:
                data[place:place] = bytes([rng.choice(letters)]) * rng.randrange(1, 4)
    return bytes(data)


def fuzz_decoder(rng: random.Random, count: int) -> None:
    """Never raises, never holds more than a frame, and takes the next honest one."""
    seeds, decoder = frames(), FrameDecoder()
    for number in range(count):
        decoder.feed(mutate(rng, seeds, bytes(range(256))))
        assert decoder.held_bytes <= MAX_ENCODED_BYTES
        if number % 16 == 0:
            assert decoder.feed(b"\x00" + encode_frame(PING))[-1] == PING


def fuzz_envelope(rng: random.Random, count: int) -> None:
    """A message, or the error to answer; and what is read can be written."""
    seeds = messages()
    channels = (Channel.CONTROL, Channel.MAIL, None)
    for _ in range(count):
        data = mutate(rng, seeds, _JSON_LETTERS)
        try:
            message = read_message(data, rng.choice(list(Role)), rng.choice(channels))
        except MessageRefused as refused:
            assert refused.code in ErrorCode
            continue
        canonical_bytes(message.body)


def fuzz_session(rng: random.Random, count: int) -> None:
    """Messages and frames into ends in every state; afterwards a fresh session is served."""
    seeds, raw = messages(), frames()
    done = 0
    while done < count:
        script = rng.choice((proven, lambda: greeted()[0], _untouched))()
        for _ in range(min(200, count - done)):
            done += 1
            _one_input(rng, script, seeds, raw)
            del script.events[:], script.messages[:], script.frames[:], script.hints[:]
        _serves_again(rng, script)


def _untouched() -> Script:
    script = Script(make_device())
    script.open()
    return script


def _one_input(rng: random.Random, script: Script, seeds: list[bytes], raw: list[bytes]) -> None:
    match rng.randrange(6):
        case 0:
            script.end.receive(mutate(rng, raw, bytes(range(256))), script.now_ms)
            script.pump()
        case 1:
            script.after(rng.choice((50, 250)))
        case 2:
            data = mutate(rng, seeds, _JSON_LETTERS)[:4096] or b"x"
            for frame in script.frames_of(data, rng.randrange(1 << 16), rng.choice(list(Channel))):
                script.say(frame, *([frame] if rng.random() < 0.2 else []))
        case _:
            data = mutate(rng, seeds, _JSON_LETTERS)[:4096] or b"x"
            script.send_raw(data, rng.choice(list(Channel)))


def _serves_again(rng: random.Random, script: Script) -> None:
    cable = Cable(script.end, make_validator(seed=rng.randrange(1 << 30)), now_ms=script.now_ms)
    cable.open()
    cable.run(7_000)
    link = script.end.link  # type: ignore[attr-defined]
    assert link.state is LinkState.UP
    assert script.end.proven, "the next honest validator is served"  # type: ignore[attr-defined]


def fuzz_validator(rng: random.Random, count: int) -> None:
    """What a device gone mad says, into desks in every state; afterwards an honest device is served."""
    seeds, raw = messages_of_a_device(), frames()
    done = 0
    while done < count:
        mad = MadDevice(rng, rng.choice(("untouched", "greeted", "proven", "proven")))
        script = mad.script
        for _ in range(min(200, count - done)):
            done += 1
            match rng.randrange(8):
                case 0 | 1:
                    mad.say_something_signed()
                case 2:
                    mad.ask_again()
                case 3:
                    script.auto_ack = rng.random() < 0.7  # a peer that never acknowledges
                case _:
                    _one_input(rng, script, seeds, raw)
            del script.events[:], script.messages[:], script.frames[:], script.hints[:]
        serves_again(rng, mad.gate, script.now_ms)
        answers_a_verdict(mad.gate, script.now_ms + 7_000)


PARTS: dict[str, Callable[[random.Random, int], None]] = {
    "decoder": fuzz_decoder,
    "envelope": fuzz_envelope,
    "session": fuzz_session,
    "validator": fuzz_validator,
    "both": fuzz_both,
}


def run(total: int, seed: int) -> None:
    for name, part in PARTS.items():
        count, begun = int(total * SHARES[name]), time.monotonic()
        part(random.Random(f"{name}:{seed}"), count)
        print(f"{name:9} {count} inputs, seed {seed}, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
