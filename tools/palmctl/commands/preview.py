"""`palmctl preview`: what the camera sees, for who mounts it."""

import json
from functools import partial
from pathlib import Path

import click

from device.config.config import config_path, load_config
from device.platform.ipc import ask_core
from device.values.status import read_status
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.language import translated as _
from tools.palmctl.pages.core_pages import preview_routes
from tools.palmctl.pages.server import LocalPage


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the page, for example the one that ssh -L forwards; default: a free one.",
)
@click.option(
    "--minutes",
    type=FiniteRange(0.1, 60),
    default=10.0,
    show_default=True,
    help="How long the address is valid.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def preview(*, config: Path | None, port: int, minutes: float, as_json: bool) -> None:
    """Show the camera's picture with the hand's outline, the crop and the quality, as a page on this machine.

    The page is for a browser on this machine alone. Its pictures are made on request, in memory, and stored
    nowhere; they stop when the page is closed or its time is over. From afar, on your own machine:

    \b
    ssh -t -L 8800:127.0.0.1:8800 USER@DEVICE palmctl preview --port 8800

    and open the address that it prints.

    Exit code 0: the page was closed or its time is over. 3: no daemon answers. 4: this user may not
    see it.
    """
    socket = load_config(config_path(config)).control_socket
    read_status(socket)
    page = LocalPage(preview_routes(partial(ask_core, socket)), port=port, lives_s=minutes * 60)
    if as_json:
        click.echo(json.dumps({"url": page.url, "lives_s": round(minutes * 60)}))
    else:
        click.echo(page.url)
        click.echo(_(f"Good for {minutes:g} minutes, on this machine; Ctrl-C or closing it ends it."))
    page.serve()
