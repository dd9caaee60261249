"""Inside the virtual machine: pictures into a V4L2 output (vivid's), which come out of the camera.

Standard library alone. The four buffers of the output are mapped; a picture is copied into a buffer only when
the buffer does not hold it already, because copying is dear on an emulated processor.
"""

import fcntl
import mmap
import os
import struct
import threading

BUFFERS = 4

# <linux/videodev2.h> on a 64-bit machine: sizes 20, 88 and 4.
_VIDIOC_REQBUFS = 0xC0145608
_VIDIOC_QUERYBUF = 0xC0585609
_VIDIOC_QBUF = 0xC058560F
_VIDIOC_DQBUF = 0xC0585611
_VIDIOC_STREAMON = 0x40045612
_OUTPUT, _MEMORY_MMAP, _FIELD_NONE = 2, 1, 1
_BUFFER = struct.Struct("<5I4x16x16xII8sI12x")
"""struct v4l2_buffer: index, type, bytesused, flags, field; sequence, memory, m, length."""


class Screen:
    """What the camera sees: films, each played once, and the last picture from then on."""

    def __init__(self, first: bytes) -> None:
        self._queue: list[bytes] = []
        self._lock = threading.Lock()
        self._last = first
        self.shown = 0
        self.error = ""

    def play(self, pictures: list[bytes]) -> None:
        with self._lock:
            self._queue += pictures

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def run(self, node: str) -> None:
        """Show pictures for ever, at the pace at which the output gives its buffers back."""
        handle = os.open(node, os.O_RDWR)
        try:
            self._stream(handle)
        except OSError as error:
            self.error = str(error)
        finally:
            os.close(handle)

    def _stream(self, handle: int) -> None:
        fcntl.ioctl(handle, _VIDIOC_REQBUFS, struct.pack("<5I", BUFFERS, _OUTPUT, _MEMORY_MMAP, 0, 0))
        maps = [self._map(handle, index) for index in range(BUFFERS)]
        held = [b""] * BUFFERS
        for index in range(BUFFERS):
            self._show(handle, index, maps, held)
        fcntl.ioctl(handle, _VIDIOC_STREAMON, struct.pack("<I", _OUTPUT))
        while True:
            given = fcntl.ioctl(handle, _VIDIOC_DQBUF, _buffer(0))
            self._show(handle, _BUFFER.unpack(given)[0], maps, held)

    def _map(self, handle: int, index: int) -> mmap.mmap:
        told = _BUFFER.unpack(fcntl.ioctl(handle, _VIDIOC_QUERYBUF, _buffer(index)))
        offset, length = int.from_bytes(told[7][:4], "little"), told[8]
        return mmap.mmap(handle, length, offset=offset)

    def _show(self, handle: int, index: int, maps: list[mmap.mmap], held: list[bytes]) -> None:
        with self._lock:
            if self._queue:
                self._last = self._queue.pop(0)
        if held[index] is not self._last:
            held[index] = self._last
            maps[index][: len(self._last)] = self._last
        fcntl.ioctl(handle, _VIDIOC_QBUF, _buffer(index, len(self._last)))
        self.shown += 1


def _buffer(index: int, size: int = 0) -> bytes:
    return _BUFFER.pack(index, _OUTPUT, size, 0, _FIELD_NONE, 0, _MEMORY_MMAP, bytes(8), 0)
