"""Telemetry: the inference runtime must not have written any."""

import contextlib
import pwd
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, skip

NAME = "telemetry"
_TRACE = Path(".cache/Microsoft")
"""Where onnxruntime 1.29 and later keep what they would send."""
_USER = "palm-access"


def check(case: Case) -> Finding:
    try:
        runtime = version("onnxruntime")
    except PackageNotFoundError:
        return skip(NAME, "no onnxruntime is installed")
    homes = {case.system("/var/lib/palm-access")}
    if case.config is not None:
        homes.add(case.config.device.state_dir)
    with contextlib.suppress(KeyError):  # a development machine has no such user
        homes.add(Path(pwd.getpwnam(_USER).pw_dir))
    found = sorted(str(home / _TRACE) for home in homes if _exists(home / _TRACE))
    if found:
        return fail(
            NAME,
            f"onnxruntime has kept telemetry in {', '.join(found)}",
            "remove it; make sure that palmd.service has Environment=ORT_DISABLE_TELEMETRY=1",
        )
    return ok(NAME, f"off; onnxruntime {runtime} has written nothing")


def _exists(path: Path) -> bool:
    """Whether `path` exists. Raises PermissionError when this user may not know."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
