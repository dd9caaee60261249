"""A secret that a program hands over on standard input, where no process list shows it."""

import sys
from typing import Final

import click

MAX_BYTES: Final = 4096


def secret_line(what: str) -> str:
    """The first line, without the space around it; empty when there is none.

    Raises UsageError for what is no line of text: `what` is the word for it.
    """
    line = sys.stdin.buffer.readline(MAX_BYTES + 1)
    if len(line) > MAX_BYTES:
        raise click.UsageError(
            f"standard input: expected one line with the {what}, found over {MAX_BYTES} bytes; "
            "was another file given?"
        )
    try:
        return line.decode("utf-8-sig").strip()  # some editors put a mark of order in front
    except UnicodeDecodeError:
        raise click.UsageError(
            f"standard input: expected the {what} as UTF-8 text, found other bytes; was another file given?"
        ) from None
