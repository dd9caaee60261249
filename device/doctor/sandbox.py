"""The units' sandbox as systemd applies it: an override may weaken what the package sets."""

import shutil
import subprocess
from collections.abc import Mapping

from device.doctor.case import Case, Finding, fail, ok, skip, warn
from device.trust.credentials import UNIT, drop_in, drop_in_path

_WITHIN_S = 5.0
_CLOSE = (
    "systemctl revert palmd palm-syncd; if an open network stays, systemd cannot make a network namespace: "
    "its kernel lacks CONFIG_NET_NS or its container CAP_NET_ADMIN"
)
_BOTH = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}
EXPECTED: Mapping[str, Mapping[str, str]] = {
    "palmd.service": {**_BOTH, "PrivateNetwork": "yes", "RestrictAddressFamilies": "AF_UNIX"},
    "palm-syncd.service": {**_BOTH, "PrivateDevices": "yes", "User": "palm-syncd"},
}


def sandbox(case: Case) -> Finding:
    if not case.system("/run/systemd/system").is_dir():
        return skip("systemd does not run this machine")
    wrong, overrides, absent = [], [], []
    for unit, expected in EXPECTED.items():
        shown = show_unit(unit, ("LoadState", "DropInPaths", "MainPID", *expected))
        if shown is None:
            return skip("systemctl gives no answer", "see: systemctl status palmd")
        if shown.get("LoadState") != "loaded":
            absent.append(unit)
            continue
        wrong += [
            f"{unit} {name}={shown.get(name, '')}"
            for name, want in expected.items()
            if shown.get(name) != want
        ]
        if "PrivateNetwork" in expected and shares_network(case, shown.get("MainPID", "0")):
            wrong.append(
                f"{unit} has the machine's network although PrivateNetwork={shown['PrivateNetwork']}"
            )
        overrides += [
            path for path in shown.get("DropInPaths", "").split() if unit != UNIT or not _is_ours(case, path)
        ]
    if absent:
        return warn(f"not installed as a unit: {', '.join(absent)}", "install the package")
    if wrong:
        return fail(f"open: {', '.join(wrong)}", _CLOSE)
    if overrides:
        return warn(f"closed, with overrides: {', '.join(overrides)}", "systemctl cat palmd palm-syncd")
    return ok("core without network, carrier without devices, as the package has it")


def shares_network(case: Case, pid: str) -> bool:
    """Whether the process is in the same network namespace as this program (namespaces(7)).

    systemd 257 starts a unit without its PrivateNetwork where it cannot make a namespace. False for a process
    that has ended ("0" is a unit without one), and where this user may not look.
    """
    try:
        theirs = case.system(f"/proc/{pid}/ns/net").readlink()
        return pid != "0" and theirs == case.system("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _is_ours(case: Case, path: str) -> bool:
    """Whether a drop-in is that of `palmctl keys encrypt`, or the package's own for a TPM, unchanged."""
    try:
        text = case.system(path).read_text()
        if path == str(drop_in_path()) and text == drop_in():
            return True
        return text == case.system("/usr/share/palm-access/palmd-tpm.conf").read_text()
    except PermissionError:
        raise  # becomes the finding "not checked"
    except OSError:
        return False


def show_unit(unit: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Properties of a unit from `systemctl show`; None when it gives no answer."""
    program = shutil.which("systemctl")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 (names of units and properties, all from this file)
            [program, "show", unit, *(f"--property={name}" for name in names)],
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
