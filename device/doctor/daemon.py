"""Is palmd running, is it this version, and does it serve?"""

from importlib.metadata import version

from device import APP_PACKAGE
from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, warn

NAME = "daemon"


def check(case: Case) -> Finding:
    status, here = case.status, version(APP_PACKAGE)
    if "status" in case.closed:
        return not_checked(NAME, f"palmd is not asked: {case.status_problem}")
    if status is None:
        return fail(
            NAME,
            f"no palmd answers: {case.status_problem}",
            "systemctl start palmd; why it stopped: palmctl logs --unit palmd",
        )
    running = status.app.version
    if running != here:
        return warn(
            NAME, f"palmd runs version {running}, installed is {here}", "systemctl restart palmd palm-syncd"
        )
    if not status.serving:
        words = ", ".join(status.words)
        return fail(NAME, f"palmd {running} runs, but every verdict would abstain: {words}", "palmctl status")
    return ok(NAME, f"palmd {running} serves")
