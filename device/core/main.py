"""`palmd`, the core daemon: its command line, and the one place where its parts are put together."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

# Before anything imports onnxruntime, OpenCV or NumPy: no telemetry; a stalled camera blocks a read 1 s, not
# 10; and a search does not wait for the matrices of a page that is being applied.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from device import APP_PACKAGE
from device.camera import open_camera
from device.config.config import DeviceConfig, config_path, load_config
from device.core.carrier_api import CarrierDesk, DeskParts
from device.core.core import Core
from device.core.doctor_control import doctor_operations
from device.core.housekeeping import Housekeeping, Stage
from device.core.opening import open_device
from device.core.people_wiring import make_people
from device.core.report import describe
from device.core.update_wiring import begin_updates
from device.core.wiped import serve_wiped
from device.core.wiping import WipeEnd
from device.errors import ConfigError, DeviceError, NotProvisioned
from device.platform import sd_notify
from device.platform.clock import Clock, SystemClock
from device.platform.control import control_handler
from device.platform.ipc import Packet, reply
from device.platform.logs import limit_repeats
from device.platform.memory import MemoryGuard, guard_memory
from device.platform.roles import Role, serve_roles
from device.platform.threads import StoreThread
from device.trust.known_time import known_time_ms
from device.trust.service_status import StatusReader
from device.vision.capture import CameraState, CaptureThread, FrameSlot
from device.vision.inference import InferenceThread
from device.vision.recognition import Recogniser
from device.wipe.wipe import finish_wipe
from link1.transport.pump import CablePump
from link1.transport.serial_port import open_port
from models.liveness import LivenessCheck

SWITCH_INTERVAL_S = 0.001
"""So long a thread that needs the interpreter waits for one that computes. With Python's own 5 ms a frame,
which lets go of it thirty times, would be a fifth of a second late beside a page of the gallery."""
_log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
    given = parser().parse_args(arguments)
    path = config_path(given.config)
    again = False
    try:
        config = load_config(path)
        if given.check:
            print(f"{path} can be used")
            return 0
        logging.basicConfig(
            level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
        )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        limit_repeats()
        guard = guard_memory()
        if guard.problem:
            _log.warning("%s", guard.problem)
        config.device.runtime_dir.mkdir(parents=True, exist_ok=True)
        wipe = finish_wipe(config.device.state_dir)
        if wipe is None:
            again = asyncio.run(_serve(config, SystemClock(), guard))
        else:
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
        sd_notify.beginning_anew()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - a new image: no key stays in memory
    return 0


async def _serve(config: DeviceConfig, clock: Clock, guard: MemoryGuard) -> bool:  # noqa: PLR0915 - one line a part
    """Open everything, start everything, and serve until SIGTERM, SIGINT or the end of a wipe.

    Returns whether the program is to begin anew.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    journal_thread, gallery_thread = StoreThread("journal"), StoreThread("gallery")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(journal_thread.close)
        stack.callback(gallery_thread.close)
        opened = await open_device(config, clock, journal_thread, gallery_thread)
        stack.push_async_callback(journal_thread.do, opened.journal.close)
        if opened.gallery is not None:
            stack.push_async_callback(gallery_thread.do, opened.gallery.close)
        statuses = StatusReader(
            opened.trust.device_id,
            opened.pinned.status_key,
            at_least_ms=lambda: opened.trust.status_at_ms,
            known_ms=lambda: known_time_ms(opened.gallery, clock),
        )
        core = Core(
            opened,
            journal_thread=journal_thread,
            gallery_thread=gallery_thread,
            clock=clock,
            statuses=statuses,
            app_version=version(APP_PACKAGE),
        )

        desk = CarrierDesk(
            DeskParts(
                device_id=opened.trust.device_id,
                model_id=opened.model_id,
                gallery=lambda: core.gallery,
                wipe_id=lambda: core.wiping.unconfirmed,
                journal=opened.journal,
                http_key=lambda: opened.keys.http.seed if core.wiping.may_ask_service else None,
                statuses=statuses,
                journal_thread=journal_thread.executor,
                gallery_thread=gallery_thread.executor,
                clock=clock,
                events=core,
            )
        )
        people = make_people(core, desk, clock)
        stack.callback(people.enrolment.forget)
        core.wiping.forget_people = people.enrolment.forget
        slot = FrameSlot()

        def tell_camera(state: CameraState) -> None:
            loop.call_soon_threadsafe(core.on_camera, state)

        capture = CaptureThread(
            lambda: open_camera(
                config.camera.source, config.camera.fps, config.camera.loop, pair=config.camera.nir != "none"
            ),
            slot,
            now_ms=clock.monotonic_ms,
            on_state=tell_camera,
            nir=config.camera.nir,
        )
        inference = InferenceThread(
            slot,
            Recogniser(
                opened.embedder,
                lambda: opened.gallery,
                lambda: core.policy.thresholds,
                LivenessCheck(opened.pad_network),
                agree_cosine=opened.agree_cosine,
            ),
            loop,
            core,
            now_ms=clock.monotonic_ms,
            examining=opened.bulk_turn.examining,
            watch=people.preview.offer,
        )
        pump = CablePump(
            core.gate.end,
            lambda: open_port(config.link.port, baud=config.link.baud),
            on_event=core.gate.on_cable_event,
            on_port=core.on_port,
        )
        await core.start(
            want=lambda interest, codes: inference.set_interest(interest, codes=codes),
            pump=pump.kick,
            uploads=desk.verdict_waiting,
            enrolment=people.enrolment,
            preview=people.preview,
        )
        capture.start()
        stack.callback(capture.stop)
        inference.start()
        stack.callback(inference.stop)

        stages = [
            Stage("capture", lambda: capture.heartbeat_ms, within_ms=8_000),
            Stage("inference", lambda: inference.heartbeat_ms, within_ms=3_000),
            Stage("gallery", core.gallery_alive_ms, within_ms=60_000),
        ]
        watch, updates = await begin_updates(core, clock, stages, stack)

        async def tell_status(_request: Packet) -> Packet:
            status = describe(core, people.enrolment, clock, capture.counters, inference.counters)
            return reply(status=status | {"memory": asdict(guard)})

        technician = control_handler(
            {
                "status": tell_status,
                "factory_reset": core.wiping.factory_reset,
                **doctor_operations(slot),
                **people.operations,
                **updates,
            }
        )
        await serve_roles(
            config.device.runtime_dir,
            opened.trust.device_id,
            {
                Role.TECHNICIAN: technician,
                Role.TOTEM: technician,
                Role.INSTALLER: technician,
                Role.CARRIER: desk.handle,
            },
            stack,
        )

        house = Housekeeping(core, clock, stages)
        cable = asyncio.create_task(pump.run(), name="cable")
        keeping = asyncio.create_task(house.run(), name="housekeeping")
        sd_notify.ready(f"serving {config.device.gate_id} on {config.link.port}")
        _log.info("ready: %s", config.device.id)
        ending = asyncio.create_task(ended.wait(), name="signals")
        renewing = asyncio.create_task(watch.run(), name="updates")
        wiped, tasks = core.wiping.over, (cable, keeping, ending, renewing)
        await asyncio.wait((*tasks, core.broken, wiped), return_when=asyncio.FIRST_COMPLETED)
        again = renewing.done() or (wiped.done() and wiped.result() is WipeEnd.CONFIRMED)
        if not again:  # systemd would wait for this process to end, and kill it when it does not
            sd_notify.stopping()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        if core.broken.done():
            core.broken.result()
        await core.finish()
    return again


if __name__ == "__main__":
    sys.exit(main())
