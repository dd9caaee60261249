"""What the service signs about releases: their manifests (device surface §6), and which it offers to this
device (§3, the answer of `GET /v1/devices/self/updates`).

A pinned root certifies a bundle signer, who signs the manifest; the certificate accompanies the signature.
Sizes are checked here, before a byte of the payload is accepted. The signed offer limits what a carrier can
do: it cannot have a release installed that was halted, or that is meant for other devices.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from cloud_client.contract import MAX_CHUNK_BYTES
from device.errors import Outdated, TrustError, UpdateRefused
from device.trust.policy import certified
from gallery.freshness import ABSURD_ORDER_MS, is_newer
from link1 import members
from link1.canonical import JsonObject, b64_decode, canonical_bytes, read_strict
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.members import HEX64, NAME
from link1.signed import Kind, signer_kid_of, verify_object
from link1.wire import Between, WireObject

MAX_CHUNKS: Final = 16_384
MAX_MANIFEST_BYTES: Final = 8 * 1024
_VERSION = re.compile(r"[\x21-\x7e]{1,64}")
_NUMBERS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}")


NEXT_AFTER_S: Final = (60, 86_400)
_MAX_OFFERED: Final = 16
_MAX_RELEASES: Final = 2
"""One of each kind."""

Seq = Annotated[int, Between(0)]
ReleaseSeq = Annotated[int, Between(1)]
Version = Annotated[str, _VERSION]


class ReleaseKind(StrEnum):
    APP = "app"
    MODEL = "model"

    @property
    def max_bytes(self) -> int:
        """The software with its libraries has about 130 MiB packed, a model 6 MiB."""
        return {ReleaseKind.APP: 512, ReleaseKind.MODEL: 128}[self] * 1024 * 1024


class Manifest(WireObject):
    """A release that a pinned root vouches for. Sizes in bytes; `wrapper`: the signed object as received."""

    kind: ReleaseKind
    name: Annotated[str, NAME]
    version: Version
    size: Annotated[int, Between(1)]
    sha256: Annotated[str, HEX64]
    chunk_size: Annotated[int, Between(1, MAX_CHUNK_BYTES)]
    chunk_count: Annotated[int, Between(1, MAX_CHUNKS)]
    min_app_version: Version
    release_seq: ReleaseSeq
    wrapper: JsonObject

    def to_obj(self) -> JsonObject:
        """For the device's files."""
        return self.wrapper

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Manifest":
        """From the device's files: it was verified when it was accepted. Raises FormatError, UpdateRefused.

        A certificate that has since expired does not invalidate what it signed while valid.
        """
        return cls.of_signed(members.nested(obj, Kind.UPDATE_MANIFEST.member), dict(obj))

    @classmethod
    def of_signed(cls, obj: JsonObject, wrapper: JsonObject) -> "Manifest":
        """Read the signed object of `wrapper`. Raises FormatError, UpdateRefused."""
        members.version_1(obj)
        manifest = super().from_obj(obj | {"wrapper": wrapper})
        kind, size = manifest.kind, manifest.size
        if size > kind.max_bytes:
            raise UpdateRefused(
                "too_large",
                f"the {kind} has {size} bytes, at most {kind.max_bytes} are taken; make it smaller",
            )
        if manifest.chunk_count != -(-size // manifest.chunk_size):
            raise FormatError("chunk_count is not what size and chunk_size make")
        return manifest

    def chunk_bytes(self, index: int) -> int:
        """The length of chunk `index`: all but the last have the same size."""
        return min(self.chunk_size, self.size - index * self.chunk_size)


@dataclass(frozen=True, slots=True)
class PayloadChunk:
    """A piece of a payload."""

    release_seq: int
    index: int
    data: bytes


class Offer(WireObject):
    """The releases that the service offers to this device, and when it said so (epoch ms)."""

    issued_at_ms: Seq
    release_seqs: tuple[ReleaseSeq, ...]


@dataclass(frozen=True, slots=True)
class OfferAnswer:
    """`offer`: verified; `manifests`: not verified yet. `next_after_s`: when to ask again."""

    offer: Offer
    manifests: tuple[JsonObject, ...]
    next_after_s: int
    attest_due: bool


@dataclass(frozen=True, slots=True)
class OfferReader:
    """`key_of` returns the pinned device_status key of a kid. `now_ms`: the known time (epoch)."""

    device_id: str
    key_of: Callable[[str], PublicKey | None]
    now_ms: Callable[[], int]

    def read(self, answer: JsonObject, newest: Offer | None) -> OfferAnswer:
        """Check the whole answer. `newest`: the newest offer so far.

        Raises FormatError, SignatureError, or TrustError for an unknown signer, another device, an old offer.
        """
        wrapper = members.nested(answer, "offer")
        key = self.key_of(signer_kid_of(Kind.UPDATE_OFFER, wrapper))
        if key is None:
            raise TrustError("the offer of updates is signed by a key that was never pinned")
        obj = verify_object(Kind.UPDATE_OFFER, wrapper, key)
        members.version_1(obj)
        if members.text(obj, "device_id", NAME) != self.device_id:
            raise TrustError("the offer of updates is for another device")
        members.array(obj, "release_seqs", 0, _MAX_OFFERED)
        offer = Offer.from_obj(obj)
        known_ms, newest_ms = self.now_ms(), offer.issued_at_ms if newest is None else newest.issued_at_ms
        if not is_newer(offer.issued_at_ms, newest_ms, known_ms, absurd_ms=ABSURD_ORDER_MS):
            raise Outdated("the offer of updates is older than one that was seen before")
        data = members.array(answer, "data", 0, _MAX_RELEASES)
        return OfferAnswer(
            offer,
            tuple(members.nested({"data": item}, "data") for item in data),
            members.integer(answer, "next_after_s", *NEXT_AFTER_S),
            members.boolean(answer, "attest_due"),
        )


def read_manifest(
    signed: Mapping[str, Any], *, roots: Sequence[PublicKey], now_ms: int, revoked: Container[str] = ()
) -> Manifest:
    """Verify a signed manifest and read it.

    `now_ms`: epoch milliseconds for checking the certificate. `revoked`: kids of signers that count no more.
    Raises TrustError, UpdateRefused.
    """
    try:
        obj = certified(Kind.UPDATE_MANIFEST, signed, roots=roots, now_ms=now_ms, revoked=revoked)
    except (FormatError, SignatureError) as error:
        raise TrustError(
            f"the manifest is refused: {error}; the service has to send one that a pinned root vouches for"
        ) from error
    try:
        # As state.json holds it, which could not be read again with a longer or deeper manifest.
        read_strict(canonical_bytes({"receiving": dict(signed)}), max_bytes=MAX_MANIFEST_BYTES)
        return Manifest.of_signed(obj, dict(signed))
    except FormatError as error:
        raise UpdateRefused("malformed", f"the manifest is outside the contract: {error}") from error


def read_chunk(body: Mapping[str, Any]) -> PayloadChunk:
    """Read the body of `svc.update.chunk`. Raises FormatError."""
    release_seq = members.integer(body, "release_seq", 1)
    index = members.integer(body, "index", 0, MAX_CHUNKS - 1)
    data = b64_decode(members.member(body, "data_b64"), max_length=MAX_CHUNK_BYTES)
    return PayloadChunk(release_seq, index, data)


def version_numbers(version: str) -> tuple[int, ...] | None:
    """`1.10.0` as (1, 10, 0), so that it sorts after 1.9; None for another spelling."""
    return tuple(map(int, version.split("."))) if _NUMBERS.fullmatch(version) else None


def check_app_version(manifest: Manifest, app_version: str) -> None:
    """Raises UpdateRefused when the release needs newer software than this."""
    wanted, found = version_numbers(manifest.min_app_version), version_numbers(app_version)
    if wanted is None or found is None or found < wanted:
        raise UpdateRefused(
            "app_too_old",
            f"the release needs at least version {manifest.min_app_version} of the software, this is "
            f"{app_version}; update the software first",
        )
