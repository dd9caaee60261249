"""The answer of `GET /v1/devices/self/updates`: what the service offers to this device (device surface §3).

The signed offer limits what a carrier can do: it cannot have a release installed that was halted, or that is
meant for other devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from device.errors import Outdated, TrustError
from device.updates.state import Offer
from gallery.freshness import is_newer
from link1 import members
from link1.canonical import JsonObject
from link1.keys import PublicKey
from link1.members import NAME
from link1.signed import Kind, signer_kid_of, verify_object

NEXT_AFTER_S: Final = (60, 86_400)
_MAX_OFFERED: Final = 16
_MAX_RELEASES: Final = 2
"""One of each kind."""


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
        if newest is not None and not is_newer(offer.issued_at_ms, newest.issued_at_ms, self.now_ms()):
            raise Outdated("the offer of updates is older than one that was seen before")
        data = members.array(answer, "data", 0, _MAX_RELEASES)
        return OfferAnswer(
            offer,
            tuple(members.nested({"data": item}, "data") for item in data),
            members.integer(answer, "next_after_s", *NEXT_AFTER_S),
            members.boolean(answer, "attest_due"),
        )
