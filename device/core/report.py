"""What a technician is told: the whole state of the core in one object, integers and words only."""

from device import APP_PACKAGE
from device.core import update_control as updates
from device.core.core import Core
from device.enrolment.desk import EnrolmentDesk
from device.platform.clock import Clock
from device.trust.known_time import gallery_now
from device.vision.capture import CaptureCounters
from device.vision.inference import InferenceCounters
from link1.canonical import JsonObject


def describe(
    core: Core,
    enrolment: EnrolmentDesk,
    clock: Clock,
    capture: CaptureCounters,
    inference: InferenceCounters,
) -> JsonObject:
    """The answer to `palmctl status --json`."""
    opened, camera = core.opened, core.camera
    return {
        "device_id": core.trust.device_id,
        "gate_id": core.trust.gate_id,
        "dbd_id": core.trust.dbd_id,
        "app": {"pkg": APP_PACKAGE, "version": core.app_version},
        "serving": core.health.serving,
        "health": [{"word": str(word), "detail": text} for word, text in core.health.details.items()],
        "camera": {
            "condition": str(camera.condition) if camera else "starting",
            "description": camera.description if camera else opened.config.camera.source,
            "message": camera.message if camera else "",
            "frames": capture.frames,
            "dropped": capture.dropped,
            "skipped": capture.skipped,
            "opened": capture.opened,
            "examined": inference.examined,
            "faults": inference.faults,
        },
        "cable": {
            "state": "up" if core.gate.end.proven else "down",
            "port": opened.config.link.port,
            "message": core.cable_message,
            "validator_kid": core.gate.validator_kid,
        },
        "gallery": _gallery(core, clock),
        "cloud": {"online": core.cloud.online, "detail": core.cloud.detail},
        "mail": _mail(core),
        "updates": updates.told(core.opened.updates),
        "model_id": opened.model_id,
        "thr_id": core.policy.thresholds.thr_id,
        "txn_id": core.gate.open_txn_id,
        "last_verdict": core.gate.last_said,
        "verdict_seq": core.gate.last.verdict_seq if core.gate.last else 0,
        "uploads_waiting": core.uploads_waiting,
        "enrolment": enrolment.shown(),
        "latency": core.gate.latencies.summary(),
        "service_time_ms": opened.pinned.service_ms,
        "counters": {
            "evidence.bad_signature": core.gate.end.bad_signatures,
            "evidence.beyond_limit": opened.journal.evidence_beyond,
        },
    }


def _gallery(core: Core, clock: Clock) -> JsonObject:
    mark, gallery = core.gallery_mark(), core.opened.gallery
    if gallery is None:
        return {**mark.to_obj(), "templates": 0, "fresh": False, "reason": "absent", "left_s": 0}
    fresh = gallery.freshness(gallery_now(clock), core.policy.gallery_ttl_ms)
    return {
        **mark.to_obj(),
        "templates": gallery.count,
        "fresh": fresh.fresh,
        "reason": str(fresh.reason),
        "left_s": fresh.left_ms // 1000,
    }


def _mail(core: Core) -> JsonObject:
    at = core.mail.position
    return {
        "in_applied_seq": at.in_applied_seq,
        "out_seq": at.out_seq,
        "out_acked_seq": at.out_acked_seq,
        "refused": None if at.refused is None else {"seq": at.refused.seq, "code": at.refused.code},
    }
