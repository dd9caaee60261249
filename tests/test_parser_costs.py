"""What a parser of unsigned bytes may cost: time linear in their size, whatever they hold.

Each parser gets the worst inputs known for it at 1, 2 and 4 times a size. A quadratic parser takes sixteen
times as long for the last as for the first; a linear one four times. Times are of this thread's processor
time, the least of two, taken again where that is too long: what other programs add is not always there.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.request_signature import verify_request
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.errors import HttpSignatureError
from device.config.config import parse_config
from device.errors import ConfigError, IpcError
from device.mail.apply import InboxAssembly
from device.platform.ipc import MAX_HEADER_BYTES, read_packet
from link1 import frames
from link1.bodies import Box, MailChunk
from link1.canonical import b64_decode, canonical_bytes, read_strict, read_with_fractions
from link1.envelope import MessageRefused, Role, read_message
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, Channel, FrameDecoder, FrameKind, encode_frame
from models.frames import CameraFrame
from models.qr import read_qr
from tools.palmctl.scrub import Scrubber

MOST = 8.0
"""Four times the bytes take at most so many times as long: between 4, linear, and 16, quadratic."""

TRIES = 5
"""A quadratic parser fails each time; a linear parser next to other programs does not."""

GRAIN_S = 0.002
"""What is quicker than this at the largest size is quick enough, and too quick to be measured."""

JSON_SHAPES: dict[str, Callable[[int], bytes]] = {
    "a string that never ends": lambda n: b'{"a":' + b"[" * 17 + b'"' + b'\\"' * (n // 2),
    "open brackets": lambda n: b"[" * n,
    "nested objects": lambda n: b'{"a":' * (n // 5),
    "empty lists": lambda n: b'{"a":[' + b"[]," * (n // 3) + b"[]]}",
    "quotes": lambda n: b"[" * 17 + b'"' * n,
    "backslashes": lambda n: b"[" * 17 + b'"' + b"\\" * n,
    "strings without commas": lambda n: b"[" * 17 + b'"a\\"b"' * (n // 6),
    "surrogates": lambda n: b'{"a":"' + b"\\ud83d\\ude00" * (n // 12) + b'"}',
    "one escape and much text": lambda n: b'{"a":"\\u0041' + b"x" * n + b'"}',
    "many members": lambda n: b"{" + b",".join(b'"%d":0' % i for i in range(n // 10)) + b"}",
    "small numbers": lambda n: b'{"a":[' + b"0," * (n // 2) + b"0]}",
    "fractions": lambda n: b'{"a":[' + b"0.5," * (n // 4) + b"0]}",
    "one long number": lambda n: b'{"a":' + b"9" * n + b"}",
    "one long fraction": lambda n: b'{"a":0.' + b"9" * n + b"}",
    "spaces": lambda n: b"{" + b" " * n + b"}",
    "minus signs": lambda n: b'{"a":[' + b"-" * n,
    "no UTF-8 at the end": lambda n: b'{"a":"' + "é".encode() * (n // 2) + b"\xff",
}

TOML_SHAPES: dict[str, Callable[[int], str]] = {
    "a dotted key": lambda n: "a" + ".a" * (n // 2) + " = 1",
    "a dotted table": lambda n: "[" + "a." * (n // 2) + "a]",
    "dotted keys": lambda n: ("b = {" + "a." * 400 + "a = 1}\n") * (n // 810),
    "nested lists": lambda n: "a = " + "[" * n,
    "escaped quotes": lambda n: 'a = "' + '\\"' * (n // 2),
    "many tables": lambda n: "[[a.b.c]]\n" * (n // 10),
    "many members": lambda n: "".join(f"a{i} = 1\n" for i in range(n // 10)),
    "comments": lambda n: "#\n" * (n // 2),
}


def costs_s(*works: Callable[[], object]) -> list[float]:
    """Processor time of each in seconds, the least of two rounds: other work slows a whole round."""
    rounds = []
    gc.disable()  # a collection looks at all that the test run holds
    try:
        for _ in range(2):
            times = [time.thread_time()]
            for work in works:
                work()
                times.append(time.thread_time())
            rounds.append([end - begun for begun, end in pairwise(times)])
    finally:
        gc.enable()
    return [min(of_one) for of_one in zip(*rounds, strict=True)]


def assert_linear(work: Callable[[int], Callable[[], object]], size: int) -> None:
    """`work(n)` prepares an input of n units and gives what parses it."""
    tried: list[str] = []
    while len(tried) < TRIES:
        once, twice, four = costs_s(*(work(size * times) for times in (1, 2, 4)))
        if four < max(MOST * once, GRAIN_S):
            return
        tried.append(f"{once:.4f}, {twice:.4f}, {four:.4f} s")
    pytest.fail(f"at 1, 2, 4 × {size}: {'; '.join(tried)}")


def _attempt(read: Callable[[], object], *refusals: type[Exception]) -> Callable[[], object]:
    def attempt() -> None:
        with contextlib.suppress(*refusals):
            read()

    return attempt


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_strict_json(shape: str) -> None:
    def objects(size: int) -> Callable[[], object]:
        data = JSON_SHAPES[shape](size)
        return _attempt(lambda: canonical_bytes(read_strict(data, max_bytes=len(data))), FormatError)

    def answers(size: int) -> Callable[[], object]:
        data = JSON_SHAPES[shape](size)
        return _attempt(lambda: canonical_bytes(read_with_fractions(data, max_bytes=len(data))), FormatError)

    def bodies(size: int) -> Callable[[], object]:
        data = JSON_SHAPES[shape](size)
        return _attempt(lambda: read_body(data), Problem)

    assert_linear(objects, 65_536)
    assert_linear(answers, 65_536)
    assert_linear(bodies, 65_536)


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_a_whole_message_on_the_cable_costs_a_few_milliseconds(shape: str) -> None:
    """The ratio that matters on the core's loop: against the cheapest whole message, in the same run."""
    hostile = JSON_SHAPES[shape](MAX_MESSAGE_BYTES)[:MAX_MESSAGE_BYTES]
    honest = b'{"body":{"a":[' + b"0," * 2000 + b'0]},"type":"x","v":1}'

    def read(data: bytes) -> Callable[[], object]:
        return _attempt(lambda: read_message(data, Role.VALIDATOR, Channel.CONTROL), MessageRefused)

    bad_s, good_s = costs_s(read(hostile), read(honest))
    assert bad_s < max(20 * good_s, GRAIN_S)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"\x00" * n,
        lambda n: b"\x01" * n,
        lambda n: b"\xff" * n,
        lambda n: b"\x01\x00" * (n // 2),
        lambda n: b"\x01" * 1000 + b"\x00" + b"\x01" * (n - 1001),
        lambda n: encode_frame(frames.Frame(FrameKind.PING, sess=1)) * (n // 14),
    ],
    ids=["idle", "no end", "no zero", "short", "too long", "pings"],
)
@pytest.mark.parametrize("piece", [1, 512, 1 << 20])
def test_the_frame_decoder(make: Callable[[int], bytes], piece: int) -> None:
    def feed(size: int) -> Callable[[], object]:
        data = make(size)

        def run() -> None:
            decoder = FrameDecoder()
            for at in range(0, len(data), piece):
                decoder.feed(data[at : at + piece])

        return run

    assert_linear(feed, 16_384)


def test_a_mail_record_in_the_smallest_chunks() -> None:
    def assemble(size: int) -> Callable[[], object]:
        chunks = [MailChunk(Box.IN, 1, at, size, b"x") for at in range(size)]

        def run() -> None:
            inbox = InboxAssembly(0)
            for chunk in chunks:
                inbox.take(chunk)

        return run

    assert_linear(assemble, 8_192)


@pytest.mark.parametrize("text", ["A", "AB==", "=", "A\n", "é"])
def test_base64(text: str) -> None:
    def decode(size: int) -> Callable[[], object]:
        whole = text * (size // len(text))
        return _attempt(lambda: b64_decode(whole), FormatError)

    assert_linear(decode, 262_144)


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_a_request_between_the_processes(shape: str) -> None:
    def request(size: int) -> Callable[[], object]:
        header = JSON_SHAPES[shape](size)[:MAX_HEADER_BYTES]

        async def read() -> None:
            reader = asyncio.StreamReader()
            reader.feed_data(len(header).to_bytes(4, "big") + bytes(4) + header)
            reader.feed_eof()
            await read_packet(reader)

        return _attempt(lambda: asyncio.run(read()), IpcError)

    assert_linear(request, MAX_HEADER_BYTES // 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Signature-Input", 'sig1=("@method"' + " " * 100_000),
        ("Signature-Input", "sig1=(" + '"a" ' * 25_000 + ")" + ";a=1" * 25_000),
        ("Signature-Input", 'sig1=("a");a="' + "x" * 100_000),
        ("Signature", "sig1=:" + "A" * 100_000),
        ("Content-Digest", "sha-256=:" + "A" * 100_000),
    ],
)
def test_the_headers_of_a_signed_request(name: str, value: str) -> None:
    def verify(size: int) -> Callable[[], object]:
        headers = {name: value[:size]}
        return _attempt(
            lambda: verify_request(
                "GET", "host", "/", "", headers=headers, key_of=lambda _kid: None, now_s=0
            ),
            HttpSignatureError,
        )

    assert_linear(verify, 25_000)


@pytest.mark.parametrize("shape", TOML_SHAPES)
def test_a_configuration(shape: str) -> None:
    def parse(size: int) -> Callable[[], object]:
        data = TOML_SHAPES[shape](size).encode()
        return _attempt(lambda: parse_config(data, Path("device.toml")), ConfigError)

    assert_linear(parse, 16_000)


@pytest.mark.parametrize(
    "shape", ["a", "a@", "+1 ", '"token"=', "token='", "token ", "1.1", "x@a.1", "bearer a", "-1", "é"]
)
def test_a_log_that_goes_into_a_support_bundle(shape: str) -> None:
    def scrub(size: int) -> Callable[[], object]:
        text = shape * (size // len(shape))
        return lambda: Scrubber().text(text)

    assert_linear(scrub, 32_768)


@pytest.mark.parametrize("pattern", ["finders", "stripes", "noise", "checks"])
def test_a_picture_held_before_the_camera(pattern: str) -> None:
    """Pictures full of what the search for a QR code looks for; the size is the number of pixels."""
    ring = np.zeros((9, 9), np.uint8)
    ring[0, :] = ring[8, :] = ring[:, 0] = ring[:, 8] = 255
    ring[2:7, 2:7] = 255
    ring[3:6, 3:6] = 0

    def search(pixels: int) -> Callable[[], object]:
        side = int(pixels**0.5) // 9 * 9
        match pattern:
            case "finders":
                picture = np.tile(ring, (side // 9, side // 9))
            case "stripes":
                picture = np.tile(np.repeat(np.array([0, 255], np.uint8), 2), (side, side // 4 + 1))[:, :side]
            case "checks":
                picture = (np.indices((side, side)).sum(axis=0) % 2 * 255).astype(np.uint8)
            case _:
                picture = np.random.default_rng(1).integers(0, 256, (side, side)).astype(np.uint8)
        frame = CameraFrame(picture, at_ms=0, number=1)
        return lambda: read_qr(frame)

    assert_linear(search, 640 * 480)
