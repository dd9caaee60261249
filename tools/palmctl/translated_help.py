"""Help texts in the language of the process."""

import copy
import inspect

import click

from tools.palmctl.language import is_english, translated


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
