"""Groups of commands: their help, in the language of the process, and the commands that others add to them.

The package of a device holds what a gate needs. The reference server, the kit and the rig belong to other
distributions (tools/rig/packaging), which name their commands as entry points.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

import click

from tools.palmctl.language import is_english, marked, translated

SERVER, KIT, RIG = marked("the reference server"), marked("the validator kit"), marked("the test rig")
"""The parts of the project that a device's package leaves out."""


class WholeHelpGroup(click.Group):
    """A group, and those below it, whose list shows the first sentence of every command whole: it is wrapped,
    where click cuts it at the line's end."""

    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, first_sentence(child)) for name, child in children(self, ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class ExtendedGroup(WholeHelpGroup):
    """A group of commands to which other distributions add more.

    `added_by`: the part of the project that each added command belongs to; a command that is not named there
    is not looked for. `entry_points`: the entry points' group, for example `palmctl.commands`.
    """

    def __init__(self, *args: Any, entry_points: str, added_by: Mapping[str, str], **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._entry_points = entry_points
        self.added_by = added_by

    def added_commands(self) -> list[str]:
        """The added commands that are installed here."""
        installed = entry_points(group=self._entry_points).names
        return sorted(installed & self.added_by.keys())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.added_commands()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Raises ClickException for an added command that is not installed here."""
        part = self.added_by.get(cmd_name)
        if part is None:
            return super().get_command(ctx, cmd_name)
        points = entry_points(group=self._entry_points, name=cmd_name)
        if points:
            command = points[cmd_name].load()
            if not isinstance(command, click.Command):
                raise TypeError(f"the entry point {points[cmd_name].value} is no command")
            return command
        if ctx.resilient_parsing:  # completion asks what there is
            return None
        raise click.ClickException(
            f"this command belongs to {part}, which is not installed here: the package of a device leaves it "
            "out; run the command from a checkout of the project, where `make demo` installs all of it from "
            "the lock"
        )


def children(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group, with their names; nothing is below another command."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield name, child


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and all below it, each with its context."""
    yield command, context
    for name, child in children(command, context):
        yield from walk(child, click.Context(child, info_name=name, parent=context))


def first_sentence(command: click.Command) -> str:
    """The first sentence of a command's help, on one line."""
    return command.get_short_help_str(limit=10_000)


def paragraphs(text: str) -> list[str]:
    r"""The paragraphs of a help text, each in one line but for those that click's \b keeps as they are."""
    parts = inspect.cleandoc(text).split("\n\n")
    return [part if part.startswith("\b") else " ".join(part.split()) for part in parts if part]


def in_language(command: click.Command) -> click.Command:
    """A copy of `command` and all below it, with translated help texts; in English `command` itself."""
    if is_english():
        return command
    shown = copy.copy(command)
    if command.help:
        shown.help = "\n\n".join(translated(part) for part in paragraphs(command.help))
    shown.params = [_parameter(parameter) for parameter in command.params]
    if isinstance(command, click.Group) and isinstance(shown, click.Group):
        shown.commands = {name: in_language(child) for name, child in command.commands.items()}
    return shown


def _parameter(parameter: click.Parameter) -> click.Parameter:
    if not isinstance(parameter, click.Option) or not parameter.help:
        return parameter
    shown = copy.copy(parameter)
    shown.help = translated(parameter.help)
    return shown
