"""Commands that other distributions of this repository add to `palmctl`.

The package of a device holds what a gate needs. The reference server, the kit and the rig belong to other
distributions (tools/rig/packaging), which name their commands as entry points.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import click

from tools.palmctl.language import marked
from tools.palmctl.whole_help import WholeHelpGroup

SERVER, KIT, RIG = marked("the reference server"), marked("the validator kit"), marked("the test rig")
"""The parts of the project that a device's package leaves out."""


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
