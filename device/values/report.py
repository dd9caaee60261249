"""The report of a device to its service (device surface §3): by network and by mail the same members."""

from device.values.status import ReportedRelease
from link1.objects import AppVersion
from link1.wire import WireObject


class HeldGallery(WireObject):
    """The state of the gallery, which it acknowledges."""

    stream: str
    epoch: int
    seq: int


class ReportedLink(WireObject):
    """The cable: whether a validator has proved itself, and which."""

    up: bool
    dbd_id: str | None


class ReportedQueues(WireObject):
    """Verdicts that the service lacks, and outbox records without a receipt."""

    verdicts: int
    mail: int


class ReportedBoard(WireObject):
    """None where the board cannot say."""

    temperature_c: int | None
    storage_free_mib: int | None
    memory_free_mib: int | None


class ReportedCamera(WireObject):
    """Frames per second since the report before."""

    fps: int


class SelfReport(WireObject):
    """The whole report. It names no person, transaction, verdict, host or address.

    `boot_id`: 32 hex, new at each start of palmd; `uptime_s` and `counters` count from there. `at_ms`: epoch,
    by this device's clock.
    """

    v: int
    boot_id: str
    at_ms: int
    uptime_s: int
    serving: bool
    app: AppVersion
    model_id: str
    thr_id: str
    config_seq: int
    health: tuple[str, ...]
    gallery: HeldGallery | None
    link: ReportedLink
    queues: ReportedQueues
    board: ReportedBoard
    camera: ReportedCamera | None
    counters: dict[str, int]
    updates: tuple[ReportedRelease, ...]

    @property
    def news(self) -> tuple[object, ...]:
        """A report is due soon after a change of this."""
        return self.serving, self.health, self.link, self.updates
