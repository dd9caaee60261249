"""Photographs of the pages for the documents: ``python -m tools.rig.pictures.screenshots [FOLDER]``.

A playground, a server with a staged day, simulated gates, and a device with its totem and preview run for as
long as it takes. Without a folder docs/images/ is written.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tools.cloud.store import opened_store
from tools.rig.browser import Tab, browsing, find_chromium, save
from tools.rig.demo.programs import RunningPrograms, module
from tools.rig.pictures import operator_stage
from tools.rig.pictures.device_stage import photograph_device, staged_device
from tools.rig.pictures.gates_stage import photograph_gates
from tools.rig.pictures.playground_stage import photograph_playground

PAGES: Final = {
    "sign-in": "/operator/sign-in",
    "overview": "/operator",
    "devices": "/operator/devices",
    "verdicts": "/operator/verdicts",
    "enrollment": "/operator/enrollment",
    "erasures": "/operator/erasures",
    "reference": "/docs",
}
_WIDE: Final = (1180, 900)
_WITHIN_S: Final = 60.0
_DOCUMENTS: Final = Path(__file__).parents[3] / "docs" / "images"


@contextmanager
def staged_server() -> Iterator[tuple[str, str]]:
    """A server over a staged store: the admin bind's URL and an API key."""
    with tempfile.TemporaryDirectory(prefix="palm-stage-") as place, RunningPrograms(Path(place)) as stage:
        data = Path(place, "cloud")
        with opened_store(data, None) as (store, vault, now_ms), store.writing() as tx:
            api_key = operator_stage.fill(tx, vault, now_ms)
        words = ("cloud", "serve", "--data", str(data), "--port", "0", "--json")
        server = stage.start("server", module("tools.palmctl.main", *words))
        yield server.wait_line(lambda line: "admin_url" in line, _WITHIN_S)["admin_url"], api_key


def sign_in(tab: Tab, admin_url: str, api_key: str) -> None:
    """Sign in as a person does, whether or not another user was signed in before."""
    tab.call("Network.clearBrowserCookies")
    tab.open(f"{admin_url}/operator/sign-in")
    tab.type_into("#api_key", api_key)
    tab.submit("form")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
def main(folder: Path | None) -> None:
    """Photograph the playground, the operator's page, simulated gates, the totem's page and the preview."""
    chromium = find_chromium()
    if chromium is None:
        raise click.ClickException("chromium is not installed: apt-get install chromium")
    folder = folder or _DOCUMENTS
    with browsing(chromium) as tab:
        photograph_playground(tab, folder)
        photograph_gates(tab, folder)
    with staged_server() as (admin_url, api_key), browsing(chromium) as tab:
        tab.show(width=_WIDE[0], height=_WIDE[1])
        sign_in(tab, admin_url, api_key)
        save(tab.photograph(), folder / "operator-overview.png")
        tab.show(width=_WIDE[0], height=_WIDE[1], dark=True)
        tab.open(f"{admin_url}/operator/devices")
        save(tab.photograph(), folder / "operator-devices-dark.png")
    with (
        tempfile.TemporaryDirectory(prefix="palm-device-") as place,
        staged_device(Path(place)) as staged,
        browsing(chromium) as tab,
    ):
        photograph_device(tab, staged, folder)


if __name__ == "__main__":
    main()
