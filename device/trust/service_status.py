"""The service's statement about this device: the signed ``device_status_obj`` (device surface §3).

It arrives over the network or, as the body of a revocation, by mail; both are checked here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from device.errors import Outdated, TrustError
from device.trust.trust import DbdKey
from gallery.freshness import ABSURD_ORDER_MS, is_newer
from link1 import members
from link1.canonical import JsonObject, b64_decode
from link1.keys import PublicKey
from link1.members import NAME
from link1.signed import Kind, signer_kid_of, verify_object

_MAX_DBD_KEYS = 4_096
"""As in a trust bundle: a service may list every validator of a tenant."""
_MAX_CHALLENGE_BYTES = 256
_STATUSES = frozenset({"active", "revoked", "wiped"})
_WIPE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The part of a verified status that this device uses. `wipe_id`: set when the service orders a wipe."""

    issued_at_ms: int
    dbd_keys: tuple[DbdKey, ...]
    wipe_id: str | None
    wrapper: JsonObject

    @property
    def challenge(self) -> bytes:
        """To be signed by an attestation. Raises FormatError."""
        text = self.wrapper[Kind.DEVICE_STATUS.member].get("challenge_b64")
        return b64_decode(text, max_length=_MAX_CHALLENGE_BYTES)


@dataclass(slots=True)
class StatusReader:
    """Checks signed statuses, and remembers the newest of all carriers.

    `key_of` returns the pinned device_status key of a kid. `at_least_ms`: of the status or bundle in
    trust.json. `known_ms`: the known time; with it one date of over a day ahead does not block every later
    status. `dbd_id`: keys of other validators are passed over, because a check of a key takes 50 µs; None:
    every key is read.
    """

    device_id: str
    key_of: Callable[[str], PublicKey | None]
    at_least_ms: Callable[[], int] = lambda: 0
    known_ms: Callable[[], int] = lambda: 0
    dbd_id: str | None = None
    newest_ms: int = field(default=0, init=False)

    def read(self, wrapper: JsonObject) -> ServiceStatus:
        """Check a signed status and read it. An older one than the newest accepted is rejected, or a carrier
        could restore a revoked validator key.

        Raises FormatError, SignatureError, or TrustError for an unknown signer, another device or an old
        status.
        """
        key = self.key_of(signer_kid_of(Kind.DEVICE_STATUS, wrapper))
        if key is None:
            raise TrustError("the device status is signed by a key that was never pinned")
        obj = verify_object(Kind.DEVICE_STATUS, wrapper, key)
        members.version_1(obj)
        if members.text(obj, "device_id", NAME) != self.device_id:
            raise TrustError("the device status is about another device")
        issued_at_ms = members.integer(obj, "issued_at_ms")
        newest_ms = max(self.newest_ms, self.at_least_ms())
        if not is_newer(issued_at_ms, newest_ms, self.known_ms(), absurd_ms=ABSURD_ORDER_MS):
            raise Outdated("the device status is older than one that was accepted before")
        members.one_of(obj, "status", _STATUSES)
        members.integer(obj, "config_seq")
        ordered = members.member(obj, "wipe") is not None
        status = ServiceStatus(
            issued_at_ms,
            dbd_keys=tuple(
                DbdKey.from_obj(item)
                for item in members.array(obj, "dbd_keys", 0, _MAX_DBD_KEYS)
                if self.dbd_id is None or not isinstance(item, dict) or item.get("dbd_id") == self.dbd_id
            ),
            wipe_id=members.text(members.nested(obj, "wipe"), "wipe_id", _WIPE_ID) if ordered else None,
            wrapper=wrapper,
        )
        self.newest_ms = issued_at_ms
        return status
