"""`palmctl link`: a virtual cable, and a look at what passes on a real one."""

import json
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 16_384


@click.group()
def link() -> None:
    """The cable: a virtual pair, a monitor."""


@link.command()
@click.option("--show-close", is_flag=True, help="An end that closes hangs the other up, as a pulled cable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pair(show_close: bool, as_json: bool) -> None:
    """Make a virtual serial pair, print its two paths, and live until interrupted.

    The first path is meant for the device, the second for the validator; they are alike.
    """
    from link1.transport.pty_pair import PtyPair

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ended.set())
    with PtyPair(show_close=show_close) as cable:
        if as_json:
            paths = {"device": cable.left, "validator": cable.right, "paths": [cable.left, cable.right]}
            click.echo(json.dumps(paths))
        else:
            click.echo(f"{cable.left}\n{cable.right}")
        sys.stdout.flush()
        ended.wait()


@link.command()
@click.argument("port", required=False)
@click.option(
    "--file",
    "capture",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Decode captured bytes instead; - is standard input.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def monitor(port: str | None, capture: Path | None, as_json: bool) -> None:
    """Decode the frames that arrive at PORT, or those of a capture.

    Nothing is written to PORT; what is read from it is not seen by anybody else.
    """
    from link1.errors import TransportError
    from tools.link_monitor import FrameLog

    if (port is None) == (capture is None):
        raise click.UsageError("give either PORT or --file")
    log = FrameLog()
    pieces = _from_file(capture) if capture is not None else _from_port(str(port))
    try:
        for piece in pieces:
            for line in log.feed(piece):
                click.echo(json.dumps(line) if as_json else _text(line))
    except TransportError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        pass  # how a live view ends


def _from_file(path: Path) -> "Iterator[bytes]":
    with click.open_file(str(path), "rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece


def _from_port(path: str) -> "Iterator[bytes]":
    from link1.transport.serial_port import open_port

    port = open_port(path, exclusive=False)
    try:
        while True:
            select.select([port.fileno()], [], [])
            yield port.read(READ_BYTES)
    finally:
        port.close()


def _text(line: dict[str, Any]) -> str:
    head = " ".join(str(line[name]) for name in ("kind", "chan", "mid", "sess") if name in line)
    rest = {name: value for name, value in line.items() if name not in ("kind", "chan", "mid", "sess")}
    return " ".join([head, *(f"{name}={json.dumps(value)}" for name, value in rest.items())])
