"""Three clocks, handed in wherever time matters, so that tests hold them still."""

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Milliseconds on three scales. Only `wall_ms` can be wrong or jump."""

    def monotonic_ms(self) -> int:
        """Since some moment of this start; stands still while the machine sleeps. For deadlines."""
        ...

    def boottime_ms(self) -> int:
        """Since the machine started, sleep included. For what must run out while the device sleeps."""
        ...

    def wall_ms(self) -> int:
        """Since 1970-01-01 UTC, as far as the device knows. For what is written into signed objects."""
        ...


def has_kept_time(rtc: Path = Path("/sys/class/rtc")) -> bool:
    """Whether this machine's wall clock came from a clock that runs on without power.

    A board without one begins at 1970, or where a file says that it stopped; either way nobody knows how long
    the power was off (rtc(4): hctosys says that the kernel took the time from there).
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
