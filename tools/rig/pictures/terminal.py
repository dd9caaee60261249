"""A terminal as a picture: what a program wrote there, with its colours, as SVG."""

import re
from collections.abc import Iterator
from html import escape
from typing import Final

_LINE: Final = 19.0
_CHARACTER: Final = 8.05
_LEFT: Final = 22.0
_TOP: Final = 62.0
_GROUND: Final = "#14201e"
_EDGE: Final = "#2c423d"
_COLOURS: Final = {
    "": "#e4ece9",
    "31": "#ff8f84",
    "32": "#6fdc9b",
    "33": "#f2c265",
    "36": "#74cfe0",
    "2": "#93a8a2",
}
_FONT: Final = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_TITLE_FONT: Final = "system-ui, 'DejaVu Sans', sans-serif"
_WORDS: Final = re.compile(r"\S+(?: \S+)*")
"""Columns of a line: SVG text collapses two spaces in a row."""
_CONTROL: Final = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")

Piece = tuple[str, str, bool]
"""Text, its colour's number, whether it is bold."""


def draw(title: str, command: str, written: str) -> str:
    """A dark window, in which `command` has written `written` (with control sequences)."""
    lines = [
        [("$ ", "2", False), (command, "", True)],
        *(list(pieces(line)) for line in last_screen(written)),
    ]
    columns = max(sum(len(words) for words, _, _ in line) for line in lines)
    width = round(max(columns * _CHARACTER, 480) + 2 * _LEFT)
    height = round(_TOP + len(lines) * _LINE + 10)
    body = "\n".join(_drawn(line, _TOP + 8 + number * _LINE) for number, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="11" fill="{_GROUND}" '
        f'stroke="{_EDGE}"/>\n'
        f'<path d="M1 36H{width - 1}" stroke="{_EDGE}"/>\n'
        + "".join(f'<circle cx="{22 + 18 * n}" cy="18.5" r="5.2" fill="{_EDGE}"/>' for n in range(3))
        + f'\n<text x="{width / 2:g}" y="23" font-family="{_TITLE_FONT}" font-size="12.5" '
        f'text-anchor="middle" fill="{_COLOURS["2"]}">{escape(title)}</text>\n'
        f'<g font-family="{_FONT}" font-size="13.3">\n{body}\n</g>\n</svg>\n'
    )


def _drawn(line: list[Piece], y: float) -> str:
    """Each part at its own column, so that no font's width can move the next one."""
    drawn, column = "", 0
    for words, colour, bold in line:
        weight = ' font-weight="700"' if bold else ""
        for part in _WORDS.finditer(words):
            x, length = _LEFT + (column + part.start()) * _CHARACTER, len(part[0]) * _CHARACTER
            drawn += (
                f'<text x="{x:g}" y="{y:g}" fill="{_COLOURS[colour]}"{weight} textLength="{length:g}">'
                f"{escape(part[0])}</text>"
            )
        column += len(words)
    return drawn


def last_screen(written: str) -> list[str]:
    """The lines on the screen at the end of the output; colours are left in."""
    written = re.sub(r"\x1b\[\?(?:1049|25)[hl]", "", written)
    screen = written.rsplit("\x1b[H", 1)[-1].split("\x1b[J")[0]
    lines = [line.rstrip("\r") for line in screen.replace("\x1b[K", "").split("\n")]
    while lines and not _CONTROL.sub("", lines[-1]).strip():
        lines.pop()
    return lines


def pieces(line: str) -> Iterator[Piece]:
    """A line cut where its colour changes."""
    colour, bold, begin = "", False, 0
    for found in _CONTROL.finditer(line):
        if found.start() > begin:
            yield line[begin : found.start()], colour, bold
        begin = found.end()
        if found[2] == "m":
            for code in found[1].split(";"):
                colour = code if code in _COLOURS and code else "" if code in ("", "0", "39") else colour
                bold = code == "1" or (bold and code not in ("", "0", "22"))
    if begin < len(line):
        yield line[begin:], colour, bold
