"""The camera: is it present, does it open, does it deliver the requested rate?

A running palmd holds the camera, so its status is used; otherwise the camera is opened here for a moment.
"""

import time

from device.camera import CameraError, SourceKind, open_camera, parse_source
from device.config.config import DeviceConfig
from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, warn
from device.errors import IpcError
from device.values.status import read_status
from link1.errors import is_not_permitted

NAME = "camera"
_LOOK_S = 1.5
_FEW = 0.5
"""Below this share of the requested rate hands are missed; cameras halve their rate in poor light."""


def check(case: Case) -> Finding:
    config = case.settings
    if "status" in case.closed:  # opening it here would take it from a running palmd
        return not_checked(NAME, "palmd, which holds it while it runs, may not be asked by this user")
    try:
        rate, description = _by_daemon(config) if case.status is not None else _by_itself(config)
    except (CameraError, IpcError) as error:
        if is_not_permitted(error):
            return not_checked(NAME, f"{config.camera.source} may not be opened by this user")
        return fail(NAME, str(error), "check its cable and power, and [camera] source: palmctl config show")
    detail = f"{description}, {rate:.0f} pictures a second"
    if rate == 0:
        return fail(NAME, f"{description} gives no picture", "check its cable and power; plug it in again")
    live = parse_source(config.camera.source).kind is SourceKind.V4L2
    if live and rate < config.camera.fps * _FEW:
        return warn(
            NAME,
            f"{detail}, {config.camera.fps} were asked for",
            "more light (cameras slow down in the dark), a separate USB port, or a smaller [camera] fps",
        )
    return ok(NAME, detail)


def _by_daemon(config: DeviceConfig) -> tuple[float, str]:
    """Pictures a second, counted by palmd over `_LOOK_S`, and the description."""
    before, started_s = read_status(config.control_socket).camera, time.monotonic()
    time.sleep(_LOOK_S)
    after = read_status(config.control_socket).camera
    if after.condition != "ok":
        raise CameraError(after.message or f"the camera is {after.condition}")
    return (after.frames - before.frames) / (time.monotonic() - started_s), after.description


def _by_itself(config: DeviceConfig) -> tuple[float, str]:
    wanted = config.camera
    camera = open_camera(wanted.source, wanted.fps, wanted.loop, pair=wanted.nir != "none")
    try:
        camera.read()  # the first picture may take long, while exposure and white balance settle
        pictures, started_s = 0, time.monotonic()
        while time.monotonic() - started_s < _LOOK_S:
            pictures += camera.read() is not None
        return pictures / (time.monotonic() - started_s), camera.description
    finally:
        camera.close()
