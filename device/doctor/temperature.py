"""Heat: the sensors, and whether the board has throttled itself."""

from pathlib import Path

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, skip, warn
from device.doctor.reading import number_of, text_of

NAME = "temperature"
WARM_C = 70
HOT_C = 80
"""Boards of the Raspberry Pi kind begin to slow down at 80 °C."""
_PI_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
_UNDER_VOLTAGE, _FREQUENCY_CAPPED, _THROTTLED = 0x1, 0x2, 0x4
_SINCE_START_SHIFT = 16


def check(case: Case) -> Finding:
    zones = [
        (milli_c // 1000, text_of(zone / "type") or zone.name)
        for zone in sorted(case.system("/sys/class/thermal").glob("thermal_zone*"))
        if (milli_c := number_of(zone / "temp")) is not None and 0 < milli_c < 150_000
    ]
    flags = number_of(case.system(_PI_THROTTLED), 16) or 0
    if flags & _UNDER_VOLTAGE:
        return fail(
            NAME, "the supply voltage is too low now", "use the board's own power supply and a short cable"
        )
    if not zones:
        return skip(NAME, "this machine reports no temperature")
    hottest, sensor = max(zones)
    detail = f"{hottest} °C ({sensor})"
    if hottest >= HOT_C or flags & (_THROTTLED | _FREQUENCY_CAPPED):
        return fail(
            NAME,
            f"{detail}; the board slows itself down",
            "shade it, clear its air way, fit a heat sink or fan",
        )
    if flags >> _SINCE_START_SHIFT & (_UNDER_VOLTAGE | _THROTTLED) or _slowed(case.root):
        return warn(
            NAME,
            f"{detail}; since the start it was too hot or its supply too low at times",
            "look at it at the hottest hour of the day; check supply and air way",
        )
    if hottest >= WARM_C:
        return warn(NAME, detail, "check its air way before summer")
    return ok(NAME, detail)


def _slowed(root: Path) -> bool:
    counts = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return any((number_of(path) or 0) > 0 for path in counts)
