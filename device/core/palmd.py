"""`palmd`, the core daemon: its command line, and the one place where its parts are put together."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

# Before anything imports onnxruntime, OpenCV or NumPy: no telemetry; a stalled camera blocks a read 1 s, not
# 10; and a search does not wait for the matrices of a page that is being applied.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from device import APP_PACKAGE
from device.camera.source import open_camera
from device.config.config import DeviceConfig, config_path, load_config
from device.core.attestations import Attestations
from device.core.carrier_api import CarrierApi, Errands
from device.core.core import Core
from device.core.device_operations import device_operations
from device.core.gate import Gate, device_end
from device.core.housekeeping import Housekeeping, StoreWatch, WatchedThread
from device.core.opening import Opened, boot_id, first_words, open_device
from device.core.people_operations import people_operations, why_not_captured
from device.core.running_wipe import RunningWipe, WipeEnd
from device.core.self_description import (
    OFFLINE_WORD,
    Hardware,
    SelfDescription,
    ServiceLink,
    ValidatorStatus,
)
from device.core.served_gallery import ServedGallery
from device.core.service_news import ServiceNews
from device.core.update_watch import UpdateWatch
from device.core.wiped_device import serve_wiped
from device.enrolment.consent import TermsFolder, shipped_terms_dir
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.flow import EnrolmentFlow
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.errors import ConfigError, DeviceError, JournalError, NotProvisioned
from device.health import Health, HealthWord
from device.journal.mail import OutboxEntry
from device.mail.apply import MailApply
from device.mail.desk import MailDesk
from device.mail.outbox import ReportedState, Sender
from device.platform import sd_notify
from device.platform.clock import Clock, SystemClock, has_kept_time
from device.platform.logs import bound_libraries, log_to_stderr, release_libraries
from device.platform.memory import MemoryGuard, guard_memory, settle_memory
from device.platform.roles import control_handler, serve_roles
from device.platform.streams import open_closed_streams
from device.platform.threads import BulkTurn, StoreThread
from device.trust.known_time import known_time_ms
from device.trust.pinning import Pinning
from device.trust.service_status import StatusReader
from device.updates.desk import UpdateDesk
from device.updates.manifest import OfferReader
from device.vision.capture import CameraState, CaptureThread, FrameSlot
from device.vision.inference import InferenceThread
from device.vision.recognition import Recogniser
from device.wipe.wipe import finish_wipe
from link1.keys import PublicKey
from link1.transport.pump import CablePump
from link1.transport.serial_port import Port, open_port
from models.hand import HandFinder
from models.liveness import LivenessCheck

GALLERY_AGAIN_S = 15.0
SWITCH_INTERVAL_S = 0.001
"""How long a thread that needs the interpreter waits for one that computes. With Python's default of 5 ms, a
frame, which releases it thirty times, would be a fifth of a second late while a gallery page is applied."""
_log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="palmd", description="The core daemon of a palm access device.")
    options.add_argument(
        "--config",
        type=Path,
        help="configuration file (default: PALM_ACCESS_CONFIG, or /etc/palm-access/device.toml)",
    )
    options.add_argument(
        "--check", action="store_true", help="read the configuration, say what is wrong, exit"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Exit status: 0 ended by a signal, 1 failed, 2 wrong usage, 3 not provisioned."""
    open_closed_streams()
    given = parser().parse_args(arguments)
    path = config_path(given.config)
    again = False
    try:
        config = load_config(path)
        if given.check:
            print(f"{path} can be used")
            return 0
        log_to_stderr()
        bound_libraries()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        guard = guard_memory()
        wipe = finish_wipe(config.device.state_dir)
        if wipe is None:
            again = asyncio.run(serve(config, SystemClock(), guard))
        else:
            gc.enable()
            asyncio.run(serve_wiped(config, wipe))
    except ConfigError as error:
        print(f"palmd: {path} cannot be used:\n{error}", file=sys.stderr)
        return 1
    except NotProvisioned as error:
        print(f"palmd: {error}", file=sys.stderr)
        return 3
    except (DeviceError, OSError) as error:
        print(f"palmd: {error}", file=sys.stderr)
        return 1
    if again:
        sd_notify.restarting()
        release_libraries()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - a new image: no key stays in memory
    return 0


async def serve(config: DeviceConfig, clock: Clock, guard: MemoryGuard) -> bool:
    """Open everything, start everything, and serve until SIGTERM, SIGINT or the end of a wipe.

    Returns whether the program is to begin again.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    journal_thread, gallery_thread = StoreThread("journal"), StoreThread("gallery")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(journal_thread.close)
        stack.callback(gallery_thread.close)
        opened = await open_device(
            config,
            clock,
            journal_thread,
            gallery_thread,
            boot_id=boot_id(),
            clock_kept=has_kept_time(),
            bulk_turn=BulkTurn(),
        )
        stack.push_async_callback(journal_thread.do, opened.journal.close)
        if opened.gallery is not None:
            stack.push_async_callback(gallery_thread.do, opened.gallery.close)
        palmd = Palmd(
            opened,
            journal_thread,
            gallery_thread,
            clock,
            guard,
            open_cable=lambda: open_port(config.link.port, baud=config.link.baud),
        )
        stack.callback(palmd.enrolment.forget)
        await palmd.store_watch.start()
        await palmd.core.start()
        palmd.capture.start()
        stack.callback(palmd.capture.stop)
        palmd.inference.start()
        stack.callback(palmd.inference.stop)
        stack.push_async_callback(opened.updates.finish)
        await opened.updates.start()
        await serve_roles(
            config.device.runtime_dir,
            opened.trust.device_id,
            stack,
            carrier=palmd.carrier.handle,
            technician=palmd.technician,
        )
        cable = asyncio.create_task(palmd.pump.run(), name="cable")
        keeping = asyncio.create_task(palmd.housekeeping.run(), name="housekeeping")
        # What a start leaves behind is most of the heap; to look through it again for garbage would halt a
        # passage for some 50 ms.
        gc.collect()
        gc.freeze()
        gc.enable()
        settle_memory()
        sd_notify.ready(f"serving {config.device.gate_id} on {config.link.port}")
        _log.info("ready: %s", config.device.id)
        ending = asyncio.create_task(ended.wait(), name="signals")
        renewing = asyncio.create_task(palmd.update_watch.run(), name="updates")
        reopening = asyncio.create_task(_gallery_opens(opened, gallery_thread, palmd.wipe), name="gallery")
        wiped, tasks = palmd.wipe.over, (cable, keeping, ending, renewing, reopening)
        await asyncio.wait((*tasks, palmd.broken, wiped), return_when=asyncio.FIRST_COMPLETED)
        begins_again = renewing.done() or reopening.done()
        again = begins_again or (wiped.done() and wiped.result() is WipeEnd.CONFIRMED)
        if not again:  # systemd would wait for this process to end, and kill it when it does not
            sd_notify.stopping()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        if palmd.broken.done():
            palmd.broken.result()
        if opened.gallery is not None:
            opened.gallery.interrupt()
        await palmd.mail.finish()
        await palmd.core.finish()
    return again and not ended.is_set()  # a signal counts also when it comes while the program ends


async def _gallery_opens(opened: Opened, gallery_thread: StoreThread, wipe: RunningWipe) -> None:
    """Return when a gallery that could not be opened at the start can be: the program then begins again.

    A disk that was full or away for a moment must not close a gate until a technician restarts it. After a
    wipe there is always room for a new gallery, and this process has to hand over the record of the wipe.
    """
    if opened.gallery is not None or opened.trust.gallery is None:
        await asyncio.Event().wait()
    while True:
        await asyncio.sleep(GALLERY_AGAIN_S)
        if not wipe.begun and await gallery_thread.do(opened.gallery_opens) and not wipe.begun:
            return


class Palmd:
    """The parts of the program, put together; nothing runs yet, and no part reports anything before
    `Core.start`."""

    def __init__(
        self,
        opened: Opened,
        journal_thread: StoreThread,
        gallery_thread: StoreThread,
        clock: Clock,
        guard: MemoryGuard,
        *,
        open_cable: Callable[[], Port],
    ) -> None:
        config, loop = opened.config, asyncio.get_running_loop()
        self.broken: asyncio.Future[None] = loop.create_future()
        """Gets an exception when the program cannot go on."""

        def now_ms() -> int:
            return known_time_ms(opened.gallery, clock)

        def service_key(kid: str) -> PublicKey | None:
            return opened.trust.service_key(kid, "device_status", now_ms())

        def updates() -> UpdateDesk | None:
            return None if self.wipe.begun else opened.updates

        # The device and its state

        self.health = Health(self._health_changed, first_words(opened, clock.wall_ms()))
        pinning = Pinning(
            opened.pinned,
            opened.policy,
            path=config.trust_path,
            thread=journal_thread,
            now_ms=now_ms,
            validator_keys_changed=self._validator_keys_changed,
            policy_changed=self._policy_changed,
        )
        gallery = ServedGallery(
            store=opened.gallery,
            fault=opened.gallery_fault,
            thread=gallery_thread,
            model_id=opened.model.model_id,
            pinned=opened.pinned,
            pinning=pinning,
            health=self.health,
            clock=clock,
        )
        self.hardware = Hardware(self.health)
        link = ServiceLink(
            self.health,
            clock,
            has_cloud=config.cloud is not None,
            signed_ms=lambda: opened.pinned.service_ms,
        )
        end = device_end(opened.pinned, opened.keys.verdict, clock)

        def camera_changed(state: CameraState) -> None:
            loop.call_soon_threadsafe(self.hardware.on_camera, state)

        slot = FrameSlot()
        self.capture = CaptureThread(
            lambda: open_camera(
                config.camera.source, config.camera.fps, config.camera.loop, pair=config.camera.nir != "none"
            ),
            slot,
            now_ms=clock.monotonic_ms,
            on_state=camera_changed,
            nir=config.camera.nir,
            grey=config.camera.look == "nir",
        )

        # Functions for people

        enrolments, redeems = Errands(clock), Errands(clock)
        terms = TermsFolder(
            config.enrolment.terms_dir or shipped_terms_dir(),
            config.enrolment.terms_version or opened.trust.terms_version,
        )
        self.enrolment = EnrolmentDesk(
            EnrolmentFlow(
                opened.model.model_id,
                lambda: pinning.policy.thresholds,
                agree_cosine=opened.model.agree_cosine,
                terms=terms if config.enrolment.consent == "screen" else None,
                qr_hands=config.enrolment.hands,
            ),
            enrolments.outbox,
            redeems.outbox,
            clock,
            on_change=self._interest_changed,
            unready=lambda: OFFLINE_WORD if config.cloud is None else why_not_captured(self.health),
        )
        preview = Preview(loop, clock.monotonic_ms, self._interest_changed)
        passes = TrialPasses(lambda: pinning.policy, self._interest_changed)

        # What the device says of itself

        described = SelfDescription(
            config=config,
            app_version=version(APP_PACKAGE),
            model_id=opened.model.model_id,
            pinned=opened.pinned,
            pinning=pinning,
            health=self.health,
            hardware=self.hardware,
            end=end,
            gallery=gallery,
            link=link,
            updates=opened.updates,
            journal=opened.journal,
            enrolment=self.enrolment,
            memory=guard,
            clock=clock,
            capture=self.capture,
            inference=lambda: self.inference,
            gate=lambda: self.gate,
            mail=lambda: self.mail,
            carrier=lambda: self.carrier,
            store_watch=lambda: self.store_watch,
        )
        validator_status = ValidatorStatus(end, described.for_validator, self._cable_queued)

        # The service's orders, by the network or by the validator's mail

        self.wipe = RunningWipe(
            state_dir=config.device.state_dir,
            pinned=opened.pinned,
            health=self.health,
            gallery=gallery,
            gallery_thread=gallery_thread,
            journal=opened.journal,
            journal_thread=journal_thread,
            seal_record=self._seal_wiped,
            online=lambda: link.state.online,
            releases=(pinning.stop, self.enrolment.forget, opened.updates.abandon),
            failed=self._cannot_go_on,
        )
        news = ServiceNews(
            pinning=pinning,
            wipe=self.wipe,
            gallery=gallery,
            validator_status=validator_status,
            journal=opened.journal,
            journal_thread=journal_thread,
            health=self.health,
        )
        statuses = StatusReader(
            opened.trust.device_id,
            service_key,
            at_least_ms=lambda: opened.trust.status_at_ms,
            known_ms=now_ms,
            dbd_id=opened.trust.dbd_id,
        )
        apply = MailApply(
            device_id=opened.trust.device_id,
            seal_key=opened.keys.seal,
            roots=lambda: opened.trust.roots,
            revoked=lambda: opened.trust.revoked_kids,
            gallery=lambda: gallery.serving,
            statuses=statuses,
            gallery_thread=gallery_thread,
            clock=clock,
            gallery_changed=news.gallery_changed,
            status_received=news.status_received,
            take_config=pinning.take_config,
            take_bundle=pinning.take_bundle,
            service_heard=pinning.heard,
            updates=updates,
        )
        self.mail = MailDesk(
            position=opened.mail,
            boxes=opened.journal.mail,
            journal_thread=journal_thread,
            sender=Sender(opened.trust.device_id, opened.keys.verdict, lambda: opened.trust.mail_seal_key),
            apply=apply,
            end=end,
            clock=clock,
            online=lambda: link.state.online,
            network_awaited=lambda: link.unreported,
            report=lambda position: ReportedState(described.for_service(), position.refused),
            kick=self._cable_queued,
            store_failed=self._store_failed,
            wipe_collected=self.wipe.collected,
            rolled_back=news.rolled_back,
        )
        self.carrier = CarrierApi(
            gallery=lambda: gallery.serving,
            wipe_id=lambda: self.wipe.unconfirmed,
            wipe_ended=lambda: self.wipe.ended,
            journal=opened.journal,
            http_key=lambda: opened.keys.http.seed if self.wipe.may_ask_service else None,
            statuses=statuses,
            journal_thread=journal_thread,
            gallery_thread=gallery_thread,
            clock=clock,
            enrolments=enrolments,
            redeems=redeems,
            gallery_changed=news.gallery_changed,
            status_received=news.status_received,
            wipe_confirmed=self.wipe.confirmed,
            rolled_back=news.rolled_back,
            keys_published=pinning.take_service_keys,
            server_time=link.server_time,
            link_state=link.link_state,
            report=described.for_service,
            updates=updates,
            offers=OfferReader(opened.trust.device_id, key_of=service_key, now_ms=now_ms),
            attestations=Attestations(
                config.attest, config.device.state_dir, opened.keys, self.health, clock
            ),
        )
        opened.updates.when_changed(self.carrier.report_due.set)

        # The passage: camera, recognition, gate, cable

        def validator_proven() -> None:
            self.mail.session_began()
            validator_status.send()

        self.gate = Gate(
            end=end,
            journal=opened.journal,
            journal_thread=journal_thread,
            mail=self.mail,
            pinned=opened.pinned,
            policy=opened.policy,
            verdict_key=opened.keys.verdict,
            model_id=opened.model.model_id,
            gallery_mark=gallery.mark,
            health=self.health,
            clock=clock,
            capture_wanted=self._capture_wanted,
            validator_proven=validator_proven,
            news_for_upload=self.carrier.verdict_waiting.set,
            passed=passes.passed,
            kick_cable=self._cable_queued,
            cannot_go_on=self._cannot_go_on,
        )
        self.pump = CablePump(
            end,
            open_cable,
            on_event=self.gate.on_cable_event,
            on_port=self.hardware.on_port,
            clock_ms=clock.monotonic_ms,
        )
        self.core = Core(
            gate=self.gate,
            end=end,
            validator_status=validator_status,
            gallery=gallery,
            enrolment=self.enrolment,
            preview=preview,
            passes=passes,
            health=self.health,
            pinning=pinning,
            bulk_turn=opened.bulk_turn,
            clock=clock,
            recognises=opened.model.embedder is not None,
            want=lambda interest, codes: self.inference.set_interest(interest, codes=codes),
            kick=self.pump.kick,
        )
        self.inference = InferenceThread(
            slot,
            Recogniser(
                opened.model.embedder,
                lambda: opened.gallery,
                lambda: pinning.policy.thresholds,
                LivenessCheck(opened.pad_network),
                agree_cosine=opened.model.agree_cosine,
                finder=HandFinder(landmarks=opened.hand_landmarks),
            ),
            loop,
            self.core,
            now_ms=clock.monotonic_ms,
            examining=opened.bulk_turn.examining,
            watch=preview.offer,
        )
        # Watching the stages, and the technician's requests

        stages = (
            WatchedThread("capture", lambda: self.capture.heartbeat_ms, within_ms=8_000),
            WatchedThread("inference", lambda: self.inference.heartbeat_ms, within_ms=3_000),
            WatchedThread("gallery", gallery.alive_ms, within_ms=60_000),
        )
        self.store_watch = StoreWatch(
            journal=opened.journal,
            journal_thread=journal_thread,
            gallery=gallery,
            state_dir=config.device.state_dir,
            health=self.health,
            clock=clock,
            wiped=lambda: self.wipe.begun,
            idle=lambda: self.gate.open_txn_id is None,
            journal_is_back=self.gate.journal_is_back,
        )
        self.technician = control_handler(
            {
                **device_operations(
                    described.for_technician,
                    self.wipe.factory_reset,
                    slot,
                    opened.hand_landmarks,
                    desk=opened.updates,
                    facts=gallery.facts,
                ),
                **people_operations(
                    self.enrolment,
                    preview,
                    passes,
                    terms,
                    has_network=config.cloud is not None,
                    online=lambda: link.state.online,
                    health=self.health,
                    thresholds=lambda: pinning.policy.thresholds,
                ),
            }
        )
        self.update_watch = UpdateWatch(
            desk=opened.updates,
            gallery=gallery,
            health=self.health,
            clock=clock,
            stages=stages,
            wiped=lambda: self.wipe.begun,
            idle=lambda: self.gate.open_txn_id is None,
            trust=lambda: opened.trust,
            # Another place than the package's, for development.
            prefix=Path(os.environ.get("PALM_ACCESS_PREFIX", "/opt/palm-access")),
        )
        self.housekeeping = Housekeeping(
            store=self.store_watch,
            looks=(gallery.look, link.look),
            health=self.health,
            clock=clock,
            stages=stages,
        )

    # Reports from parts to others that are made after them

    def _health_changed(self, _words: tuple[HealthWord, ...]) -> None:
        self.core.health_changed()
        self.carrier.report_due.set()  # the cable's state changes with a health word

    def _validator_keys_changed(self) -> None:
        self.core.validator_keys_changed()

    def _policy_changed(self) -> None:
        self.core.policy_changed()

    def _capture_wanted(self, wanted: bool) -> None:
        self.core.capture_wanted(wanted)

    async def _seal_wiped(self, wipe_id: str, destroy: Callable[[OutboxEntry], Awaitable[None]]) -> None:
        await self.mail.wiped(wipe_id, destroy)

    def _interest_changed(self) -> None:
        self.core.choose_interest()

    def _cable_queued(self) -> None:
        self.core.kick_cable()

    def _store_failed(self, error: JournalError) -> None:
        self.health.report(HealthWord.STORE_FAULT, str(error))

    def _cannot_go_on(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)
