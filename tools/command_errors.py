"""How every command of `palmctl` ends when something is in its way: in words, with the next step.

1. An error of this project's own (`<package>/errors.py`) says what to do; here it gets its exit code.
2. A closed pipe and Ctrl-C are not errors: nothing is printed, exit codes 141 and 130 as a shell gives them.
3. Whatever nobody foresaw is one line that asks for a report; `PALMCTL_TRACEBACK=1` shows it whole.
"""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import click

EXIT_FAILED = 1
EXIT_NOT_REACHABLE = 3
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141

TRACEBACK_VARIABLE = "PALMCTL_TRACEBACK"

_PACKAGES = frozenset({"cloud_client", "device", "gallery", "link1", "models", "tools"})
_NOT_REACHABLE = frozenset({"CloudUnreachable", "ConfigError", "IpcUnreachable", "NotProvisioned"})
_NEXT_STEPS = {
    errno.EACCES: "run it as the user of palmd or as root (sudo), or name a place that you may use",
    errno.EPERM: "run it as the user of palmd or as root (sudo), or name a place that you may use",
    errno.ENOENT: "check the name; `palmctl doctor` says what is missing on this device",
    errno.ENOSPC: "make room there, or name another place",
    errno.EROFS: "it lies on a file system that is mounted read-only: name another place, or remount it",
    errno.EBUSY: "another program is using it; end that program first",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "one part of the path is no folder; check the path",
    errno.EADDRINUSE: "another program listens there; end it or choose another port",
}


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Run one command inside; raises SystemExit or click's own exceptions, and nothing else."""
    try:
        yield
    except (SystemExit, click.exceptions.Exit, click.ClickException):
        raise
    except KeyboardInterrupt:
        _leave_quietly(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly(EXIT_CLOSED_PIPE)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _fail(_told(error), _exit_code(error))


def _told(error: Exception) -> str:
    if _is_ours(error):
        return str(error)
    if isinstance(error, click.Abort):  # raised by a question that got no answer
        if sys.stdin is not None and sys.stdin.isatty():
            _leave_quietly(EXIT_INTERRUPTED)
        return (
            "a question got no answer, because standard input is no terminal or ended; "
            "give the answer by an option (see --help) or run it on a terminal"
        )
    if isinstance(error, OSError):
        return _told_by_system(error)
    return (
        f"unexpected {type(error).__name__} in {_place(error)}: this is a fault of palmctl itself; "
        f"run it again with {TRACEBACK_VARIABLE}=1 and report what it prints"
    )


def _fail(text: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        click.echo(f"palmctl: {text}", err=True)
    _leave_quietly(code)


def _leave_quietly(code: int) -> NoReturn:
    """Leave, also where what is still buffered cannot be written any more: nobody is there to be told."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(code)


def _told_by_system(error: OSError) -> str:
    what = error.strerror or type(error).__name__
    where = f"{error.filename}: " if error.filename else ""
    step = _NEXT_STEPS.get(
        error.errno or 0, "`palmctl doctor` looks at this device's disks, ports and camera"
    )
    if error.errno == errno.ENOSPC and not where:
        where = "the output cannot be written: "
    return f"{where}{what}; {step}"


def _is_ours(error: BaseException) -> bool:
    """Whether the error belongs to one of the hierarchies of this project, whose messages say what to do."""
    return any(
        cls.__module__.partition(".")[0] in _PACKAGES and cls.__module__.endswith("errors")
        for cls in type(error).__mro__
    )


def _exit_code(error: BaseException) -> int:
    names = {cls.__name__ for cls in type(error).__mro__}
    return EXIT_NOT_REACHABLE if names & _NOT_REACHABLE else EXIT_FAILED


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown place"
