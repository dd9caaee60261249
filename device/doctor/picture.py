"""Light and focus: is the scene lit, and is a hand before the camera sharp?"""

from device.camera import CameraError, open_camera
from device.config.config import DeviceConfig
from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, skip, warn
from device.doctor.measured_picture import PICTURE_OP, MeasuredAnswer, MeasuredPicture, measure
from device.errors import IpcError, IpcRefused
from device.platform.ipc import ask_core
from device.vision.hand_weights import wanted_landmarks
from link1.errors import FormatError, is_not_permitted
from models.frames import CameraFrame

NAME = "picture"
_SETTLE_PICTURES = 10
_DARK_MEAN, _BRIGHT_MEAN = 40, 215
_LOST_PCT = 40
_POOR = 60
"""Below this, `models.quality` gives the person a hint."""


def check(case: Case) -> Finding:
    config = case.settings
    if "status" in case.closed:
        return not_checked(NAME, "palmd may not be asked for it by this user")
    try:
        picture = _by_daemon(config) if case.status is not None else _by_itself(config)
    except (CameraError, IpcRefused) as error:
        if is_not_permitted(error):
            return not_checked(NAME, f"{config.camera.source} may not be opened by this user")
        return skip(NAME, "there is no picture to look at", "see the line `camera`")
    except (IpcError, FormatError) as error:
        return skip(NAME, f"palmd did not measure it: {error}", "are palmctl and palmd of one version?")
    return judge(picture)


def judge(picture: MeasuredPicture) -> Finding:
    """The finding for these numbers."""
    light = f"mean brightness {picture.mean} of 255"
    if picture.mean < _DARK_MEAN or picture.dark_pct > 100 - _LOST_PCT:
        return fail(
            NAME, f"too dark: {light}", "switch on the lamp, uncover the lens, or give the place more light"
        )
    if picture.mean > _BRIGHT_MEAN or picture.bright_pct > _LOST_PCT:
        return fail(
            NAME,
            f"too bright: {light}, {picture.bright_pct} % of it white",
            "keep sun and lamps out of the camera's view; turn the device or shade it",
        )
    if picture.sharpness is None or picture.exposure is None:
        return ok(NAME, f"{light}; for the focus hold an open hand before the camera and run this again")
    detail = f"{light}; the hand: sharpness {picture.sharpness}, exposure {picture.exposure} of 100"
    if picture.sharpness < _POOR:
        return warn(
            NAME, detail, "wipe the window, hold the hand 10 to 15 cm away, turn the lens until it is sharp"
        )
    if picture.exposure < _POOR:
        return warn(NAME, detail, "more even light on the hand; no lamp behind it")
    return ok(NAME, detail)


def _by_daemon(config: DeviceConfig) -> MeasuredPicture:
    return MeasuredAnswer.from_obj(ask_core(config.control_socket, PICTURE_OP).header).picture


def _by_itself(config: DeviceConfig) -> MeasuredPicture:
    wanted = config.camera
    camera = open_camera(wanted.source, wanted.fps, wanted.loop, pair=wanted.nir != "none")
    try:
        seen = [pixels for _ in range(_SETTLE_PICTURES) if (pixels := camera.read()) is not None]
    finally:
        camera.close()
    if not seen:
        raise CameraError("no picture came")
    landmarks, _ = wanted_landmarks(wanted=config.model.hand_weights)
    return measure(CameraFrame.from_pixels(seen[-1], nir=wanted.nir), landmarks)
