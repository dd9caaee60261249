"""docs/architecture.svg out of docs/architecture.txt, whose first lines say how it is written."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from models.evaluation.svg import document, path, rect, text
from tools.palmctl.errors import ToolError

_TITLE: Final = 15.5
_LINE: Final = 17.5
_SIDES: Final = ("left", "right", "top", "bottom")


@dataclass
class DiagramBox:
    """A part; coordinates in pixels, `lines` its text."""

    name: str
    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str
    lines: list[str] = field(default_factory=list)

    def point(self, side: str, towards: "DiagramBox") -> tuple[float, float]:
        """Where a wire to another part ends at a side: in the middle of what both have in common."""
        if side in ("left", "right"):
            low, high = max(self.y, towards.y), min(self.y + self.height, towards.y + towards.height)
            return (self.x if side == "left" else self.x + self.width, (low + high) / 2)
        low, high = max(self.x, towards.x), min(self.x + self.width, towards.x + towards.width)
        return ((low + high) / 2, self.y if side == "top" else self.y + self.height)


def draw(source: str) -> str:
    """The drawing that `source` describes. Raises ToolError for a line that means nothing."""
    size, boxes, parts = (1000, 600), dict[str, DiagramBox](), list[str]()
    wires = list[str]()
    last: DiagramBox | None = None
    for number, line in enumerate(source.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            if line.startswith("  ") and last is not None:
                last.lines.append(line.strip())
            elif words[0] == "size":
                size = (int(words[1]), int(words[2]))
            elif words[0] == "group":
                x, y, width, height = map(float, words[1:5])
                parts += _group(x, y, width, height, title=" ".join(words[5:]))
            elif words[0] == "box":
                x, y, width, height = map(float, words[3:7])
                last = DiagramBox(words[1], words[2], x, y, width, height, " ".join(words[7:]))
                boxes[last.name] = last
            elif words[0] == "wire":
                wires += _wire(boxes, words[1:], size[0])
            else:
                raise ValueError(words[0])
        except (ValueError, KeyError, IndexError) as error:
            raise ToolError(f"line {number} of the drawing is not understood: {line!r} ({error})") from None
    for box in boxes.values():
        parts += _box(box)
    return document(*size, "The parts of palm-access-device and what runs between them", [*parts, *wires])


def _group(x: float, y: float, width: float, height: float, *, title: str) -> Iterator[str]:
    yield rect(x, y, width, height, "frame", radius=14)
    yield text(x + 16, y + 24, title, "accent", 13, bold=True)


def _box(box: DiagramBox) -> Iterator[str]:
    yield rect(box.x, box.y, box.width, box.height, box.kind, radius=10)
    yield text(box.x + 16, box.y + 27, box.title, "ink", _TITLE, bold=True)
    y = box.y + 50
    for line in box.lines:
        if chips := re.fullmatch(r"\[(.*)\]", line):
            yield from _chips(box, y - 4, chips[1].split("|"))
            y += 48
        else:
            yield text(box.x + 16, y, line, "soft", 13)
            y += _LINE


def _chips(box: DiagramBox, y: float, words: list[str]) -> Iterator[str]:
    """A row of words, each as wide as its share of the letters; arrows between them where there are many."""
    arrows = len(words) > 4
    gap, room = (13 if arrows else 10), box.width - 32
    share = (room - gap * (len(words) - 1)) / sum(len(word) + 4 for word in words)
    x = box.x + 16
    for number, word in enumerate(words):
        width = share * (len(word) + 4)
        yield rect(x, y, width, 32, "tint edge", radius=7)
        yield text(x + width / 2, y + 20.5, word, "ink", 12.5, anchor="middle")
        x += width + gap
        if arrows and number < len(words) - 1:
            yield path([(x - gap + 1.5, y + 16), (x - 1.5, y + 16)], "wire", ends="end")


def _wire(boxes: dict[str, DiagramBox], words: list[str], width: int) -> Iterator[str]:
    first, side, second, other_side, *label = words
    a, b = boxes[first], boxes[second]
    if side not in _SIDES or other_side not in _SIDES:
        raise ValueError(f"a side is one of {', '.join(_SIDES)}")
    ends, kind = "both", "wire"
    while label and label[0] in (">", "~"):
        if label.pop(0) == ">":
            ends = "end"
        else:
            kind = "wire dashed"
    (x1, y1), (x2, y2) = a.point(side, b), b.point(other_side, a)
    yield path([_moved(x1, y1, side), _moved(x2, y2, other_side)], kind, ends=ends)
    lines = " ".join(label).split("/") if label else []
    if lines and lines[0] == "LINK":  # LINK/1 is one word
        lines = ["LINK/1", *lines[2:]]
    if y1 == y2:
        for number, line in enumerate(lines):
            yield text((x1 + x2) / 2, y1 - 10 + 31 * number, line, "ink", 12.5, anchor="middle")
    else:
        beside, anchor = (-11, "end") if x1 > 0.7 * width else (11, "start")
        for number, line in enumerate(lines):
            y = (y1 + y2) / 2 + 4.5 + 17 * (number - (len(lines) - 1) / 2)
            yield text(x1 + beside, y, line, "ink", 12.5, anchor=anchor)


def _moved(x: float, y: float, side: str) -> tuple[float, float]:
    """A few pixels off the edge."""
    dx, dy = {"left": (-4, 0), "right": (4, 0), "top": (0, -4), "bottom": (0, 4)}[side]
    return x + dx, y + dy
