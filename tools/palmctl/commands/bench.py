"""`palmctl bench`: figures of this machine."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tools.palmctl.groups import RIG, ExtendedGroup
from tools.palmctl.output_file import require_writable

Command = Callable[..., Any]
Figures = dict[str, Any]


def outputs(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")(
        command
    )
    return click.option(
        "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures here."
    )(command)


def count(name: str, default: int, says: str, *, least: int = 1) -> Callable[[Command], Command]:
    """An option that says how much is measured."""
    return click.option(name, type=click.IntRange(least), default=default, show_default=True, help=says)


def report_figures(
    measure: Callable[[Path, Callable[[str], None]], Figures],
    summary: Callable[[Figures], list[str]],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure in a temporary folder, and print or write the figures."""
    from tools.palmctl.bench.daemon import BenchFailed

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        require_writable(out)
    with tempfile.TemporaryDirectory(prefix="palm-bench-") as folder:
        try:
            figures = measure(Path(folder), lambda text: click.echo(text, err=True))
        except BenchFailed as error:
            raise click.ClickException(f"the bench failed: {error}") from error
    click.echo(json.dumps(figures) if as_json else "\n".join(summary(figures)))
    if out is not None:  # last: a disk that is full by now does not cost the figures
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


@click.group(
    cls=ExtendedGroup,
    entry_points="palmctl.bench",
    added_by=dict.fromkeys(("cloud", "device", "link", "strangers"), RIG),
    invoke_without_command=True,
)
@count("--templates", 10_000, "Gallery size for the verdict latency.")
@count("--passages", 100, "Palms to show.")
@count("--start-templates", 100_000, "Gallery size for the start.")
@outputs
@click.pass_context
def bench(
    context: click.Context,
    *,
    templates: int,
    passages: int,
    start_templates: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a whole device on this machine: the verdict's latency stage by stage, and the start.

    Runs the real daemon on recorded films of generated palms, camera files and a pty, next to a baseline in
    the same run. Takes some minutes; what it makes lies in a temporary folder and is removed.
    """
    if context.invoked_subcommand is not None:
        return
    from tools.palmctl.bench.run import run_bench, summary

    report_figures(
        lambda folder, tell: run_bench(
            folder, templates=templates, passages=passages, start_templates=start_templates, tell=tell
        ),
        summary,
        out,
        as_json=as_json,
    )
