"""Line numbers of members in a TOML text, which tomllib does not keep, and words for TOML values."""

import difflib
import re
from collections.abc import Iterable

_HEADER = re.compile(r"""\s*\[\[?\s*["']?([A-Za-z0-9_.-]+)["']?\s*\]\]?\s*(#.*)?""")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[=.]""")


class Locations:
    """Line numbers of tables and members: a hint for people, missing where none was found."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, str | None], int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := _HEADER.fullmatch(line):
                table = header.group(1)
                self._lines.setdefault((table, None), number)
            elif key := _KEY.match(line):
                self._lines.setdefault((table, key.group(1)), number)

    def line_of(self, table: str, member: str | None) -> int | None:
        """Line of a member, else of its table, else None. The table "" is the text above all tables."""
        own = self._lines.get((table, member))
        return own or self._lines.get((table, None)) or self._lines.get(("", table))


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` when one of `known` is close to `word`, else an empty string."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def describe_kind(value: object) -> str:
    """The kind of a TOML value in words, without the value."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "true or false"),
        (str, "a string"),
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (list, "a list"),
        (dict, "a table"),
    )
    return next((text for kind, text in kinds if isinstance(value, kind)), "a date or time")
