"""How hot the board is, according to its kernel (`/sys/class/thermal`)."""

from pathlib import Path
from typing import Final

HOT_C: Final = 80
"""Boards of the Raspberry Pi kind throttle themselves from here on, which slows recognition down."""
COOL_C: Final = 75
"""Below this the board is cool again; between the two the health word does not change."""

_SENSIBLE_MILLI_C = range(1, 150_000)


def hottest_c(system: Path = Path("/sys")) -> int | None:
    """The hottest sensor in whole degrees Celsius; None on a machine without sensors."""
    found = []
    for sensor in (system / "class/thermal").glob("thermal_zone*/temp"):
        try:
            milli_c = int(sensor.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # some sensors can be read only while their part is powered
        if milli_c in _SENSIBLE_MILLI_C:
            found.append(milli_c // 1000)
    return max(found, default=None)


def too_hot(temperature_c: int | None, *, before: bool) -> bool:
    """Whether the board counts as too hot; `before`: whether it did at the last look."""
    return temperature_c is not None and temperature_c >= (COOL_C if before else HOT_C)
