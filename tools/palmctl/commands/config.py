"""`palmctl config …`: what the configuration file says, whether it can be used, and changing it."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tools.palmctl.groups import WholeHelpGroup
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _

if TYPE_CHECKING:
    from device.config.change import Changed

_NOTHING_CHANGED = marked("nothing was changed:")
_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd."
)


@click.group(cls=WholeHelpGroup)
def config() -> None:
    """Show, check and change the configuration file of this device."""


def _members_like(_context: click.Context, _argument: click.Parameter, begun: str) -> list[CompletionItem]:
    """For a shell's completion: the members of the configuration, each with what it is for."""
    from device.config.config import MEMBERS

    says = {f"{section}.{name}": each.says for section, of in MEMBERS.items() for name, each in of.items()}
    return [CompletionItem(name, help=says[name]) for name in says if name.startswith(begun)]


@config.command()
@click.option("--defaults", is_flag=True, help="Every member with its default and what it is for instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_CONFIG
def show(*, config: Path | None, defaults: bool, as_json: bool) -> None:
    """Print the configuration in force: what the file says, and the defaults where it says nothing."""
    from device.config.config import config_path, defaults_text, load_config, render_config

    if defaults:
        click.echo(json.dumps(_members()) if as_json else defaults_text(_))
        return
    path = config_path(config)
    found = load_config(path)
    if as_json:
        click.echo(json.dumps(as_obj(found) | {"config": str(path)}, ensure_ascii=False))
        return
    body = render_config(found).partition("\n")[2].lstrip("\n")
    click.echo(_(f"# {path}, with the defaults") + f"\n{body}", nl=False)


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_CONFIG
def check(*, config: Path | None, as_json: bool) -> None:
    """Say everything that is wrong with the file at once, each with its line.

    Exit code 0: it can be used. 1: it cannot. 3: there is none. 4: this user may not read it.
    """
    from device.config.config import config_path, parse_config, read_config_file
    from device.errors import ConfigError

    path = config_path(config)
    data = read_config_file(path)
    problems: tuple[str, ...] = ()
    try:
        parse_config(data, path)
    except ConfigError as error:
        problems = error.problems
    if as_json:
        click.echo(json.dumps({"config": str(path), "usable": not problems, "problems": problems}))
    elif problems:
        found = (_(f"{path} cannot be used:"), *map(_, problems))
        click.echo("palmctl: " + "\n".join(found), err=True)
        # `config set` changes one member, and refuses what leaves the file wrong.
        member = _member_named_in(problems[0]) if len(problems) == 1 else None
        named = "" if config is None else f" --config {shlex.quote(str(config))}"
        if member is not None:
            click.echo(_(f"Correct this line, or use: palmctl config set {member} VALUE{named}"), err=True)
        else:
            advice = _(f"Correct these lines with an editor, then run: palmctl config check{named}")
            click.echo(advice, err=True)
    else:
        click.echo(_(f"{path} can be used"))
    if problems:
        sys.exit(1)


def _member_named_in(problem: str) -> str | None:
    """The member of the configuration that a problem is about, as `config set` takes it."""
    from device.config.config import MEMBERS

    named = ((section, name) for section, names in MEMBERS.items() for name in names)
    return next((f"{one}.{name}" for one, name in named if f": [{one}] {name}: " in problem), None)


@config.command("set")
@click.argument("member", metavar="SECTION.MEMBER", shell_complete=_members_like)
@click.argument("value")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_CONFIG
def set_member(*, member: str, value: str, config: Path | None, as_json: bool) -> None:
    """Change one member of the file; its comments and everything else stay.

    The whole file is checked with the change before it is replaced, at once. The daemons take it at their
    next start.

    \b
    palmctl config set camera.source v4l2:by-id/usb-Maker_Camera-video-index0
    palmctl config set enrolment.hands '["L"]'
    """
    from device.config.config import config_path
    from tools.palmctl.alone import alone_at

    path = config_path(config)
    if "." not in member:
        raise click.UsageError("name the member as SECTION.MEMBER, such as camera.fps")
    with alone_at(path):
        changed, is_new = _change(path, member, value)
    if as_json:
        told = {"config": str(path), "member": member, "before": changed.before, "after": changed.after}
        click.echo(json.dumps(told | {"restart_needed": is_new}))
        return
    if not is_new:
        click.echo(_(f"{member} is {changed.after} already"))
        return
    click.echo(_(f"{member} = {changed.after} (before: {changed.before or _('the default')})"))
    click.echo(_("The daemons take it when they start: systemctl restart palmd palm-syncd"), err=True)


def _change(path: Path, member: str, value: str) -> "tuple[Changed, bool]":
    """Change the file; also whether its text is another now."""
    from device.config.change import change_member
    from device.config.config import read_config_file, read_toml
    from device.errors import ConfigError
    from device.platform.files import replace_named
    from tools.palmctl.errors import OtherDevice

    data = read_config_file(path)
    try:
        text, _lines = read_toml(data, path)
        changed = change_member(text, path, member, value)
        _same_device(changed.config)
    except ConfigError as error:
        raise ConfigError((_NOTHING_CHANGED, *error.problems)) from error
    except OtherDevice as error:
        raise OtherDevice(f"{_NOTHING_CHANGED}\n{error}") from error
    if changed.text == text:
        return changed, False
    target = path.resolve()  # a link stays, and leads to the changed file
    owner = target.stat()
    replace_named(target, changed.text.encode("utf-8"), mode=owner.st_mode & 0o777)
    _keep_owner(target, owner.st_uid, owner.st_gid)
    return changed, True


def _same_device(config: Any) -> None:
    """A device that calls itself otherwise than it was registered would not start."""
    from device.errors import DeviceError
    from device.trust.trust import load_trust
    from tools.palmctl.errors import OtherDevice

    try:
        trust = load_trust(config.trust_path)
    except DeviceError:
        return  # not provisioned, or not readable by this user: palmd --check and the doctor report it
    wanted = (config.device.id, config.device.gate_id, config.device.dbd_id)
    if wanted != (trust.device_id, trust.gate_id, trust.dbd_id):
        raise OtherDevice(
            f"this device is registered as {trust.device_id} at {trust.gate_id} with {trust.dbd_id}, "
            "and starts under no other name; to move it: palmctl factory-reset, have it revoked, then "
            "palmctl provision"
        )


def _keep_owner(path: Path, uid: int, gid: int) -> None:
    import contextlib
    import os

    with contextlib.suppress(PermissionError):  # who may write the folder but not give files away
        os.chown(path, uid, gid)


def as_obj(found: Any) -> dict[str, Any]:
    """A configuration in force as an object of JSON."""
    from device.config.config import MEMBERS

    told: dict[str, Any] = {}
    for section, names in MEMBERS.items():
        held = getattr(found, section)
        told[section] = None if held is None else {name: _plain(getattr(held, name)) for name in names}
    return told


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _members() -> dict[str, Any]:
    from device.config.config import MEMBERS

    return {
        f"{section}.{name}": {
            "default": member.default_toml,
            "required": member.required,
            "expected": member.parse.expected,
            "says": member.says,
        }
        for section, members in MEMBERS.items()
        for name, member in members.items()
    }
