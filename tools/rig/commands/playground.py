"""`palmctl playground`: everything at once, on one page."""

import json
import signal
from pathlib import Path

import click


@click.command()
@click.argument(
    "run_file", metavar="[RUN]", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=1,
    show_default=True,
    help="Who the generated people are, and everything else that is left to chance.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8712, show_default=True, help="0: a free one."
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. In a container 0.0.0.0, with the port published on the host's 127.0.0.1.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="The address as one JSON object; with RUN no page: every event of the run, one JSON object a line.",
)
def playground(*, run_file: Path | None, seed: int, port: int, bind: str, as_json: bool) -> None:
    """One process and one page: server, device, cable, validator and generated people.

    Show a palm, a stranger, a poor capture; pull the cable, cut the network, advance six hours, erase a
    person, steal the device. Each frame, message and request is decoded live. Time is virtual: a run is its
    seed and its buttons, and the page saves it as a file. RUN is such a file, which is replayed.

    Exit code 1: with RUN and --json, the events are not those that the file was saved with.
    """
    from tools.palmctl.pages.server import LocalPage
    from tools.rig.playground.page import playground_routes
    from tools.rig.playground.playground import Beginning, Playground, replay
    from tools.rig.playground.run_file import MOST_BYTES, BadRunFile, read_run

    recorded = None
    try:
        if run_file is not None:
            with run_file.open("rb") as file:
                recorded = read_run(file.read(MOST_BYTES + 1))
        again = replay(recorded, click.echo) if recorded is not None and as_json else None
    except BadRunFile as error:
        what = f"{run_file}: {error}; the page's Save run makes such a file"
        raise click.ClickException(what) from error
    if recorded is not None and again is not None:
        if again.digest != recorded.digest:
            raise click.ClickException(
                f"{again.events:,} events that differ from the file's {recorded.events:,}: use the version "
                f"that saved it, {recorded.software}, on the same kind of processor"
            )
        return
    shown = Playground(Beginning(seed) if recorded is None else Beginning(recorded.seed, recorded))
    try:
        page = LocalPage(playground_routes(shown), bind=bind, port=port, most_body_bytes=2 * MOST_BYTES)
    except OSError as error:
        raise click.ClickException(f"port {port} cannot be used: {error.strerror}; try --port 0") from error
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: shown.end())
    click.echo(json.dumps({"url": page.url}) if as_json else f"{page.url}\nCtrl-C ends it.")
    try:
        shown.live()
    finally:
        page.close()
