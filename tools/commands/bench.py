"""`palmctl bench`: figures of this machine."""

import json
import sys
import tempfile
from pathlib import Path

import click


@click.command()
@click.option("--templates", default=10_000, show_default=True, help="Gallery size for the verdict latency.")
@click.option("--passages", default=100, show_default=True, help="Palms to show.")
@click.option("--start-templates", default=100_000, show_default=True, help="Gallery size for the start.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures here.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def bench(templates: int, passages: int, start_templates: int, out: Path | None, as_json: bool) -> None:
    """Measure a whole device on this machine: the verdict's latency stage by stage, and the start.

    Runs the real daemon on generated palms, camera files and a pty, beside a baseline in the same run. Takes
    some minutes; what it makes lies in a temporary folder and is removed.
    """
    from tools.bench.programs import BenchFailed
    from tools.bench.whole import run_bench, summary

    with tempfile.TemporaryDirectory(prefix="palm-bench-") as folder:
        try:
            figures = run_bench(
                Path(folder),
                templates=templates,
                passages=passages,
                start_templates=start_templates,
                tell=lambda text: click.echo(text, err=True),
            )
        except BenchFailed as error:
            click.echo(f"The bench failed: {error}", err=True)
            sys.exit(1)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(figures) if as_json else "\n".join(summary(figures)))
