"""`make soak`: a busy gate at which everything fails in turn, and an audit of what it promised."""

import json
import sys
import tempfile
from pathlib import Path

import click

from tools.palmctl.output_file import require_writable


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long people pass and things fail.")
@click.option("--seed", default=1, show_default=True, help="Which faults come when.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures here.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where state and logs go; must not exist yet. Default: a new temporary folder.",
)
def main(*, minutes: float, seed: int, as_json: bool, out: Path | None, folder: Path | None) -> None:
    """Run a cloud, a device and a gate for some minutes while cable, camera, server, clock and disk fail.

    Exit code 0: nothing lost, nothing doubled, nothing grew. 1: something was; it says what.
    """
    from tools.rig.demo.errors import DemoFailed
    from tools.rig.soak.run import soak, summary

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        require_writable(out)
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="palm-soak-"))
    elif folder.exists():
        raise click.UsageError(f"{folder} exists; name a folder that does not")
    try:
        figures = soak(
            folder.absolute(), minutes=minutes, seed=seed, tell=lambda text: click.echo(text, err=True)
        )
    except DemoFailed as error:
        click.echo(f"The soak could not be run: {error}\nThe logs are in {folder}/logs/", err=True)
        sys.exit(1)
    click.echo(json.dumps(figures) if as_json else "\n".join(summary(figures)))
    if out is not None:
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    click.echo(f"The logs are in {folder}/logs/", err=True)
    sys.exit(1 if figures["problems"] else 0)


if __name__ == "__main__":
    main()
