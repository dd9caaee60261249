"""How hot the board is, as its kernel tells it (`/sys/class/thermal`)."""

from pathlib import Path
from typing import Final

HOT_C: Final = 80
"""Boards of the Raspberry Pi kind begin to slow themselves down here; recognition gets slower then."""
COOL_C: Final = 75
"""Below this it is well again: between the two the word neither comes nor goes."""

_SENSIBLE_MILLI_C = range(1, 150_000)


def hottest_c(system: Path = Path("/sys")) -> int | None:
    """The hottest sensor in whole degrees Celsius; None on a machine that shows none."""
    found = []
    for sensor in (system / "class/thermal").glob("thermal_zone*/temp"):
        try:
            milli_c = int(sensor.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # some sensors answer only while their part is powered
        if milli_c in _SENSIBLE_MILLI_C:
            found.append(milli_c // 1000)
    return max(found, default=None)


def too_hot(temperature_c: int | None, *, stood: bool) -> bool:
    """Whether the device shall say that it is too hot; `stood`: it says so now."""
    if temperature_c is None:
        return False
    return temperature_c >= (COOL_C if stood else HOT_C)
