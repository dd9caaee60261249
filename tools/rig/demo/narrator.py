"""How the demonstration speaks: to a person on a terminal, to a log, or to a program."""

import json
import time
from collections.abc import Sequence
from typing import Any

import click


class Narrator:
    """Prints what happens as it happens. With `as_json`, one JSON object a line and nothing else."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._start = time.monotonic()
        self._act = 0

    def act(self, title: str) -> None:
        """A new part of the story."""
        self._act += 1
        if not self._as_json:
            click.echo()
            click.echo(click.style(f"{self._act}. {title}", bold=True))

    def say(self, event: str, text: str, *, good: bool | None = True, **facts: Any) -> None:
        """One thing that happened. `good`: True as it should be, None merely a remark."""
        at_s = round(time.monotonic() - self._start, 3)
        if self._as_json:
            click.echo(json.dumps({"at_s": at_s, "act": self._act, "event": event} | facts))
            return
        mark = click.style("✓", fg="green") if good else click.style("·", dim=True)
        click.echo(f"{click.style(f'{at_s:6.1f} s', dim=True)}  {mark} {text}")

    def table(self, event: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A summary; for a program, one object with the rows."""
        if self._as_json:
            click.echo(
                json.dumps({"event": event, "rows": [dict(zip(header, row, strict=True)) for row in rows]})
            )
            return
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        click.echo()
        click.echo(
            "  " + click.style("  ".join(h.ljust(w) for h, w in zip(header, widths, strict=True)), bold=True)
        )
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            click.echo("  " + "  ".join(_coloured(cell) for cell in cells).rstrip())

    def end(self, text: str, **facts: Any) -> None:
        """The last line."""
        if self._as_json:
            click.echo(
                json.dumps({"event": "end", "took_s": round(time.monotonic() - self._start, 3)} | facts)
            )
            return
        click.echo()
        click.echo(text)


_COLOURS = {
    "accept": "green",
    "LIBERAR": "green",
    "complete": "green",
    "reject": "red",
    "BLOQUEAR": "red",
    "abstain": "yellow",
}


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell.strip())
    return click.style(cell, fg=colour) if colour else cell
