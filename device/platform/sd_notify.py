"""A daemon's messages to systemd: sd_notify(3) over the datagram socket named by NOTIFY_SOCKET.

Without a service manager the functions do nothing and do not fail.
"""

import os
import socket
from collections.abc import Mapping

NEW_START_WITHIN_S = 180
"""A gallery of a million templates takes a fraction of this."""
MAX_STATUS_CHARACTERS = 200
"""`systemctl status` shows one line; more is cut off there anyway."""


def notify(message: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send one message such as `READY=1`; True when a service manager took it."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # A leading @ denotes the NUL of an abstract socket (unix(7)).
    path = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.setblocking(False)  # a full queue must not stop the loop that feeds the watchdog
        try:
            channel.sendto(message.encode("utf-8"), path)
        except OSError:
            return False
    return True


def ready(status: str, environ: Mapping[str, str] = os.environ) -> bool:
    """The daemon serves; `status` is the line that `systemctl status` shows."""
    usec = environ.get("WATCHDOG_USEC", "")
    watch = f"WATCHDOG_USEC={usec}\n" if usec.isascii() and usec.isdigit() else ""
    return notify(f"READY=1\n{watch}STATUS={_one_line(status)}", environ)


def restarting() -> bool:
    """The program replaces itself in the same process: the watchdog waits until it is ready again."""
    return notify(f"WATCHDOG=1\nWATCHDOG_USEC={NEW_START_WITHIN_S * 1_000_000}")


def status(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    return notify(f"STATUS={_one_line(text)}", environ)


def watchdog(environ: Mapping[str, str] = os.environ) -> bool:
    """Feed the watchdog; call it only while every stage is alive."""
    return notify("WATCHDOG=1", environ)


def stopping(environ: Mapping[str, str] = os.environ) -> bool:
    return notify("STOPPING=1", environ)


def watchdog_interval_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """How often to feed the watchdog: half of WATCHDOG_USEC; None without a watchdog for this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    return int(usec) / 2_000_000 if usec.isascii() and usec.isdigit() and int(usec) > 0 else None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_STATUS_CHARACTERS]
