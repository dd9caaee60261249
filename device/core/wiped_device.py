"""The core of a wiped device: no camera, no cable, and no key but the http key.

It reports NOT_READY and what to do, lets the carrier acknowledge the wipe, and lets a technician reset the
device. It can no longer prove itself on the cable, because the verdict key is destroyed.
"""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from importlib.metadata import version

from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.errors import IpcRefused
from device.health import HealthWord
from device.platform import sd_notify
from device.platform.ipc import Packet, reply, reply_with
from device.platform.roles import refusing, serve_roles
from device.platform.threads import wait_at_most
from device.trust.credentials import key_source
from device.trust.keystore import KeyPurpose
from device.values import carrier, status
from device.wipe.wipe import IS_WIPED, REPLY_WITHIN_S, WIPED, Wipe, WipeStage, confirm_wipe, reset_folder
from link1.objects import AppVersion

_log = logging.getLogger(__name__)


class WipedDevice:
    """Answers at the sockets of a wiped device."""

    def __init__(self, config: DeviceConfig, wipe: Wipe) -> None:
        self._config = config
        self._wipe = wipe
        self.reset_done = asyncio.Event()
        self._operations = refusing(
            {
                "hello": self._hello,
                "http_key": self._http_key,
                "status": self._order,
                "wiped": self._wiped,
                "verdicts.next": _no_batch,
                "enrolment.next": _no_errand,
                "redeem.next": _no_errand,
                "link_state": _heard,
            }
        )

    async def answer_carrier(self, request: Packet) -> Packet:
        """The carrier's socket, with the operations of `device.core.carrier_api` that a wiped device has."""
        operation = self._operations.get(str(request.header.get("op")))
        if operation is None:
            raise IpcRefused("no_gallery", IS_WIPED)
        return await operation(request)

    async def answer_technician(self, request: Packet) -> Packet:
        """The other sockets: of what a device does, a wiped one has its status and the factory reset."""
        match request.header.get("op"):
            case "status":
                return reply_with(status.StatusAnswer(wiped_status(self._config, self._wipe)))
            case "factory_reset":
                return self._factory_reset()
            case _:
                raise IpcRefused(carrier.WIPED_CODE, IS_WIPED)

    def _factory_reset(self) -> Packet:
        """Remove the remaining files; the process ends after it."""
        wipe = self._wipe
        reset_folder(self._config.device.state_dir, wipe.device_id, wipe.gate_id, wipe.dbd_id)
        asyncio.get_running_loop().call_later(REPLY_WITHIN_S, self.reset_done.set)
        return reply()

    async def _hello(self, _request: Packet) -> Packet:
        if self._wipe.unconfirmed is None:
            raise IpcRefused(carrier.WIPED_CODE, IS_WIPED)
        return reply_with(carrier.HelloAnswer(None, self._wipe.unconfirmed))

    async def _http_key(self, _request: Packet) -> Packet:
        if self._wipe.unconfirmed is None:
            raise IpcRefused(carrier.WIPED_CODE, IS_WIPED)
        return reply(key_source(self._config.keys_dir)(KeyPurpose.HTTP))

    async def _order(self, _request: Packet) -> Packet:
        return reply_with(carrier.StatusTaken(self._wipe.unconfirmed))

    async def _wiped(self, request: Packet) -> Packet:
        if carrier.WipeConfirmed.from_obj(request.header).wipe_id != self._wipe.unconfirmed:
            raise IpcRefused("unknown_wipe", "no such wipe is waiting to be confirmed")
        confirmed = confirm_wipe(self._config.device.state_dir)
        if confirmed is not None:
            self._wipe = confirmed
        _log.info("the service knows of the wipe; the http key is destroyed")
        return reply()


async def serve_wiped(config: DeviceConfig, wipe: Wipe) -> None:
    """Serve every socket until SIGTERM, SIGINT or a factory reset."""
    core = WipedDevice(config, wipe)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, core.reset_done.set)
    async with AsyncExitStack() as stack:
        await serve_roles(
            config.device.runtime_dir,
            wipe.device_id,
            stack,
            carrier=core.answer_carrier,
            technician=core.answer_technician,
        )
        _log.warning("%s", WIPED)
        sd_notify.ready(f"not serving: {HealthWord.REVOKED}, wiped")
        interval_s = sd_notify.watchdog_interval_s()
        while not core.reset_done.is_set():
            sd_notify.watchdog()
            await wait_at_most(core.reset_done, interval_s)
        sd_notify.stopping()


def wiped_status(config: DeviceConfig, wipe: Wipe) -> status.CoreStatus:
    detail = WIPED
    if wipe.stage is WipeStage.ERASED:
        detail = (
            f"{WIPED}; the service does not know of the wipe yet: palm-syncd reports it as soon as the "
            "service is reachable (without a network, the sealed record in wipe.json can be handed to the "
            "operator)"
        )
    return status.CoreStatus(
        device_id=wipe.device_id,
        gate_id=wipe.gate_id,
        dbd_id=wipe.dbd_id,
        app=AppVersion(APP_PACKAGE, version(APP_PACKAGE)),
        serving=False,
        health=(status.HealthNote(HealthWord.REVOKED.value, detail),),
        camera=status.CameraStatus(
            "off", config.camera.source, "", frames=0, dropped=0, skipped=0, opened=0, examined=0, faults=0
        ),
        cable=status.CableStatus(
            "down", config.link.port, "a wiped device has no key to prove itself with", None
        ),
        gallery=status.GalleryStatus(
            "none", 0, 0, "0" * 16, templates=0, fresh=False, reason="absent", left_s=0
        ),
        cloud=carrier.CloudState(online=False, detail="wiped"),
        mail=status.MailStatus(0, 0, 0, None),
        updates=status.UpdatesStatus(usable=False, software=version(APP_PACKAGE), fault="wiped"),
        model_id="none",
        thr_id="none",
        txn_id=None,
        last_verdict=None,
        verdict_seq=0,
        uploads_waiting=0,
        enrolment=status.EnrolmentShown("off"),
        latency=status.LatencyStatus(0),
        wipe=status.WipeStatus(wipe.stage.value, wipe.wipe_id, wipe.record),
    )


async def _heard(_request: Packet) -> Packet:
    return reply()


async def _no_batch(request: Packet) -> Packet:
    await asyncio.sleep(carrier.BatchAsked.from_obj(request.header).wait_ms / 1000)
    return reply_with(carrier.BatchOffered(0, 0))


async def _no_errand(request: Packet) -> Packet:
    await asyncio.sleep(carrier.WaitAsked.from_obj(request.header).wait_ms / 1000)
    return reply_with(carrier.ErrandOffered(0))
