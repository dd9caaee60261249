"""`palmctl demo`: everything at once on one machine."""

import tempfile
from pathlib import Path

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where state and logs go; must not exist yet. Default: a new temporary folder.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Another story: a gate without any network, which lives on mail that the validator carries.",
)
def demo(as_json: bool, folder: Path | None, offline: bool) -> None:
    """One palm becomes a signed verdict on the cable, and the cloud knows it.

    Starts the reference server, the core, the carrier, a virtual cable and a validator on this machine,
    shows generated palms to the camera, enrols three people, lets them pass, refuses a stranger, erases one
    person, and stops everything again. Needs no camera, no account and no network.
    """
    from tools.rig.demo.errors import DemoFailed
    from tools.rig.demo.narrator import Narrator
    from tools.rig.demo.offline import run_offline
    from tools.rig.demo.story import run

    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="palm-demo-"))
    elif folder.exists():
        raise click.UsageError(
            f"{folder} exists; name a folder that does not, so that nothing is overwritten"
        )
    narrator = Narrator(as_json=as_json)
    try:
        (run_offline if offline else run)(narrator, folder.absolute())
    except DemoFailed as error:
        raise click.ClickException(
            f"the demonstration failed: {error}; see its logs in {folder}/logs/"
        ) from error
    narrator.end(
        f"All as it must be. Logs and state lie in {folder}/ (logs/*.log, one for each program).",
        dir=str(folder),
    )
