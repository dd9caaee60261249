"""Telemetry: the inference runtime must have written nothing, and nothing may allow it to."""

import contextlib
import pwd
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, skip

NAME = "telemetry"
_TRACE = Path(".cache/Microsoft")
"""Where onnxruntime from 1.29 on keeps what it would send."""
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
            "remove it; see that Environment=ORT_DISABLE_TELEMETRY=1 stands in palmd.service",
        )
    return ok(NAME, f"off; onnxruntime {runtime} has written nothing")


def _exists(path: Path) -> bool:
    """Raises PermissionError: what may not be looked at has not been found absent."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
