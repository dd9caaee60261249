"""Manual pages made from the command line itself, so that they cannot say anything else."""

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import click

from tools.palmctl.groups import ExtendedGroup, in_language
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _

_EXIT_STATUS = (
    ("0", marked("done")),
    ("1", marked("failed; the last line says what to do next")),
    ("2", marked("wrong usage")),
    ("3", marked("not provisioned, or not reachable")),
    ("4", marked("not permitted to this user")),
)
_FILES = (
    ("/etc/palm-access/device.toml", marked("the configuration")),
    ("/var/lib/palm-access", marked("keys, gallery and journal of this device")),
    ("/run/palm-access", marked("sockets of the daemons")),
)
_ENVIRONMENT = (
    ("PALM_ACCESS_CONFIG", marked("the configuration file, where --config does not name one")),
    ("NO_COLOR", marked("when it is not empty, text alone: no colours, no line that is written over")),
)
# An option in the help of argparse: its name, then, after two spaces or on the next lines, what it does.
_OPTION = re.compile(r"^  (-\S.*?)(?:  +|\n {10,})(.*(?:\n {10,}.*)*)", re.MULTILINE)
_NOTHING = "\\&"
_BESIDE = ("palmctl", "palmd", "palm-syncd")


def of_click(command: click.Command, name: str, version: str, epoch: int) -> dict[str, str]:
    """Pages of `command` and everything below it: {"palmctl-cloud-serve.1": text, …}."""
    shown = in_language(command)
    return dict(_pages(shown, click.Context(shown, info_name=name, **shown.context_settings), version, epoch))


def _pages(command: click.Command, ctx: click.Context, version: str, epoch: int) -> Iterator[tuple[str, str]]:
    name = ctx.command_path.replace(" ", "-")
    page = _Page(name, command.get_short_help_str(200), version, epoch)
    synopsis = f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}"
    page.section(_("SYNOPSIS"), _bold(synopsis))
    page.section(_("DESCRIPTION"), _prose(command.help or ""))
    options = [record for parameter in command.get_params(ctx) if (record := parameter.get_help_record(ctx))]
    if options:
        page.section(_("OPTIONS"), _list(options))
    children = []
    if isinstance(command, click.Group):
        added = command.added_commands() if isinstance(command, ExtendedGroup) else ()
        for child_name in command.list_commands(ctx):
            if child_name in added:  # by a distribution that the package leaves out
                continue
            child = command.get_command(ctx, child_name)
            if child is not None and not child.hidden:
                children.append((child_name, child))
        page.section(
            _("COMMANDS"),
            _list([(f"{name}-{word}(1)", child.get_short_help_str(200)) for word, child in children]),
        )
    page.end(name)
    yield f"{name}.1", page.text
    for word, child in children:
        yield from _pages(child, click.Context(child, info_name=word, parent=ctx), version, epoch)


def of_argparse(parser: argparse.ArgumentParser, version: str, epoch: int) -> dict[str, str]:
    """The one page of a daemon."""
    page = _Page(parser.prog, (parser.description or "").rstrip("."), version, epoch)
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    page.section(_("SYNOPSIS"), _bold(usage))
    page.section(
        _("DESCRIPTION"), _prose(f"{parser.description}\n\nsystemd starts it ({parser.prog}.service).")
    )
    page.section(_("OPTIONS"), _list(_OPTION.findall(parser.format_help())))
    page.end(parser.prog)
    return {f"{parser.prog}.1": page.text}


class _Page:
    """A page as it grows."""

    def __init__(self, name: str, summary: str, version: str, epoch: int) -> None:
        date = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")
        self.text = f'.TH "{name.upper()}" "1" "{date}" "palm-access {version}" "Palm access device"\n'
        self.section(_("NAME"), f"{name} \\- {_escape(summary.rstrip('.'))}\n")

    def section(self, title: str, body: str) -> None:
        self.text += f".SH {title}\n{body}"

    def end(self, name: str) -> None:
        """What every page ends with."""
        self.section(_("EXIT STATUS"), _list((term, _(text)) for term, text in _EXIT_STATUS))
        self.section(_("ENVIRONMENT"), _list((term, _(text)) for term, text in _ENVIRONMENT))
        self.section(_("FILES"), _list((term, _(text)) for term, text in _FILES))
        words = [word for word in _BESIDE if word != name]
        if name.startswith("palmctl-"):
            words = [name.rpartition("-")[0], *words[1:]]
        self.section(_("SEE ALSO"), "".join(f".BR {_escape(word)} (1)\n" for word in words))


def _escape(text: str) -> str:
    """Text as roff shows it unchanged."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)


def _bold(text: str) -> str:
    return f".B {_escape(text)}\n"


def _prose(text: str) -> str:
    """Paragraphs; click's \\b marks one whose lines stay as they are."""
    out = ""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            out += (
                ".PP\n.nf\n" + "".join(f"{_escape(line)}\n" for line in paragraph.splitlines()[1:]) + ".fi\n"
            )
        else:
            out += f".PP\n{_escape(' '.join(lines))}\n"
    return out


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms and what they mean."""
    out = ""
    for term, meaning in pairs:
        out += f".TP\n.B {_escape(term)}\n{_escape(' '.join(meaning.split())) or _NOTHING}\n"
    return out
