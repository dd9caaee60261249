"""All checks of the doctor, in the order in which a technician repairs things."""

from collections.abc import Callable, Iterable
from typing import Final

from device.doctor import (
    attest,
    cable,
    camera,
    clock,
    configuration,
    daemon,
    gallery,
    hands,
    memory,
    model,
    ownership,
    picture,
    provisioned,
    sandbox,
    server,
    storage,
    telemetry,
    temperature,
    validator,
    wear,
)
from device.doctor.case import Case
from device.doctor.finding import CheckResult, Finding, not_checked, skip
from link1.errors import is_not_permitted, reason_of

Check = Callable[[Case], Finding]

WITHOUT_CONFIGURATION: Final = frozenset(
    {"configuration", "wear", "clock", "temperature", "memory", "sandbox", "telemetry"}
)
"""Checks that also work on a board without a configuration."""

CHECKS: Final[dict[str, Check]] = {
    part.NAME: part.check
    for part in (
        configuration,
        provisioned,
        ownership,
        daemon,
        storage,
        wear,
        camera,
        picture,
        cable,
        validator,
        server,
        attest,
        clock,
        gallery,
        model,
        hands,
        temperature,
        memory,
        sandbox,
        telemetry,
    )
}


def examine(
    case: Case, only: Iterable[str] = (), tell: Callable[[str], None] = lambda _name: None
) -> tuple[Finding, ...]:
    """Run the checks named in `only`, or all; `tell` gets the name of each before it runs."""
    names = tuple(only) or tuple(CHECKS)
    findings = []
    for name in names:
        tell(name)
        findings.append(_carried_out(name, case))
    return tuple(findings)


def _carried_out(name: str, case: Case) -> Finding:
    if case.config is None and name not in WITHOUT_CONFIGURATION:
        if "configuration" in case.closed:
            return not_checked(name, "needs the configuration")
        return skip(name, "needs a configuration that can be used")
    try:
        return CHECKS[name](case)
    except Exception as error:  # noqa: BLE001 -- a failing check must not hide the findings of the others
        if is_not_permitted(error):
            return not_checked(name, _reason(error))
        if isinstance(error, OSError):
            return skip(name, f"could not look: {_reason(error)}", "see `dmesg` for errors of the disk")
        return Finding(
            name,
            CheckResult.WARN,
            f"the check itself failed: unexpected {type(error).__name__}",
            "report it with: palmctl support-bundle FILE.tar.gz",
        )


def _reason(error: Exception) -> str:
    where = getattr(error, "filename", None)
    return f"{where}: {reason_of(error)}" if where else reason_of(error)
