"""The service's statement about this device: the signed ``device_status_obj`` (device surface §3).

It arrives over the network or, as the body of a revocation, by mail; both are checked here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from device.errors import Outdated, TrustError
from device.trust.trust import DbdKey
from gallery.freshness import is_newer
from link1 import members
from link1.canonical import JsonObject, b64_decode
from link1.errors import FormatError
from link1.keys import PublicKey
from link1.members import HEX64, NAME
from link1.signed import Kind, signer_kid_of, verify_object

_MAX_DBD_KEYS = 256
_MAX_CHALLENGE_BYTES = 256
_STATUSES = frozenset({"active", "revoked", "wiped"})
_WIPE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class ServiceStream:
    """The position of the service's gallery stream."""

    stream: str
    epoch: int
    seq: int
    head: str


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A verified status. `wipe_id` is set when the service orders this device to be wiped; `gallery` is None
    for a device without a gallery."""

    status: str
    issued_at_ms: int
    config_seq: int
    gallery: ServiceStream | None
    dbd_keys: tuple[DbdKey, ...]
    wipe_id: str | None
    wrapper: JsonObject

    @property
    def challenge(self) -> bytes:
        """To be signed by an attestation. Raises FormatError."""
        text = self.wrapper[Kind.DEVICE_STATUS.member].get("challenge_b64")
        return b64_decode(text, max_length=_MAX_CHALLENGE_BYTES)


def read_service_status(
    wrapper: JsonObject,
    *,
    device_id: str,
    key_of: Callable[[str], PublicKey | None],
    newest_ms: int,
    known_ms: int = 0,
) -> ServiceStatus:
    """Check a signed status and read it.

    `key_of` returns the pinned device_status key of a kid. `newest_ms` is issued_at_ms of the newest status
    accepted so far; an older one is rejected, or a carrier could restore a revoked validator key.
    `known_ms`: the known time; with it one date far ahead does not block every later status.
    Raises FormatError, SignatureError, or TrustError for an unknown signer, another device or an old status.
    """
    key = key_of(signer_kid_of(Kind.DEVICE_STATUS, wrapper))
    if key is None:
        raise TrustError("the device status is signed by a key that was never pinned")
    obj = verify_object(Kind.DEVICE_STATUS, wrapper, key)
    members.version_1(obj)
    if members.text(obj, "device_id", NAME) != device_id:
        raise TrustError("the device status is about another device")
    issued_at_ms = members.integer(obj, "issued_at_ms")
    if not is_newer(issued_at_ms, newest_ms, known_ms):
        raise Outdated("the device status is older than one that was accepted before")
    return ServiceStatus(
        status=members.one_of(obj, "status", _STATUSES),
        issued_at_ms=issued_at_ms,
        config_seq=members.integer(obj, "config_seq"),
        gallery=_gallery(members.member(obj, "gallery")),
        dbd_keys=tuple(DbdKey.from_obj(item) for item in members.array(obj, "dbd_keys", 0, _MAX_DBD_KEYS)),
        wipe_id=_wipe_id(members.member(obj, "wipe")),
        wrapper=wrapper,
    )


class StatusReader:
    """Remembers the newest status of all carriers."""

    def __init__(
        self,
        device_id: str,
        key_of: Callable[[str], PublicKey | None],
        *,
        newest_ms: int = 0,
        at_least_ms: Callable[[], int] = lambda: 0,
        known_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`key_of` returns the pinned device_status key of a kid. `newest_ms`: of the status accepted before.
        `at_least_ms`: of the status or bundle in trust.json. `known_ms`: the known time."""
        self._device_id = device_id
        self._key_of = key_of
        self._newest_ms = newest_ms
        self._at_least_ms = at_least_ms
        self._known_ms = known_ms

    def read(self, wrapper: JsonObject) -> ServiceStatus:
        """`read_service_status`, remembering the newest. Raises as it does."""
        status = read_service_status(
            wrapper,
            device_id=self._device_id,
            key_of=self._key_of,
            newest_ms=max(self._newest_ms, self._at_least_ms()),
            known_ms=self._known_ms(),
        )
        self._newest_ms = status.issued_at_ms
        return status


def _gallery(value: object) -> ServiceStream | None:
    if value is None:
        return None
    obj = _object(value, "gallery")
    return ServiceStream(
        stream=members.text(obj, "stream", NAME),
        epoch=members.integer(obj, "epoch"),
        seq=members.integer(obj, "seq"),
        head=members.text(obj, "head", HEX64),
    )


def _wipe_id(value: object) -> str | None:
    return None if value is None else members.text(_object(value, "wipe"), "wipe_id", _WIPE_ID)


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"member {name} is not an object")
    return value
