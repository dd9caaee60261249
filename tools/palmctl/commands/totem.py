"""`palmctl totem`: the enrolment screen of a totem."""

import contextlib
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from device.config.config import config_path, load_config
from device.errors import IpcError, IpcNotPermitted
from device.platform import sd_notify
from device.platform.files import replace_named
from device.platform.ipc import ask_core
from tools.palmctl.pages.core_pages import totem_routes
from tools.palmctl.pages.server import Answer, LocalPage, Reply


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Port of the page; default: a free one."
)
@click.option(
    "--url-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the address into this file, readable by this user alone, for the browser's start script.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
def totem(*, config: Path | None, port: int, url_file: Path | None, as_json: bool) -> None:
    """Serve the enrolment screen: code, terms to read and accept, guidance, result; Portuguese and English.

    It runs until it is interrupted, and waits for a core that is not there yet. Start the browser with:
    chromium --kiosk "$(cat URL-FILE)". On an appliance, systemctl enable --now palm-totem starts both, and
    starts them again when the browser hangs.

    Exit code 0 or 130: ended. 1: the port or the file cannot be used. 4: this user may not ask the core.
    """
    ask = partial(ask_core, load_config(config_path(config)).totem_socket)
    try:
        ask("enrolment.state", after=0, wait_ms=0)
    except IpcNotPermitted:
        raise  # the page would be out of service for ever
    except IpcError:
        pass  # not there yet, or busy: the page goes on asking
    routes = totem_routes(ask)
    page = LocalPage(routes | {"GET state": _feeding(routes["GET state"])}, port=port)
    with _told_in(url_file, page.url):
        click.echo(json.dumps({"url": page.url}) if as_json else page.url)
        sd_notify.ready("waiting for a browser")
        page.serve()


@contextlib.contextmanager
def _told_in(url_file: Path | None, url: str) -> Iterator[None]:
    """The address is in this file meanwhile. Only what was written here is removed: another totem may have
    put its own address there."""
    if url_file is None:
        yield
        return
    replace_named(url_file, url.encode(), mode=0o600)
    written = url_file.lstat()
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(url_file.lstat(), written):
                url_file.unlink()


def _feeding(state: Answer) -> Answer:
    """The page asks for the state every ten seconds at least: while it does, browser and script are alive."""

    def answer(members: dict[str, Any]) -> Reply:
        sd_notify.watchdog()
        return state(members)

    return answer
