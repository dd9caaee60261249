"""Puts the mail of a core together."""

from typing import TYPE_CHECKING, Final

from device.errors import JournalError
from device.health import HealthWord
from device.mail.apply import ApplyParts, MailApply
from device.mail.desk import MailDesk, MailParts
from device.mail.outbox import Sender
from device.platform.clock import Clock
from device.trust.service_status import StatusReader

if TYPE_CHECKING:
    from device.core.core import Core

OFFLINE_WORD: Final = "no [cloud] in the configuration: this device lives on the validator's mail"
"""What `palmctl status` says of a device without network."""


def make_mail_desk(core: "Core", statuses: StatusReader, clock: Clock) -> MailDesk:
    """The mail desk of `core`, whose gate and health are there already."""
    opened = core.opened

    def store_failed(error: JournalError) -> None:
        core.health.report(HealthWord.STORE_FAULT, str(error))

    parts = ApplyParts(
        device_id=core.trust.device_id,
        seal_key=opened.keys.seal,
        roots=lambda: core.trust.roots,
        gallery=lambda: core.gallery,
        statuses=statuses,
        gallery_thread=core.gallery_thread,
        clock=clock,
        events=core,
        updates=lambda: None if core.wiping.begun else opened.updates,
    )
    return MailDesk(
        MailParts(
            boxes=opened.journal.mail,
            journal_thread=core.journal_thread,
            sender=Sender(core.trust.device_id, opened.keys.verdict, lambda: core.trust.mail_seal_key),
            apply=MailApply(parts),
            end=core.gate.end,
            clock=clock,
            online=lambda: core.cloud.online,
            standing=core.standing,
            kick=core.kick_cable,
            store_failed=store_failed,
            wipe_collected=core.wiping.collected,
            rolled_back=core.rolled_back,
        ),
        opened.mail,
    )
