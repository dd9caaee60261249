"""An update being written while something else is measured."""

import os
import time
from pathlib import Path
from threading import Event

from cloud_client.contract import MAX_CHUNK_BYTES
from device.platform.ipc import ask_core
from device.updates.manifest import ReleaseKind
from link1.canonical import canonical_bytes
from link1.keys import SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object
from tools.cloud.pack_release import manifest_obj

_HOUR_MS = 3_600_000


def feed_update(
    control_socket: Path, root_key: SigningKey, *, stop: Event, size_bytes: int = 64 * 1024 * 1024
) -> dict[str, float]:
    """Hand releases of made-up bytes to a running daemon, one after the other, until `stop` is set.

    `root_key`: the root that the device has pinned (`Board.root_key`). Each release is written, read back
    and hashed whole as a real one is, and given up when it turns out to be no archive. Blocks: run it in a
    thread. Returns MiB written and MiB/s.
    """
    signer = SigningKey.generate()
    payload = os.urandom(size_bytes)
    begun_s, release_seq, written = time.monotonic(), int(time.time()), 0
    while not stop.is_set():
        now_ms = time.time_ns() // 1_000_000
        release_seq += 1
        obj = manifest_obj(
            payload,
            kind=ReleaseKind.MODEL,
            name="bench",
            version="0",
            min_app_version="0",
            release_seq=release_seq,
        )
        certificate = SignerCertificate.issue(
            SignerPurpose.BUNDLE, signer.public, now_ms + _HOUR_MS, root_key
        )
        wrapper = sign_object(Kind.UPDATE_MANIFEST, obj, signer) | {"signer_cert_b64": certificate.b64}
        ask_core(control_socket, "update.manifest", payload=canonical_bytes(wrapper), timeout_s=60)
        for index in range(obj["chunk_count"]):
            if stop.is_set():
                break
            chunk = payload[index * MAX_CHUNK_BYTES : (index + 1) * MAX_CHUNK_BYTES]
            ask_core(
                control_socket,
                "update.chunk",
                payload=chunk,
                timeout_s=60,
                release_seq=release_seq,
                index=index,
            )
            written += len(chunk)
    took_s = time.monotonic() - begun_s
    return {"mib": written / 2**20, "mib_per_s": written / 2**20 / took_s}
