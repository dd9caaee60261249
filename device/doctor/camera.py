"""The camera and its picture."""

import time
from contextlib import closing

from device.camera.source import Camera, SourceKind, open_camera, parse_source
from device.config.config import CameraSection, DeviceConfig
from device.doctor.case import Case, Finding, fail, not_checked, ok, skip, warn
from device.doctor.measured_picture import PICTURE_OP, MeasuredAnswer, MeasuredPicture, measure
from device.errors import CameraError, IpcError, IpcRefused
from device.platform.ipc import ask_core
from device.values.status import read_status
from device.vision.hand_weights import wanted_landmarks
from link1.errors import FormatError, is_not_permitted
from models.frames import CameraFrame

_LOOK_S = 1.5
_FEW = 0.5
"""Below this share of the requested rate hands are missed; cameras halve their rate in poor light."""


def camera(case: Case) -> Finding:
    """The camera: is it present, does it open, does it deliver the requested rate?

    A running palmd holds the camera, so its status is used; otherwise the camera is opened here for a moment.
    """
    config = case.settings
    if "status" in case.closed:  # opening it here would take it from a running palmd
        return not_checked("palmd, which holds it while it runs, may not be asked by this user")
    try:
        rate, description = _rate_of_daemon(config) if case.status is not None else _rate_here(config)
    except (CameraError, IpcError) as error:
        if is_not_permitted(error):
            return not_checked(f"{config.camera.source} may not be opened by this user")
        return fail(str(error), "check its cable and power, and [camera] source: palmctl config show")
    detail = f"{description}, {rate:.0f} pictures a second"
    if rate == 0:
        return fail(f"{description} gives no picture", "check its cable and power; plug it in again")
    live = parse_source(config.camera.source).kind is SourceKind.V4L2
    if live and rate < config.camera.fps * _FEW:
        return warn(
            f"{detail}, {config.camera.fps} were asked for",
            "more light (cameras slow down in the dark), a separate USB port, or a smaller [camera] fps",
        )
    return ok(detail)


def _rate_of_daemon(config: DeviceConfig) -> tuple[float, str]:
    """Pictures a second, counted by palmd over `_LOOK_S`, and the description."""
    before, started_s = read_status(config.control_socket).camera, time.monotonic()
    time.sleep(_LOOK_S)
    after = read_status(config.control_socket).camera
    if after.condition != "ok":
        raise CameraError(after.message or f"the camera is {after.condition}")
    return (after.frames - before.frames) / (time.monotonic() - started_s), after.description


def _rate_here(config: DeviceConfig) -> tuple[float, str]:
    with _opened(config.camera) as source:
        source.read()  # the first picture may take long, while exposure and white balance settle
        pictures, started_s = 0, time.monotonic()
        while time.monotonic() - started_s < _LOOK_S:
            pictures += source.read() is not None
        return pictures / (time.monotonic() - started_s), source.description


def _opened(wanted: CameraSection) -> "closing[Camera]":
    return closing(open_camera(wanted.source, wanted.fps, wanted.loop, pair=wanted.nir != "none"))


_SETTLE_PICTURES = 10
_DARK_MEAN, _BRIGHT_MEAN = 40, 215
_LOST_PCT = 40
_POOR = 60
"""Below this, `models.quality` gives the person a hint."""


def picture(case: Case) -> Finding:
    """Light and focus: is the scene lit, and is a hand before the camera sharp?"""
    config = case.settings
    if "status" in case.closed:
        return not_checked("palmd may not be asked for it by this user")
    try:
        if case.status is None:
            measured = _picture_here(config)
        else:
            answer = ask_core(config.control_socket, PICTURE_OP).header
            measured = MeasuredAnswer.from_obj(answer).picture
        return judge(measured, config.camera.look)
    except (CameraError, IpcRefused) as error:
        if is_not_permitted(error):
            return not_checked(f"{config.camera.source} may not be opened by this user")
        return skip("there is no picture to look at", "see the line `camera`")
    except (IpcError, FormatError) as error:
        return skip(f"palmd did not measure it: {error}", "are palmctl and palmd of one version?")


def judge(picture: MeasuredPicture, look: str) -> Finding:
    """The finding for these numbers of a camera of this look: of the hand where there is one, else of the
    scene. Round a faultless hand the scene may be dark, and in near infrared it often is."""
    light = f"mean brightness {picture.mean} of 255"
    if picture.sharpness is None or picture.exposure is None:
        poor = _poor_light(picture, light, look)
        return poor or ok(f"{light}; for the focus hold an open hand before the camera and run this again")
    detail = f"{light}; the hand: sharpness {picture.sharpness}, exposure {picture.exposure} of 100"
    if picture.exposure < _POOR:
        poor = _poor_light(picture, light, look)
        return poor or warn(detail, "more even light on the hand; no lamp behind it")
    if picture.sharpness < _POOR:
        return warn(
            detail, "wipe the window, hold the hand 10 to 15 cm away, turn the lens until it is sharp"
        )
    return ok(detail)


def _poor_light(picture: MeasuredPicture, light: str, look: str) -> Finding | None:
    # A lamp of near infrared reaches the hand and little else.
    said = warn if look == "nir" else fail
    if picture.mean < _DARK_MEAN or picture.dark_pct > 100 - _LOST_PCT:
        return said(
            f"too dark: {light}", "switch on the lamp, uncover the lens, or give the place more light"
        )
    if picture.mean > _BRIGHT_MEAN or picture.bright_pct > _LOST_PCT:
        return said(
            f"too bright: {light}, {picture.bright_pct} % of it white",
            "keep sun and lamps out of the camera's view; turn the device or shade it",
        )
    return None


def _picture_here(config: DeviceConfig) -> MeasuredPicture:
    with _opened(config.camera) as source:
        seen = [pixels for _ in range(_SETTLE_PICTURES) if (pixels := source.read()) is not None]
    if not seen:
        raise CameraError("no picture came")
    landmarks, _ = wanted_landmarks(wanted=config.model.hand_weights)
    frame = CameraFrame.from_pixels(seen[-1], nir=config.camera.nir, grey=config.camera.look == "nir")
    return measure(frame, landmarks)
