"""The trust pinned at registration: the device's identity and the keys it believes. Kept in trust.json.

The file is the registration answer (device surface §3) with these changes: `device` is reduced to its
device_id, `dbd_sign_key` becomes the list `dbd_keys` of windows (device surface §3, status), `revoked_kids`
are those of all bundles, `service_ms` is a time signed by the service, and `gate_id`, `dbd_id`,
`passage_sensor` and `pinned_at_ms` are the facts and the time of the registration. It holds no secret.

1. The file is replaced as a whole or not at all.
2. One wrong member makes the whole file invalid.
3. The configuration counts only when a root pinned here vouches for it (`device.trust.policy`).
4. Which validator key counts never depends on a clock alone (`Trust.dbd_keys_now`), so a device without a
   clock battery serves its gate, whatever its clock says at the start.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from device.errors import NotProvisioned, TrustError
from device.platform.files import read_kept, replace_synced, with_checksum
from link1 import members
from link1.canonical import JsonObject, read_strict
from link1.errors import FormatError
from link1.handshake import OncePinned
from link1.keys import PublicKey, SealPublicKey
from link1.members import HEX32, NAME
from link1.sealed import SignerCertificate
from link1.signed import Kind

MAX_FILE_BYTES = 256 * 1024
"""A registration answer with every list full stays under 64 KiB."""

MAX_REVOKED = 1_024
"""Revoked kids of all bundles together; a bundle that would exceed it is rejected."""
_MAX_KEYS = 64
_MAX_WINDOWS = 256
"""Windows of this device's validator: enough for a new key each month for twenty years."""
_DAY_MS = 24 * 3600 * 1000
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})")
_USE = re.compile(r"[a-z_]{1,32}")

_Key = TypeVar("_Key", PublicKey, SealPublicKey)


@dataclass(frozen=True, slots=True)
class ServiceKey:
    """A signing key that the service publishes (GET /v1/keys). Times are epoch milliseconds."""

    public: PublicKey
    use: frozenset[str]
    not_before_ms: int
    not_after_ms: int | None

    def has_ended(self, at_ms: int) -> bool:
        return self.not_after_ms is not None and at_ms >= self.not_after_ms


@dataclass(frozen=True, slots=True)
class DbdKey:
    """A validator's signing key with one validity window: `not_before_ms` included, `not_after_ms` excluded.

    A key that is added again gets an additional window. `assumed`: the registration names a key without a
    window, so it counts from 0 without an end until a list of the service names the key.
    """

    dbd_id: str
    public: PublicKey
    not_before_ms: int
    not_after_ms: int | None
    assumed: bool = False

    def holds(self, at_ms: int) -> bool:
        return self.not_before_ms <= at_ms and (self.not_after_ms is None or at_ms < self.not_after_ms)

    @classmethod
    def from_obj(cls, value: object) -> "DbdKey":
        """An item of `dbd_keys` in a status, a bundle or trust.json. Raises FormatError."""
        obj = _object(value)
        open_ended = members.member(obj, "not_after_ms") is None
        return cls(
            dbd_id=members.text(obj, "dbd_id", NAME),
            # The status route does not name an alg; only one exists.
            public=_signing_key({"alg": "ed25519", **obj}),
            not_before_ms=members.integer(obj, "not_before_ms"),
            not_after_ms=None if open_ended else members.integer(obj, "not_after_ms"),
            assumed=members.boolean({"assumed": False} | obj, "assumed"),
        )

    def to_obj(self) -> JsonObject:
        obj: JsonObject = {
            "dbd_id": self.dbd_id,
            "kid": self.public.kid,
            "pub_b64": self.public.b64,
            "not_before_ms": self.not_before_ms,
            "not_after_ms": self.not_after_ms,
        }
        return obj | {"assumed": True} if self.assumed else obj


@dataclass(frozen=True, slots=True)
class Trust:
    """What is pinned. `gallery` is (stream, epoch), None for a device without one.

    `config` is the signed configuration as received; `device.trust.policy` verifies and reads it.
    """

    device_id: str
    gate_id: str
    dbd_id: str
    tenant_id: str
    passage_sensor: bool
    pinned_at_ms: int
    roots: tuple[PublicKey, ...]
    keys: tuple[ServiceKey, ...]
    dbd_keys: tuple[DbdKey, ...]
    service_id: str
    mail_seal_key: SealPublicKey
    signer_certs: tuple[str, ...]
    inbox_next_seq: int
    gallery: tuple[str, int] | None
    terms_version: str
    config: JsonObject
    bundle_seq: int
    """Of the newest trust bundle applied (`device.trust.bundle`); 0 before the first."""
    status_at_ms: int
    """issued_at_ms of the status or bundle with these `dbd_keys`; an older status does not replace them."""
    service_ms: int
    """The newest time signed by the service, as far as it has to be durable (`worth_keeping`)."""
    revoked_kids: frozenset[str]
    obj: JsonObject
    """The members of trust.json as they are written."""

    @property
    def former_roots(self) -> list[JsonObject]:
        """Roots that were pinned once and are no more, with the signatures that vouched for them."""
        return _former_roots(self.obj)

    def service_key(self, kid: str, use: str, at_ms: int | None = None) -> PublicKey | None:
        """The key `kid` if it is pinned for `use` and, when a time is given, has not expired."""
        for key in self.keys:
            if key.public.kid == kid and use in key.use:
                return None if at_ms is not None and key.has_ended(at_ms) else key.public
        return None

    def gallery_key(self, kid: str, at_ms: int | None = None) -> PublicKey | None:
        """The key `kid` if it may sign gallery heads."""
        return self.service_key(kid, "gallery", at_ms)

    def dbd_key(self, kid: str, at_ms: int) -> PublicKey | None:
        """The validator's key `kid`, if one of its windows contains `at_ms` (epoch milliseconds)."""
        windows = (key for key in self._unrevoked() if key.public.kid == kid)
        return next((key.public for key in windows if key.holds(at_ms)), None)

    def dbd_keys_now(self, wall_ms: int, service_ms: int) -> tuple[DbdKey, ...]:
        """The windows whose keys count now, by the wall clock and the newest time signed by the service.

        The later of the two is tried first, then the service's time. When neither is in any window, every
        key that is not revoked counts. So no clock locks a validator out.
        """
        windows = self._unrevoked()
        for now_ms in (max(wall_ms, service_ms), service_ms):
            if around := tuple(key for key in windows if key.holds(now_ms)):
                return around
        return windows

    def worth_keeping(self, at_ms: int) -> bool:
        """Whether a time signed by the service has to be durable: since the stored time a window began or
        ended, so that another key counts, or a day has passed."""
        edges = {edge for key in self.dbd_keys for edge in (key.not_before_ms, key.not_after_ms) if edge}
        crossed = any(self.service_ms < edge <= at_ms for edge in edges)
        return crossed or at_ms >= self.service_ms + _DAY_MS

    def _unrevoked(self) -> tuple[DbdKey, ...]:
        return tuple(
            key
            for key in self.dbd_keys
            if key.dbd_id == self.dbd_id and key.public.kid not in self.revoked_kids
        )


class Pinned:
    """The trust in force and the newest time of the service, shared by all parts that use them."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.service_ms = max(trust.service_ms, trust.status_at_ms)
        """The newest time (epoch) signed by the service and verified here. It never decreases."""

    def replace(self, trust: Trust) -> None:
        """Put `trust` in force."""
        self.trust = trust

    def heard(self, at_ms: int) -> bool:
        """The service signed an object at `at_ms` (epoch), verified here. True when it is the newest."""
        newer = at_ms > self.service_ms
        self.service_ms = max(self.service_ms, at_ms)
        return newer

    def validator_key(self, kid: str, wall_ms: int) -> PublicKey | None:
        """The validator's key `kid`, if it counts now."""
        counting = self.trust.dbd_keys_now(wall_ms, self.service_ms)
        return next((key.public for key in counting if key.public.kid == kid), None)

    def once_pinned(self, kid: str) -> OncePinned | None:
        """The validator's key `kid`, in whichever window."""
        trust = self.trust
        keys = (key.public for key in trust.dbd_keys if key.public.kid == kid and key.dbd_id == trust.dbd_id)
        public = next(keys, None)
        return None if public is None else OncePinned(public, kid in trust.revoked_kids)


def trust_from_registration(
    answer: Mapping[str, Any],
    *,
    device_id: str,
    gate_id: str,
    dbd_id: str,
    passage_sensor: bool,
    pinned_at_ms: int,
) -> Trust:
    """Read the answer of POST /v1/devices/register. Raises TrustError when it does not match the request."""
    window = {"dbd_id": dbd_id, "not_before_ms": 0, "not_after_ms": None, "assumed": True}
    try:
        if members.text(members.nested(answer, "device"), "device_id", NAME) != device_id:
            raise TrustError("the service registered another device_id than the one it was asked to")
        first_key = members.member(answer, "dbd_sign_key")
        return _read(
            {
                "v": 1,
                "device_id": device_id,
                "gate_id": gate_id,
                "dbd_id": dbd_id,
                "passage_sensor": passage_sensor,
                "pinned_at_ms": pinned_at_ms,
                "dbd_keys": []
                if first_key is None
                else [_only(members.nested(answer, "dbd_sign_key"), _KEY_MEMBERS) | window],
                **_kept(answer),
            }
        )
    except FormatError as error:
        raise TrustError(f"the registration answer is outside the contract: {error}") from error


def _kept(answer: Mapping[str, Any]) -> JsonObject:
    """The members of the answer that go into trust.json. What a later version adds may be of a kind that is
    not read back from there. Raises FormatError."""
    without_gallery, mail = members.member(answer, "gallery") is None, members.nested(answer, "mail")
    return _only(answer, ("tenant_id", "terms_version", "config")) | {
        "roots": [_only(_object(key), _KEY_MEMBERS) for key in members.array(answer, "roots", 1, _MAX_KEYS)],
        "keys": [
            _only(_object(key), _SERVICE_KEY_MEMBERS) for key in members.array(answer, "keys", 0, _MAX_KEYS)
        ],
        "mail": _only(mail, ("service_id", "signer_certs", "inbox_next_seq"))
        | {"seal_key": _only(members.nested(mail, "seal_key"), _KEY_MEMBERS)},
        "gallery": None if without_gallery else _only(members.nested(answer, "gallery"), ("stream", "epoch")),
    }


def _only(obj: Mapping[str, Any], names: Iterable[str]) -> JsonObject:
    return {name: members.member(obj, name) for name in names}


def registered_again(earlier: Trust, trust: Trust) -> Trust:
    """`trust`, from another registration of the same keys, without going back behind `earlier`: what was
    revoked stays so, an older bundle, status or configuration changes nothing, and no key of the service and
    no validator's window is lost. The answer may have lain on a stick since before the last ones came."""
    named = {key.public.kid for key in earlier.dbd_keys}
    windows = [*earlier.dbd_keys, *(key for key in trust.dbd_keys if key.public.kid not in named)]
    ended = {key["kid"] for key in earlier.obj["keys"] if key["not_after"] is not None}
    keys = {key["kid"]: key for key in earlier.obj["keys"]}
    keys |= {key["kid"]: key for key in trust.obj["keys"] if key["kid"] not in ended | earlier.revoked_kids}
    older = _config_seq(trust) < _config_seq(earlier)
    mail = trust.obj["mail"]
    if trust.mail_seal_key.kid in earlier.revoked_kids:
        mail = mail | {"seal_key": earlier.obj["mail"]["seal_key"]}
    return _read(
        trust.obj
        | {
            "roots": earlier.obj["roots"],  # the same ones, with the signatures by which they came
            "former_roots": earlier.former_roots,
            "keys": without_ended(list(keys.values()), trust.pinned_at_ms),
            "config": (earlier if older else trust).config,
            "mail": mail,
            "dbd_keys": [key.to_obj() for key in windows[-_MAX_WINDOWS:]],
            "bundle_seq": earlier.bundle_seq,
            "status_at_ms": earlier.status_at_ms,
            "service_ms": earlier.service_ms,
            "revoked_kids": sorted(earlier.revoked_kids),
        }
    )


def _config_seq(trust: Trust) -> int:
    return members.integer(members.nested(trust.config, Kind.CONFIG.member), "config_seq")


def with_service_keys(trust: Trust, published: list[JsonObject], now_ms: int) -> Trust:
    """`trust` with the keys that GET /v1/keys lists (`published`), at `now_ms` (epoch milliseconds).

    A new key counts only if it was published before its not_before (partner API, listSigningKeys); a key that
    is valid at once could be anyone's. A known key may be given another end until its own has passed, and is
    not changed otherwise. Raises TrustError.
    """
    known = {key["kid"]: key for key in trust.obj["keys"]}
    ended = {key.public.kid for key in trust.keys if key.has_ended(now_ms)}
    try:
        for item in published:
            key = _service_key(item)
            if key.public.kid in known:
                # The service does not list expired keys, so an end in the past is ignored.
                if key.public.kid not in ended and not key.has_ended(now_ms):
                    known[key.public.kid] = known[key.public.kid] | {"not_after": item["not_after"]}
            elif key.not_before_ms > now_ms and key.public.kid not in trust.revoked_kids:
                known[key.public.kid] = {name: item[name] for name in _SERVICE_KEY_MEMBERS}
        return _read(trust.obj | {"keys": without_ended(list(known.values()), now_ms)})
    except FormatError as error:
        raise TrustError(f"the published keys are outside the contract: {error}") from error


def without_ended(keys: list[JsonObject], now_ms: int) -> list[JsonObject]:
    """Service keys, and where there are too many, none that ended longest ago. Raises FormatError."""
    ends = [(_service_key(item).not_after_ms, item["kid"]) for item in keys]
    ended = sorted((end_ms, kid) for end_ms, kid in ends if end_ms is not None and end_ms <= now_ms)
    gone = {kid for _, kid in ended[: max(0, len(keys) - _MAX_KEYS)]}
    return [item for item in keys if item["kid"] not in gone]


_KEY_MEMBERS = ("kid", "alg", "pub_b64")
_SERVICE_KEY_MEMBERS = ("kid", "alg", "use", "pub_b64", "not_before", "not_after")


def with_dbd_keys(trust: Trust, listed: Iterable[DbdKey], status_at_ms: int) -> Trust:
    """`trust` with the validator keys of a verified device status; `trust` itself when it holds all of them,
    so that the status of every minute writes nothing."""
    windows = merged_windows(trust, listed, newer=True)
    if tuple(windows) == trust.dbd_keys:
        return trust
    listed_now = [key.to_obj() for key in windows]
    return _read(trust.obj | {"dbd_keys": listed_now, "status_at_ms": status_at_ms})


def merged_windows(trust: Trust, listed: Iterable[DbdKey], *, newer: bool) -> list[DbdKey]:
    """The windows of `trust` and of a list of the service. No window is removed because a list lacks it.

    `newer`: the list is not older than the stored one, so its end of a window applies. Keys of other
    validators are left out. Beyond the limit, the windows that end first are dropped.
    """
    own = [replace(key, assumed=False) for key in listed if key.dbd_id == trust.dbd_id]
    named = {key.public.kid for key in own}
    windows = {
        (key.public.kid, key.not_before_ms): key
        for key in trust.dbd_keys
        if not (key.assumed and key.public.kid in named)
    }
    for key in own:
        place = (key.public.kid, key.not_before_ms)
        if newer or place not in windows:
            windows[place] = key
    if len(windows) <= _MAX_WINDOWS:
        return list(windows.values())
    return sorted(windows.values(), key=_ends)[-_MAX_WINDOWS:]


def _ends(key: DbdKey) -> tuple[float, int]:
    return (float("inf") if key.not_after_ms is None else key.not_after_ms, key.not_before_ms)


def revoked_kids(obj: JsonObject) -> frozenset[str]:
    """Member `revoked_kids` of a bundle or of trust.json. Raises FormatError."""
    kids = members.array(obj, "revoked_kids", 0, MAX_REVOKED)
    if not all(isinstance(kid, str) and HEX32.fullmatch(kid) for kid in kids):
        raise FormatError("member revoked_kids is not an array of 32-hex strings")
    return frozenset(kids)


def reread(trust: Trust, changes: JsonObject) -> Trust:
    """`trust` with some members replaced, read as strictly as the file. Raises FormatError."""
    return _read(trust.obj | changes)


def load_trust(path: Path) -> Trust:
    """Read trust.json. Raises NotProvisioned when there is none, TrustError when it is invalid."""
    try:
        return _read(read_kept(path, MAX_FILE_BYTES))
    except FileNotFoundError:
        raise NotProvisioned(
            f"{path} does not exist: this device is not provisioned; run `palmctl provision`"
        ) from None
    except OSError as error:
        raise TrustError(f"{path} cannot be read ({error.strerror}); check its owner and mode") from error
    except FormatError as error:
        raise TrustError(
            f"{path} is damaged ({error}); restore it from a backup or register the device again"
        ) from error


def save_trust(path: Path, trust: Trust) -> None:
    """Replace trust.json durably, as a whole. Raises TrustError when it cannot be written."""
    try:
        replace_synced(path, _written(trust.obj), mode=0o644)
    except OSError as error:
        raise TrustError(f"{path} cannot be written ({error.strerror})") from error


def _written(obj: JsonObject) -> bytes:
    text = json.dumps(with_checksum(obj), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8")


def _read(obj: JsonObject) -> Trust:
    read_strict(_written(obj), max_bytes=MAX_FILE_BYTES)  # or the next start could not read it
    members.version_1(obj)
    mail = members.nested(obj, "mail")
    certs = members.array(mail, "signer_certs", 0, _MAX_KEYS)
    for cert in certs:
        SignerCertificate.from_b64(cert)
    gallery = None if members.member(obj, "gallery") is None else members.nested(obj, "gallery")
    for root in _former_roots(obj):
        _signing_key(root)
    return Trust(
        device_id=members.text(obj, "device_id", NAME),
        gate_id=members.text(obj, "gate_id", NAME),
        dbd_id=members.text(obj, "dbd_id", NAME),
        tenant_id=members.text(obj, "tenant_id", NAME),
        passage_sensor=members.boolean(obj, "passage_sensor"),
        pinned_at_ms=members.integer(obj, "pinned_at_ms"),
        roots=tuple(_signing_key(root) for root in members.array(obj, "roots", 1, _MAX_KEYS)),
        keys=tuple(_service_key(key) for key in members.array(obj, "keys", 0, _MAX_KEYS)),
        dbd_keys=tuple(DbdKey.from_obj(key) for key in members.array(obj, "dbd_keys", 0, _MAX_WINDOWS)),
        service_id=members.text(mail, "service_id", NAME),
        mail_seal_key=_checked_key(SealPublicKey, "x25519", members.nested(mail, "seal_key")),
        signer_certs=tuple(certs),
        inbox_next_seq=members.integer(mail, "inbox_next_seq", 1),
        gallery=None
        if gallery is None
        else (members.text(gallery, "stream", NAME), members.integer(gallery, "epoch")),
        terms_version=members.text(obj, "terms_version", NAME),
        config=members.nested(obj, "config"),
        bundle_seq=members.integer({"bundle_seq": 0} | obj, "bundle_seq"),
        status_at_ms=members.integer({"status_at_ms": 0} | obj, "status_at_ms"),
        service_ms=members.integer({"service_ms": 0} | obj, "service_ms"),
        revoked_kids=revoked_kids({"revoked_kids": []} | obj),
        obj=obj,
    )


def _former_roots(obj: JsonObject) -> list[JsonObject]:
    return [_object(item) for item in members.array({"former_roots": []} | obj, "former_roots", 0, _MAX_KEYS)]


def _signing_key(item: object) -> PublicKey:
    return _checked_key(PublicKey, "ed25519", _object(item))


def _checked_key(kind: type[_Key], alg: str, obj: JsonObject) -> _Key:
    members.one_of(obj, "alg", frozenset({alg}))
    key = kind.from_b64(members.member(obj, "pub_b64"))
    if members.member(obj, "kid") != key.kid:
        raise FormatError("a kid does not belong to its key")
    return key


def _service_key(item: object) -> ServiceKey:
    obj = _object(item)
    use = members.array(obj, "use", 1, 16)
    if not all(isinstance(word, str) and _USE.fullmatch(word) for word in use):
        raise FormatError("member use is not an array of words")
    not_after_ms = None if members.member(obj, "not_after") is None else _timestamp_ms(obj, "not_after")
    return ServiceKey(_signing_key(obj), frozenset(use), _timestamp_ms(obj, "not_before"), not_after_ms)


def _timestamp_ms(obj: JsonObject, name: str) -> int:
    text = members.text(obj, name, _TIMESTAMP)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise FormatError(f"member {name} is not a valid date and time") from None


def _object(item: object) -> JsonObject:
    if not isinstance(item, dict):
        raise FormatError("an item of a list of keys is not an object")
    return item
