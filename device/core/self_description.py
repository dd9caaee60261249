"""What this device says of itself: to a technician, to its service, and, signed, to the validator; the last
reports of camera, cable and carrier, and the health words that follow from them."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloud_client.contract import SIGNATURE_SKEW_S
from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.core.carrier_api import CarrierApi
from device.core.device_operations import release_states, updates_status
from device.core.gate import Gate
from device.core.housekeeping import StoreWatch
from device.core.opening import NO_VALIDATOR
from device.core.served_gallery import ServedGallery
from device.enrolment.desk import EnrolmentDesk
from device.health import Health, HealthWord
from device.journal.journal import Journal
from device.journal.reserve import free_bytes
from device.mail.desk import MailDesk
from device.platform.clock import Clock
from device.platform.heat import hottest_c
from device.platform.memory import MemoryGuard, available_mib
from device.trust.pinning import Pinning
from device.trust.trust import Pinned
from device.updates.desk import UpdateDesk
from device.values import status
from device.values.carrier import CloudState
from device.vision.capture import CameraCondition, CameraState, CaptureThread
from device.vision.inference import InferenceThread
from link1.device_end import DeviceEnd
from link1.objects import AppVersion, DeviceStatus

FPS_OVER_MS: Final = 1_000
"""Frames are counted over at least this time."""

FIRST_REPORT_MS: Final = 60_000
"""How long after a start the carrier may take to report whether the service is reachable: it may start later,
and waits some seconds for the first answer."""

SILENT_MS: Final = 180_000
"""After so long without a report the carrier is away, and the service with it: it reports each minute."""

SILENT_WORD: Final = "palm-syncd has not reported for three minutes; see that it runs"

OFFLINE_WORD: Final = "no [cloud] in the configuration: this device lives on the validator's mail"
"""Shown by `palmctl status` on a device without a network, and where someone wants to enrol at it."""


class Hardware:
    """Every method runs on the loop's thread."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.camera: CameraState | None = None
        """None before its first report."""
        self.cable_message = "the port has not been opened yet"
        """For a technician: "open", or why the port is not open."""

    def on_camera(self, state: CameraState) -> None:
        self.camera = state
        working = state.condition is CameraCondition.OK
        self._health.put(HealthWord.CAMERA_FAULT, not working, state.message)

    def on_port(self, error: Exception | None) -> None:
        """The port was opened, or cannot be."""
        self.cable_message = "open" if error is None else str(error)
        self._health.report(HealthWord.LINK_DOWN, NO_VALIDATOR if error is None else str(error))


class ServiceLink:
    """Whether the service is reachable, as the carrier reports it, and the difference of its clock. Every
    method runs on the loop's thread. `signed_ms`: the newest time that the service has signed."""

    def __init__(
        self, health: Health, clock: Clock, *, has_cloud: bool, signed_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self._health = health
        self._clock = clock
        self._signed_ms = signed_ms
        self._behind = False
        self._unreported_until_ms = clock.monotonic_ms() + FIRST_REPORT_MS if has_cloud else 0
        self._silent_from_ms = clock.monotonic_ms() + SILENT_MS if has_cloud else None
        """When the carrier counts as away."""
        self.state = CloudState(False, "palm-syncd has not reported yet" if has_cloud else OFFLINE_WORD)

    @property
    def unreported(self) -> bool:
        """Whether the carrier's first report is still to come, so that nothing is known yet."""
        return self._clock.monotonic_ms() < self._unreported_until_ms

    def link_state(self, state: CloudState) -> None:
        self._unreported_until_ms = 0
        self._silent_from_ms = self._clock.monotonic_ms() + SILENT_MS
        self._take(state)

    def look(self) -> None:
        """Notice that the carrier is away: its last word does not hold for ever, and mail waits for it.
        Without a network, notice a clock that is behind what the service has signed."""
        if self._silent_from_ms is not None and self._clock.monotonic_ms() >= self._silent_from_ms:
            self._take(CloudState(online=False, detail=SILENT_WORD))
        behind_ms = 0 if self.state.online else self._signed_ms() - self._clock.wall_ms()
        behind = behind_ms > SIGNATURE_SKEW_S * 1000
        if behind:
            detail = f"the service has signed something {behind_ms // 1000} s later than this clock; set it"
            self._health.report(HealthWord.CLOCK_UNTRUSTED, detail)
        elif self._behind and not self.state.online:  # with a network, server_time decides
            self._health.clear(HealthWord.CLOCK_UNTRUSTED)
        self._behind = behind

    def _take(self, state: CloudState) -> None:
        self.state = state
        self._health.put(HealthWord.OFFLINE, not state.online, state.detail)

    def server_time(self, wall_ms: int) -> None:
        """The service's clock (epoch ms), unsigned: used only for health."""
        apart_ms = abs(wall_ms - self._clock.wall_ms())
        self._health.put(
            HealthWord.CLOCK_UNTRUSTED,
            apart_ms > SIGNATURE_SKEW_S * 1000,
            f"this clock and the service's are {apart_ms // 1000} s apart; check time synchronisation",
        )


@dataclass(eq=False)
class SelfDescription:
    """Every method runs on the loop's thread. The parts that are functions here are made later."""

    config: DeviceConfig
    app_version: str
    model_id: str
    pinned: Pinned
    pinning: Pinning
    health: Health
    hardware: Hardware
    end: DeviceEnd
    gallery: ServedGallery
    link: ServiceLink
    updates: UpdateDesk
    journal: Journal
    enrolment: EnrolmentDesk
    memory: MemoryGuard
    clock: Clock
    capture: CaptureThread
    gate: Callable[[], Gate]
    inference: Callable[[], InferenceThread]
    mail: Callable[[], MailDesk]
    carrier: Callable[[], CarrierApi]
    store_watch: Callable[[], StoreWatch]
    _boot_id: str = field(default_factory=lambda: secrets.token_hex(16), init=False)

    def __post_init__(self) -> None:
        self._started_ms = self.clock.boottime_ms()
        self._counted_ms, self._counted_frames, self._fps = self._started_ms, 0, 0

    def for_validator(self) -> DeviceStatus:
        """The status that the device signs on the cable, after a handshake and after each change."""
        return DeviceStatus(
            device_id=self.pinned.trust.device_id,
            nonce_b64="",  # the device's end inserts the nonce of its session
            serving=self.health.serving,
            health=tuple(str(word) for word in self.health.words),
            app=AppVersion(APP_PACKAGE, self.app_version),
            model_id=self.model_id,
            thr_id=self.pinning.policy.thresholds.thr_id,
            gallery=self.gallery.mark(),
            last=self.gate().last,
            mail=self.mail().marks,
            at_ms=self.clock.wall_ms(),
        )

    def for_service(self) -> status.SelfReport:
        """The report of this moment, for both carriers."""
        trust, mark, mail = self.pinned.trust, self.gallery.mark(), self.mail().position
        camera, fps = self.hardware.camera, self._frames_per_second()
        working = camera is not None and camera.condition is CameraCondition.OK
        waiting = status.ReportedQueues(self.store_watch().uploads_waiting, mail.out_seq - mail.out_acked_seq)
        return status.SelfReport(
            v=1,
            boot_id=self._boot_id,
            at_ms=self.clock.wall_ms(),
            uptime_s=(self.clock.boottime_ms() - self._started_ms) // 1000,
            serving=self.health.serving,
            app=AppVersion(APP_PACKAGE, self.app_version),
            model_id=self.model_id,
            thr_id=self.pinning.policy.thresholds.thr_id,
            config_seq=self.pinning.policy.config_seq,
            health=tuple(str(word) for word in self.health.words),
            gallery=None if trust.gallery is None else status.HeldGallery(mark.stream, mark.epoch, mark.seq),
            link=status.ReportedLink(self.end.proven, trust.dbd_id if self.end.proven else None),
            queues=waiting,
            board=status.ReportedBoard(hottest_c(), _free_mib(self.config.device.state_dir), available_mib()),
            camera=status.ReportedCamera(fps) if working else None,
            counters=self._counters(),
            updates=release_states(self.updates),
        )

    def for_technician(self) -> status.CoreStatus:
        """The whole state, with only integers and words."""
        trust, camera, gate, end = self.pinned.trust, self.hardware.camera, self.gate(), self.end
        capture, inference, verdict_key = self.capture, self.inference(), gate.verdict_key.public
        return status.CoreStatus(
            device_id=trust.device_id,
            gate_id=trust.gate_id,
            dbd_id=trust.dbd_id,
            app=AppVersion(APP_PACKAGE, self.app_version),
            serving=self.health.serving,
            health=tuple(status.HealthNote(str(word), text) for word, text in self.health.details.items()),
            camera=status.CameraStatus(
                str(camera.condition) if camera else "starting",
                camera.description if camera else self.config.camera.source,
                camera.message if camera else "",
                frames=capture.frames,
                dropped=capture.slot.dropped,
                skipped=capture.skipped,
                opened=capture.opened,
                examined=inference.examined,
                faults=inference.faults,
            ),
            cable=status.CableStatus(
                "up" if end.proven else "down",
                self.config.link.port,
                self.hardware.cable_message,
                gate.validator_kid,
            ),
            gallery=self._gallery(),
            cloud=self.link.state,
            mail=self.mail().position,
            updates=updates_status(self.updates),
            model_id=self.model_id,
            thr_id=self.pinning.policy.thresholds.thr_id,
            txn_id=gate.open_txn_id,
            last_verdict=gate.last_said,
            verdict_seq=gate.last.verdict_seq if gate.last else 0,
            uploads_waiting=self.store_watch().uploads_waiting,
            enrolment=self.enrolment.shown,
            latency=gate.latencies.summary(),
            verdict_key=status.VerdictKey(verdict_key.kid, "ed25519", verdict_key.b64),
            service_time_ms=self.pinned.service_ms,
            counters=status.EvidenceCounters(end.bad_signatures, self.journal.evidence_beyond),
            memory=self.memory,
        )

    def _gallery(self) -> status.GalleryStatus:
        at, store, fresh = self.gallery.mark(), self.gallery.store, self.gallery.freshness()
        return status.GalleryStatus(
            at.stream,
            at.epoch,
            at.seq,
            at.head16,
            templates=0 if store is None else store.count,
            fresh=fresh is not None and fresh.fresh,
            reason="absent" if fresh is None else str(fresh.reason),
            left_s=0 if fresh is None else fresh.left_ms // 1000,
        )

    def _counters(self) -> dict[str, int]:
        return {
            **self.gate().counters,
            **self.gate().latencies.counters,
            "frames": self.capture.frames,
            "uploads.failed": sum(self.carrier().refused_uploads.values()),
            "evidence.bad_signature": self.end.bad_signatures,
        }

    def _frames_per_second(self) -> int:
        now_ms, frames = self.clock.boottime_ms(), self.capture.frames
        passed_ms = now_ms - self._counted_ms
        if passed_ms >= FPS_OVER_MS:
            self._fps = round((frames - self._counted_frames) * 1000 / passed_ms)
            self._counted_ms, self._counted_frames = now_ms, frames
        return self._fps


class ValidatorStatus:
    """Sends the validator its status, after each handshake and whenever it changes. Every method runs on the
    loop's thread. `kick`: something was queued for the cable."""

    def __init__(self, end: DeviceEnd, now: Callable[[], DeviceStatus], kick: Callable[[], None]) -> None:
        self._end = end
        self._now = now
        self._kick = kick
        self._due = False

    def send(self) -> None:
        """A session has begun, or something has changed."""
        self._due = False
        self._end.send_status(self._now())
        self._kick()

    def changed(self) -> None:
        """Something has changed; changes at the same time are sent in one status."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        # A handshake may have sent the same status meanwhile.
        if self._due:
            self.send()


def _free_mib(folder: Path) -> int | None:
    try:
        return free_bytes(folder) // 2**20
    except OSError:
        return None
