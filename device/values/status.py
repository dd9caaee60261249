"""The status of a device: what palmd answers, and `palmctl status --json` prints, member by member; and its
report to its service (device surface §3), by network and by mail with the same members."""

from dataclasses import field
from pathlib import Path

from device.errors import IpcRefused
from device.platform.ipc import ask_core
from device.platform.memory import MemoryGuard
from device.values.carrier import CloudState
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.objects import AppVersion, Pad
from link1.wire import WireObject


class HealthNote(WireObject):
    """A word of `device.health`, with what a technician should know and do."""

    word: str
    detail: str


class CameraStatus(WireObject):
    """`condition`: starting, ok, stalled, absent; off on a wiped device. The counts are since the start."""

    condition: str
    description: str
    message: str
    frames: int = field(kw_only=True)
    dropped: int = field(kw_only=True)
    skipped: int = field(kw_only=True)
    opened: int = field(kw_only=True)
    examined: int = field(kw_only=True)
    faults: int = field(kw_only=True)


class CableStatus(WireObject):
    """`state`: up while a session with a validator exists, whose key is `validator_kid`; else down."""

    state: str
    port: str
    message: str
    validator_kid: str | None


class GalleryStatus(WireObject):
    """`reason`: why it is fresh or not; `left_s`: how long it stays fresh without contact with the
    service."""

    stream: str
    epoch: int
    seq: int
    head16: str
    templates: int
    fresh: bool
    reason: str
    left_s: int


class RefusedMail(WireObject):
    """The inbox record at which the mail has stopped."""

    seq: int
    code: str


class MailStatus(WireObject):
    """The positions of both mail boxes. `refused` is None while nothing blocks the inbox."""

    in_applied_seq: int
    out_seq: int
    out_acked_seq: int
    refused: RefusedMail | None


class ReleaseStatus(WireObject):
    """A release of software or of a model."""

    release_seq: int
    kind: str
    name: str
    version: str


class ReceivingStatus(WireObject):
    """A release of which `chunks` of `chunk_count` are here; `size` in bytes."""

    release_seq: int
    kind: str
    name: str
    version: str
    chunks: int
    chunk_count: int
    size: int


class ModelOnDisk(WireObject):
    """A model on the disk; the shipped one, of release 0, has a `model_id` here only while it waits."""

    release_seq: int
    version: str
    model_id: str | None


class ModelStatus(WireObject):
    """The model in force, the model that waits for its gallery, and the previous one."""

    model_id: str
    release_seq: int
    on_trial: bool
    waiting: ModelOnDisk | None
    previous: ModelOnDisk | None


class FailedRelease(WireObject):
    """The newest release that is not in force, and why."""

    release_seq: int
    kind: str
    version: str
    code: str


class ReportedRelease(WireObject):
    """A release in a report to the service. `state`: receiving, verified, trial, running, failed, withdrawn.
    `code` says why it failed."""

    kind: str
    name: str
    release_seq: int
    state: str
    code: str = ""


class UpdatesInForce(WireObject):
    """The state of updates. `app_waiting`: software that waits to be installed. `releases`: as in a report to
    the service."""

    release_seq: int
    receiving: ReceivingStatus | None
    app_waiting: ReleaseStatus | None
    model: ModelStatus
    failed: FailedRelease | None
    releases: tuple[ReportedRelease, ...] = ()


class UpdatesStatus(WireObject):
    """`usable`: updates are accepted, and `state` is present; else `fault` says why not. `software`: the
    running version."""

    usable: bool
    software: str
    fault: str | None = None
    state: UpdatesInForce | None = field(default=None, metadata={"flat": UpdatesInForce})


class VerdictSummary(WireObject):
    """A verdict with the subject removed."""

    verdict_seq: int
    verdict_ref: str
    decision: str
    result: str
    quality_q: int
    score_q: int
    pad: Pad
    attempts: int


class ConsentShown(WireObject):
    """In step `consent`: the hands to enrol, the terms, and the optional purposes."""

    hands: tuple[str, ...]
    terms_version: str
    optional: tuple[str, ...]


class CaptureShown(WireObject):
    """In the other steps: the hands to enrol, the one to show now, a hint why it is not captured yet, and the
    number of its captures."""

    hands: tuple[str, ...]
    hand: str | None
    hint: str | None
    captured: int
    wanted: int


class EnrolmentShown(WireObject):
    """What a screen shows of the enrolment. `code`: why it failed, in step `failed`."""

    step: str
    code: str | None = None
    consent: ConsentShown | None = field(default=None, metadata={"flat": ConsentShown})
    capture: CaptureShown | None = field(default=None, metadata={"flat": CaptureShown})


class LatencyStatus(WireObject):
    """Microseconds from the deciding frame to the verdict's last byte; without verdicts only the count.

    `stages_us`: the mean of each stage.
    """

    count: int
    p50_us: int | None = None
    p99_us: int | None = None
    stages_us: dict[str, int] | None = None


class EvidenceCounters(WireObject):
    """Since the start: validator messages with a bad signature, and those beyond the limit of what is
    kept."""

    bad_signature: int = field(metadata={"member": "evidence.bad_signature"})
    beyond_limit: int = field(metadata={"member": "evidence.beyond_limit"})


class WipeStatus(WireObject):
    """A completed wipe. `record`: the sealed record that reports it to the service."""

    stage: str
    wipe_id: str | None
    record: JsonObject | None


class VerdictKey(WireObject):
    """The public key of this device's verdicts, which its validator pins."""

    kid: str
    alg: str
    pub_b64: str


class CoreStatus(WireObject):
    """The whole status. A wiped device has `wipe`, and none of the members between it and `latency`."""

    device_id: str
    gate_id: str
    dbd_id: str
    app: AppVersion
    serving: bool
    health: tuple[HealthNote, ...]
    camera: CameraStatus
    cable: CableStatus
    gallery: GalleryStatus
    cloud: CloudState
    mail: MailStatus
    updates: UpdatesStatus
    model_id: str
    thr_id: str
    txn_id: str | None
    last_verdict: VerdictSummary | None
    verdict_seq: int
    uploads_waiting: int
    enrolment: EnrolmentShown
    latency: LatencyStatus
    verdict_key: VerdictKey | None = None
    service_time_ms: int | None = None
    counters: EvidenceCounters | None = None
    memory: MemoryGuard | None = None
    wipe: WipeStatus | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(note.word for note in self.health)


class StatusAnswer(WireObject):
    """The answer to `status`."""

    status: CoreStatus


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


def read_status(control_socket: Path) -> CoreStatus:
    """The status of a running core. Raises IpcUnreachable when none answers, IpcRefused."""
    try:
        return StatusAnswer.from_obj(ask_core(control_socket, "status").header).status
    except FormatError as error:
        raise IpcRefused(
            "malformed",
            f"the core's status is not understood ({error}); are palmctl and palmd of one version?",
        ) from error
