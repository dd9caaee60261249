"""`palmctl logs`: what the daemons have said."""

import json
from dataclasses import asdict
from datetime import UTC, datetime

import click

from tools.palmctl.language import translated as _
from tools.palmctl.unit_logs import UNITS, following, journalctl

_COLOURS = {"emerg": "red", "alert": "red", "crit": "red", "err": "red", "warning": "yellow"}


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until interrupted.")
@click.option("--since", metavar="WHEN", help="journalctl's words: '1 hour ago', '2026-11-20 08:00', today.")
@click.option("--unit", type=click.Choice(["palmd", "palm-syncd"]), help="Only this daemon.")
@click.option("-n", "--lines", type=click.IntRange(1), help="The last N lines.  [default: 200]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: at_ms, unit, level, text.")
def logs(*, follow: bool, since: str | None, unit: str | None, lines: int | None, as_json: bool) -> None:
    """Show the log of palmd and palm-syncd, as journald keeps it.

    Exit code 0: shown. 1: journald refused. 3: there is no journald here.
    """
    options = []
    if since is not None:
        options.append(f"--since={since}")
    if lines is not None or since is None:
        options.append(f"--lines={lines or 200}")
    if follow:
        options.append("--follow")
    command = journalctl([unit] if unit else UNITS, *options)
    shown = 0
    with following(command) as found:
        for line in found:
            shown += 1
            if as_json:
                click.echo(json.dumps(asdict(line), ensure_ascii=False))
                continue
            at = datetime.fromtimestamp(line.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
            text = click.style(line.text, fg=_COLOURS.get(line.level))
            click.echo(f"{at} {line.unit:<10} {text}")
    if not shown:
        click.echo(
            _(
                "No lines: have the units run? systemctl status palmd palm-syncd. "
                "Another user's log needs root."
            ),
            err=True,
        )
