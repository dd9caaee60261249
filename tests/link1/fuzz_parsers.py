"""Generated and mutated bytes against every parser that reads before a signature is checked.

Only the declared error of a parser comes out, whatever goes in, and no input takes longer than a generous
bound for its size. `tests/test_parser_costs.py` finds what grows too fast.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud_client.http_signature import sign_request
from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.request_signature import verify_request
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.errors import HttpSignatureError
from device.config.config import parse_config
from device.errors import ConfigError, IpcError
from device.platform.ipc import read_packet
from link1.canonical import canonical_bytes, read_strict
from link1.errors import FormatError, SealError, SignatureError
from link1.keys import SigningKey
from link1.sealed import check_inbox_record
from tests.link1.test_sealed import RECORD, ROOT

MOST_BYTES = 65_536
LONGEST_S, LONGEST_S_A_BYTE = 0.05, 5e-6
_KEY = SigningKey.from_seed(b"h" * 32)
_LETTERS = b'{}[]",:\\u0019-eE.tfn \x00\x1f\x7f\x80\xc3\xed\xff=;()@#\n'
_CONFIG = b"""[device]
id = "gate-7"
gate_id = "g"
dbd_id = "d"
[camera]
source = "file:/x"
fps = 15
[link]
port = "usb:1209:0001"
"""


def _signed_headers() -> bytes:
    headers = sign_request("GET", "host", "/", "", None, key=_KEY, created_s=0, nonce="ab" * 16)
    return "\n".join(headers[name] for name in ("Signature-Input", "Signature")).encode()


SEEDS = [
    canonical_bytes(RECORD),
    _CONFIG,
    _signed_headers(),
    b'{"a":' + b"[" * 17 + b'"' + b'\\"' * 50,
    b'{"external_ref":"p-1","n":[1,2.5,-0,1e9,9007199254740993],"s":"\\ud83d\\ude00"}',
]


def _json(data: bytes) -> None:
    """The two readings agree with each other, and what the strict one takes has one canonical form."""
    try:
        strict: Any = read_strict(data, max_bytes=MOST_BYTES)
    except FormatError:
        strict = None
    try:
        lenient = read_body(data)
    except Problem as problem:
        assert problem.status == 400
        assert strict is None
        return
    assert strict is None or lenient == strict == json.loads(canonical_bytes(strict))


def _record(data: bytes) -> None:
    try:
        record = read_strict(data, max_bytes=MOST_BYTES)
        check_inbox_record(record, device_id="palm-1", roots=[ROOT.public], now_ms=10, next_seq=4)
    except (FormatError, SealError, SignatureError):
        return
    assert canonical_bytes(record) == canonical_bytes(RECORD), "a changed record was taken"


def _packet(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(len(data).to_bytes(4, "big") + bytes(4) + data)
        reader.feed_eof()
        await read_packet(reader)

    try:
        asyncio.run(read())
    except IpcError:
        return


def _configuration(data: bytes) -> None:
    try:
        parse_config(data, Path("device.toml"))
    except ConfigError as error:
        assert str(error)


def _headers(data: bytes) -> None:
    signature_input, _, signature = data.decode("latin-1").partition("\n")
    headers = {"Signature-Input": signature_input, "Signature": signature}
    try:
        verify_request(
            "GET",
            "host",
            "/",
            "",
            headers=headers,
            key_of=lambda kid: _KEY.public if kid == _KEY.public.kid else None,
            now_s=0,
        )
    except HttpSignatureError:
        return
    assert data.decode("latin-1").split() == _signed_headers().decode().split(), "a changed signature held"


PARSERS: dict[str, Callable[[bytes], None]] = {
    "json": _json,
    "record": _record,
    "packet": _packet,
    "configuration": _configuration,
    "headers": _headers,
}


def fuzz_parsers(rng: random.Random, count: int) -> None:
    """`count` inputs, each for one of the parsers."""
    parsers = list(PARSERS.values())
    for _ in range(count):
        data = _grown(rng, bytearray(rng.choice(SEEDS)))
        parser = rng.choice(parsers)
        begun = time.thread_time()
        parser(data)
        spent_s = time.thread_time() - begun
        assert spent_s < LONGEST_S + LONGEST_S_A_BYTE * len(data), f"{parser.__name__}: {spent_s:.2f} s"


def _grown(rng: random.Random, data: bytearray) -> bytes:
    """Something near a seed; now and then with one piece repeated many times, which finds slow paths."""
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[place % len(data)] = rng.choice(_LETTERS)
            case 1:
                data[place:place] = bytes(rng.choices(_LETTERS, k=rng.randrange(1, 5)))
            case 2:
                del data[place : place + rng.randrange(12)]
            case 3 if rng.random() < 0.1:
                piece = data[place : place + rng.randrange(1, 9)] or b"["
                data[place:place] = piece * (rng.randrange(MOST_BYTES) // len(piece))
            case _:
                del data[max(place, 1) :]
        del data[MOST_BYTES:]
    return bytes(data)
