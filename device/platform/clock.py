"""Three clocks, passed in wherever time matters, so that tests can control them."""

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Milliseconds on three scales. Only `wall_ms` can be wrong or jump."""

    def monotonic_ms(self) -> int:
        """From an arbitrary origin; stops while the machine sleeps. For deadlines."""

    def boottime_ms(self) -> int:
        """Since the machine started, sleep included. For limits that must also expire during sleep."""

    def wall_ms(self) -> int:
        """Since 1970-01-01 UTC, as far as the device knows. For times in signed objects."""


def has_kept_time(rtc: Path = Path("/sys/class/rtc")) -> bool:
    """Whether this machine's wall clock was set from a clock that runs without power.

    A board without such a clock starts at 1970 or at the time saved in a file; how long the power was off is
    then unknown (rtc(4): hctosys is 1 for the clock from which the kernel set its time).
    """
    for clock in sorted(rtc.glob("rtc*")):
        try:
            if (clock / "hctosys").read_text(encoding="ascii").strip() == "1":
                return True
        except OSError:
            continue
    return False


class SystemClock:
    """The clocks of the kernel (clock_gettime(2))."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
