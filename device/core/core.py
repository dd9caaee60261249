"""The core: one loop that owns all state. Here the camera, the gate, the enrolment and the carrier meet.

A frame's journey: `Recogniser.look` on the inference thread (camera frame → hand → palm crop → quality →
liveness → vector → match), `Core.on_look` here, then `device.core.gate` (decision → verdict →
journal → session → frame bytes → cable). A delta's journey is `device.core.carrier_api`'s, and ends here in
`gallery_changed`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from cloud_client.contract import SIGNATURE_SKEW_S
from device import APP_PACKAGE
from device.core.gate import Gate
from device.core.mail_wiring import OFFLINE_WORD, make_mail_desk
from device.core.opening import Opened
from device.core.wiping import Wiping
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.health import NOT_SERVING, Health, HealthWord
from device.journal.mail import MailPosition
from device.mail.outbox import Standing
from device.passage.settings import Conditions
from device.platform import sd_notify
from device.platform.clock import Clock
from device.platform.threads import StoreThread
from device.trust.known_time import gallery_now, known_time_ms
from device.trust.pinning import Pinning
from device.trust.policy import Policy
from device.trust.service_status import ServiceStatus, StatusReader
from device.trust.trust import Trust
from device.values.carrier import LinkState
from device.vision.capture import CameraCondition, CameraState
from device.vision.inference import RecognitionFault
from device.vision.recognition import Interest, Look
from gallery.freshness import FreshnessReason
from gallery.gallery import Gallery
from link1.bodies import MailChunk, MailPull
from link1.canonical import JsonObject
from link1.objects import DeviceStatus, GalleryMark

FAULTY_AFTER = 5
"""So many frames in a row on which recognition fails, and the device says that it is not ready."""

_UNUSABLE = frozenset(
    {HealthWord.MODEL_FAULT, HealthWord.MODEL_MISMATCH, HealthWord.STORE_FAULT, HealthWord.REVOKED}
)
_ROLLED_BACK = (
    "this device's storage went back to an earlier state (an older copy was put back, or the card lost what "
    "was written), and no number may be used twice: put the newest copy back if there is one, or run "
    "`palmctl factory-reset` and provision it with a new token"
)
_log = logging.getLogger(__name__)


class Core:
    """All state of the device but what lies on the disk. Every method runs on the loop's thread.

    `want`, `pump` and `uploads` are given by `device.core.main` before `start`: what is wanted of the frames
    now (and whether QR codes are), that something was queued for the cable, that the journal has news.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        journal_thread: StoreThread,
        gallery_thread: StoreThread,
        clock: Clock,
        statuses: StatusReader,
        app_version: str,
    ) -> None:
        self.opened = opened
        self._pinning = Pinning(
            opened.pinned,
            opened.policy,
            path=opened.config.trust_path,
            thread=journal_thread,
            now_ms=lambda: known_time_ms(opened.gallery, clock),
            validator_keys_changed=self._validator_keys_changed,
            policy_changed=self._policy_changed,
        )
        self.journal_thread = journal_thread
        self.gallery_thread = gallery_thread
        self.app_version = app_version
        self.uploads_waiting = 0
        has_cloud = opened.config.cloud is not None
        self.cloud = LinkState(False, "palm-syncd has not reported yet" if has_cloud else OFFLINE_WORD)
        self.camera: CameraState | None = None
        self.cable_message = "the port has not been opened yet"
        self.health = Health(lambda _words: self._health_changed())
        self.gate = Gate(opened, self, health=self.health, thread=journal_thread, clock=clock)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Gets an exception when the core cannot go on; `device.core.main` ends then."""
        self._timer: asyncio.TimerHandle | None = None
        self._capture_wanted = False
        self._status_due = False
        self._told = ""
        self._want: Callable[[Interest, bool], None] = lambda _interest, _codes: None
        self._pump: Callable[[], None] = lambda: None
        self._uploads: Callable[[], None] = lambda: None
        self._enrolment: EnrolmentDesk | None = None
        self._preview: Preview | None = None
        self.passes = TrialPasses(lambda: self.policy, self.choose_interest)
        self.wiping = Wiping(self, opened.config.device.state_dir)
        self.mail = make_mail_desk(self, statuses, clock)

    @property
    def trust(self) -> Trust:
        """What is pinned now."""
        return self.opened.trust

    @property
    def gallery(self) -> Gallery | None:
        """What may be filled and searched; None once it is destroyed."""
        return None if self.wiping.begun else self.opened.gallery

    @property
    def policy(self) -> Policy:
        """The configuration in force."""
        return self._pinning.policy

    async def start(
        self,
        *,
        want: Callable[[Interest, bool], None],
        pump: Callable[[], None],
        uploads: Callable[[], None],
        enrolment: EnrolmentDesk,
        preview: Preview,
    ) -> None:
        """Take up work: from here on there may be events."""
        self._want, self._pump, self._uploads = want, pump, uploads
        self._enrolment, self._preview = enrolment, preview
        await self.gate.start()
        self.uploads_waiting = await self.journal_thread.do(self.opened.journal.pending_uploads)
        report = self.health.report
        report(HealthWord.KEY_UNATTESTED, "no factory certificate vouches for this device's keys")
        report(HealthWord.LINK_DOWN, "no validator has proved itself yet")
        report(HealthWord.CAMERA_FAULT, "the camera has not given a picture yet")
        if why := self.opened.journal.halted:
            report(HealthWord.ROLLED_BACK, f"{why}; {_ROLLED_BACK}")
        if self.opened.model_fault:
            report(HealthWord.MODEL_FAULT, self.opened.model_fault)
        if self.opened.gallery_fault:
            report(HealthWord.STORE_FAULT, self.opened.gallery_fault)
        self.look_at_gallery()
        self.choose_interest()

    async def finish(self) -> None:
        """Let what is on its way to the disk arrive."""
        if self.opened.gallery is not None:
            self.opened.gallery.interrupt()
        if self._timer is not None:
            self._timer.cancel()
        await self.mail.finish()
        await self.gate.finish()

    # What the camera shows

    def on_look(self, look: Look) -> None:
        """An examined frame: the enrolment's while one captures, else the gate's."""
        self.opened.bulk_turn.hand_seen(look.sighting.hand_present)
        if look.store_fault:
            # Before the gate hears of the hand, so that it abstains; `StoreWatch` takes it back.
            self.health.report(HealthWord.STORE_FAULT, look.store_fault)
        enrolment = self._enrolment
        if enrolment is not None and enrolment.capturing:
            enrolment.look(look.for_enrolment())
        elif enrolment is not None and enrolment.hand_lingers:
            enrolment.hand_seen(look.sighting.hand_present)
        else:
            if self.opened.embedder is not None:
                self.health.clear(HealthWord.MODEL_FAULT)
            self.gate.sighted(look.sighting)
            self.passes.sighted(look.sighting)

    def on_code(self, payload: str) -> None:
        """A QR code is held before the camera."""
        if self._enrolment is not None:
            self._enrolment.code_seen(payload)

    def on_fault(self, fault: RecognitionFault) -> None:
        """Recognition failed on a frame; with enough in a row the device is not ready."""
        if fault.consecutive >= FAULTY_AFTER:
            self.health.report(
                HealthWord.MODEL_FAULT,
                f"recognition failed on {fault.consecutive} frames in a row ({fault.error}); see the log",
            )

    def on_camera(self, state: CameraState) -> None:
        """The camera came, went or stalled."""
        self.camera = state
        working = state.condition is CameraCondition.OK
        self.health.put(HealthWord.CAMERA_FAULT, not working, state.message)

    def choose_interest(self) -> None:
        """Tell the inference thread what is wanted of the frames now."""
        if self.opened.embedder is None:
            self._want(Interest.IDLE, False)
        elif self._enrolment is not None and self._enrolment.capturing:
            self._want(Interest.ENROLMENT, False)
        else:
            self._want(self._idle_interest(), True)
        self._set_timer()

    def _idle_interest(self) -> Interest:
        """While nobody enrols."""
        if self._capture_wanted or self.passes.rehearsing:
            return Interest.PASSAGE
        return Interest.PREVIEW if self._preview is not None and self._preview.watched else Interest.IDLE

    # What the gate needs (device.gate.Around)

    def capture_wanted(self, wanted: bool) -> None:
        self._capture_wanted = wanted
        self.choose_interest()

    def validator_proven(self) -> None:
        self.mail.session_began()
        self._send_status()

    def session_ended(self) -> None:
        self.mail.session_ended()

    def mail_received(self, chunk: MailChunk) -> None:
        self.mail.received(chunk)

    def mail_pulled(self, pull: MailPull) -> None:
        self.mail.pulled(pull)

    def news_for_upload(self) -> None:
        self._uploads()

    def passed(self, said: JsonObject, total_ms: float, stage_ms: Mapping[str, float]) -> None:
        self.passes.passed(said, total_ms, stage_ms)

    def kick_cable(self) -> None:
        self._pump()
        self._set_timer()

    def cannot_go_on(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)

    def gallery_mark(self) -> GalleryMark:
        gallery = self.opened.gallery
        if gallery is None:
            stream, epoch = self.trust.gallery or ("none", 0)
            return GalleryMark(stream, epoch, 0, "0" * 16)
        position = gallery.position
        return GalleryMark(position.stream, position.epoch, position.seq, position.head16)

    # The cable

    def on_port(self, error: Exception | None) -> None:
        """The port was opened, or is not there."""
        self.cable_message = "open" if error is None else str(error)
        if error is not None:
            self.health.report(HealthWord.LINK_DOWN, str(error))

    def _send_status(self) -> None:
        """Tell the validator how the device stands."""
        self._status_due = False
        self.gate.end.send_status(self._device_status())
        self.kick_cable()

    def _status_changed(self) -> None:
        """Changes that come together are told together."""
        if not self._status_due:
            self._status_due = True
            self._loop.call_soon(self._send_due_status)

    def _send_due_status(self) -> None:
        """A handshake may have sent one meanwhile, with the same contents."""
        if self._status_due:
            self._send_status()

    def _device_status(self) -> DeviceStatus:
        return DeviceStatus(
            device_id=self.trust.device_id,
            nonce_b64="",  # the device's end puts the nonce of its session there
            serving=self.health.serving,
            health=tuple(str(word) for word in self.health.words),
            app_pkg=APP_PACKAGE,
            app_version=self.app_version,
            model_id=self.opened.model_id,
            thr_id=self.policy.thresholds.thr_id,
            gallery=self.gallery_mark(),
            last=self.gate.last,
            mail=self.mail.marks,
            at_ms=self._clock.wall_ms(),
        )

    # What the carrier brings (`carrier_api.CoreEvents`)

    def gallery_changed(self) -> None:
        """A page was applied: position, freshness or both are new."""
        if self.opened.gallery is not None:
            self._pinning.noted(self.opened.gallery.newest_head_ms)
        self.look_at_gallery()
        self._status_changed()

    async def status_received(self, status: ServiceStatus) -> str | None:
        """The service's verified word about this device."""
        if status.wipe_id is not None:
            return await self.wiping.ordered(status.wipe_id)
        await self._pinning.take_validator_keys(status)
        return None

    async def rolled_back(self, why: str) -> None:
        """Somebody knows of a later state of this device: no number is used twice. Raises JournalError."""
        await self.journal_thread.do(lambda: self.opened.journal.halt(why))
        _log.critical("an older state of this device was put back: %s", why)
        self.health.report(HealthWord.ROLLED_BACK, f"{why}; {_ROLLED_BACK}")

    async def keys_published(self, keys: list[JsonObject]) -> None:
        """What GET /v1/keys lists. Raises TrustError."""
        await self._pinning.take_service_keys(keys)

    def stop_pinning(self) -> None:
        """Nothing that arrives from here on changes what is trusted, or writes it down."""
        self._pinning.stop()

    def _validator_keys_changed(self) -> None:
        """A validator key that no longer counts ends its session."""
        for event in self.gate.end.keys_changed(self._clock.monotonic_ms()):
            self.gate.on_cable_event(event)
        self.kick_cable()

    def _policy_changed(self) -> None:
        self.gate.configure(self.policy)
        self.look_at_gallery()
        self._status_changed()

    # What the mail brings besides (device.mail_apply.MailEvents)

    async def config_received(self, wrapper: JsonObject) -> None:
        """The service's signed configuration; one that is not newer changes nothing."""
        await self._pinning.take_config(wrapper)

    async def service_time(self, at_ms: int) -> None:
        """The service signed something at this time (epoch), and it was verified."""
        await self._pinning.heard(at_ms)

    async def bundle_received(self, wrapper: JsonObject) -> None:
        """The service's signed trust bundle; one that is not newer changes nothing."""
        await self._pinning.take_bundle(wrapper)

    def standing(self, position: MailPosition) -> Standing:
        """What a report to the service says."""
        health = tuple(str(word) for word in self.health.words)
        gallery = None if self.trust.gallery is None else self.gallery_mark()
        return Standing(health, gallery, position.refused)

    async def wipe_confirmed(self, wipe_id: str) -> None:
        """The service knows that this device is wiped."""
        await self.wiping.confirmed(wipe_id)

    def server_time(self, wall_ms: int) -> None:
        """The service's clock: a hint, for health."""
        apart_ms = abs(wall_ms - self._clock.wall_ms())
        self.health.put(
            HealthWord.CLOCK_UNTRUSTED,
            apart_ms > SIGNATURE_SKEW_S * 1000,
            f"this clock and the service's are {apart_ms // 1000} s apart; check time synchronisation",
        )

    def link_state(self, state: LinkState) -> None:
        """Whether the service is reachable."""
        self.cloud = state
        self.health.put(HealthWord.OFFLINE, not state.online, state.detail)

    # Looking after itself

    def gallery_alive_ms(self) -> int:
        """When the work on the gallery's store last showed life: now, while there is none."""
        silent_s = 0.0 if self.gallery is None else self.gallery.silent_s
        return self._clock.monotonic_ms() - round(silent_s * 1000)

    def look_at_gallery(self) -> None:
        """Whether the gallery may be used now; asked when it changes, and every second."""
        gallery = self.opened.gallery
        if gallery is None:
            return
        fresh = gallery.freshness(gallery_now(self._clock), self.policy.gallery_ttl_ms)
        self.health.put(
            HealthWord.MODEL_MISMATCH,
            gallery.model_mismatch,
            f"the gallery's templates are not of model {self.opened.model_id}",
        )
        self.health.put(
            HealthWord.GALLERY_STALE,
            not fresh.fresh and not gallery.model_mismatch,
            "the gallery's store went back to an earlier page, as by a damaged card; nobody is recognised "
            "until the service has brought it up again"
            if fresh.reason is FreshnessReason.WENT_BACK
            else f"nobody may be recognised ({fresh.reason}) until word comes from the service; "
            "check that palm-syncd runs and reaches it",
        )

    def tell_status(self) -> None:
        """The line that `systemctl status` shows, when it has changed."""
        words = [str(word) for word in self.health.words if word in NOT_SERVING]
        line = f"not serving: {', '.join(words)}" if words else "serving"
        if line != self._told:
            self._told = line
            sd_notify.status(line)

    def _health_changed(self) -> None:
        standing = frozenset(self.health.words)
        _log.info("health: %s", " ".join(self.health.words) or "nothing to report")
        self.gate.conditions(
            Conditions(
                camera=HealthWord.CAMERA_FAULT not in standing,
                recogniser=_UNUSABLE.isdisjoint(standing),
                gallery=HealthWord.GALLERY_STALE not in standing,
            )
        )
        self._status_changed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        enrolment_ms = self._enrolment.next_deadline_ms if self._enrolment is not None else None
        due = [at_ms for at_ms in (self.gate.next_deadline_ms(), enrolment_ms) if at_ms is not None]
        if due:
            delay_s = max(0.0, (min(due) - self._clock.monotonic_ms()) / 1000)
            self._timer = self._loop.call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self.gate.tick()
        if self._enrolment is not None:
            self._enrolment.tick()
