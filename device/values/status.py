"""The status of a device: what palmd answers, and `palmctl status --json` prints, member by member."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from device.errors import IpcRefused
from device.platform.control import ask_core
from device.values.carrier import LinkState
from device.values.wire import WireObject
from link1.canonical import JsonObject
from link1.errors import FormatError


@dataclass(frozen=True, slots=True)
class AppStatus(WireObject):
    """The software that runs."""

    pkg: str
    version: str


@dataclass(frozen=True, slots=True)
class HealthNote(WireObject):
    """A word of `device.health`, and what a technician should know and do about it."""

    word: str
    detail: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CableStatus(WireObject):
    """`state`: up while a validator has proved itself with key `validator_kid`, else down."""

    state: str
    port: str
    message: str
    validator_kid: str | None


@dataclass(frozen=True, slots=True)
class GalleryStatus(WireObject):
    """`reason`: why it is fresh or not; `left_s`: so long it stays fresh without word from the service."""

    stream: str
    epoch: int
    seq: int
    head16: str
    templates: int
    fresh: bool
    reason: str
    left_s: int


@dataclass(frozen=True, slots=True)
class RefusedMail(WireObject):
    """The inbox record at which the mail has stopped."""

    seq: int
    code: str


@dataclass(frozen=True, slots=True)
class MailStatus(WireObject):
    """How far the boxes of the validator's mail are."""

    in_applied_seq: int
    out_seq: int
    out_acked_seq: int
    refused: RefusedMail | None


@dataclass(frozen=True, slots=True)
class ReleaseStatus(WireObject):
    """A release of software or of a model."""

    release_seq: int
    kind: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class ReceivingStatus(WireObject):
    """A release of which `chunks` of `chunk_count` are here; `size` in bytes."""

    release_seq: int
    kind: str
    name: str
    version: str
    chunks: int
    chunk_count: int
    size: int


@dataclass(frozen=True, slots=True)
class ModelSlot(WireObject):
    """A model on the disk; the shipped one has no `model_id` here."""

    release_seq: int
    version: str
    model_id: str | None


@dataclass(frozen=True, slots=True)
class ModelStatus(WireObject):
    """The model in force, the one that waits for its gallery, and the one before."""

    model_id: str
    release_seq: int
    on_trial: bool
    waiting: ModelSlot | None
    previous: ModelSlot | None


@dataclass(frozen=True, slots=True)
class FailedRelease(WireObject):
    """The newest release that is not in force, and why."""

    release_seq: int
    kind: str
    version: str
    code: str


@dataclass(frozen=True, slots=True)
class UpdatesInForce(WireObject):
    """Updates where they are taken. `app_waiting`: software that waits for its turn."""

    release_seq: int
    receiving: ReceivingStatus | None
    app_waiting: ReleaseStatus | None
    model: ModelStatus
    failed: FailedRelease | None


@dataclass(frozen=True)
class UpdatesStatus(WireObject):
    """`usable`: updates are taken, as `state` has it; else `fault` says why not. `software`: what runs."""

    usable: bool
    software: str
    fault: str = ""
    state: UpdatesInForce | None = None

    def to_obj(self) -> JsonObject:
        """The members of `state` are those of this object."""
        obj: JsonObject = {"usable": self.usable, "software": self.software}
        return obj | ({"fault": self.fault} if self.state is None else self.state.to_obj())

    @classmethod
    def from_obj(cls, obj: Mapping[str, object]) -> Self:
        """Raises FormatError."""
        status = super().from_obj(obj)
        return replace(status, state=UpdatesInForce.from_obj(obj)) if status.usable else status


@dataclass(frozen=True, slots=True)
class UpdatesAnswer(WireObject):
    """The answer to `update.status` and `update.rollback`."""

    updates: UpdatesStatus


@dataclass(frozen=True, slots=True)
class PadStatus(WireObject):
    """The liveness check of a verdict: its result, its mechanism, and its score × 10000."""

    res: str
    mech: str
    score_q: int


@dataclass(frozen=True, slots=True)
class VerdictSummary(WireObject):
    """A verdict without whom it is about."""

    verdict_seq: int
    verdict_ref: str
    decision: str
    result: str
    quality_q: int
    score_q: int
    pad: PadStatus
    attempts: int


@dataclass(frozen=True, slots=True)
class LatencyStatus(WireObject):
    """Microseconds from the frame that decided to the verdict's last byte; only the count without any.

    `stages_us`: the mean of each stage.
    """

    count: int
    p50_us: int | None = None
    p99_us: int | None = None
    stages_us: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class EvidenceCounters(WireObject):
    """Since the start: messages of the validator with a bad signature, and those beyond what is kept."""

    bad_signature: int = field(metadata={"member": "evidence.bad_signature"})
    beyond_limit: int = field(metadata={"member": "evidence.beyond_limit"})


@dataclass(frozen=True, slots=True)
class MemoryStatus(WireObject):
    """What keeps keys in memory from the disk; `problem` is empty where all of it is in force."""

    dumps_off: bool
    locked: bool
    problem: str


@dataclass(frozen=True, slots=True)
class WipeStatus(WireObject):
    """A wipe that was carried out. `record`: the sealed word of it for the service."""

    stage: str
    wipe_id: str | None
    record: JsonObject | None


@dataclass(frozen=True, slots=True)
class CoreStatus(WireObject):
    """The whole status. `enrolment` is what a screen shows, without a person. A wiped device has `wipe`, and
    none of the members between it and `latency`."""

    device_id: str
    gate_id: str
    dbd_id: str
    app: AppStatus
    serving: bool
    health: tuple[HealthNote, ...]
    camera: CameraStatus
    cable: CableStatus
    gallery: GalleryStatus
    cloud: LinkState
    mail: MailStatus
    updates: UpdatesStatus
    model_id: str
    thr_id: str
    txn_id: str | None
    last_verdict: VerdictSummary | None
    verdict_seq: int
    uploads_waiting: int
    enrolment: JsonObject
    latency: LatencyStatus
    service_time_ms: int | None = None
    counters: EvidenceCounters | None = None
    memory: MemoryStatus | None = None
    wipe: WipeStatus | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The health words."""
        return tuple(note.word for note in self.health)


@dataclass(frozen=True, slots=True)
class StatusAnswer(WireObject):
    """The answer to `status`."""

    status: CoreStatus


def read_status(control_socket: Path) -> CoreStatus:
    """What a running core is doing; raises IpcUnreachable when none answers, IpcRefused."""
    try:
        return StatusAnswer.from_obj(ask_core(control_socket, "status").header).status
    except FormatError as error:
        raise IpcRefused(
            "malformed",
            f"the core's status is not understood ({error}); are palmctl and palmd of one version?",
        ) from error
