"""The commands that a page shows, with the output it shows for them.

A block of a page is marked by an HTML comment in front of it, which says where its commands are typed:

    <!-- on: board -->
    ```console
    $ palmctl status          a command; a line that ends in a backslash goes on
    gate-7 at …               what it printed, until the next command; a line "…" stands for any lines
    ```

A comment `<!-- said: NAME -->` marks what a program that runs on has said by then.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import REPOSITORY

DOCS = REPOSITORY / "docs"

_BLOCK = re.compile(r"<!-- (on|said): ([^>]*?) -->\n```console\n(.*?)```", re.DOTALL)
_CHANGES = re.compile(
    r"[█░]+|[\w-]+…|(?:[0-9a-f]{4} ){7}[0-9a-f]{4}|[0-9A-Z]{4}-[0-9A-Z]{4}\b|[0-9A-Za-z+/=_-]{20,}"
    r"|(?<=key_id: )[0-9a-z]+|\b(?=[a-z]*\d)[0-9a-z]{8,}\b|\d+"
)
"""Bars, secrets cut short, fingerprints, short codes, keys, ids (those of keys may lack a digit), numbers."""


@dataclass(frozen=True)
class Block:
    """One marked block. `commands` is empty for what a program has said."""

    kind: str
    place: str
    commands: tuple["Command", ...]
    shown: str


@dataclass(frozen=True)
class Command:
    """A command as it is typed, and the lines that are shown for it."""

    text: str
    shown: tuple[str, ...]


def blocks_of(page: Path) -> list[Block]:
    """The marked blocks of a page, in order."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(kind, place, tuple(commands_in(text)), text) for kind, place, text in found]


def commands_in(text: str) -> Iterator[Command]:
    """The commands after the prompts of a block, each with what follows it."""
    lines = iter(text.splitlines())
    command, shown = "", list[str]()
    for line in lines:
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if command:
            yield Command(command, tuple(shown))
        command, shown = line[2:], []
        while command.endswith("\\"):
            command += "\n" + next(lines)
    if command:
        yield Command(command, tuple(shown))


def check_shown(shown: Sequence[str], printed: str) -> None:
    """Every line that is shown was printed, in that order, but for numbers, names and spaces."""
    lines = iter([_alike(line) for line in printed.splitlines()])
    for line in shown:
        if line.strip() not in ("", "…"):
            assert _alike(line) in lines, f"the page shows {line!r}, which was not printed:\n{printed}"


def _alike(line: str) -> str:
    return _CHANGES.sub("#", " ".join(line.split()))


def rewritten(page: Path, printed: Callable[[Block], list[str]]) -> str:
    """The text of a page with what `printed` gives for each block's commands in place of what it shows."""

    def block(found: re.Match[str]) -> str:
        kind, place, text = found.groups()
        told = Block(kind, place, tuple(commands_in(text)), text)
        outputs = printed(told)
        typed = [f"$ {command.text}\n" for command in told.commands] or [""]
        body = "".join(prompt + output for prompt, output in zip(typed, outputs, strict=True))
        return f"<!-- {kind}: {place} -->\n```console\n{body}```"

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))
