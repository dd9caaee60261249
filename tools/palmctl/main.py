"""`palmctl`: the one command line for technicians, operators and developers.

A command is imported when it is called, so that `palmctl --help` answers at once. Exit codes: 0 done,
1 failed, 2 wrong usage, 3 not provisioned or not reachable, 4 not permitted to this user.
"""

from importlib import import_module
from itertools import takewhile
from typing import Any

import click

from tools.palmctl.command_errors import reported
from tools.palmctl.live_terminal import is_plain

# name: (module of tools.palmctl.commands, one line of help). The line is here so that --help imports nothing.
COMMANDS = {
    "bench": ("bench", "Measure this machine: verdict latency stage by stage, start with a large gallery."),
    "cloud": ("cloud", "The reference server of the cloud: serve it, manage tenants, keys and devices."),
    "config": ("config", "Show, check and change the configuration file of this device."),
    "dbd": ("dbd", "A validator for the other end of the cable."),
    "demo": ("demo", "Everything at once on one machine: enrol, pass, refuse, erase."),
    "enrol": ("enrol", "Enrol a person here: code, consent on this terminal, both palms."),
    "doctor": ("doctor", "Look at everything that a gate needs, and say what to do about what is wrong."),
    "evaluate": ("evaluate", "How well the model tells palms apart, on a folder of pictures."),
    "factory-reset": ("factory_reset", "Destroy keys, gallery and journal of this device."),
    "keys": ("keys", "Keys of this device as encrypted credentials of systemd."),
    "link": ("link", "The cable: a virtual pair, a monitor."),
    "logs": ("logs", "What the daemons have said, as journald keeps it."),
    "model": ("model", "The palm model: look at one as a device does, install a signed one."),
    "pass": ("trial_pass", "One supervised passage, or a rehearsal of one: every stage's time and score."),
    "preview": ("preview", "What the camera sees, as a page on this machine: outline, quality, guidance."),
    "provision": ("provision", "Make this board a device of a tenant: keys, registration, pinned trust."),
    "status": ("status", "What the daemon is doing now."),
    "totem": ("totem", "The enrolment screen of a totem, as a page on this machine."),
    "update": ("update", "Releases on this device: where they stand, one from a stick, the way back."),
    "support-bundle": ("support_bundle", "Gather what helps from afar, without secrets and without people."),
}

ELSEWHERE = {
    "cloud": "tools.cloud.command",
    "dbd": "tools.kit.commands.dbd",
    "demo": "tools.rig.commands.demo",
    "evaluate": "tools.rig.commands.evaluate",
    "link": "tools.kit.commands.link",
}


SERVER_EXTRA = frozenset({"jinja2", "prometheus_client", "psycopg", "pydantic", "starlette", "uvicorn"})
"""What a device does not install, because only the reference server needs it."""


_WANTS_JSON = "tools.palmctl.main.wants_json"


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run."""

    def main(self, *args: Any, **extra: Any) -> Any:
        with reported():  # for what happens before a command runs: --help may go into a closed pipe
            return super().main(*args, **extra)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        wants_json = "--json" in takewhile(lambda word: word != "--", args)
        with reported(as_json=wants_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WANTS_JSON] = wants_json
        if is_plain():
            context.color = False  # of every command below as well: click takes all that is styled away
        return context

    def invoke(self, ctx: click.Context) -> object:
        with reported(as_json=ctx.meta[_WANTS_JSON]):
            return self._invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {name!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def _invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name not in SERVER_EXTRA:
                raise
            raise click.ClickException(
                f"this command needs the reference server, and {error.name} is not installed here: the "
                "package of a device leaves the server out; run the command from a checkout of the project, "
                "where `make demo` installs all of it from the lock"
            ) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        name = COMMANDS[cmd_name][0]
        module = import_module(ELSEWHERE.get(cmd_name, f"tools.palmctl.commands.{name}"))
        command = getattr(module, name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__} holds no command {cmd_name}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in sorted(COMMANDS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="palm-access-device")
def main() -> None:
    """Provision, diagnose and try out palm access devices."""


if __name__ == "__main__":
    main()
