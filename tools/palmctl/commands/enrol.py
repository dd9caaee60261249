"""`palmctl enrol`: a person enrols before this device, and this terminal is the screen."""

import json
import sys
from functools import partial
from pathlib import Path

import click

from device.errors import IpcRefused
from device.platform.ipc import ask_core
from tools.palmctl.control_sockets import totem_socket_of
from tools.palmctl.enrolment_terminal import EnrolmentEnd, EnrolmentTerminal
from tools.palmctl.language import translated
from tools.palmctl.live_terminal import is_live


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option(
    "--code", help="The session's short code, such as 4F7K-9QRT; without it, its QR code is awaited."
)
@click.option(
    "--language",
    type=click.Choice(["pt-BR", "en"]),
    default="pt-BR",
    show_default=True,
    help="What the person reads: the terms and the guidance.",
)
@click.option(
    "--accept-terms",
    metavar="VERSION",
    help="For tests and demonstrations, where no person is: accept terms of this version unread.",
)
@click.option(
    "--wait-s",
    type=click.FloatRange(1, 3600),
    default=900.0,
    show_default=True,
    help="How long to wait for it all; what is in progress then is cancelled.",
)
@click.option("--cancel", is_flag=True, help="Cancel the enrolment in progress, started here or elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def enrol(
    *,
    config: Path | None,
    code: str | None,
    language: str,
    accept_terms: str | None,
    wait_s: float,
    cancel: bool,
    as_json: bool,
) -> None:
    """Enrol a person: the session's code, the terms shown and accepted here, both palms, the upload.

    Ctrl-C cancels: what was captured is overwritten, and the session's code stays valid.

    Exit code 0: completed, or held for an operator's review. 1: failed or refused. 3: no daemon answers.
    4: this user may not ask it.
    """
    if accept_terms is None and not cancel and not sys.stdin.isatty():
        raise click.UsageError(
            "the person reads and accepts the terms on a terminal, and this is none; use palmctl totem, or, "
            "in a test, --accept-terms VERSION"
        )
    terminal = EnrolmentTerminal(
        partial(ask_core, totem_socket_of(config)),
        language=language,
        accept_unread=accept_terms,
        tell=lambda text: click.echo(text, err=True),
        live=is_live(sys.stderr),
    )
    try:
        ended = terminal.cancel() if cancel else terminal.run(code, wait_s)
    except IpcRefused as error:
        ended = EnrolmentEnd("refused", error.code, translated(str(error)))
    if as_json:
        click.echo(json.dumps({"status": ended.status, "code": ended.code}))
    click.echo(ended.text, err=True)
    sys.exit(0 if ended.good else 1)
