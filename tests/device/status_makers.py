"""A healthy device's status and report, and the service's status of it: a test changes what it is about."""

from typing import Any

from device.platform.memory import MemoryGuard
from device.values.carrier import CloudState
from device.values.status import (
    CableStatus,
    CameraStatus,
    CoreStatus,
    EnrolmentShown,
    EvidenceCounters,
    GalleryStatus,
    HeldGallery,
    LatencyStatus,
    MailStatus,
    ReportedBoard,
    ReportedCamera,
    ReportedLink,
    ReportedQueues,
    SelfReport,
    UpdatesStatus,
    VerdictKey,
)
from link1.canonical import JsonObject
from link1.objects import AppVersion


def some_status(**changes: Any) -> CoreStatus:
    members: dict[str, Any] = {
        "device_id": "gate-7-left",
        "gate_id": "gate-7",
        "dbd_id": "dbd-7",
        "app": AppVersion("palm-access-device", "0.1.0"),
        "serving": True,
        "health": (),
        "camera": CameraStatus(
            "ok", "v4l2", "", frames=0, dropped=0, skipped=0, opened=1, examined=0, faults=0
        ),
        "cable": CableStatus("up", "/dev/palm-dbd", "open", "0" * 32),
        "gallery": GalleryStatus(
            "t1.test", 1, 3, "0" * 16, templates=3, fresh=True, reason="fresh", left_s=7200
        ),
        "cloud": CloudState(True, "online"),
        "mail": MailStatus(0, 0, 0, None),
        "updates": UpdatesStatus(usable=False, software="0.1.0", fault="none in this test"),
        "model_id": "m-test",
        "thr_id": "thr-1",
        "txn_id": None,
        "last_verdict": None,
        "verdict_seq": 0,
        "uploads_waiting": 0,
        "enrolment": EnrolmentShown("idle"),
        "latency": LatencyStatus(0),
        "verdict_key": VerdictKey("1" * 32, "ed25519", "A" * 43 + "="),
        "service_time_ms": 0,
        "counters": EvidenceCounters(0, 0),
        "memory": MemoryGuard(True, True, ""),
    }
    return CoreStatus(**(members | changes))


def some_report(**changes: Any) -> SelfReport:
    members: dict[str, Any] = {
        "v": 1,
        "boot_id": "0" * 32,
        "at_ms": 1_800_000_000_000,
        "uptime_s": 60,
        "serving": True,
        "app": AppVersion("palm-access-device", "0.1.0"),
        "model_id": "m-test",
        "thr_id": "thr-1",
        "config_seq": 1,
        "health": (),
        "gallery": HeldGallery("t1.test", 1, 3),
        "link": ReportedLink(True, "dbd-7"),
        "queues": ReportedQueues(0, 0),
        "board": ReportedBoard(41, 4_000, None),
        "camera": ReportedCamera(30),
        "counters": {"frames": 1_800},
        "updates": (),
    }
    return SelfReport(**(members | changes))


def some_device_status(**changed: Any) -> JsonObject:
    """A device_status_obj, which the service signs."""
    obj: JsonObject = {
        "v": 1,
        "device_id": "gate-7-left",
        "status": "active",
        "issued_at_ms": 1_000,
        "challenge_b64": "AAAA",
        "gallery": {"stream": "t1.test", "epoch": 1, "seq": 0, "head": "0" * 64},
        "config_seq": 1,
        "dbd_keys": [],
        "wipe": None,
    }
    return obj | changed
