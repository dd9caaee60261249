"""SVG in the colours of the operator page, light or dark as the reader's system is."""

from collections.abc import Iterable
from html import escape
from typing import Final

_LIGHT: Final = {
    "ground": "#f5f4f0",
    "panel": "#fffefb",
    "ink": "#1b1f23",
    "soft": "#596069",
    "line": "#cfcbc0",
    "accent": "#0a6355",
    "tint": "#e3efeb",
    "second": "#9c4a00",
    "second-tint": "#fbeed3",
    "third": "#543a9c",
    "third-tint": "#ebe5fa",
}
_DARK: Final = {
    "ground": "#101316",
    "panel": "#181c20",
    "ink": "#e6e8ea",
    "soft": "#9aa3ad",
    "line": "#3a424b",
    "accent": "#5fcdb8",
    "tint": "#16302b",
    "second": "#f1b85f",
    "second-tint": "#382a10",
    "third": "#bda8ff",
    "third-tint": "#2b2250",
}
_FONT: Final = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"

_RULES: Final = """
.ground{fill:var(--ground)}.panel{fill:var(--panel)}.tint{fill:var(--tint)}
.ink{fill:var(--ink)}.soft{fill:var(--soft)}
.accent{fill:var(--accent)}.second{fill:var(--second)}.third{fill:var(--third)}
.edge{stroke:var(--line);stroke-width:1}.wire{stroke:var(--soft);stroke-width:1.6;fill:none}
.wire.dashed{stroke-dasharray:6 5}
.frame{fill:var(--tint);fill-opacity:.45;stroke:var(--accent);stroke-width:1.3;stroke-dasharray:7 6}
.own{fill:var(--panel);stroke:var(--accent);stroke-width:1.7}
.outside{fill:var(--second-tint);stroke:var(--second);stroke-width:1.4}
.cloud{fill:var(--third-tint);stroke:var(--third);stroke-width:1.4}
.curve{fill:none;stroke:var(--accent);stroke-width:2.4}.curve.b{stroke:var(--second);stroke-dasharray:7 4}
.curve.c{stroke:var(--third);stroke-dasharray:2 4}
.mark{stroke:var(--third);stroke-width:1.4;stroke-dasharray:3 4}
"""


def document(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A whole drawing. `label`: what it shows, for screen readers."""
    ground = f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="12" class="ground edge"/>'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{_FONT}" role="img" aria-label="{escape(label)}">\n'
        f"<style>\nsvg{{{_variables(_LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{svg{{{_variables(_DARK)}}}}}{_RULES}</style>\n"
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 .6L10 5L0 9.4z" class="soft"/></marker></defs>\n'
        f"{ground}\n{body}\n</svg>\n"
    )


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def text(
    x: float,
    y: float,
    words: str,
    kind: str = "ink",
    size: float = 13,
    *,
    anchor: str = "start",
    bold: bool = False,
    turned: bool = False,
) -> str:
    """A line of text whose baseline begins, is centred on or ends at (x, y), in pixels."""
    weight = ' font-weight="600"' if bold else ""
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" class="{kind}"{weight}{turn}>'
        f"{escape(words)}</text>"
    )


def rect(x: float, y: float, width: float, height: float, kind: str, *, radius: float = 0) -> str:
    """A rectangle, in pixels."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"/>'


def path(points: Iterable[tuple[float, float]], kind: str, *, ends: str = "") -> str:
    """Straight lines through points; `ends`: an arrow at the "end" or at "both"."""
    steps = " ".join(f"{x:g},{y:g}" for x, y in points)
    arrows = {
        "": "",
        "end": ' marker-end="url(#a)"',
        "both": ' marker-start="url(#a)" marker-end="url(#a)"',
    }[ends]
    return f'<polyline points="{steps}" class="{kind}" fill="none"{arrows}/>'
