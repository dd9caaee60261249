"""Composes the report of this device to its service, for both carriers."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from device import APP_PACKAGE
from device.core.gate import Gate
from device.core.hardware import Hardware
from device.core.served_gallery import ServedGallery
from device.core.update_operations import release_states
from device.health import Health
from device.journal.mail import MailPosition
from device.journal.reserve import free_bytes
from device.platform.clock import Clock
from device.platform.heat import hottest_c
from device.platform.memory import available_mib
from device.trust.pinning import Pinning
from device.trust.trust import Pinned
from device.updates.desk import UpdateDesk
from device.values.report import (
    HeldGallery,
    ReportedBoard,
    ReportedCamera,
    ReportedLink,
    ReportedQueues,
    SelfReport,
)
from device.values.status import AppStatus
from device.vision.capture import CameraCondition
from link1.device_end import DeviceEnd

FPS_OVER_MS: Final = 1_000
"""Frames are counted over at least this time."""


@dataclass(frozen=True, slots=True)
class ReportParts:
    """What a report is made from. `frames`: read from the camera since the start. `refused_uploads`: code →
    how many items the service refused with it."""

    app_version: str
    model_id: str
    state_dir: Path
    pinned: Pinned
    pinning: Pinning
    health: Health
    hardware: Hardware
    end: DeviceEnd
    gallery: ServedGallery
    updates: UpdateDesk
    clock: Clock
    gate: Callable[[], Gate]
    frames: Callable[[], int]
    mail: Callable[[], MailPosition]
    uploads_waiting: Callable[[], int]
    refused_uploads: Callable[[], Mapping[str, int]]


class DeviceReports:
    """Every method runs on the loop's thread."""

    def __init__(self, parts: ReportParts) -> None:
        self.changed = asyncio.Event()
        """Set when a report may be due before its time."""
        self._parts = parts
        self._boot_id = secrets.token_hex(16)
        self._started_ms = parts.clock.boottime_ms()
        self._counted_ms, self._counted_frames, self._fps = self._started_ms, 0, 0

    def now(self) -> SelfReport:
        """The report of this moment."""
        parts, trust = self._parts, self._parts.pinned.trust
        mark, mail = parts.gallery.mark(), parts.mail()
        camera = parts.hardware.camera
        working = camera is not None and camera.condition is CameraCondition.OK
        fps = self._frames_per_second()
        return SelfReport(
            v=1,
            boot_id=self._boot_id,
            at_ms=parts.clock.wall_ms(),
            uptime_s=(parts.clock.boottime_ms() - self._started_ms) // 1000,
            serving=parts.health.serving,
            app=AppStatus(APP_PACKAGE, parts.app_version),
            model_id=parts.model_id,
            thr_id=parts.pinning.policy.thresholds.thr_id,
            config_seq=parts.pinning.policy.config_seq,
            health=tuple(str(word) for word in parts.health.words),
            gallery=None if trust.gallery is None else HeldGallery(mark.stream, mark.epoch, mark.seq),
            link=ReportedLink(parts.end.proven, trust.dbd_id if parts.end.proven else None),
            queues=ReportedQueues(parts.uploads_waiting(), mail.out_seq - mail.out_acked_seq),
            board=ReportedBoard(hottest_c(), _free_mib(parts.state_dir), available_mib()),
            camera=ReportedCamera(fps) if working else None,
            counters=self._counters(),
            updates=release_states(parts.updates),
        )

    def _counters(self) -> dict[str, int]:
        parts, gate = self._parts, self._parts.gate()
        return {
            **gate.counters,
            **gate.latencies.counters,
            "frames": parts.frames(),
            "uploads.failed": sum(parts.refused_uploads().values()),
            "evidence.bad_signature": parts.end.bad_signatures,
        }

    def _frames_per_second(self) -> int:
        now_ms, frames = self._parts.clock.boottime_ms(), self._parts.frames()
        passed_ms = now_ms - self._counted_ms
        if passed_ms >= FPS_OVER_MS:
            self._fps = round((frames - self._counted_frames) * 1000 / passed_ms)
            self._counted_ms, self._counted_frames = now_ms, frames
        return self._fps


def _free_mib(folder: Path) -> int | None:
    try:
        return free_bytes(folder) // 2**20
    except OSError:
        return None
