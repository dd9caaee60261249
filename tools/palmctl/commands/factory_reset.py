"""`palmctl factory-reset`: destroy what makes this board a device."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tools.palmctl.language import translated as _

if TYPE_CHECKING:
    from tools.palmctl.reset import Here


@click.command()
@click.option("--yes-i-mean", metavar="DEVICE_ID", help="Instead of typing the device id: for scripts.")
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print what was destroyed as one JSON object.")
def factory_reset(*, yes_i_mean: str | None, config: Path | None, as_json: bool) -> None:
    """Destroy keys, gallery, journal and pinned trust of this device, for good.

    Says first what will be lost, and asks for the device id to be typed. A reset that was interrupted is
    finished by the next one. The configuration file stays: it holds no secret. The service does
    not learn of the reset: have the device revoked there.

    Exit code 0: done. 1: refused or failed. 2: wrong usage. 3: there is nothing to reset. 4: this
    user may not.
    """
    from device.config.config import config_path, load_config
    from tools.palmctl.errors import NothingToReset
    from tools.palmctl.reset import begun_before, carry_out, stop_daemons, who_is_here

    settings = load_config(config_path(config))
    here = who_is_here(settings)
    if here is None:
        raise NothingToReset(
            f"{settings.device.state_dir} holds no device: there is nothing to reset; "
            "another configuration is named with --config"
        )
    if begun_before(settings):
        click.echo(_(f"A reset of {here.device_id} was begun before; finishing it."), err=True)
    else:
        click.echo("\n".join(_losses(here)), err=True)
        if here.untold_wipe:
            click.echo(
                "  "
                + _(
                    "word to the service that its order to wipe was carried out; to let it know, let palmd\n"
                    "    and palm-syncd run first, until `palmctl doctor` says stage: confirmed"
                ),
                err=True,
            )
        _agreed(here.device_id, yes_i_mean)
    stop_daemons(settings, lambda text: click.echo(_(text), err=True))
    carry_out(settings, here)
    if as_json:
        lost = {
            "verdict_seq": here.verdict_seq,
            "uploads_waiting": here.uploads_waiting,
            "templates": here.templates,
        }
        click.echo(json.dumps({"device_id": here.device_id, "lost": lost, "done": True}))
        return
    click.echo(_(f"{here.device_id} is destroyed; {settings.device.state_dir} is empty."))
    click.echo(_("Have it revoked at the service, then: palmctl provision … with a new token."), err=True)
    click.echo(
        _("On flash memory this is a logical erasure; destroy any card that leaves your possession."),
        err=True,
    )


def _losses(here: "Here") -> list[str]:
    """What will be lost, the worst first."""
    if here.wiped:
        return [
            _(f"{here.device_id} was wiped before, by order of the service: only the record of that goes.")
        ]
    lines = [_(f"This destroys device {here.device_id}:")]
    waiting, templates = here.uploads_waiting, here.templates
    if waiting is None:
        lost = _("an unknown number of verdicts not yet uploaded: the service will never have them")
    else:
        lost = _(f"{waiting:,} verdicts not yet uploaded: the service will never have them")
    if waiting != 0:
        lines.append(click.style(f"  {lost}", fg="red"))
    if here.verdict_seq is None:
        lines.append("  " + _("the journal, where there is one"))
    else:
        lines.append("  " + _(f"the journal; its last verdict is number {here.verdict_seq:,}"))
    if templates is None:
        lines.append("  " + _("an unknown number of templates of the gallery (the service has them)"))
    else:
        lines.append("  " + _(f"{templates:,} templates of the gallery (the service has them)"))
    if here.keys:
        keys = _("its keys: it can sign no verdict any more, and wants a new token to become a device again")
        lines.append(f"  {keys}")
    return lines


def _agreed(device_id: str, given: str | None) -> None:
    from tools.palmctl.errors import ResetRefused

    if given is None:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask; say which one: --yes-i-mean DEVICE_ID")
        given = str(
            click.prompt(_("Type the device id to go on"), err=True, default="", show_default=False)
        ).strip()
    if given != device_id:
        raise ResetRefused(
            "that is not this device's id: nothing was touched; run it again with the id shown above"
        )
