"""Owners and modes of state, keys and sockets."""

import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok
from device.doctor.reading import is_closed
from device.trust.keystore import CREDENTIALS_FOLDER

NAME = "ownership"
_MOST_FILES = 2_000
_MAX_NAMED = 3


def check(case: Case) -> Finding:
    config = case.settings
    state_dir = config.device.state_dir
    try:
        owner = state_dir.stat().st_uid
    except FileNotFoundError:
        return fail(NAME, f"{state_dir} is absent", "run `palmctl provision`, or name the right state_dir")
    if is_closed(state_dir):
        return not_checked(NAME, f"{state_dir} may not be read by this user")
    wrong = list(_wrong(state_dir, owner, config.keys_dir))
    wrong += [
        (socket, "others may use it", f"chmod o= {socket}")
        for socket in (config.control_socket, config.totem_socket, config.carrier_socket)
        if _open_to_others(socket)
    ]
    if not wrong:
        return ok(NAME, f"all of {state_dir} belongs to {_name(owner)}; keys are its alone")
    shown = "; ".join(f"{path}: {what}" for path, what, _ in wrong[:_MAX_NAMED])
    if len(wrong) > _MAX_NAMED:
        shown = f"{shown}; and {len(wrong) - _MAX_NAMED} more"
    return fail(NAME, shown, "; ".join(dict.fromkeys(do for _, _, do in wrong[:_MAX_NAMED])))


def _wrong(state_dir: Path, owner: int, keys_dir: Path) -> Iterator[tuple[Path, str, str]]:
    """Wrong owners and modes: path, what is wrong, the command that repairs it."""
    secret = (keys_dir, keys_dir.with_name(CREDENTIALS_FOLDER))
    for number, path in enumerate((state_dir, *state_dir.rglob("*"))):
        if number > _MOST_FILES:
            return
        try:
            found = path.lstat()
        except OSError:
            continue  # gone meanwhile: a database in use creates and removes files next to it
        if found.st_uid != owner:
            yield path, f"belongs to {_name(found.st_uid)}", f"chown -R {_name(owner)}: {state_dir}"
        mode = stat.S_IMODE(found.st_mode)
        private = any(path.is_relative_to(folder) for folder in secret)
        if private and mode & 0o077:
            expected = "0700" if path.is_dir() else "0600"
            yield path, f"mode {mode:04o}, others may read keys", f"chmod {expected} {path}"
        elif mode & 0o002 and not path.is_symlink():
            yield path, f"mode {mode:04o}, everybody may write", f"chmod o-w {path}"


def _open_to_others(socket: Path) -> bool:
    try:
        return bool(socket.stat().st_mode & 0o007)
    except OSError:
        return False  # absent, or closed to this user and so to others


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
