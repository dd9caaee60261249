"""What `palmctl provision` leaves on a board: the configuration, keys and trust, owners and modes."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from device.config.config import AttestSection
from device.doctor.case import Case, Finding, fail, is_closed, not_checked, ok, warn
from device.errors import StateError
from device.trust.attestation import secret_file
from device.trust.keystore import CREDENTIALS_FOLDER, KeyStore
from device.wipe.wipe import read_wipe
from link1.errors import FormatError


def configuration(case: Case) -> Finding:
    """The configuration file, and whether it matches the device that was registered here."""
    config, trust = case.config, case.trust
    if config is None and "configuration" in case.closed:
        return not_checked(f"{case.config_path} may not be read by this user (Permission denied)")
    if config is None:
        first, *rest = case.config_problem.splitlines()
        what = f"{first} (and {len(rest)} more: `palmctl config check`)" if rest else first
        return fail(what, "correct it, or run `palmctl provision` on a board that never had one")
    if trust is not None:
        pairs = (
            ("id", config.device.id, trust.device_id),
            ("gate_id", config.device.gate_id, trust.gate_id),
            ("dbd_id", config.device.dbd_id, trust.dbd_id),
        )
        for member, configured, registered in pairs:
            if configured != registered:
                return fail(
                    f"[device] {member} is {configured}, but this device was registered with {registered}",
                    f"palmctl config set device.{member} {registered}; to become another device: "
                    "`palmctl factory-reset`, have this one revoked, then `palmctl provision`",
                )
    if config.device.runtime_dir.is_relative_to(config.device.state_dir):
        return warn(
            "the runtime directory is inside the state directory",
            "name another [device] runtime_dir, such as /run/palm-access",
        )
    network = "with the service over the network" if config.cloud else "without a network, by mail"
    return ok(f"{case.config_path} can be used: {config.device.id} at {config.device.gate_id}, {network}")


_KEYS_LOST = (
    "see the line `ownership`; if the keys are lost, `palmctl factory-reset`, have the device revoked, and "
    "provision again with a new token"
)
_OTHER_TPM = (
    "it opens only with the TPM that encrypted it, in the same state of secure boot, or with the host key: "
    "put that back, then `systemctl restart palmd palm-syncd`; if it is lost, `palmctl factory-reset`, have "
    "the device revoked, then `palmctl provision` with a new token"
)


def provisioned(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    """Keys, pinned trust and journal: is everything present that `palmctl provision` makes?"""
    config = case.settings
    if is_closed(config.device.state_dir):
        return not_checked(f"{config.device.state_dir} may not be read by this user")
    if wiped := _wiped(config.device.state_dir):
        return fail(wiped, "palmctl factory-reset, then palmctl provision with a new token")
    if "trust" in case.closed:
        return not_checked(f"{config.trust_path} may not be read by this user")
    if case.trust is None and not KeyStore.exists(config.keys_dir):
        return fail(f"{config.device.state_dir} holds no device", "run `palmctl provision`")
    if case.trust is None:
        return fail(
            f"keys are there, but not what registration pins: {case.trust_problem}",
            "run `palmctl provision` again with the same string, token or stick: it goes on where it stopped",
        )
    if not config.journal_path.exists():
        return fail(
            f"{config.journal_path} is gone: the device must not sign verdicts without it",
            "restore it; if it is lost, `palmctl factory-reset`, have the device revoked, and provision "
            "again with a new token",
        )
    encrypted = config.keys_dir.with_name(CREDENTIALS_FOLDER).is_dir()
    if "keys" in case.closed and not encrypted:
        return not_checked(f"root {case.trust.roots[0].kid}; the keys may not be read by this user")
    if case.keys is None and (os.geteuid() == 0 or not encrypted):
        return fail(case.keys_problem, _OTHER_TPM if encrypted else _KEYS_LOST)
    encrypted_keys = "keys are encrypted credentials (`palmctl status` shows the verdict key)"
    key = f"verdict key {case.keys.verdict.kid}" if case.keys else encrypted_keys
    return ok(f"{key}, root {case.trust.roots[0].kid}")


def _wiped(state_dir: Path) -> str:
    """The stage of a wipe that was ordered here; empty without one."""
    try:
        wipe = read_wipe(state_dir)
    except StateError as error:
        return str(error)
    if wipe is None:
        return ""
    by = "the service" if wipe.wipe_id else "a technician"
    return f"this device was wiped by order of {by}; stage: {wipe.stage}"


_MOST_FILES = 2_000
_MAX_NAMED = 3


def ownership(case: Case) -> Finding:
    """Owners and modes of state, keys and sockets."""
    config = case.settings
    state_dir = config.device.state_dir
    try:
        owner = state_dir.stat().st_uid
    except FileNotFoundError:
        return fail(f"{state_dir} is absent", "run `palmctl provision`, or name the right state_dir")
    if is_closed(state_dir):
        return not_checked(f"{state_dir} may not be read by this user")
    wrong = [*_wrong(state_dir, owner, config.keys_dir), *_shared_signer(config.attest)]
    wrong += [
        (socket, "others may use it", f"chmod o= {socket}")
        for socket in (config.control_socket, config.totem_socket, config.carrier_socket)
        if _open_to_others(socket)
    ]
    if not wrong:
        return ok(f"all of {state_dir} belongs to {_name(owner)}; keys are its alone")
    shown = "; ".join(f"{path}: {what}" for path, what, _ in wrong[:_MAX_NAMED])
    if len(wrong) > _MAX_NAMED:
        shown = f"{shown}; and {len(wrong) - _MAX_NAMED} more"
    return fail(shown, "; ".join(dict.fromkeys(do for _, _, do in wrong[:_MAX_NAMED])))


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
            put_right = f"chown -R {_chown_word(owner)} {state_dir}"
            yield path, f"belongs to {_name(found.st_uid)}", put_right
        mode = 0 if path.is_symlink() else stat.S_IMODE(found.st_mode)  # that of a link says nothing
        private = any(path.is_relative_to(folder) for folder in secret)
        if private and mode & 0o077:
            expected = "0700" if path.is_dir() else "0600"
            yield path, f"mode {mode:04o}, others may read keys", f"chmod {expected} {path}"
        elif mode & 0o002:
            yield path, f"mode {mode:04o}, everybody may write", f"chmod o-w {path}"


def _shared_signer(section: AttestSection | None) -> Iterator[tuple[Path, str, str]]:
    """The attestation's key, or the PIN of its token, in a file that others may read."""
    with suppress(OSError, FormatError):  # the check `attest` names it
        if section is not None and (path := secret_file(section.signer)) is not None:
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                yield path, f"mode {mode:04o}, others may read it and attest", f"chmod 0600 {path}"


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


def _chown_word(uid: int) -> str:
    """The user and its group as chown(1) takes them; a user without a name has no group there."""
    try:
        return f"{pwd.getpwuid(uid).pw_name}:"
    except KeyError:
        return str(uid)
