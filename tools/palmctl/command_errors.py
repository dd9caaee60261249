"""How every command of `palmctl` ends when something is in its way: in words, with the next step.

1. Every error is one text on standard error, `palmctl: <what is wrong; what to do>`. Where JSON was asked
   for, standard output holds `{"error": {"code", "message", "hint"?}}` too, and nothing else.
2. An error of this project (`<package>/errors.py`) says what to do; here it gets its exit code.
3. A closed pipe and Ctrl-C are not errors: nothing is printed, exit codes 141 and 130 as a shell gives them.
4. A program that SIGTERM or SIGHUP ends has put back the terminal before, taken away its unfinished files
   and ended the programs it had started.
5. An unexpected error is one line that asks for a report; `PALMCTL_TRACEBACK=1` shows its traceback.
"""

import contextlib
import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import click

from cloud_client.errors import CloudUnreachable
from device.errors import NOT_ROOT, ConfigError, IpcNotPermitted, IpcSilent, IpcUnreachable, NotProvisioned
from link1.errors import is_not_permitted, reason_of
from tools.palmctl.language import marked, translated

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_REACHABLE = 3
EXIT_NOT_PERMITTED = 4
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141

TRACEBACK_VARIABLE = "PALMCTL_TRACEBACK"

_PACKAGES = frozenset({"cloud_client", "device", "gallery", "link1", "models", "tools"})
_AS_ROOT = marked("run it as root: sudo palmctl …")
_ALLOWED = marked("run it as root (sudo) or as the user of palmd, or name a place that you may use")
_START_PALMD = marked(
    "start it with: systemctl start palmd; see why it stopped with: palmctl logs --unit palmd"
)
_RESTART_PALMD = marked(
    "palmd runs and is busy or stuck: try again in a moment, then systemctl restart palmd; "
    "see what it is at with: palmctl logs --unit palmd"
)
_NEXT_STEPS = {
    errno.EACCES: _ALLOWED,
    errno.EPERM: _ALLOWED,
    errno.ENOENT: marked("check the name; `palmctl doctor` says what is missing on this device"),
    errno.ENOSPC: marked("make room there, or name another place"),
    errno.EROFS: marked(
        "it lies on a file system that is mounted read-only: name another place, or remount it"
    ),
    errno.EBUSY: marked("another program is using it; end that program first"),
    errno.EISDIR: marked("name a file, not a folder"),
    errno.EINVAL: marked("name another one"),
    errno.EFBIG: marked("see whether another file was named by mistake"),
    errno.ENOTDIR: marked("one part of the path is no folder; check the path"),
    errno.EADDRINUSE: marked("another program listens there; end it or choose another port"),
}


@dataclass(frozen=True, slots=True)
class _Told:
    """One error as it is shown. `code`: a word for programs; `usage`: how the command is called."""

    exit_code: int
    code: str
    message: str
    hint: str = ""
    usage: str = ""

    @property
    def line(self) -> str:
        """What is wrong and what to do, in the language of the process."""
        message, hint = translated(self.message), translated(self.hint)
        if not hint:
            return message
        return (
            f"{message} {hint[0].upper()}{hint[1:]}" if message.endswith((".", "?")) else f"{message}; {hint}"
        )


@contextlib.contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Run one command inside; raises SystemExit or click's own Exit, and nothing else.

    `as_json`: whether JSON was asked for, so that an error is one JSON object as well.
    """
    try:
        yield
    except (SystemExit, click.exceptions.Exit):
        raise
    except KeyboardInterrupt:
        _leave_quietly(EXIT_INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly(EXIT_CLOSED_PIPE)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE) and not isinstance(error, click.ClickException):
            raise
        _fail(_told(error), as_json=as_json)


class _Ended(SystemExit):
    """A signal is to end the program."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Run the whole program inside, in the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _end)
    try:
        yield
    except _Ended as ended:
        signal.signal(ended.number, signal.SIG_DFL)
        _write_out()
        signal.raise_signal(ended.number)  # the program that started it learns what ended it


def _end(number: int, _frame: object) -> None:
    raise _Ended(number)


def in_words(error: Exception) -> str:
    """What `palmctl` says of an error that a command ends with, for a page that runs commands."""
    return _told(error).line


def _told(error: Exception) -> _Told:
    if isinstance(error, click.ClickException):
        return _told_by_click(error)
    code, word = _exit_code(error), _word(error)
    if _is_ours(error):
        return _Told(code, word, str(error), _hint(error, code))
    if isinstance(error, click.Abort):  # raised by a question that got no answer
        if sys.stdin is not None and sys.stdin.isatty():
            _leave_quietly(EXIT_INTERRUPTED)
        text = marked("a question got no answer, because standard input is no terminal or ended")
        step = marked("give the answer by an option (see --help) or run it on a terminal")
        return _Told(code, "no_answer", text, step)
    if isinstance(error, OSError):
        return _told_by_system(error, code, word)
    text = marked(f"unexpected {type(error).__name__} in {_place(error)}: this is a fault of palmctl itself")
    step = marked(f"run it again with {TRACEBACK_VARIABLE}=1 and report what it prints")
    return _Told(code, "unexpected", text, step)


def _told_by_click(error: click.ClickException) -> _Told:
    text = error.format_message()
    if not isinstance(error, click.UsageError):
        return _Told(error.exit_code, "failed", text)
    if error.ctx is None:
        return _Told(EXIT_USAGE, "usage", text)
    step = marked(f"try {error.ctx.command_path} --help")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its text is the whole help
        return _Told(EXIT_USAGE, "usage", marked("a command is missing"), step, text)
    return _Told(EXIT_USAGE, "usage", text, step, error.ctx.get_usage())


def _fail(told: _Told, *, as_json: bool) -> NoReturn:
    with contextlib.suppress(OSError):
        if told.usage:
            click.echo(told.usage, err=True)
        click.echo(f"palmctl: {told.line}", err=True)
        if as_json:
            shown = {"code": told.code, "message": told.message} | ({"hint": told.hint} if told.hint else {})
            click.echo(json.dumps({"error": shown}, ensure_ascii=False))
    _leave_quietly(told.exit_code)


def _leave_quietly(code: int) -> NoReturn:
    _write_out()
    raise SystemExit(code)


def _write_out() -> None:
    """Write the rest of the buffers; it is dropped where the reader has gone."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # was closed before this process began
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _told_by_system(error: OSError, code: int, word: str) -> _Told:
    where = f"{error.filename}: " if error.filename else ""
    step = _NEXT_STEPS.get(
        error.errno or 0, marked("`palmctl doctor` looks at this device's disks, ports and camera")
    )
    if error.errno == errno.ENOSPC and not where:
        return _Told(code, word, marked(f"the output cannot be written: {reason_of(error)}"), step)
    return _Told(code, word, f"{where}{translated(reason_of(error))}", step)


def _hint(error: Exception, exit_code: int) -> str:
    """The next step, where the error's own text has none."""
    if isinstance(error, IpcNotPermitted):
        return _AS_ROOT
    if isinstance(error, IpcUnreachable):
        return _RESTART_PALMD if isinstance(error, IpcSilent) else _START_PALMD
    if exit_code == EXIT_NOT_PERMITTED:
        return "" if "root" in str(error) else _AS_ROOT
    cause = error.__cause__
    if isinstance(cause, OSError) and ";" not in str(error):
        return _NEXT_STEPS.get(cause.errno or 0, "")
    return ""


def _is_ours(error: BaseException) -> bool:
    """Whether the error belongs to one of the hierarchies of this project, whose messages say what to do."""
    return any(
        cls.__module__.partition(".")[0] in _PACKAGES and cls.__module__.endswith("errors")
        for cls in type(error).__mro__
    )


def _exit_code(error: BaseException) -> int:
    if is_not_permitted(error) or getattr(error, "code", None) == NOT_ROOT:
        return EXIT_NOT_PERMITTED
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, ConfigError) and isinstance(error.__cause__, FileNotFoundError):
        return EXIT_NOT_REACHABLE
    unreachable = isinstance(error, CloudUnreachable | IpcUnreachable | NotProvisioned)
    return EXIT_NOT_REACHABLE if unreachable else EXIT_FAILED


def _word(error: BaseException) -> str:
    """A word for programs: the error's own code, else what the exit code says, else the error's kind."""
    own = getattr(error, "code", None)
    if isinstance(own, str) and own:
        return own
    if is_not_permitted(error):
        return "not_permitted"
    if isinstance(error, NotProvisioned):
        return "not_provisioned"
    if isinstance(error, CloudUnreachable | IpcUnreachable):
        return "not_reachable"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown place"
