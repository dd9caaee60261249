"""`palmctl support-bundle`: what helps from afar, without secrets and without people."""

import json
from pathlib import Path

import click

from tools.palmctl.language import translated as _


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.tar.gz")
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object.")
def support_bundle(*, file: Path, config: Path | None, as_json: bool) -> None:
    """Gather versions, status, findings, configuration and logs of this device into FILE.tar.gz.

    Keys, vectors, tokens and personal data stay on the device. FILE is readable by you alone,
    appears whole or not at all, and is never written over.
    """
    import os

    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    from device.config.config import config_path
    from device.doctor.case import take_case
    from device.platform.clock import SystemClock
    from tools.palmctl.live_terminal import live_line
    from tools.palmctl.support_bundle import check_target, collect, write_bundle

    path = file.absolute()
    check_target(path)
    with live_line(hidden=as_json) as tell:
        case = take_case(config_path(config), SystemClock())
        files = collect(case, lambda what: tell("  " + _(f"gathering {what} …")))
        write_bundle(path, files)
    if as_json:
        told = {"file": str(path), "bytes": path.stat().st_size, "holds": sorted(files)}
        click.echo(json.dumps(told | {"not_readable": sorted(case.closed)}))
        return
    if case.closed:
        click.echo(
            _(
                f"This user may not read {', '.join(sorted(case.closed))}: the bundle says little without. "
                "All of it: sudo palmctl support-bundle FILE.tar.gz"
            ),
            err=True,
        )
    click.echo(f"{path}: {path.stat().st_size // 1024 + 1} KiB, {len(files)} {_('files')}")
    click.echo(_("Look into it before you send it: tar xzOf FILE | less"), err=True)
