"""Instants: epoch milliseconds inside, RFC 3339 in UTC with milliseconds on the partner surface."""

import calendar
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

NowMs = Callable[[], int]
"""The wall clock, handed in: epoch milliseconds."""

DAY_MS = 24 * 3600 * 1000
EARLIEST_MS = -62_167_219_200_000
LATEST_MS = 253_402_300_799_999
"""The first millisecond of the year 0000 and the last of 9999: nothing else can be written as RFC 3339."""

_DATE_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_400_YEARS_S = 146_097 * 24 * 3600


def system_now_ms() -> int:
    """The operating system's wall clock."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=1024)  # one record names the same moment more than once
def rfc3339(at_ms: int) -> str:
    """``YYYY-MM-DDTHH:MM:SS.mmmZ``."""
    year, month, day, hour, minute, second, *_ = time.gmtime(at_ms // 1000)
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{at_ms % 1000:03d}Z"


def rfc3339_or_none(at_ms: int | None) -> str | None:
    """As ``rfc3339``; None stays None."""
    return None if at_ms is None else rfc3339(at_ms)


def parse_rfc3339(text: str) -> int | None:
    """Epoch milliseconds (truncated) of an RFC 3339 date-time with a zone; None for anything else.

    Leap seconds, zone-less times and a space for the ``T`` are "anything else". A date-time at either end of
    the calendar may, by its offset, lie up to a day outside EARLIEST_MS to LATEST_MS.
    """
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    fraction, sign, zone_hours, zone_minutes = found.groups()[6:]
    offset_min = 0
    if sign:
        if int(zone_hours) > 23 or int(zone_minutes) > 59:
            return None
        offset_min = (int(zone_hours) * 60 + int(zone_minutes)) * (-1 if sign == "-" else 1)
    try:
        # Python's calendar begins with the year 1; the one of 400 years later is the same.
        moment = datetime(year or 400, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    seconds = (moment - _EPOCH) // _SECOND - offset_min * 60 - (0 if year else _400_YEARS_S)
    return seconds * 1000 + int((fraction or "0").ljust(9, "0")[:3])


def months_before(at_ms: int, months: int) -> int:
    """The same moment so many calendar months earlier (the last day of a shorter month)."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    index = moment.year * 12 + moment.month - 1 - months
    year, month = index // 12, index % 12 + 1
    day = min(moment.day, calendar.monthrange(year, month)[1])
    return int(moment.replace(year=year, month=month, day=day).timestamp() * 1000)
