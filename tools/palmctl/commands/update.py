"""`palmctl update`: the state of releases on this device, a release from a stick, the way back."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from device.config.config import config_path, load_config
from device.platform.ipc import ANSWER_WITHIN_S, IpcClient, ask_core
from device.values.control import ChunkGiven, DeviceNamed, UpdatesAnswer
from device.values.status import ReportedRelease, UpdatesInForce, UpdatesStatus
from tools.palmctl.groups import WholeHelpGroup
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _
from tools.palmctl.live_terminal import is_live

if TYPE_CHECKING:
    from tools.palmctl.release_file import ReleaseFile

_CHUNK_WITHIN_S = 60.0
"""The first chunk of a large release waits until the disk has made room for it."""

with_config = click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd."
)
in_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=WholeHelpGroup)
def update() -> None:
    """Releases of software and models on this device."""


@update.command()
@with_config
@in_json
def status(config: Path | None, as_json: bool) -> None:
    """The state of updates: what is in force, what is coming, what failed.

    Exit code 0: fine. 1: the newest release failed, or updates cannot be taken. 3: no daemon answers.
    4: this user may not ask it.
    """
    told = _ask(config, "update.status", within_s=ANSWER_WITHIN_S)
    show(told, as_json=as_json)
    sys.exit(0 if told.state is not None and told.state.failed is None else 1)


@update.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_config
@in_json
def apply(file: Path, config: Path | None, as_json: bool) -> None:
    """Hand the release in FILE to the daemon, which judges it as it judges mail.

    Interrupted, it goes on where it was when it is called again. The daemon tests the release and switches by
    itself; see `palmctl update status`.

    Exit code 0: taken. 1: refused, or it has failed. 3: no daemon answers. 4: this user may not ask it.
    """
    from tools.palmctl.release_file import read_release

    show_taken(read_release(file), config, as_json=as_json)


@update.command()
@click.option("--app", "software", is_flag=True, help="The software; the model otherwise.")
@with_config
@in_json
def rollback(software: bool, config: Path | None, as_json: bool) -> None:
    """Go back to the model before the present one, where the gallery allows it. For root.

    The software goes back with `sudo palm-access-rollback`, which works without any daemon.
    """
    if software:
        raise click.ClickException("the software goes back with: sudo palm-access-rollback")
    device_id = load_config(config_path(config)).device.id
    show(_ask(config, "update.rollback", **DeviceNamed(device_id).to_obj()), as_json=as_json)


def show_taken(release: "ReleaseFile", config: Path | None, *, as_json: bool) -> None:
    """Hand a release to the daemon and print how updates are then; exit code 1 when it has failed."""
    told = take(release, config)
    show(told, as_json=as_json)
    failed = told.state.failed if told.state is not None else None
    sys.exit(1 if failed is not None and failed.release_seq == release.manifest.release_seq else 0)


def take(release: "ReleaseFile", config: Path | None) -> UpdatesStatus:
    """Hand a release to the daemon; how updates are then."""
    payload = json.dumps(release.manifest.wrapper, ensure_ascii=False).encode("utf-8")
    told = _ask(config, "update.manifest", payload=payload)
    receiving = told.state.receiving if told.state is not None else None
    if receiving is not None and receiving.release_seq == release.manifest.release_seq:
        _hand_over(release, config)
        told = _ask(config, "update.status")
        _check_kept(release, told)
        return told
    click.echo(_(f"release {release.manifest.release_seq} was taken before"), err=True)
    return told


def _check_kept(release: "ReleaseFile", told: UpdatesStatus) -> None:
    """A daemon receives one release at a time, and passes over chunks of a release that was replaced."""
    from tools.palmctl.errors import ReleaseError

    seq = release.manifest.release_seq
    known = () if told.state is None else told.state.releases
    if all(one.release_seq != seq or one.state == "withdrawn" for one in known):
        raise ReleaseError(
            f"release {seq} was not taken: another release came meanwhile and took its place; look at "
            "`palmctl update status`, and hand over one after the other, the lower release_seq first"
        )


def lines(told: UpdatesStatus) -> list[str]:
    """The state of updates for a person, a fact a line."""
    state = told.state
    if state is None:
        return [f"{_('software'):<10}{told.software}", _(f"no update is taken: {told.fault}")]
    model = state.model
    of = _origin(model.release_seq)
    trial = f", {_('on trial')}" if model.on_trial else ""
    rows = [
        (
            marked("newest"),
            _(f"release {state.release_seq}") if state.release_seq else _("none was ever taken"),
        ),
        (marked("software"), told.software),
        (marked("model"), f"{model.model_id}, {of}{trial}"),
    ]
    if model.previous is not None:
        rows.append((marked("before"), model.previous.model_id or _("the shipped model")))
    rows += [(marked("running"), _named(one)) for one in state.releases if one.state == "running"]
    rows += under_way(state)
    return [f"{_(name):<10}{text}" for name, text in rows]


def under_way(state: UpdatesInForce) -> list[tuple[str, str]]:
    """What is coming, or failed: a word and its text each."""
    waits, receiving, app, failed = state.model.waiting, state.receiving, state.app_waiting, state.failed
    rows = []
    if waits is not None:
        of = _origin(waits.release_seq)
        # Its vectors are the gallery's own: who began an epoch for it would have everyone enrol again.
        if waits.model_id == state.model.model_id:
            text = _(f"model {waits.model_id}, {of}: takes effect when no one passes")
        else:
            text = _(f"model {waits.model_id}, {of}: for its gallery epoch")
        rows.append((marked("waiting"), text))
    if receiving is not None:
        share = _(
            f"release {receiving.release_seq} {receiving.kind}: "
            f"{receiving.chunks} of {receiving.chunk_count} chunks"
        )
        rows.append((marked("receiving"), share))
    if app is not None:
        rows.append(
            (marked("arrived"), _(f"{app.version}, release {app.release_seq}: palm-update installs it"))
        )
    if failed is not None:
        rows.append((marked("failed"), f"{_(f'release {failed.release_seq}')} {failed.kind}: {failed.code}"))
    rows += [(one.state, _named(one)) for one in state.releases if one.state in ("trial", "withdrawn")]
    return rows


def _origin(release_seq: int) -> str:
    return _("shipped") if not release_seq else _(f"release {release_seq}")


def _named(release: ReportedRelease) -> str:
    return f"release {release.release_seq} {release.kind}"


def show(told: UpdatesStatus, *, as_json: bool) -> None:
    """Print how updates are, for people or as JSON."""
    click.echo(json.dumps(told.to_obj(), sort_keys=True) if as_json else "\n".join(lines(told)))


def _hand_over(release: "ReleaseFile", config: Path | None) -> None:
    """Every chunk in turn; those that are there already cost the daemon nothing."""
    socket = load_config(config_path(config)).control_socket
    seq, count = release.manifest.release_seq, release.manifest.chunk_count

    async def send() -> None:
        client = await IpcClient.connect(socket)
        try:
            with click.progressbar(
                release.chunks(),
                length=count,
                label=_("handing over"),
                file=sys.stderr,
                hidden=not is_live(sys.stderr),
            ) as chunks:
                for index, data in chunks:
                    given = ChunkGiven(seq, index).to_obj()
                    await client.call("update.chunk", data, timeout_s=_CHUNK_WITHIN_S, **given)
        finally:
            client.close()

    asyncio.run(send())


def _ask(
    config: Path | None,
    op: str,
    payload: bytes = b"",
    *,
    within_s: float = _CHUNK_WITHIN_S,
    **members: object,
) -> UpdatesStatus:
    socket = load_config(config_path(config)).control_socket
    answer = ask_core(socket, op, timeout_s=within_s, payload=payload, **members)
    return UpdatesAnswer.from_obj(answer.header).updates
