"""`palmctl`: the one command line for technicians, operators and developers.

A command is imported when it is called, so that `palmctl --help` answers at once. Exit codes: 0 done,
1 failed, 2 wrong usage, 3 not provisioned or not reachable, 4 not permitted to this user.
"""

import io
import sys
from importlib import import_module
from itertools import pairwise, takewhile
from typing import Any

import click

from device.platform.streams import open_closed_streams
from tools.palmctl.command_errors import ending_in_order, reported
from tools.palmctl.groups import KIT, RIG, SERVER, ExtendedGroup, in_language
from tools.palmctl.language import LANGUAGES, choose_language, translated
from tools.palmctl.live_terminal import is_plain

# name: (module of tools.palmctl.commands, one line of help). The line is here so that --help imports nothing.
COMMANDS = {
    "bench": ("bench", "Measure this machine: verdict latency stage by stage, start with a large gallery."),
    "commands": ("commands", "List every command that is installed here."),
    "config": ("config", "Show, check and change the configuration file of this device."),
    "enrol": ("enrol", "Enrol a person here: code, consent on this terminal, both palms."),
    "doctor": ("doctor", "Look at everything that a gate needs, and say what to do about what is wrong."),
    "factory-reset": ("factory_reset", "Destroy keys, gallery and journal of this device."),
    "keys": ("keys", "Keys of this device as encrypted credentials of systemd."),
    "logs": ("logs", "What the daemons have said, as journald keeps it."),
    "model": ("model", "The palm model: look at one as a device does, install a signed one."),
    "pass": ("trial_pass", "One supervised passage, or a rehearsal of one: every stage's time and score."),
    "preview": ("preview", "What the camera sees, as a page on this machine: outline, quality, guidance."),
    "provision": ("provision", "Make this board a device of a tenant: keys, registration, pinned trust."),
    "status": ("status", "What the daemon is doing now."),
    "totem": ("totem", "The enrolment screen of a totem, as a page on this machine."),
    "update": ("update", "The state of releases on this device, a release from a stick, the way back."),
    "support-bundle": ("support_bundle", "Gather what helps from afar, without secrets and without people."),
}

# name: (the part of the project that adds it, one line of help).
ADDED_COMMANDS = {
    "cloud": (SERVER, "The reference server of the cloud: serve it, manage tenants, keys and devices."),
    "dbd": (KIT, "A validator for the other end of the cable."),
    "demo": (RIG, "Everything at once on one machine: enrol, pass, refuse, erase."),
    "evaluate": (RIG, "How well the model tells palms apart, on a folder of pictures."),
    "link": (KIT, "The cable: a virtual pair, a monitor."),
    "playground": (RIG, "A gate, its service and its people on one page, to try everything."),
}

_WANTS_JSON = "tools.palmctl.main.wants_json"


class LazyGroup(ExtendedGroup):
    """The group of all commands, which are imported only when they run."""

    def __call__(self, *args: Any, **extra: Any) -> Any:
        with ending_in_order():
            return self.main(*args, **extra)

    def main(self, *args: Any, **extra: Any) -> Any:
        with reported():  # for what happens before a command runs: --help may go into a closed pipe
            open_closed_streams()
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # an alphabet may lack a sign, a path may be no text
            return super().main(*args, **extra)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        wants_json = "--json" in takewhile(lambda word: word != "--", args)
        choose_language(_wanted_language(args), as_json=wants_json)
        with reported(as_json=wants_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WANTS_JSON] = wants_json
        if is_plain():
            context.color = False  # of every command below as well: click takes all that is styled away
        return context

    def invoke(self, ctx: click.Context) -> object:
        with reported(as_json=ctx.meta[_WANTS_JSON]):
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = (*COMMANDS, *ADDED_COMMANDS)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            close = difflib.get_close_matches(name, known, n=1)
            if close:
                raise click.UsageError(f"No such command {name!r}. Did you mean {close[0]!r}?", ctx)
            raise click.UsageError(f"No such command {name!r}.", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return sorted([*COMMANDS, *self.added_commands()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            added = super().get_command(ctx, cmd_name)
            return None if added is None else in_language(added)
        name = COMMANDS[cmd_name][0]
        command: click.Command = getattr(import_module(f"tools.palmctl.commands.{name}"), name)
        return in_language(command)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ExtendedGroup.format_help(in_language(self), ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(translated("Commands")):
            helps = COMMANDS | ADDED_COMMANDS
            formatter.write_dl([(name, translated(helps[name][1])) for name in self.list_commands(ctx)])


def _wanted_language(args: list[str]) -> str | None:
    """The value of `--lang`, which comes before the command; click refuses another value later."""
    words = list(takewhile(lambda word: word.startswith("-") or word in LANGUAGES, args))
    for option, value in pairwise([*words, ""]):
        wanted = value if option == "--lang" else option.removeprefix("--lang=")
        if wanted in LANGUAGES:
            return wanted
    return None


@click.group(
    cls=LazyGroup,
    entry_points="palmctl.commands",
    added_by={name: part for name, (part, _) in ADDED_COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    expose_value=False,
    help="The language of what is printed; default: as LANGUAGE, LC_ALL, LC_MESSAGES or LANG have it.",
)
@click.version_option(package_name="palm-access-device")
def main() -> None:
    """Provision, diagnose and try out palm access devices."""


if __name__ == "__main__":
    main()
