"""The capture thread: keeps a camera open and puts its latest frame into a slot."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from device.camera.source import Camera, CameraLost
from device.errors import CameraError
from models.frames import CameraFrame, NirHalf

STALL_MS = 1_500
"""Without a frame for this long the camera counts as stalled."""

REOPEN_AFTER_STALL_MS = 5_000
"""A camera stalled this long is closed and opened again."""

OPENS_WITHIN_MS = 120_000
"""A USB camera that hangs answers each question of its driver after five seconds, and OpenCV asks a score of
them. Another start of the program would ask them again, so the watchdog leaves an opening so much time."""

BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 10.0
ENDS_WITHIN_S = 3.0

_log = logging.getLogger(__name__)


class CameraCondition(StrEnum):
    STARTING = "starting"
    OK = "ok"
    STALLED = "stalled"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class CameraState:
    """The state of the camera. `message` says what is wrong and what to do; empty when ok."""

    condition: CameraCondition
    description: str
    message: str


class FrameSlot:
    """Holds only the latest frame; a frame that was not taken before the next one is dropped and counted."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._frame: CameraFrame | None = None
        self._taken = True
        self.dropped = 0

    def put(self, frame: CameraFrame) -> None:
        """Replace the frame and wake the waiting thread."""
        with self._arrived:
            if not self._taken:
                self.dropped += 1
            self._frame, self._taken = frame, False
            self._arrived.notify_all()

    def take(self, timeout_s: float) -> CameraFrame | None:
        """The latest frame not taken yet, waiting up to `timeout_s` for it; None without one."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: not self._taken, timeout_s):
                return None
            self._taken = True
            return self._frame

    @property
    def latest(self) -> CameraFrame | None:
        """The latest frame, taken or not; None before the first one and after a stall."""
        with self._arrived:
            return self._frame

    @property
    def empty(self) -> bool:
        """Whether the latest frame was taken."""
        return self._taken

    def clear(self) -> None:
        """Drop the frame: a frame from before a stall does not show the present."""
        with self._arrived:
            self._frame, self._taken = None, True


class CaptureThread:
    """Reads a camera into `slot` until stopped; opens it again, after growing pauses, whenever it fails.

    `open_camera` opens the source and may raise CameraError. `on_state` is called on the capture thread at
    each change of state (pass it on with `loop.call_soon_threadsafe`). `now_ms`: the monotonic clock that
    stamps the frames. `nir`: the half of its pictures that is near infrared. `grey`: the camera sees no
    colour.
    """

    def __init__(
        self,
        open_camera: Callable[[], Camera],
        slot: FrameSlot,
        *,
        now_ms: Callable[[], int],
        on_state: Callable[[CameraState], None],
        nir: NirHalf = "none",
        grey: bool = False,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        """`wait`: waits for an event, at most so many seconds."""
        self._open_camera = open_camera
        self.slot = slot
        self._now_ms = now_ms
        self._on_state = on_state
        self._nir = nir
        self._grey = grey
        self._wait = wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._skipped_before = self._skipped = 0
        self.frames = self.opened = 0
        """Frames read and cameras opened since the thread started."""
        self.state = CameraState(CameraCondition.STARTING, "", "the camera is being opened")
        self.heartbeat_ms = now_ms()
        """When the thread was last active; while a camera is opened or closed, when that has to have ended.
        Reading may take a second."""

    @property
    def skipped(self) -> int:
        """Unusable frames so far."""
        return self._skipped_before + self._skipped

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """End the thread and close the camera; False when it has not ended after `ENDS_WITHIN_S`."""
        self._stop.set()
        self._thread.join(ENDS_WITHIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while not self._stop.is_set():
            frames_before = self.frames
            try:
                self._serve_one_opening()
            except CameraError as error:
                self._enter(CameraCondition.ABSENT, "", str(error))
            except Exception as error:  # noqa: BLE001 -- a driver or codec may raise anything, and this thread must go on
                _log.exception("camera: unexpected failure")
                self._enter(
                    CameraCondition.ABSENT,
                    "",
                    f"the camera failed unexpectedly ({type(error).__name__}); it is opened again",
                )
            self.slot.clear()
            if self.frames > frames_before:
                backoff_s = BACKOFF_FIRST_S
            self._pause(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MOST_S)

    def _serve_one_opening(self) -> None:
        """Open the camera and read it until it is lost, stalled too long, or the thread is stopped."""
        self.heartbeat_ms = self._now_ms() + OPENS_WITHIN_MS
        camera = self._open_camera()
        try:
            self.heartbeat_ms = self._now_ms()
            self.opened += 1
            self._read_on(camera)
        finally:
            self._skipped_before += camera.skipped
            self._skipped = 0
            self.heartbeat_ms = self._now_ms() + OPENS_WITHIN_MS
            camera.close()
            self.heartbeat_ms = self._now_ms()

    def _read_on(self, camera: Camera) -> None:
        last_frame_ms, skipped_before = self._now_ms(), camera.skipped
        while not self._stop.is_set():
            pixels = camera.read()
            now_ms = self.heartbeat_ms = self._now_ms()
            self._skipped = camera.skipped
            if pixels is not None:
                last_frame_ms, skipped_before = now_ms, camera.skipped
                self.frames += 1
                self.slot.put(
                    CameraFrame.from_pixels(
                        pixels, at_ms=now_ms, number=self.frames, nir=self._nir, grey=self._grey
                    )
                )
                self._enter(CameraCondition.OK, camera.description, "")
                continue
            if now_ms - last_frame_ms < STALL_MS:
                continue
            stalled = CameraLost(
                f"{camera.description} gives only damaged pictures; it is closed and opened again: try a "
                "shorter cable and another port, or see the folder's images"
                if camera.skipped > skipped_before
                else f"{camera.description} gives no picture; it is closed and opened again: check its "
                "cable and power, or that the folder holds images"
            )
            if now_ms - last_frame_ms >= REOPEN_AFTER_STALL_MS:
                raise stalled
            self.slot.clear()
            self._enter(CameraCondition.STALLED, camera.description, str(stalled))

    def _enter(self, condition: CameraCondition, description: str, message: str) -> None:
        if (condition, message) == (self.state.condition, self.state.message):
            return
        self.state = CameraState(condition, description, message)
        if condition is CameraCondition.OK:
            _log.info("camera: %s gives pictures", description)
        else:
            _log.warning("camera: %s: %s", condition, message)
        self._on_state(self.state)

    def _pause(self, seconds: float) -> None:
        """Wait before the next opening, still reacting to `stop` and updating the heartbeat."""
        until_ms = self._now_ms() + round(seconds * 1000)
        while not self._wait(self._stop, 0.25):
            self.heartbeat_ms = self._now_ms()
            if self.heartbeat_ms >= until_ms:
                return
