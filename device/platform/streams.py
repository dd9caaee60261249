"""Standard input, output and error, which whatever starts a program may have closed."""

import os
import sys
from pathlib import Path
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Open /dev/null in the place of every standard stream that was closed before this process began.

    A closed input then reads as ended. And no later file, a store or the port of the cable, gets
    descriptor 0, 1 or 2, where a library or a child of this process would write its messages into it.
    Raises OSError.
    """
    for name, mode in _STREAMS:  # in the order of their descriptors: a new file gets the lowest that is free
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - for the process's life
            os.set_inheritable(stream.fileno(), True)  # as every standard stream is
            setattr(sys, name, stream)
