"""Reads one provisioning string from a QR code before the camera: `python -m … SOURCE FPS PARENT`.

Pictures are what strangers show, so this is a process of its own, which `palmctl provision` starts without
privileges and without a network: it knows no key and writes no file. Its whole answer is one line on standard
output; on standard error it says why there is none. It never ends by itself while the camera gives pictures:
the kernel ends it with its parent, process PARENT.
"""

import os
import resource
import sys
from contextlib import closing

from device.camera.source import open_camera
from device.errors import CameraError
from device.provisioning.invitation import PREFIX
from models.frames import CameraFrame
from models.qr import read_qr

_PREFIXES = (PREFIX[:-1], PREFIX[:-1].lower())
"""Of every version: one that cannot be read here has an error of its own."""
_LIMITS = (
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_CPU, 600),
    (resource.RLIMIT_AS, 4 << 30),
)


def main(source: str, fps: float, parent: int) -> str:
    """The text of the first code that begins like a provisioning string. Raises CameraError."""
    if os.getppid() != parent:  # it ended before the kernel was asked to end this process with it
        raise CameraError("the command that asked for the code has ended")
    for limit, value in _LIMITS:
        resource.setrlimit(limit, (value, value))
    with closing(open_camera(source, fps, loop=True)) as camera:
        while True:
            picture = camera.read()
            text = None if picture is None else read_qr(CameraFrame.from_pixels(picture))
            if text is not None and text.startswith(_PREFIXES):
                return text


if __name__ == "__main__":
    try:
        sys.stdout.write(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])) + "\n")
    except CameraError as error:
        sys.exit(str(error))
