"""What mail there is (device surface §5)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from link1.canonical import JsonObject


class MailKind(StrEnum):
    """The types of inbox records."""

    GALLERY_HEAD = "svc.gallery.head"
    GALLERY_DELTAS = "svc.gallery.deltas"
    GALLERY_SNAPSHOT_PAGE = "svc.gallery.snapshot.page"
    DEVICE_REVOKE = "svc.device.revoke"
    CONFIG = "svc.config"
    TRUST_BUNDLE = "svc.trust.bundle"
    UPDATE_MANIFEST = "svc.update.manifest"
    UPDATE_CHUNK = "svc.update.chunk"
    POST_RECEIPT = "svc.post.receipt"

    @property
    def is_gallery(self) -> bool:
        """Whether it carries palms."""
        return self in (MailKind.GALLERY_DELTAS, MailKind.GALLERY_SNAPSHOT_PAGE)

    @property
    def is_kept(self) -> bool:
        """Whether its body is kept, to be sealed again: never palms, and not the bulk of an update."""
        return not self.is_gallery and self is not MailKind.UPDATE_CHUNK


PALMS_SQL: Final = ", ".join(f"'{kind.value}'" for kind in MailKind if kind.is_gallery)
"""The kinds that carry palms, as a list in SQL."""


@dataclass(frozen=True, slots=True)
class InboxMail:
    """What is sealed into an inbox record."""

    kind: MailKind
    body: JsonObject

    @property
    def release_seq(self) -> int | None:
        """Of which release it is a part."""
        match self.kind:
            case MailKind.UPDATE_MANIFEST:
                return int(self.body["manifest_obj"]["release_seq"])
            case MailKind.UPDATE_CHUNK:
                return int(self.body["release_seq"])
        return None

    @property
    def kept_body(self) -> JsonObject | None:
        return self.body if self.kind.is_kept else None


class OutboxKind(StrEnum):
    """The types of outbox records."""

    VERDICTS_BATCH = "svc.verdicts.batch"
    DEVICE_REPORT = "svc.device.report"
    DEVICE_WIPED = "svc.device.wiped"
