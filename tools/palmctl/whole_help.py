"""Groups whose help shows the first sentence of every command whole; click cuts it at the line's end."""

import click


class WholeHelpGroup(click.Group):
    """A group, and those below it, whose list of commands is wrapped and never cut."""

    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        children = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, first_sentence(child)) for name, child in children if child and not child.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def first_sentence(command: click.Command) -> str:
    """The first sentence of a command's help, on one line."""
    return command.get_short_help_str(limit=10_000)
