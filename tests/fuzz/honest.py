"""Honest inputs of the targets, from which fuzzing begins."""

import hashlib
import io
import json
import tarfile
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from cloud_client.http_signature import sign_request
from cloud_client.reference_server.contract import bodies
from device.values.carrier import CloudState
from device.values.control import DeviceNamed
from link1.canonical import JsonObject, canonical_bytes
from link1.keys import SigningKey
from link1.validator.memory import DeskMemory
from link1.wire import WireObject
from tests.device.status_makers import some_report, some_status
from tests.gallery.gallery_service import Service, entry
from tools.kit.link_pcap import MAGIC_US
from tools.palmctl.release_file import MAGIC

KEY = SigningKey.from_seed(b"h" * 32)

MANIFEST = (
    b'{"v":1,"kind":"model","name":"palm","version":"4","size":10,"sha256":"' + b"00" * 32 + b'",'
    b'"chunk_size":4,"chunk_count":3,"min_app_version":"0.1","release_seq":7}'
)
CHUNK = b'{"release_seq":1,"index":0,"data_b64":"AAAA"}'
POLICY = (
    b'{"v":1,"config_seq":1,"attempts":3,"decision_timeout_ms":5000,"passage_timeout_ms":9000,'
    b'"gallery_ttl_ms":21600000,"thresholds":{"thr_id":"t","accept_q":1,"margin_q":1,"quality_q":1,'
    b'"pad_q":1,"enrol_quality_q":1}}'
)
REDEEMED = (
    b'{"session_id":"00000000-0000-0000-0000-000000000000","token":"tttttttttttttttt",'
    b'"hands_required":["L"],"terms_version":"1","dataset_collection":false}'
)
QR_SESSION = b"SVC1:ENR:00000000-0000-0000-0000-000000000000:tttttttttttttttt"
TOML = b"""[device]
id = "gate-7"
gate_id = "g"
dbd_id = "d"
[camera]
source = "file:/x"
fps = 15
[link]
port = "usb:1209:0001"
"""
INVITATION = bytes(22) + b"".join(
    bytes([len(text)]) + text for text in (b"https://h/", b"token", b"d", b"g", b"v")
)
"""The body of a provisioning string."""
JOURNAL_LINE = (
    b'{"MESSAGE":"token=abc 1.2.3.4","_SYSTEMD_UNIT":"palmd.service","PRIORITY":"6",'
    b'"__REALTIME_TIMESTAMP":"1700000000000000"}'
)
JSON = [
    b'{"a":' + b"[" * 17 + b'"' + b'\\"' * 50,
    b'{"external_ref":"p-1","n":[1,2.5,-0,1e9,9007199254740993],"s":"\\ud83d\\ude00"}',
]
HTTP = [
    b"POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
]
QUERY = b"limit=3&since=2026-01-01T00:00:00Z&cursor=AAAA"


def kinds_of(base: type[Any]) -> list[type[Any]]:
    """The subclasses of a model, in an order that lasts."""
    return sorted(base.__subclasses__(), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def status() -> bytes:
    """A device_status object of the service."""
    key = {"dbd_id": "d", "kid": KEY.kid, "pub_b64": KEY.public.b64, "not_before_ms": 0, "not_after_ms": None}
    obj = {"v": 1, "device_id": "palm-1", "status": "active", "issued_at_ms": 1, "config_seq": 1}
    gallery = {"stream": "s", "epoch": 1, "seq": 1, "head": "00" * 32}
    return canonical_bytes(
        obj | {"gallery": gallery, "dbd_keys": [key], "wipe": None, "challenge_b64": "AAAA"}
    )


def state_files() -> list[bytes]:
    """An object of each file of the state directory, behind its number."""
    manifest = b'{"manifest_obj":' + MANIFEST + b"}"
    note = b'{"release_seq":1,"kind":"app","version":"1","code":"","name":"n"}'
    time = b'{"boot_id":"b","boottime_ms":1}'
    key: JsonObject = {"alg": "ed25519", "kid": KEY.kid, "pub_b64": KEY.public.b64}
    timed = key | {"not_before": "2026-01-01T00:00:00.000Z", "not_after": None, "use": ["gallery"]}
    trust = json.loads(
        b'{"v":1,"device_id":"d","gate_id":"g","dbd_id":"d","tenant_id":"t","terms_version":"1","config":{},'
        b'"passage_sensor":true,"pinned_at_ms":1,"dbd_keys":[],"gallery":{"stream":"s","epoch":1}}'
    )
    seal = key | {"alg": "x25519"}
    mail = {"service_id": "svc", "seal_key": seal, "signer_certs": [], "inbox_next_seq": 1}
    files = [
        b'{"v":1,"app_seq":1,"model_seq":1,"receiving":null,"model":1,"app":' + manifest + b","
        b'"slots":[{"release_seq":1,"version":"1","model_id":"m","name":"m"}],"previous":null,"waiting":2,'
        b'"home_epoch":1,"trial":{"release_seq":1,"back_to":0,"starts":1},"failed":' + note + b","
        b'"installed":' + note + b',"withdrawn":[' + note + b'],"by_network":[1],'
        b'"offer":{"issued_at_ms":1,"release_seqs":[1]}}',
        b'{"v":1,"position":{"epoch":1,"seq":1,"head":"00"},"generation":1,"count":1,"time":' + time + b"}",
        b'{"generation":1,"epoch":1,"seq":1,"head":"00","state":"00","count":0}',
        canonical_bytes(DeskMemory().to_obj()),
        canonical_bytes(trust | {"roots": [key], "keys": [timed], "mail": mail}),
        b'{"v":1,"stage":"erasing","wipe_id":null,"device_id":"d","gate_id":"g","dbd_id":"d","record":null}',
        b'{"issued_at_ms":1,"release_seqs":[1]}',
    ]
    return [bytes([number]) + file for number, file in enumerate(files)]


def release_file() -> bytes:
    payload = b"0123456789"
    manifest = MANIFEST.replace(b"00" * 32, hashlib.sha256(payload).hexdigest().encode())
    signed = b'{"manifest_obj":' + manifest + b"}"
    return MAGIC + len(signed).to_bytes(4, "big") + signed + payload


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("a", "b/c"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    return file.getvalue()


def captures() -> list[bytes]:
    head = MAGIC_US.to_bytes(4, "little") + bytes.fromhex("0200040000000000000000000000040093000000")
    return [head, head + bytes.fromhex("01000000020000000300000003000000") + b"\x00ab"]


def gallery() -> Service:
    """A stream with a delta of every kind."""
    service = Service(key=KEY)
    service.upsert(entry(1, 1, onboard_ref="ticket-1"), entry(2, 2))
    service.suspend(2)
    service.resume(2)
    service.tombstone(1)
    service.noop()
    return service


def signed_headers() -> bytes:
    headers = sign_request("GET", "host", "/", "", None, key=KEY, created_s=0, nonce="ab" * 16)
    return "\n".join(headers[name] for name in ("Signature-Input", "Signature")).encode()


def framed(header: bytes, payload: bytes = b"") -> bytes:
    """A packet between two processes."""
    return len(header).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + header + payload


def wire_objects() -> list[bytes]:
    kinds = kinds_of(WireObject)
    values = (some_status(), some_report(), DeviceNamed("palm-1"), CloudState(online=True, detail="x"))
    return [bytes([kinds.index(type(value))]) + canonical_bytes(value.to_obj()) for value in values]


def request_bodies() -> list[bytes]:
    """Each body of the service with the examples of its documentation."""
    seeds = []
    for number, model in enumerate(kinds_of(bodies.Body)):
        fields = model.model_fields.items()
        examples = {name: field.examples[0] for name, field in fields if field.examples}
        seeds.append(bytes([number]) + json.dumps(examples).encode())
    return seeds


def pictures() -> list[bytes]:
    ramp = np.arange(64 * 64).reshape(64, 64)
    grey, deep = (ramp % 251).astype(np.uint8), (ramp * 13).astype(np.uint16)
    colour = np.dstack([grey, grey.T, grey])
    drawn: list[tuple[str, npt.NDArray[Any]]] = [
        *((suffix, grey) for suffix in (".pgm", ".png", ".jpg", ".bmp")),
        *((suffix, colour) for suffix in (".ppm", ".png", ".jpg", ".webp")),
        *((suffix, deep) for suffix in (".pgm", ".png", ".tif")),
        (".png", np.dstack([colour, grey])),
    ]
    return [cv2.imencode(suffix, picture)[1].tobytes() for suffix, picture in drawn]


def qr_codes() -> tuple[list[bytes], list[bytes]]:
    """Codes as pictures of three pixels a module, and as modules; OpenCV draws them."""
    shown, modules = [], []
    for text in ("SVC1:ENR", "12345678", "x" * 60):
        code = cv2.QRCodeEncoder.create().encode(text)
        code = code[np.ix_((code == 0).any(axis=1), (code == 0).any(axis=0))]
        large = np.kron(np.pad(code, 4, constant_values=255), np.ones((3, 3), np.uint8))
        large = np.pad(large, ((0, 0), (0, 1 - large.shape[1] % 2)), constant_values=255)
        shown.append(bytes([large.shape[1] // 2]) + large.tobytes())
        modules.append(bytes([(code.shape[0] - 17) // 4]) + np.packbits(code == 0).tobytes())
    return shown, modules
