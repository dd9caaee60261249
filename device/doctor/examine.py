"""All checks of the doctor, in the order in which a technician repairs things."""

from collections.abc import Callable, Iterable
from typing import Final

from device.doctor import board, cable, camera, installation, running, service
from device.doctor.case import Case, Finding, fail, not_checked, skip, warn
from device.doctor.sandbox import sandbox
from device.health import HealthWord
from link1.errors import is_not_permitted, reason_of

WITHOUT_CONFIGURATION: Final = frozenset(
    {"configuration", "wear", "clock", "temperature", "memory", "sandbox", "telemetry"}
)
"""Checks that also work on a board without a configuration."""

OF_A_WORKING_DEVICE: Final = frozenset({"camera", "picture", "cable", "gallery", "model"})
"""Checks of what a revoked device no longer has; its other checks say that it was wiped, and what to do."""

CHECKS: Final[dict[str, Callable[[Case], Finding]]] = {
    "configuration": installation.configuration,
    "provisioned": installation.provisioned,
    "ownership": installation.ownership,
    "daemon": running.daemon,
    "storage": board.storage,
    "wear": board.wear,
    "camera": camera.camera,
    "picture": camera.picture,
    "cable": cable.cable,
    "validator": cable.validator,
    "server": service.server,
    "attest": service.attest,
    "clock": board.clock,
    "gallery": running.gallery,
    "model": running.model,
    "hands": running.hands,
    "temperature": board.temperature,
    "memory": board.memory,
    "sandbox": sandbox,
    "telemetry": board.telemetry,
}


def examine(
    case: Case, only: Iterable[str] = (), tell: Callable[[str], None] = lambda _name: None
) -> dict[str, Finding]:
    """Run the checks named in `only`, or all; `tell` gets the name of each before it runs.

    Where one of them cannot be made, the check that says why runs too: what was not looked at is not fine.
    """
    findings = {}
    names = tuple(only) or tuple(CHECKS)
    if any(_nothing_to_check(name, case) for name in names):
        names = ("configuration" if case.config is None else "provisioned", *names)
    for name in dict.fromkeys(names):
        tell(name)
        findings[name] = _carried_out(name, case)
    return findings


def _carried_out(name: str, case: Case) -> Finding:
    if (why := _nothing_to_check(name, case)) is not None:
        return why
    try:
        return CHECKS[name](case)
    except Exception as error:  # noqa: BLE001 -- a failing check must not hide the findings of the others
        if is_not_permitted(error):
            return not_checked(_reason(error))
        if isinstance(error, OSError):
            return fail(f"could not look: {_reason(error)}", "see `dmesg` for errors of the disk")
        return warn(
            f"the check itself failed: unexpected {type(error).__name__}",
            "report it with: palmctl support-bundle FILE.tar.gz",
        )


def _nothing_to_check(name: str, case: Case) -> Finding | None:
    if case.config is None and name not in WITHOUT_CONFIGURATION:
        if "configuration" in case.closed:
            return not_checked("needs the configuration")
        return skip("needs a configuration that can be used")
    if name in OF_A_WORKING_DEVICE and case.status is not None and HealthWord.REVOKED in case.status.words:
        return skip("this device is revoked", "see the line `provisioned`")
    return None


def _reason(error: Exception) -> str:
    where = getattr(error, "filename", None)
    return f"{where}: {reason_of(error)}" if where else reason_of(error)
