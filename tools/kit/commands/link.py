"""`palmctl link`: a virtual cable, and a look at what passes on a real one."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import click

from tools.kit.commands import options
from tools.palmctl.groups import WholeHelpGroup


@click.group(cls=WholeHelpGroup)
def link() -> None:
    """The cable: a virtual pair, a monitor."""


@link.command()
@click.option("--show-close", is_flag=True, help="An end that closes hangs the other up, as a pulled cable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pair(show_close: bool, as_json: bool) -> None:
    """Make a virtual serial pair, print its two paths, and live until interrupted.

    The first path is meant for the device, the second for the validator; they are alike.
    """
    from tools.kit.pty_pair import PtyPair

    # Blocked and waited for: a handler could come while the main thread holds the lock it needs.
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with PtyPair(show_close=show_close) as cable:
        if as_json:
            paths = {"device": cable.left, "validator": cable.right, "paths": [cable.left, cable.right]}
            click.echo(json.dumps(paths))
        else:
            click.echo(f"{cable.left}\n{cable.right}")
        signal.sigwait(ends)


@link.command()
@click.argument("port", required=False)
@options.baud
@click.option("--through", help="Another port: carry bytes between both and see both directions.")
@click.option(
    "--file",
    "capture",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Decode captured bytes or a pcap file instead; - is standard input.",
)
@click.option(
    "--from",
    "sender",
    type=click.Choice(["device", "validator"]),
    help="Who sent what arrives.",
)
@click.option(
    "--pcap", type=click.Path(dir_okay=False, path_type=Path), help="Also write a capture for Wireshark."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def monitor(
    *,
    port: str | None,
    baud: int,
    through: str | None,
    capture: Path | None,
    sender: str | None,
    pcap: Path | None,
    as_json: bool,
) -> None:
    """Decode the frames that arrive at PORT, those that pass between two ports, or those of a capture.

    With one PORT nothing is written to it, and no other program sees what is read from it. With
    --through the monitor is part of the cable: the device is at PORT, the validator at the other one.
    """
    from contextlib import ExitStack, closing

    from tools.kit.link_monitor import CableLog, pieces_of_file, pieces_of_port, pieces_through
    from tools.kit.link_pcap import Direction, PcapWriter
    from tools.kit.ports import open_port

    if (port is None) == (capture is None) or (through is not None and (port is None or sender is not None)):
        raise click.UsageError("give PORT, PORT with --through, or --file")
    if capture and pcap and str(capture) != "-" and pcap.exists() and pcap.samefile(capture):
        raise click.UsageError("--pcap is the file that --file reads, and would be emptied: name another one")
    direction = Direction[f"FROM_{sender.upper()}"] if sender else Direction.UNKNOWN
    try:
        with ExitStack() as stack:
            if capture is not None:
                file = capture.open("rb") if str(capture) != "-" else os.fdopen(0, "rb", closefd=False)
                pieces = pieces_of_file(stack.enter_context(file), direction)
            else:
                device = stack.enter_context(
                    closing(open_port(str(port), baud=baud, exclusive=through is not None))
                )
                if through is None:
                    pieces = pieces_of_port(device, direction)
                else:
                    validator = stack.enter_context(closing(open_port(through, baud=baud)))
                    pieces = pieces_through(device, validator)
            # Ports first: opening one throws away what waits there, and who sees the capture may begin.
            writer = None if pcap is None else PcapWriter(stack.enter_context(pcap.open("wb")))
            log = CableLog(writer)
            for piece in pieces:
                for line in log.feed(piece):
                    click.echo(json.dumps(line) if as_json else _text(line))
    except KeyboardInterrupt:
        pass  # how a live view ends


def _text(line: dict[str, Any]) -> str:
    first = ("from", "kind", "chan", "mid", "sess")
    head = " ".join(str(line[name]) for name in first if name in line)
    rest = {name: value for name, value in line.items() if name not in first}
    return " ".join([head, *(f"{name}={json.dumps(value)}" for name, value in rest.items())])
