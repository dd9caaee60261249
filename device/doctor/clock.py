"""This device's clock: is it set, and is it synchronised?"""

import ctypes
from datetime import UTC, datetime

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, warn
from device.doctor.reading import text_of

NAME = "clock"
_RELEASED_MS = 1_767_225_600_000
"""2026-01-01: a correct clock does not show an earlier time."""
_TOLERANCE_MS = 300_000
"""How far the service lets the time of a request differ from its own (device surface §2)."""
_SET_IT = "set it: timedatectl set-ntp true; without a network: timedatectl set-time; fit a clock battery"
_TIMEX_BYTES = 208
_TIME_ERROR = 5
"""adjtimex(2): the kernel's clock is not synchronised."""


def check(case: Case) -> Finding:
    now_ms = case.clock.wall_ms()
    detail = _utc(now_ms)
    pinned_ms = case.trust.pinned_at_ms if case.trust else 0
    if now_ms < max(_RELEASED_MS, pinned_ms):
        registered = pinned_ms > _RELEASED_MS
        why = "before this device was registered" if registered else "before this device was made"
        return fail(NAME, f"{detail}: that is {why}", _SET_IT)
    service_ms = service_time_ms(case)
    if now_ms < service_ms - _TOLERANCE_MS:
        return fail(NAME, f"{detail}: the service signed something as late as {_utc(service_ms)}", _SET_IT)
    counting = case.trust.dbd_keys_now(now_ms, service_ms) if case.trust else ()
    if counting and not any(key.holds(max(now_ms, service_ms)) for key in counting):
        return fail(NAME, f"{detail}: no pinned key of the validator has a window around it", _SET_IT)
    if case.config is not None and case.config.cloud is None:
        return ok(NAME, f"{detail}; without a network nothing sets it: compare it at each visit")
    if not _synchronised(case):
        return warn(
            NAME, f"{detail}; nothing keeps it right", "timedatectl set-ntp true, and let UDP port 123 out"
        )
    return ok(NAME, f"{detail}, kept right by NTP")


def _synchronised(case: Case) -> bool:
    if text_of(case.system("/run/systemd/timesync/synchronized")) is not None:
        return True
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: read, change nothing
    state: int = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return 0 <= state < _TIME_ERROR


def service_time_ms(case: Case) -> int:
    """The newest time (epoch) signed by the service that trust.json or palmd knows; else 0."""
    kept_ms = max(case.trust.service_ms, case.trust.status_at_ms) if case.trust else 0
    running_ms = (case.status.service_time_ms or 0) if case.status else 0
    return max(kept_ms, running_ms)


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
