"""The file of a run: its seed and which button was pressed when, which is all that a run consists of.

JSON, at most MOST_BYTES. What follows from it is not in it, except the digest of the events, so that a replay
can say whether it saw the same.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

FORMAT: Final = "palm-access playground run"
VERSION: Final = 1
SLICE_MS: Final = 50
"""Buttons take effect at multiples of this."""
MOST_BYTES: Final = 256 * 1024
MOST_PRESSES: Final = 1_000
_MOST_TEXT: Final = 64
MOST_ADVANCES: Final = 20
MOST_WATCHED_MS: Final = 2 * 3_600_000
"""The longest run, without the hours that were advanced."""
ADVANCE_MS: Final = 6 * 3_600_000
PEOPLE: Final = ("Ana", "Bento", "Clara", "Davi")


class Button(StrEnum):
    """What may be done on the page."""

    PALM = "palm"
    STRANGER = "stranger"
    POOR = "poor"
    PULL_CABLE = "pull_cable"
    PLUG_CABLE = "plug_cable"
    CUT_NETWORK = "cut_network"
    RESTORE_NETWORK = "restore_network"
    ADVANCE = "advance"
    ERASE = "erase"
    STEAL = "steal"


ABOUT_SOMEONE: Final = frozenset({Button.PALM, Button.POOR, Button.ERASE})


@dataclass(frozen=True, slots=True)
class Press:
    """A button pressed at `at_ms` of virtual time; `who`: one of PEOPLE, or empty."""

    at_ms: int
    button: Button
    who: str = ""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A whole run, up to `until_ms`. `digest`: SHA-256 over its events, hexadecimal."""

    software: str
    seed: int
    presses: tuple[Press, ...]
    until_ms: int
    events: int
    digest: str


class BadRunFile(ValueError):
    """This is no file of a run, or not one that this version replays."""


def write_run(run: RunFile) -> str:
    """The file's text."""
    presses = [
        {"at_ms": press.at_ms, "button": press.button.value} | ({"who": press.who} if press.who else {})
        for press in run.presses
    ]
    head = {"format": FORMAT, "version": VERSION, "software": run.software, "seed": run.seed}
    tail = {"until_ms": run.until_ms, "events": run.events, "sha256": run.digest}
    lines = ",\n".join(f"    {json.dumps(press)}" for press in presses)
    shown = json.dumps(head | {"presses": []} | tail, indent=2)
    return shown.replace('"presses": []', f'"presses": [\n{lines}\n  ]' if lines else '"presses": []') + "\n"


def read_run(text: str | bytes) -> RunFile:
    """Read what `write_run` wrote. Raises BadRunFile, which says what was expected and what was found."""
    if len(text) > MOST_BYTES:
        raise BadRunFile(f"the file has {len(text):,} bytes; a run has at most {MOST_BYTES:,}")
    try:
        obj = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRunFile("the file is not JSON") from None
    if not isinstance(obj, dict) or obj.get("format") != FORMAT:
        raise BadRunFile(f'the file is no run of the playground: its "format" is not "{FORMAT}"')
    if obj.get("version") != VERSION:
        raise BadRunFile(f"the run has version {obj.get('version')!r:.20}; this palmctl replays {VERSION}")
    run = RunFile(
        software=_text(obj, "software"),
        seed=_number(obj, "seed", 2**32 - 1),
        presses=_presses(obj.get("presses")),
        until_ms=_number(obj, "until_ms", MOST_WATCHED_MS + MOST_ADVANCES * ADVANCE_MS),
        events=_number(obj, "events", 2**53),
        digest=_text(obj, "sha256"),
    )
    _check_times(run)
    return run


def _presses(found: Any) -> tuple[Press, ...]:
    if not isinstance(found, list) or len(found) > MOST_PRESSES:
        raise BadRunFile(f'"presses" must be a list of at most {MOST_PRESSES:,}')
    return tuple(_press(number, item) for number, item in enumerate(found, 1))


def _press(number: int, found: Any) -> Press:
    if not isinstance(found, dict):
        raise BadRunFile(f"press {number} is not an object")
    try:
        button = Button(str(found.get("button")))
    except ValueError:
        raise BadRunFile(f"press {number} is of an unknown button, {found.get('button')!r:.40}") from None
    return checked_press(_number(found, "at_ms", 2**53), button, found.get("who", ""))


def checked_press(at_ms: int, button: Button, who: object) -> Press:
    """A press; raises BadRunFile for one that is about no person it may be about."""
    if (who not in PEOPLE) if button in ABOUT_SOMEONE else (who != ""):
        expected = f"one of {', '.join(PEOPLE)}" if button in ABOUT_SOMEONE else "no person"
        raise BadRunFile(f"{button.value} is about {expected}, not {who!r:.40}")
    return Press(at_ms, button, str(who))


def _check_times(run: RunFile) -> None:
    advances = [press for press in run.presses if press.button is Button.ADVANCE]
    if len(advances) > MOST_ADVANCES:
        raise BadRunFile(f"the run advances {len(advances)} times; at most {MOST_ADVANCES} are replayed")
    earliest_ms = 0
    for press in (*run.presses, Press(run.until_ms, Button.PALM)):
        if press.at_ms % SLICE_MS or press.at_ms < earliest_ms:
            raise BadRunFile(f"the time {press.at_ms:,} ms is not in order, or no multiple of {SLICE_MS}")
        earliest_ms = press.at_ms + (ADVANCE_MS if press.button is Button.ADVANCE else 0)
    if run.until_ms - len(advances) * ADVANCE_MS > MOST_WATCHED_MS:
        raise BadRunFile("the run is longer than two hours, without what was advanced")


def _number(obj: dict[str, Any], name: str, most: int) -> int:
    value = obj.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise BadRunFile(f'"{name}" must be a whole number from 0 to {most:,}')
    return value


def _text(obj: dict[str, Any], name: str) -> str:
    value = obj.get(name)
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise BadRunFile(f'"{name}" must be a text of at most {_MOST_TEXT} characters')
    return value
