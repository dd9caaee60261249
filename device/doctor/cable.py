"""The cable, and the validator at its other end."""

import os
import stat
from pathlib import Path

from device.doctor.case import Case, Finding, fail, not_checked, ok, skip, text_of, warn
from device.health import HealthWord
from device.values.status import CoreStatus
from link1.link_states import DownReason

_PALMD = "palmd"


def cable(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    """The cable to the validator: does the port exist, may palmd use it, and does another program hold it?"""
    config = case.settings
    port = config.link.port
    if not port.startswith("/"):
        return _of_daemon(case, port)
    try:
        found = Path(port).stat()
    except FileNotFoundError:
        kinds = ("ttyACM*", "ttyUSB*", "ttyGS*", "ttyAMA*")
        ports = sorted(str(path) for kind in kinds for path in case.system("/dev").glob(kind))
        there = ", ".join(ports) or "none at all"
        return fail(f"{port} is absent; ports here: {there}", "plug the cable in, or correct [link] port")
    except NotADirectoryError:
        return fail(f"{port}: a part of this path is not a folder", "check it: palmctl config show")
    if not stat.S_ISCHR(found.st_mode):
        return fail(f"{port} is not a serial port", "correct [link] port: palmctl config set link.port PORT")
    holders = _holders(case, port)
    if others := {name for name in holders if _PALMD not in name}:
        return fail(
            f"{port} is held by {', '.join(sorted(others))}",
            "end it; a ModemManager is kept off by the udev rule of the package",
        )
    if _modem_manager_may_probe(case, found.st_rdev):
        return warn(
            f"ModemManager runs and may probe {port}: it garbles the first seconds after each plugging in",
            "install the udev rule of the package (it sets ID_MM_DEVICE_IGNORE), or mask ModemManager",
        )
    if holders and case.status is None and "status" not in case.closed:
        return skip(f"{port} is held by a palmd that does not answer", "see the line `daemon`")
    return _of_daemon(case, port)


def _of_daemon(case: Case, port: str) -> Finding:
    if "status" in case.closed:
        return not_checked(f"whether palmd holds {port} may not be asked by this user")
    if case.status is None and not port.startswith("/"):
        return skip(f"{port} is looked for by palmd, which is not running", "systemctl start palmd")
    if case.status is None and os.geteuid() != 0:  # the files of other users' programs are hidden
        return not_checked(f"{port} is there; whether a program holds it is shown to root alone")
    if case.status is None:
        return ok(f"{port} is there and free")
    cable = case.status.cable
    if cable.state != "up" and cable.message != "open":
        message = str(cable.message)
        what = message if port in message else f"{port}: {message}"
        return fail(what, "plug the cable in, or correct [link] port")
    return ok(f"palmd holds {port}")


def _holders(case: Case, port: str) -> set[str]:
    """The programs that have the port open, as far as this user can see."""
    target, holders = os.path.realpath(port), set[str]()
    if target.startswith("/dev/pts/"):
        return holders  # a virtual cable: the program that made it holds both ends
    for process in case.system("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            if any(os.path.realpath(link) == target for link in (process / "fd").iterdir()):
                holders.add(_program(process))
        except OSError:
            continue  # gone meanwhile, or another user's
    return holders


def _program(process: Path) -> str:
    words = (text_of(process / "cmdline") or "").split("\0")
    name = text_of(process / "comm") or "a program"
    name = "".join(letter if letter.isprintable() else "?" for letter in name)  # its user's own choice
    return _PALMD if any("palmd" in word for word in words[:4]) else f"{name} (pid {process.name})"


def _modem_manager_may_probe(case: Case, device: int) -> bool:
    udev = text_of(case.system(f"/run/udev/data/c{os.major(device)}:{os.minor(device)}")) or ""
    if "E:ID_MM_DEVICE_IGNORE=1" in udev or "ID_BUS=usb" not in udev:
        return False
    return any(text_of(comm) == "ModemManager" for comm in case.system("/proc").glob("[0-9]*/comm"))


def _was_refused(status: CoreStatus) -> bool:
    """Whether the last session ended because this device did not accept who was at the other end."""
    return any(
        note.word == HealthWord.LINK_DOWN and note.detail.endswith(DownReason.UNPAIRED)
        for note in status.health
    )


def validator(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    """The validator: is a key of it pinned, and has it proved that it holds the key?"""
    trust, status = case.trust, case.status
    if "trust" in case.closed:
        return not_checked("what is pinned may not be read by this user")
    if trust is None:
        return skip("the device is not provisioned", "see the line `provisioned`")
    counting = trust.dbd_keys_now(case.clock.wall_ms(), case.service_time_ms)
    kids = list(dict.fromkeys(key.public.kid for key in counting))
    pinned = f"pinned for {trust.dbd_id}: {', '.join(kids)}"
    if not kids:
        add = "have it added at the service (`palmctl cloud dbd add`); the device then receives it"
        if case.settings.cloud is None:  # mail comes through the validator, which has to prove itself first
            add = "have it added at the service (`palmctl cloud dbd add`); then register again over a stick"
        return fail(f"no key of validator {trust.dbd_id} is pinned that counts now", add)
    if "status" in case.closed:
        return not_checked(f"{pinned}; whether it answers may not be asked by this user")
    if status is None:
        return skip(f"{pinned}; whether it answers is known while palmd runs", "systemctl start palmd")
    cable, kid = status.cable, status.cable.validator_kid
    if cable.state != "up" and _was_refused(status):
        return fail(
            f"the validator that answered last was refused: its key, id or gate is another; {pinned}",
            f"see that it is {trust.dbd_id} at {trust.gate_id}; a new key of it is added at the service "
            "(`palmctl cloud dbd add`)",
        )
    if cable.state != "up":
        return fail(
            f"no validator has proved itself; {pinned}",
            "check its power, and that it pins this device's verdict key (line `provisioned`)",
        )
    if kid and kid not in kids:
        return warn(f"the session is with key {kid}; {pinned}", "palmctl status; restart palmd if it stays")
    return ok(f"session up with {trust.dbd_id}, key {kid or kids[0]}")
