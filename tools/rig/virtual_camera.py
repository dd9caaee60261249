"""A camera made of files: scenes are queued into a folder that a `file:` camera with `loop = false` follows.

The folder camera plays images in the order of their names and holds the last one. So a scene is made visible
all at once, in order, and ends with the empty scene, which is what the camera sees until the next one.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

DEFAULT_FPS = 15.0
KEEP_PLAYED_S = 10.0
EMPTY_AFTER = 3
"""Empty pictures that end every scene: the hand is seen to have left."""

READER_LAG_S = 0.3
"""How much later than planned a reader on a busy machine may show the last picture of a scene."""

_JPEG_QUALITY = 95


class VirtualCamera:
    """Writes scenes into `folder` for a camera that plays it at `fps`.

    `empty`: pictures of the empty scene, shown at once and after every scene. `lossless` writes
    PNG instead of JPEG at quality 95. A folder already in use is continued after its highest number. Used by
    one thread; `now_s` and `sleep` are the monotonic clock.
    """

    def __init__(
        self,
        folder: Path,
        empty: Iterable[Picture],
        *,
        fps: float = DEFAULT_FPS,
        lossless: bool = False,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.fps = fps
        self._suffix = ".png" if lossless else ".jpg"
        self._now_s = now_s
        self._sleep = sleep
        self._written: deque[tuple[Path, float]] = deque()  # with the time each has been played at the latest
        self._played_until_s = now_s()
        there = sorted(path for path in folder.iterdir() if path.stem.isdigit())
        self._number = int(there[-1].stem) if there else 0
        self._written.extend((path, self._played_until_s) for path in there)
        self._empty = [self._encode(picture) for picture in empty]
        if not self._empty:
            raise ValueError("expected at least one picture of the empty scene")
        self._append(self._empty)

    @property
    def source(self) -> str:
        """What to write as `[camera] source` (with this `fps`, and `loop = false`)."""
        return f"file:{self.folder}"

    def queue(self, frames: Iterable[Picture]) -> float:
        """Queues a scene and returns the seconds until it has been played. Does not wait."""
        # All is encoded before any of it is shown: the reader must not wait within a scene.
        scene = [self._encode(picture) for picture in frames]
        self._append(scene + [self._empty[i % len(self._empty)] for i in range(EMPTY_AFTER)])
        return self._played_until_s + READER_LAG_S - self._now_s()

    def show(self, frames: Iterable[Picture]) -> None:
        """Queues a scene and waits until it has been played."""
        self._sleep(self.queue(frames))

    def _append(self, pictures: list[bytes]) -> None:
        now_s = self._now_s()
        self._prune(now_s)
        start_s = max(now_s, self._played_until_s)
        hidden: list[tuple[Path, Path]] = []
        for data in pictures:
            self._number += 1
            final = self.folder / f"{self._number:010d}{self._suffix}"
            temporary = self.folder / f".{final.name}"
            temporary.write_bytes(data)
            hidden.append((temporary, final))
        for i, (temporary, final) in enumerate(hidden):
            temporary.rename(final)
            self._written.append((final, start_s + (i + 1) / self.fps))
        self._played_until_s = start_s + len(pictures) / self.fps

    def _prune(self, now_s: float) -> None:
        """Removes what was played long ago, but never the last picture: a reopened camera needs one."""
        while len(self._written) > 1 and self._written[0][1] < now_s - KEEP_PLAYED_S:
            self._written.popleft()[0].unlink(missing_ok=True)

    def _encode(self, picture: Picture) -> bytes:
        options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if self._suffix == ".jpg" else []
        done, data = cv2.imencode(self._suffix, picture, options)
        if not done:
            raise ValueError(f"OpenCV cannot write a picture of shape {picture.shape} as {self._suffix}")
        return data.tobytes()
