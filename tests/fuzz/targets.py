"""Every parser that reads what somebody else wrote: one row each, with the errors that it may raise.

A target takes any bytes. It raises one of its `refusals`, or it returns; anything else is a fault, and so is
an assertion here and a time that grows faster than the input. Where a signature or a checksum would refuse
every changed input, the target signs it first: the parser behind it must also stand what a service gone mad
signs.
"""

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import lzma
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from uvicorn.server import ServerState

from cloud_client.reference_server.contract import bodies
from cloud_client.reference_server.contract.parameters import (
    CURSOR_PARAMETER,
    EXTERNAL_REF_PARAMETER,
    LIMIT,
    cursor_bytes,
    date_time,
    read_query,
    uuid,
)
from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.request_signature import verify_request
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.errors import HttpSignatureError
from cloud_client.reference_server.web.listening.connections import Connections
from cloud_client.reference_server.web.listening.listener import config as server_config
from cloud_client.reference_server.web.listening.wire import HttpConnection
from device.camera.pixels import Unreadable, decode_image
from device.camera.source import LONGEST_SIDE_PX, CameraLost
from device.camera.v4l2 import V4L2Camera
from device.config.config import parse_config
from device.core import self_description  # noqa: F401 - defines objects that cross a socket
from device.doctor import measured_picture  # noqa: F401
from device.enrolment.session import normal_short_code, parse_qr, read_redeemed
from device.errors import ConfigError, DeviceError, IpcError, ProvisioningError, TrustError, UpdateRefused
from device.platform.files import with_checksum
from device.platform.ipc import read_packet
from device.provisioning.invitation import PREFIX, read_invitation
from device.trust.policy import read_policy
from device.trust.service_status import StatusReader
from device.trust.trust import load_trust
from device.updates import install  # noqa: F401
from device.updates.archive import Limits, unpack
from device.updates.manifest import Offer, read_chunk, read_manifest
from device.updates.state import UpdateState
from device.values import carrier, control, status  # noqa: F401
from device.wipe.wipe import read_wipe
from gallery.errors import GalleryError, PageRefused
from gallery.records import Held, Staging
from gallery.stream import digest_of, read_delta_page, read_snapshot_page
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.envelope import MessageRefused, Role, read_message
from link1.errors import FormatError, SealError, SignatureError
from link1.frames import MAX_ENCODED_BYTES, Channel, FrameDecoder, encode_frame
from link1.sealed import SignerCertificate, SignerPurpose, check_inbox_record
from link1.signed import Kind, sign_object
from link1.validator.memory import DeskMemory
from link1.wire import WireObject
from models.evaluation.groups import parse_groups
from models.evaluation.sets import EvaluationSetError
from models.frames import CameraFrame
from models.qr import read_qr
from models.qr_code import MAX_TEXT, read_modules
from tests.fuzz import honest
from tests.link1.cable import Script, greeted, make_device, proven
from tests.link1.fuzz import PING, frames, messages
from tests.link1.fuzz_validator import MadDevice, messages_of_a_device
from tests.link1.test_sealed import RECORD, ROOT
from tests.ram import in_memory
from tools.cloud.pack_invitation import pack_invitation
from tools.kit.link_pcap import read_pcap
from tools.palmctl.errors import ReleaseError
from tools.palmctl.release_file import read_release
from tools.palmctl.scrub import Scrubber
from tools.palmctl.unit_logs import read_line

_NOW_MS = 1_800_000_000_000
_IN_MEMORY = in_memory("fuzz-")
_SCRATCH = Path(_IN_MEMORY.name)
_LOOP = asyncio.new_event_loop()


@dataclass(frozen=True)
class FuzzTarget:
    """A parser, the errors that are an answer of it, honest inputs, and how long inputs get.

    `longest_s`: what an input may cost beyond its size, where its header may announce more.
    """

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    most_bytes: int = 16_384
    longest_s: float = 0.1


# The cable


def _frames(data: bytes) -> None:
    decoder = FrameDecoder()
    for at in range(0, len(data), 97):
        decoder.feed(data[at : at + 97])
        assert decoder.held_bytes <= MAX_ENCODED_BYTES
    assert decoder.feed(b"\x00" + encode_frame(PING))[-1] == PING


def _envelope(data: bytes) -> None:
    first = data[:1] or b"\x00"
    channel = (Channel.CONTROL, Channel.MAIL, None)[first[0] % 3]
    message = read_message(data[1:], list(Role)[first[0] // 3 % 2], channel)
    canonical_bytes(message.body)


def _said(script: Script, data: bytes) -> None:
    """Messages with a zero byte between them, each behind a byte whose lowest bit is its channel."""
    for piece in data.split(b"\x00")[:8]:
        if len(piece) > 1:
            script.send_raw(piece[1:4097], list(Channel)[piece[0] % 2])


def _device_end(data: bytes) -> None:
    kind = data[0] % 3 if data else 0
    script = proven() if kind == 0 else greeted()[0] if kind == 1 else Script(make_device())
    if kind == 2:
        script.open()
    _said(script, data[1:])


def _validator_end(data: bytes) -> None:
    kind = ("proven", "greeted", "untouched")[data[0] % 3 if data else 0]
    _said(MadDevice(random.Random(1), kind).script, data[1:])


def _spoken(said: list[bytes]) -> list[bytes]:
    return [bytes([state]) + b"0" + message for state in range(3) for message in said]


def _capture(data: bytes) -> None:
    for packet in read_pcap(io.BytesIO(data)):
        assert packet.at_us >= 0


# Mail and what is signed


def _record(data: bytes) -> None:
    record = read_strict(data, max_bytes=65_536)
    check_inbox_record(record, device_id="palm-1", roots=[ROOT.public], now_ms=10, next_seq=4)


def _object(data: bytes) -> JsonObject:
    return read_strict(data, max_bytes=65_536)


def _bundle(kind: Kind, obj: JsonObject) -> JsonObject:
    certificate = SignerCertificate.issue(SignerPurpose.BUNDLE, honest.KEY.public, _NOW_MS + 1, ROOT)
    return sign_object(kind, obj, honest.KEY) | {"signer_cert_b64": certificate.b64}


def _policy(data: bytes) -> None:
    read_policy(_bundle(Kind.CONFIG, _object(data)), roots=(ROOT.public,), taken_at_ms=_NOW_MS)


def _manifest(data: bytes) -> None:
    manifest = read_manifest(
        _bundle(Kind.UPDATE_MANIFEST, _object(data)), roots=[ROOT.public], now_ms=_NOW_MS
    )
    assert manifest.chunk_bytes(manifest.chunk_count - 1) > 0


def _service_status(data: bytes) -> None:
    wrapper = sign_object(Kind.DEVICE_STATUS, _object(data), honest.KEY)
    found = StatusReader("palm-1", lambda _kid: honest.KEY.public).read(wrapper)
    found.challenge  # noqa: B018 - read when it is asked for


def _page(data: bytes) -> bytes:
    """A page of the gallery, its digests and its head made anew where it has any."""
    try:
        page = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(page, dict):
        return data
    items = page.get("data")
    for item in items if isinstance(items, list) else ():
        with contextlib.suppress(Exception):
            salt = base64.b64decode(item["salt_b64"], validate=True)
            fields = {name: value for name, value in item.items() if name not in ("salt_b64", "digest")}
            item["digest"] = digest_of(fields, salt).hex()
    with contextlib.suppress(Exception):
        page["head"] = sign_object(Kind.GALLERY_HEAD, page["head"][Kind.GALLERY_HEAD.member], honest.KEY)
    return json.dumps(page).encode()


def _deltas(data: bytes) -> None:
    read_delta_page(_page(data), lambda _kid: honest.KEY.public)


def _snapshot(data: bytes) -> None:
    read_snapshot_page(_page(data), lambda _kid: honest.KEY.public)


# Files and what people type


def _configuration(data: bytes) -> None:
    parse_config(data, Path("device.toml"))


def _provisioning(data: bytes) -> None:
    """The text, and the same bytes as the body of a string whose checksum agrees."""
    with contextlib.suppress(ProvisioningError):
        read_invitation(data.decode("latin-1"))
    measured = len(data).to_bytes(2, "big") + data
    whole = measured + hashlib.sha256(PREFIX.encode() + measured).digest()[:4]
    standard, crockford = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    coded = base64.b32encode(whole).rstrip(b"=").translate(bytes.maketrans(standard, crockford))
    found = read_invitation(PREFIX + coded.decode())
    assert read_invitation(pack_invitation(found)) == found


def _typed(data: bytes) -> None:
    text = data.decode("latin-1")
    code = normal_short_code(text)
    assert code is None or normal_short_code(code) == code
    session = parse_qr(text)
    assert session is None or session.token in text


def _in_file(data: bytes, name: str) -> Path:
    path = _SCRATCH / name
    path.write_bytes(data)
    return path


def _summed(data: bytes, name: str) -> Path:
    """A state file; where it holds an object, with a checksum that agrees."""
    with contextlib.suppress(FormatError):
        data = canonical_bytes(with_checksum(_object(data)))
    return _in_file(data, name)


def _state(data: bytes) -> None:
    match data[0] % 7 if data else 0:
        case 0:
            UpdateState.from_obj(_object(data[1:]))
        case 1:
            Held.from_obj(_object(data[1:]))
        case 2:
            Staging.from_obj(_object(data[1:]))
        case 3:
            DeskMemory.from_obj(_object(data[1:]))
        case 4:
            load_trust(_summed(data[1:], "trust.json"))
        case 5:
            _summed(data[1:], "wipe.json")
            read_wipe(_SCRATCH)
        case _:
            Offer.from_obj(_object(data[1:]))


def _release(data: bytes) -> None:
    read_release(_in_file(data, "release"))


def _chunk(data: bytes) -> None:
    read_chunk(_object(data))


def _archive(data: bytes) -> None:
    """The input is the tar of a payload."""
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        payload = _in_file(lzma.compress(data, preset=0), "payload")
        target = Path(folder) / "target"
        target.mkdir()
        unpack(payload, target, Limits(files=16, total_bytes=1 << 20))
        assert not [path for path in target.rglob("*") if path.is_symlink()]


def _logs(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    Scrubber().text(text)
    read_line(text)


# The camera


def _picture(data: bytes) -> None:
    pixels, depth_bits, _ = decode_image(data)
    assert pixels.dtype == np.uint8
    assert max(pixels.shape[:2]) <= LONGEST_SIDE_PX
    assert 8 <= depth_bits <= 16


class _Frames:
    """A capture that gives frames of any size and type, as a driver gone mad would."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> tuple[bool, npt.NDArray[np.generic] | None]:
        if len(self._data) < 4:
            return False, None
        kind, high, wide, self._data = self._data[0], self._data[1], self._data[2], self._data[3:]
        shape = ((high, wide), (high, wide, 3), (high, wide, 2))[kind % 3]
        dtype = (np.uint8, np.uint16, np.float32)[kind // 3 % 3]
        values = np.resize(np.frombuffer(self._data[:1024] or b"\x00", np.uint8), shape).astype(dtype)
        self._data = self._data[16:]
        return True, values if kind < 250 else None

    def release(self) -> None:
        """Nothing is held."""


def _camera_frames(data: bytes) -> None:
    camera = V4L2Camera(_Frames(data), "camera", node_is_there=lambda: True)
    with contextlib.suppress(CameraLost):
        while True:
            pixels = camera.read()
            assert pixels is None or pixels.dtype == np.uint8


def _qr_picture(data: bytes) -> None:
    """The first byte is the width of a picture, half of it."""
    wide = 2 * (data[0] if data else 0) + 1
    high = min(len(data) // wide, 512)
    grey = np.frombuffer(data[1 : 1 + high * wide], np.uint8)
    if high and len(grey) == high * wide:
        text = read_qr(CameraFrame(grey.reshape(high, wide), at_ms=0, number=1))
        assert text is None or (1 <= len(text) <= MAX_TEXT and text.isascii() and text.isprintable())


def _qr_modules(data: bytes) -> None:
    side = 17 + 4 * (data[0] % 21 if data else 0)
    bits = np.unpackbits(np.frombuffer(data[1:].ljust(side * side // 8 + 1, b"\x5a"), np.uint8))
    read_modules(bits[: side * side].reshape(side, side).astype(bool))


# The sockets between the processes


def _packet(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        while await read_packet(reader) is not None:
            pass

    _LOOP.run_until_complete(read())


def _wire_object(data: bytes) -> None:
    kinds = honest.kinds_of(WireObject)
    kind: type[WireObject] = kinds[data[0] % len(kinds)] if data else kinds[0]
    value = kind.from_obj(_object(data[1:]))
    assert kind.from_obj(value.to_obj()) == value


# The service


def _json(data: bytes) -> None:
    """The two readings agree with each other, and what the strict one takes has one canonical form."""
    try:
        strict: Any = read_strict(data, max_bytes=65_536)
    except FormatError:
        strict = None
    try:
        lenient = read_body(data)
    except Problem as problem:
        assert problem.status == 400
        assert strict is None
        return
    assert strict is None or lenient == strict == json.loads(canonical_bytes(strict))


def _body(data: bytes) -> None:
    models = honest.kinds_of(bodies.Body)
    model = models[data[0] % len(models)] if data else models[0]
    bodies.read_model(model, read_body(data[1:]))


_PARAMETERS = [LIMIT, CURSOR_PARAMETER, EXTERNAL_REF_PARAMETER, date_time("since"), uuid("id")]


def _query(data: bytes) -> None:
    values = read_query(data, _PARAMETERS)
    if values.get("cursor") is not None:
        cursor_bytes(values["cursor"])


def _headers(data: bytes) -> None:
    signature_input, _, signature = data.decode("latin-1").partition("\n")
    verify_request(
        "GET",
        "host",
        "/",
        "",
        headers={"Signature-Input": signature_input, "Signature": signature},
        key_of=lambda kid: honest.KEY.public if kid == honest.KEY.public.kid else None,
        now_s=0,
    )
    # Spaces in a list are no part of what is signed (RFC 8941 §4.2.1.2), which is written again without them.
    read, signed = ("".join(one.decode("latin-1").split()) for one in (data, honest.signed_headers()))
    assert read == signed, "a changed signature held"


class _Client(asyncio.Transport):
    """The other end of a connection, in memory."""

    max_size = 0

    def __init__(self) -> None:
        super().__init__(
            {"socket": socket.socket(), "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}
        )
        self.answers = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers += data

    def close(self) -> None:
        self.closed = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """What is fed is fed."""

    def resume_reading(self) -> None:
        """As above."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


_SERVED = server_config(_echo)
_SERVED.load()


def _http(data: bytes) -> None:
    """A connection to the service: what comes in two pieces, and all that is answered to it."""
    faults: list[Any] = []
    _LOOP.set_exception_handler(lambda _loop, context: faults.append(context))

    async def serve() -> None:
        client, connections = _Client(), Connections(100)
        connection = HttpConnection(_SERVED, ServerState(), _LOOP, connections, lambda _served: None)
        connections.enter(connection, "127.0.0.1")
        connection.connection_made(client)
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            if piece and not client.closed:
                connection.data_received(piece)
            for _ in range(12):
                await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        client.get_extra_info("socket").close()
        assert not client.answers or client.answers.startswith(b"HTTP/1.1 ")

    _LOOP.run_until_complete(serve())
    assert not faults, faults


TARGETS: dict[str, FuzzTarget] = {
    "frames": FuzzTarget(_frames, (), frames),
    "envelope": FuzzTarget(
        _envelope,
        (MessageRefused,),
        lambda: [bytes([way]) + one for way in range(6) for one in messages()],
        4_200,
    ),
    "device-end": FuzzTarget(_device_end, (), lambda: _spoken(messages())),
    "validator-end": FuzzTarget(_validator_end, (), lambda: _spoken(messages_of_a_device())),
    "capture": FuzzTarget(_capture, (FormatError,), honest.captures),
    "mail-record": FuzzTarget(
        _record, (FormatError, SealError, SignatureError), lambda: [canonical_bytes(RECORD)]
    ),
    "deltas": FuzzTarget(_deltas, (PageRefused,), lambda: [honest.gallery().deltas()], 65_536),
    "snapshot": FuzzTarget(_snapshot, (PageRefused,), honest.gallery().snapshot, 65_536),
    "policy": FuzzTarget(_policy, (TrustError, FormatError), lambda: [honest.POLICY]),
    "manifest": FuzzTarget(_manifest, (TrustError, UpdateRefused, FormatError), lambda: [honest.MANIFEST]),
    "service-status": FuzzTarget(
        _service_status, (TrustError, FormatError, SignatureError), lambda: [honest.status()]
    ),
    "chunk": FuzzTarget(_chunk, (FormatError,), lambda: [honest.CHUNK]),
    "release-file": FuzzTarget(_release, (ReleaseError,), lambda: [honest.release_file()]),
    "archive": FuzzTarget(_archive, (UpdateRefused,), lambda: [honest.tar()], 32_768),
    "state-files": FuzzTarget(_state, (FormatError, DeviceError, GalleryError), honest.state_files),
    "configuration": FuzzTarget(_configuration, (ConfigError,), lambda: [honest.TOML]),
    "provisioning": FuzzTarget(_provisioning, (ProvisioningError,), lambda: [honest.INVITATION], 1_024),
    "typed": FuzzTarget(_typed, (), lambda: [b"7KQ2-M4XD", honest.QR_SESSION]),
    "redeemed": FuzzTarget(read_redeemed, (FormatError,), lambda: [honest.REDEEMED]),
    "logs": FuzzTarget(_logs, (), lambda: [honest.JOURNAL_LINE]),
    "picture": FuzzTarget(_picture, (Unreadable,), honest.pictures, longest_s=2.0),
    "camera-frames": FuzzTarget(_camera_frames, (), lambda: [b"\x01\x40\x40" + bytes(range(200)) * 3]),
    "qr-picture": FuzzTarget(_qr_picture, (), lambda: honest.qr_codes()[0], 65_536),
    "qr-modules": FuzzTarget(_qr_modules, (), lambda: honest.qr_codes()[1]),
    "packet": FuzzTarget(
        _packet,
        (IpcError,),
        lambda: [honest.framed(b'{"op":"status"}') + honest.framed(b'{"ok":true}', b"payload")],
    ),
    "wire-objects": FuzzTarget(_wire_object, (FormatError,), honest.wire_objects),
    "groups": FuzzTarget(parse_groups, (EvaluationSetError,), lambda: [b"person,sex,age\n1,f,20-40\n2,m,\n"]),
    "json": FuzzTarget(_json, (), lambda: honest.JSON),
    "bodies": FuzzTarget(_body, (Problem,), honest.request_bodies),
    "query": FuzzTarget(_query, (Problem,), lambda: [honest.QUERY]),
    "signature": FuzzTarget(_headers, (HttpSignatureError,), lambda: [honest.signed_headers()]),
    "http": FuzzTarget(_http, (), lambda: honest.HTTP),
}


def every_input(name: str) -> Iterator[bytes]:
    """The honest inputs of a target, and those of its corpus."""
    yield from TARGETS[name].seeds()
    path = Path(__file__).parent / "corpus" / f"{name}.b64"
    if path.exists():
        yield from map(base64.b64decode, path.read_text("ascii").split())
