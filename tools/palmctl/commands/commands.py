"""`palmctl commands`: every command with its options, for programs that call them."""

import inspect
import json
import re
from typing import Any

import click

from tools.palmctl.groups import first_sentence, walk

_EXIT_CODES = re.compile(r"^Exit codes? (?P<codes>.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
_ONE_CODE = re.compile(
    r"(?P<codes>\d+(?:(?: or |, )\d+)*): (?P<means>.*?)(?=\.? \d+(?:(?: or |, )\d+)*: |\Z)", re.DOTALL
)
EXIT_CODES = {
    "0": "done",
    "1": "failed",
    "2": "wrong usage",
    "3": "not provisioned or not reachable",
    "4": "not permitted to this user",
}
"""Of every command whose help does not say otherwise."""


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with options, types and exit codes."
)
@click.pass_context
def commands(context: click.Context, *, as_json: bool) -> None:
    """List every command that is installed here."""
    root = context.find_root()
    found = [
        (command, under)
        for command, under in walk(root.command, root)
        if not isinstance(command, click.Group) or command.invoke_without_command
    ]
    if as_json:
        told = [_described(command, under) for command, under in found]
        click.echo(json.dumps({"commands": told}, ensure_ascii=False))
        return
    for command, under in found:
        click.echo(f"{under.command_path}: {first_sentence(command)}")


def _described(command: click.Command, context: click.Context) -> dict[str, Any]:
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    parameters = command.get_params(context)
    return {
        "name": context.info_name,
        "path": context.command_path.split()[1:],
        "help": text,
        "arguments": [_parameter(one) for one in parameters if isinstance(one, click.Argument)],
        "options": [_parameter(one) for one in parameters if isinstance(one, click.Option)],
        "exit_codes": _exit_codes(text),
    }


def _parameter(one: click.Parameter) -> dict[str, Any]:
    """`type`: boolean for a flag, else click's name of the type; `choices` and bounds where it has them."""
    told: dict[str, Any] = {
        "names": [*one.opts, *one.secondary_opts]
        if isinstance(one, click.Option)
        else [one.human_readable_name],
        "type": one.type.name,
        "required": one.required,
        "repeated": one.nargs == -1 or one.multiple,
    }
    match one.type:
        case click.Choice():
            told["choices"] = [str(choice) for choice in one.type.choices]
        case click.IntRange() | click.FloatRange():
            told |= {"least": one.type.min, "most": one.type.max}
    if isinstance(one, click.Option):
        default = one.to_info_dict()["default"]
        told |= {
            "default": default if isinstance(default, bool | int | float | str) else None,
            "help": one.help or "",
        }
    return told


def _exit_codes(text: str) -> dict[str, str]:
    """What the help says about exit codes, over what holds for every command."""
    told = _EXIT_CODES.search(text)
    if told is None:
        return EXIT_CODES
    said = " ".join(told["codes"].split())
    own = {
        code: " ".join(one["means"].split()).rstrip(".")
        for one in _ONE_CODE.finditer(said)
        for code in re.findall(r"\d+", one["codes"])
    }
    return EXIT_CODES | own
