"""A device's end of the mail, and the partner who carries it."""

import os
from typing import Any

import httpx

from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from link1.bodies import Box
from link1.canonical import JsonObject, canonical_bytes
from link1.keys import PublicKey, SealPublicKey
from link1.sealed import SERVICE_ID, check_inbox_record, open_record, seal_record
from link1.signed import Kind, verify_object
from tests.cloud_client.server.server_harness import Partner, SimDevice

Letter = tuple[str, JsonObject]


class Mailbox:
    """Opens the inbox as a device does (strictly the next seq), and seals outbox records."""

    def __init__(self, device: SimDevice) -> None:
        self.device = device
        self.roots = [PublicKey.from_b64(root["pub_b64"]) for root in device.registered["roots"]]
        self.seal_key = SealPublicKey.from_b64(device.registered["mail"]["seal_key"]["pub_b64"])
        self.applied_seq: int = device.registered["mail"]["inbox_next_seq"] - 1
        self.out_seq = 0

    @property
    def path(self) -> str:
        return f"/v1/devices/{self.device.device_id}"

    def records(self, partner: Partner, **query: Any) -> list[JsonObject]:
        data: list[JsonObject] = partner.get(f"{self.path}/inbox", **query)["data"]
        return data

    def fetch(self, partner: Partner) -> list[Letter]:
        """Everything new in the inbox, checked and opened in order."""
        letters = []
        more = True
        while more:
            page = partner.get(f"{self.path}/inbox", after_seq=self.applied_seq, limit=200)
            letters += [self.opened(record) for record in page["data"]]
            more = page["has_more"]
        return letters

    def opened(self, record: JsonObject) -> Letter:
        post, ciphertext = check_inbox_record(
            record,
            device_id=self.device.device_id,
            roots=self.roots,
            now_ms=self.device.cloud.clock.ms,
            next_seq=self.applied_seq + 1,
        )
        letter = open_record(record, ciphertext, self.device.seal_key)
        self.applied_seq = post.seq
        return letter

    def sealed(self, kind: str, body: JsonObject, **changes: Any) -> JsonObject:
        """The next outbox record."""
        seq = changes.pop("seq", self.out_seq + 1)
        self.out_seq = max(self.out_seq, seq)
        facts: dict[str, Any] = {
            "box": Box.OUT,
            "src": self.device.device_id,
            "dst": SERVICE_ID,
            "rid": os.urandom(16).hex(),
            "created_ms": self.device.cloud.clock.ms,
            "to": self.seal_key,
            "signer": self.device.verdict_key,
        }
        return seal_record(seq=seq, type_=kind, body=body, **(facts | changes))

    def report(self, position: tuple[int, int] = (1, 0), **changes: Any) -> JsonObject:
        """A sealed report from (epoch, seq) of the gallery; ``changes`` of its body, or of its envelope."""
        epoch, seq = position
        body = {
            "health": [],
            "refused": [],
            "gallery": {
                "stream": self.device.tenant.environment(self.device.mode).stream,
                "epoch": epoch,
                "seq": seq,
            },
            "mail": {"in_applied_seq": self.applied_seq},
        }
        envelope = {name: changes.pop(name) for name in ("seq", "to", "signer") if name in changes}
        return self.sealed("svc.device.report", body | changes, **envelope)

    def submit(self, partner: Partner, *records: JsonObject, **given: Any) -> httpx.Response:
        return partner.send("POST", f"{self.path}/outbox", {"records": list(records)}, **given)

    def hand_in(self, partner: Partner, *records: JsonObject) -> Any:
        response = self.submit(partner, *records)
        assert response.status_code == 200, response.text
        return response.json()


class MailedGallery:
    """A real gallery that is fed by mail alone."""

    def __init__(self, gallery: Gallery, keys: dict[str, PublicKey]) -> None:
        self.gallery = gallery
        self.keys = keys
        self.heads: list[JsonObject] = []

    def apply(self, letters: list[Letter], now_ms: int) -> list[str]:
        """Apply what is for the gallery; the kinds of all letters."""
        now = GalleryNow(now_ms, now_ms)
        for kind, body in letters:
            if kind == "svc.gallery.deltas":
                self.gallery.apply_deltas(canonical_bytes(body), now)
            elif kind == "svc.gallery.snapshot.page":
                self.gallery.apply_snapshot_page(canonical_bytes(body), now)
            elif kind == "svc.gallery.head":
                self.heads.append(verify_object(Kind.GALLERY_HEAD, body, self.keys[body["signer_kid"]]))
        return [kind for kind, _ in letters]

    @property
    def position(self) -> tuple[int, int]:
        return self.gallery.position.epoch, self.gallery.position.seq
