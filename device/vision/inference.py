"""The inference thread: examines the latest frame as far as it is of interest, and reports to the loop."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import cv2

from device.vision.capture import ENDS_WITHIN_S, FrameSlot
from device.vision.recognition import Interest, Look, Recogniser
from models.frames import CameraFrame
from models.qr import read_qr

IDLE_EVERY_MS: Final = 100
"""Without a request for a passage, frames are examined for hands, or previewed, at this rate."""
CODE_EVERY_MS: Final = 200
"""How often frames are searched for a QR code, when one is expected and no open hand waits for a verdict."""
FRAME_WAIT_S: Final = 0.25
GAP_MS: Final = 1_000
"""After so long without a frame the hand that was in view is forgotten."""
UNDELIVERED_MOST: Final = 8
"""Most results waiting for the loop; further ones are dropped and counted."""
LOG_EVERY_FAULTS: Final = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecognitionFault:
    """A frame on which vision or the model failed. `consecutive`: such frames in a row, this one included."""

    error: str
    consecutive: int


class Listener(Protocol):
    """Receives the results. Called on the loop's thread."""

    def on_look(self, look: Look) -> None:
        """An examined frame, in order."""

    def on_code(self, payload: str) -> None:
        """The text of a QR code, reported repeatedly while it is in view."""

    def on_fault(self, fault: RecognitionFault) -> None:
        """Recognition failed on a frame; after several in a row the device is not ready."""


class InferenceThread:
    """Runs `recogniser` over the frames of `slot`.

    `set_interest` is called on the loop's thread. A result for another interest than the one in force when
    the loop takes it is dropped.
    """

    def __init__(
        self,
        slot: FrameSlot,
        recogniser: Recogniser,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        *,
        now_ms: Callable[[], int],
        watch: Callable[[CameraFrame, Look | None], None] = lambda _frame, _look: None,
        examining: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`examining` encloses the examination of each frame. `watch` is called on this thread with every
        examined frame, and must return at once."""
        self._slot = slot
        self._recogniser = recogniser
        self._loop = loop
        self._listener = listener
        self._now_ms = now_ms
        self._watch = watch
        self._examining = examining
        self._wanted = (Interest.IDLE, False)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._room = threading.BoundedSemaphore(UNDELIVERED_MOST)
        self._consecutive = 0
        self.examined = self.faults = self.undelivered = 0
        """Since the start: frames examined, frames that failed, results the loop was too slow to take."""
        self._last_frame_ms = self._last_idle_ms = self._last_code_ms = now_ms()
        self.heartbeat_ms = now_ms()
        """When the thread was last active: at least every `FRAME_WAIT_S`, unless a frame takes longer."""

    def set_interest(self, interest: Interest, *, codes: bool) -> None:
        """How to examine frames from now on; `codes`: search for QR codes, but not while an open hand waits
        for a verdict."""
        self._wanted = (interest, codes)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """End the thread; False when it has not ended after `ENDS_WITHIN_S`."""
        self._stop.set()
        self._thread.join(ENDS_WITHIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # OpenCV's thread pool would keep busy the core that the next frame needs.
        cv2.setNumThreads(1)
        # Its helpers keep off this core; where a thread may not choose one, the kernel does.
        with suppress(OSError):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        while not self._stop.is_set():
            self.heartbeat_ms = self._now_ms()
            frame = self._slot.take(FRAME_WAIT_S)
            if frame is None:
                if self._now_ms() - self._last_frame_ms > GAP_MS:
                    self._recogniser.forget()  # no vector stays because the camera is away
                continue
            try:
                self._examine(frame, *self._wanted)
            except Exception as error:  # noqa: BLE001 -- a frame may raise anything, and the next one must be examined
                self._failed(error)

    def _examine(self, frame: CameraFrame, interest: Interest, codes: bool) -> None:
        if frame.at_ms - self._last_frame_ms > GAP_MS:
            self._recogniser.forget()
        self._last_frame_ms = frame.at_ms
        if interest in (Interest.IDLE, Interest.PREVIEW):
            if frame.at_ms - self._last_idle_ms < IDLE_EVERY_MS:
                return
            self._last_idle_ms = frame.at_ms
        taken_ms = float(self._now_ms() - frame.at_ms)
        with self._examining():
            look = self._recogniser.look(frame, interest)
        self._last_frame_ms = self._now_ms()  # a slow board's examination is no time without frames
        self.examined += 1
        self._consecutive = 0
        self._watch(frame, look)
        if look is not None:
            self._tell_look(look, taken_ms)
        # A passage does not wait for it; who shows a small code on an open palm has it read after that.
        passing = interest is Interest.PASSAGE and look is not None and look.hand is not None
        if codes and not passing and frame.at_ms - self._last_code_ms >= CODE_EVERY_MS:
            self._last_code_ms = frame.at_ms
            payload = read_qr(frame)
            if payload is not None:
                self._tell(lambda: self._listener.on_code(payload))

    def _failed(self, error: Exception) -> None:
        self.faults += 1
        self._consecutive += 1
        if self.faults % LOG_EVERY_FAULTS == 1:
            _log.error("recognition failed on a frame (%d so far)", self.faults, exc_info=error)
        fault = RecognitionFault(type(error).__name__, self._consecutive)
        self._tell(lambda: self._listener.on_fault(fault))

    def _tell_look(self, look: Look, taken_ms: float) -> None:
        examined_s = time.perf_counter()

        def take() -> None:
            if look.interest is self._wanted[0]:
                told_ms = (time.perf_counter() - examined_s) * 1000.0
                self._listener.on_look(look.with_waits(taken_ms, told_ms))
            else:
                look.drop()

        self._tell(take, look.drop)

    def _tell(self, call: Callable[[], None], untold: Callable[[], None] = lambda: None) -> None:
        """`call` on the loop; `untold` here where that is not possible."""
        if not self._room.acquire(blocking=False):
            self.undelivered += 1
            untold()
            return

        def take() -> None:
            self._room.release()
            call()

        try:
            self._loop.call_soon_threadsafe(take)
        except RuntimeError:
            # The loop is closed: the program is ending.
            self._room.release()
            self._stop.set()
            untold()
