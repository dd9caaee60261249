"""A provisioning string that is held before the camera as a QR code, read by a process that may do nothing.

As root, that process is the user `nobody` in the camera's group, without a network, without capabilities and
without a way to gain any; for any other user it stays that user, and can gain nothing either.
"""

import os
import pwd
import stat
import subprocess
import sys
import threading
from typing import Final

from device.camera.source import SourceKind, parse_source
from device.errors import ProvisioningError
from device.provisioning.invitation import MAX_TEXT, PREFIX

WAIT_S: Final = 120.0
_MOST_LINES = 100
_ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "OPENBLAS_NUM_THREADS": "1",
}


def camera_string(source: str, fps: int) -> str:
    """The text of the code. `source`, `fps`: as of `[camera]`. Raises ProvisioningError."""
    words = (source, str(fps), str(os.getpid()))
    command = [sys.executable, "-I", "-m", "device.provisioning.string_reader", *words]
    try:
        with subprocess.Popen(
            [*confinement(source), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
        ) as reader:
            late = threading.Timer(WAIT_S, reader.kill)
            late.start()
            try:
                return _string(reader)
            finally:
                late.cancel()
                reader.kill()
    except FileNotFoundError as error:
        raise ProvisioningError(
            f"{error.filename} is not here, which takes the privileges from the process that reads the code: "
            "install util-linux, or use --string-stdin"
        ) from error


def _string(reader: "subprocess.Popen[bytes]") -> str:
    """The first line that begins like a provisioning string, of some lines of bounded length."""
    why = ""
    for _ in range(_MOST_LINES):
        line = reader.stdout.readline(MAX_TEXT + 2) if reader.stdout else b""
        text = "".join(letter for letter in line.decode("utf-8", "replace") if letter.isprintable())
        if text.upper().startswith(PREFIX[:-1]):
            return text
        if not line:
            break
        why = text
    raise ProvisioningError(
        f"the camera showed no provisioning string ({why or f'none within {WAIT_S:.0f} s'}); "
        "hold it steady and as large as the picture, or use --string-stdin"
    )


def confinement(source: str) -> list[str]:
    """The words that start the reader's interpreter with as little as it needs. However its parent ends, it
    ends too, and the camera is free."""
    if os.geteuid() != 0:
        return ["setpriv", "--pdeathsig=KILL", "--no-new-privs", "--"]
    nobody = pwd.getpwnam("nobody")
    group = _camera_group(source)
    return [
        *("unshare", "--net", "--ipc", "--"),
        *("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}"),
        "--clear-groups" if group is None else f"--groups={group}",
        "--pdeathsig=KILL",
        *("--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--"),
    ]


def _camera_group(source: str) -> int | None:
    """The group that may use the camera's node, unless it is root's."""
    parsed = parse_source(source)
    if parsed.kind is SourceKind.FILE:
        return None
    try:
        status = parsed.path.stat()
    except OSError:
        return None  # the reader says what is the matter with it
    return status.st_gid if stat.S_ISCHR(status.st_mode) and status.st_gid != 0 else None
