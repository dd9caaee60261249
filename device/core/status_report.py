"""The state of the core for a technician in one object, with only integers and words."""

from collections.abc import Callable
from dataclasses import dataclass

from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.core.gate import Gate
from device.core.hardware import Hardware
from device.core.served_gallery import ServedGallery
from device.core.service_link import ServiceLink
from device.core.update_operations import updates_status
from device.enrolment.desk import EnrolmentDesk
from device.health import Health
from device.journal.journal import Journal
from device.journal.mail import MailPosition
from device.platform.memory import MemoryGuard
from device.trust.pinning import Pinning
from device.trust.trust import Pinned
from device.updates.desk import UpdateDesk
from device.values.status import (
    AppStatus,
    CableStatus,
    CameraStatus,
    CoreStatus,
    EvidenceCounters,
    GalleryStatus,
    HealthNote,
    MailStatus,
    MemoryStatus,
    RefusedMail,
)
from device.vision.capture import CaptureCounters
from device.vision.inference import InferenceCounters
from link1.device_end import DeviceEnd


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Collects the answer to `palmctl status --json`."""

    config: DeviceConfig
    app_version: str
    model_id: str
    pinned: Pinned
    pinning: Pinning
    health: Health
    hardware: Hardware
    capture: Callable[[], CaptureCounters]
    inference: Callable[[], InferenceCounters]
    end: DeviceEnd
    gate: Gate
    gallery: ServedGallery
    link: ServiceLink
    mail: Callable[[], MailPosition]
    updates: UpdateDesk
    journal: Journal
    uploads_waiting: Callable[[], int]
    enrolment: EnrolmentDesk
    memory: MemoryGuard

    def now(self) -> CoreStatus:
        trust, camera, gate, end = self.pinned.trust, self.hardware.camera, self.gate, self.end
        capture, inference = self.capture(), self.inference()
        return CoreStatus(
            device_id=trust.device_id,
            gate_id=trust.gate_id,
            dbd_id=trust.dbd_id,
            app=AppStatus(APP_PACKAGE, self.app_version),
            serving=self.health.serving,
            health=tuple(HealthNote(str(word), text) for word, text in self.health.details.items()),
            camera=CameraStatus(
                str(camera.condition) if camera else "starting",
                camera.description if camera else self.config.camera.source,
                camera.message if camera else "",
                frames=capture.frames,
                dropped=capture.dropped,
                skipped=capture.skipped,
                opened=capture.opened,
                examined=inference.examined,
                faults=inference.faults,
            ),
            cable=CableStatus(
                "up" if end.proven else "down",
                self.config.link.port,
                self.hardware.cable_message,
                gate.validator_kid,
            ),
            gallery=self._gallery(),
            cloud=self.link.state,
            mail=self._mail(),
            updates=updates_status(self.updates),
            model_id=self.model_id,
            thr_id=self.pinning.policy.thresholds.thr_id,
            txn_id=gate.open_txn_id,
            last_verdict=gate.last_said,
            verdict_seq=gate.last.verdict_seq if gate.last else 0,
            uploads_waiting=self.uploads_waiting(),
            enrolment=self.enrolment.shown(),
            latency=gate.latencies.summary(),
            service_time_ms=self.pinned.service_ms,
            counters=EvidenceCounters(end.bad_signatures, self.journal.evidence_beyond),
            memory=MemoryStatus(self.memory.dumps_off, self.memory.locked, self.memory.problem),
        )

    def _gallery(self) -> GalleryStatus:
        at, store, fresh = self.gallery.mark(), self.gallery.store, self.gallery.freshness()
        return GalleryStatus(
            at.stream,
            at.epoch,
            at.seq,
            at.head16,
            templates=0 if store is None else store.count,
            fresh=fresh is not None and fresh.fresh,
            reason="absent" if fresh is None else str(fresh.reason),
            left_s=0 if fresh is None else fresh.left_ms // 1000,
        )

    def _mail(self) -> MailStatus:
        at = self.mail()
        refused = None if at.refused is None else RefusedMail(at.refused.seq, at.refused.code)
        return MailStatus(at.in_applied_seq, at.out_seq, at.out_acked_seq, refused)
