"""How the page says times, lengths of time and numbers. Pure; the templates' filters."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

Say = Callable[[str], str]
"""From English into the page's language."""
_A_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?%?")
_A_MINUTE_MS = 60_000


def clock(at_ms: int) -> str:
    """``2026-11-20 14:03:07 UTC``: the whole instant; the page's script shows it in the reader's zone."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(at_ms: int) -> str:
    """For ``<time datetime>``."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def length(ms: int) -> str:
    """The largest unit or two: ``8 s``, ``4 min``, ``2 h 10 min``, ``3 d``."""
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {rest} min" if rest and hours < 10 else f"{hours} h"
    return f"{hours // 24} d"


def ago(at_ms: int, now_ms: int, say: Say = str) -> str:
    """``4 min ago``; ``just now`` below two seconds and for clocks that are less than a minute ahead."""
    if at_ms - now_ms >= _A_MINUTE_MS:
        return say("in %s") % length(at_ms - now_ms)
    return say("just now") if now_ms - at_ms < 2000 else say("%s ago") % length(now_ms - at_ms)


def until(at_ms: int, now_ms: int, say: Say = str) -> str:
    """``in 4 min``, or how long ago it was."""
    return say("in %s") % length(at_ms - now_ms) if at_ms > now_ms else ago(at_ms, now_ms, say)


def numbers_apart(text: str) -> tuple[str, list[str]]:
    """A sentence with ``%s`` in place of its numbers, and those.

    >>> numbers_apart("3 of 40 verdicts are 7.5% more")
    ('%s of %s verdicts are %s more', ['3', '40', '7.5%'])
    """
    return _A_NUMBER.sub("%s", text), _A_NUMBER.findall(text)


def sentence(text: str, say: Say, point: str) -> str:
    """A sentence that was stored in English, in the page's language; `point`: its decimal point."""
    pattern, numbers = numbers_apart(text)
    return say(pattern) % tuple(number.replace(".", point) for number in numbers)
