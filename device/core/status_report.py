"""The whole state of the core for a technician, in one object: integers and words only."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.core import update_operations as updates
from device.core.gate import Gate
from device.core.hardware import Hardware
from device.core.served_gallery import ServedGallery
from device.core.service_link import ServiceLink
from device.enrolment.desk import EnrolmentDesk
from device.health import Health
from device.journal.journal import Journal
from device.journal.mail import MailPosition
from device.platform.memory import MemoryGuard
from device.trust.pinning import Pinning
from device.trust.trust import Pinned
from device.updates.desk import UpdateDesk
from device.vision.capture import CaptureCounters
from device.vision.inference import InferenceCounters
from link1.canonical import JsonObject
from link1.device_end import DeviceEnd


@dataclass(frozen=True, slots=True)
class StatusReport:
    """What is asked for the answer to `palmctl status --json`."""

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

    def now(self) -> JsonObject:
        trust, camera, gate, end = self.pinned.trust, self.hardware.camera, self.gate, self.end
        capture, inference = self.capture(), self.inference()
        return {
            "device_id": trust.device_id,
            "gate_id": trust.gate_id,
            "dbd_id": trust.dbd_id,
            "app": {"pkg": APP_PACKAGE, "version": self.app_version},
            "serving": self.health.serving,
            "health": [{"word": str(word), "detail": text} for word, text in self.health.details.items()],
            "camera": {
                "condition": str(camera.condition) if camera else "starting",
                "description": camera.description if camera else self.config.camera.source,
                "message": camera.message if camera else "",
                "frames": capture.frames,
                "dropped": capture.dropped,
                "skipped": capture.skipped,
                "opened": capture.opened,
                "examined": inference.examined,
                "faults": inference.faults,
            },
            "cable": {
                "state": "up" if end.proven else "down",
                "port": self.config.link.port,
                "message": self.hardware.cable_message,
                "validator_kid": gate.validator_kid,
            },
            "gallery": self._gallery(),
            "cloud": {"online": self.link.online, "detail": self.link.state.detail},
            "mail": self._mail(),
            "updates": updates.told(self.updates),
            "model_id": self.model_id,
            "thr_id": self.pinning.policy.thresholds.thr_id,
            "txn_id": gate.open_txn_id,
            "last_verdict": gate.last_said,
            "verdict_seq": gate.last.verdict_seq if gate.last else 0,
            "uploads_waiting": self.uploads_waiting(),
            "enrolment": self.enrolment.shown(),
            "latency": gate.latencies.summary(),
            "service_time_ms": self.pinned.service_ms,
            "counters": {
                "evidence.bad_signature": end.bad_signatures,
                "evidence.beyond_limit": self.journal.evidence_beyond,
            },
            "memory": asdict(self.memory),
        }

    def _gallery(self) -> JsonObject:
        mark, store, fresh = self.gallery.mark(), self.gallery.store, self.gallery.freshness()
        if store is None or fresh is None:
            return {**mark.to_obj(), "templates": 0, "fresh": False, "reason": "absent", "left_s": 0}
        return {
            **mark.to_obj(),
            "templates": store.count,
            "fresh": fresh.fresh,
            "reason": str(fresh.reason),
            "left_s": fresh.left_ms // 1000,
        }

    def _mail(self) -> JsonObject:
        at = self.mail()
        return {
            "in_applied_seq": at.in_applied_seq,
            "out_seq": at.out_seq,
            "out_acked_seq": at.out_acked_seq,
            "refused": None if at.refused is None else {"seq": at.refused.seq, "code": at.refused.code},
        }
