"""Packing a provisioning string; the device's half, and its form, is `device.provisioning.invitation`."""

import base64

from device.provisioning.invitation import PREFIX, TIME_BYTES, Invitation, checksum
from link1.errors import FormatError

_TO_CROCKFORD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def pack_invitation(said: Invitation) -> str:
    """The provisioning string. Raises FormatError."""
    texts = (said.url, said.token, said.device_id, said.gate_id, said.dbd_id)
    body = b"".join(
        (
            bytes([said.passage_sensor]),
            bytes.fromhex(said.root_kid),
            said.expires_at_s.to_bytes(TIME_BYTES, "big"),
            *(_short(text) for text in texts),
            said.authority,
        )
    )
    measured = len(body).to_bytes(2, "big") + body
    coded = base64.b32encode(measured + checksum(measured)).rstrip(b"=")
    return PREFIX + coded.translate(_TO_CROCKFORD).decode("ascii")


def _short(text: str) -> bytes:
    """At most 255 printable ASCII characters with their length. Raises FormatError."""
    data = text.encode("ascii", errors="replace")
    if not 0 < len(data) < 256:
        raise FormatError("expected 1 to 255 ASCII characters")
    return bytes([len(data)]) + data
