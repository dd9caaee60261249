"""`palmctl cloud release`: releases packed and signed, and rolled out to devices in waves."""

import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from link1.plain_file import check_replaceable
from tools.cloud.store import Command, echo, of_environment, on_data, opened_store
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment
    from cloud_client.reference_server.store.base import Tx
    from cloud_client.reference_server.store.vault import Vault
    from link1.canonical import JsonObject

_MAX_SEQ = 2**53 - 1


@click.group(cls=WholeHelpGroup)
def release() -> None:
    """Software and models for devices: make a release, and roll it out in waves."""


def _version_numbers(_: click.Context, __: click.Parameter, text: str) -> str:
    from device.updates.manifest import version_numbers

    if version_numbers(text) is None:
        raise click.BadParameter(
            "expected numbers with dots between them, like 0.2.0, as devices compare them"
        )
    return text


@release.command("create")
@click.option("--kind", type=click.Choice(["app", "model"]), required=True)
@click.option(
    "--from",
    "folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A model folder, or the environment of an installed software.",
)
@click.option("--name", metavar="N", help="[default: palm-access-device, or the model's id]")
@click.option("--version", "version_", metavar="V", help="[default: what the software says of itself]")
@click.option("--min-app-version", callback=_version_numbers, default="0.0.1", show_default=True, metavar="V")
@click.option(
    "--release-seq",
    type=click.IntRange(1, _MAX_SEQ),
    help="Above every other of the environment.  [default: seconds of now]",
)
@click.option(
    "--device-id", "device_ids", multiple=True, metavar="D", help="Queue it to this device by mail."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a file for a stick.")
@of_environment
@on_data
def release_create(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    environment: "Environment",
    kind: str,
    folder: Path,
    name: str | None,
    version_: str | None,
    min_app_version: str,
    release_seq: int | None,
    device_ids: tuple[str, ...],
    out: Path | None,
) -> None:
    """Make a release of a model or of the software; nobody is offered it yet.

    Follow with `palmctl cloud release rollout`, which offers it in waves. Where devices are named it is put
    into their inboxes (manifest first, then its chunks); cut off before the end, make another release. --out
    writes a file for `palmctl update apply`. A model of another model_id takes effect together with a gallery
    epoch made with it: follow with `palmctl cloud epoch new --model-id ID --enrol-again`.
    """
    from cloud_client.reference_server.domain.devices import releases
    from cloud_client.reference_server.ops import commands as operator
    from cloud_client.reference_server.ops import mail_send as sending
    from device.updates.manifest import ReleaseKind
    from tools.cloud.pack_release import give_name, manifest_obj, write_release
    from tools.palmctl.live_terminal import live_line

    if out is not None:
        if not out.name:
            raise click.BadParameter("the name of the file is empty", param_hint="--out")
        check_replaceable(out)
    aside = None if out is None else out.with_name(f"{out.name}.part")
    with live_line() as tell:
        tell(f"packing {folder} …")
        payload, own_name, own_version = _packed(kind, folder)
    own = {"name": name or own_name, "version": version_ or own_version}
    if kind == "app" and own != {"name": own_name, "version": own_version}:
        raise click.UsageError(
            f"this is {own_name} {own_version}, and devices refuse a software that is given another name or "
            "version: leave out --name and --version"
        )

    def work(tx: Any, vault: Any, now_ms: int) -> dict[str, Any]:
        operator.check_environment(tx, environment)
        for device_id in device_ids:
            sending.mailable_device(tx, environment, device_id)
        obj = manifest_obj(
            payload,
            kind=ReleaseKind(kind),
            name=own["name"],
            version=own["version"],
            min_app_version=min_app_version,
            release_seq=releases.next_seq(tx, environment, release_seq, now_ms),
        )
        model_id = own_name if kind == "model" else None
        signed = sending.sign_manifest(tx, vault, obj, now_ms)
        releases.create(tx, environment, obj, payload, model_id=model_id, now_ms=now_ms)
        if aside is not None:
            write_release(aside, signed, payload)
        return obj

    with opened_store(data, database) as (store, vault, now_ms):
        try:
            with store.writing() as tx:
                obj = work(tx, vault, now_ms)
            # The file has its name only once the release is committed: devices would take it from a stick.
            if out is not None and aside is not None:
                give_name(aside, out)
        finally:
            if aside is not None:
                aside.unlink(missing_ok=True)
        with live_line() as tell:
            mailed = [
                sending.send_all(
                    store,
                    vault,
                    environment,
                    device_id,
                    _letters(obj, payload),
                    now_ms=now_ms,
                    on_step=partial(_tell_mailed, tell, device_id, obj["chunk_count"] + 1),
                )
                for device_id in device_ids
            ]
    told = {
        key: obj[key] for key in ("release_seq", "kind", "name", "version", "size", "sha256", "chunk_count")
    }
    echo({**told, "devices": mailed, "out": out and str(out)}, as_json=as_json)


def _letters(manifest: "JsonObject", payload: bytes) -> Iterator[tuple[str, bytes]]:
    """What is mailed of a release: its manifest, then its chunks."""
    from link1.canonical import canonical_bytes
    from tools.cloud.pack_release import chunk_bodies

    yield "svc.update.manifest", canonical_bytes(manifest)
    for body in chunk_bodies(payload, manifest["release_seq"]):
        yield "svc.update.chunk", canonical_bytes(body)


def _tell_mailed(tell: Callable[[str], None], device_id: str, total: int, count: int) -> None:
    tell(f"{device_id}: record {count} of {total}")


def _waves(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) <= 3 for word in words):
        raise click.BadParameter("expected whole percentages with commas between them, like 1,10,50,100")
    return tuple(int(word) for word in words)


_SECONDS = click.IntRange(0, 365 * 24 * 3600)


def _of_rollout(move: Callable[..., "Callable[[Tx], bool] | None"]) -> Command:
    """A command that moves a rollout and prints how far it is then.

    ``move`` answers with what is left to do, if anything: work for one transaction after another, until it
    returns False. The move itself is committed before, so that servers follow it at once.
    """

    @click.argument("release_seq", type=click.IntRange(1, _MAX_SEQ))
    @click.option("--devices", is_flag=True, help="Name the devices.")
    @of_environment
    @on_data
    @wraps(move)
    def command(
        *,
        data: Path,
        database: str | None,
        as_json: bool,
        environment: "Environment",
        release_seq: int,
        devices: bool,
        **given: Any,
    ) -> None:
        from cloud_client.reference_server.domain.devices import rollouts
        from cloud_client.reference_server.ops.retention import PAUSE_S

        with opened_store(data, database) as (store, vault, now_ms):
            with store.writing() as tx:
                unfinished = move(tx, vault, environment, release_seq, now_ms, **given)
            while unfinished is not None and store.write(unfinished, lock=environment.tenant_id):
                time.sleep(PAUSE_S)
            with store.reading() as tx:
                shown = rollouts.status(tx, environment, release_seq, now_ms, with_devices=devices)
        echo(shown, as_json=as_json)

    return command


@release.command("rollout")
@click.option(
    "--waves",
    callback=_waves,
    default="1,10,50,100",
    show_default=True,
    metavar="P,…",
    help="Percent of devices.",
)
@click.option(
    "--soak-s", type=_SECONDS, default=3600, show_default=True, help="How long a wave is open at least."
)
@click.option(
    "--silence-s", type=_SECONDS, default=900, show_default=True, help="A device may be silent for so long."
)
@click.option(
    "--mail-after-s",
    type=_SECONDS,
    default=3600,
    show_default=True,
    help="A device that mail reaches, and that was not on the network for so long, is sent it by mail.",
)
@_of_rollout
def release_rollout(
    tx: "Tx", _: "Vault", environment: "Environment", release_seq: int, now_ms: int, /, **plan: Any
) -> None:
    """Offer a release to the devices of an environment, wave by wave."""
    from cloud_client.reference_server.domain.devices import rollouts

    rollouts.start(tx, environment, release_seq, rollouts.RolloutPlan(**plan), now_ms)


@release.command("status")
@_of_rollout
def release_status(*_: object) -> None:
    """Print how far a rollout is."""


@release.command("pause")
@_of_rollout
def release_pause(tx: "Tx", _: "Vault", environment: "Environment", release_seq: int, __: int, /) -> None:
    """Offer a release to nobody new until `release resume`."""
    from cloud_client.reference_server.domain.devices import rollouts

    rollouts.pause(tx, environment, release_seq)


@release.command("resume")
@_of_rollout
def release_resume(
    tx: "Tx", _: "Vault", environment: "Environment", release_seq: int, now_ms: int, /
) -> None:
    """Go on with a rollout that is paused or halted; devices that are bad now are left out of all counts."""
    from cloud_client.reference_server.domain.devices import rollouts

    rollouts.resume(tx, environment, release_seq, now_ms)


@release.command("halt")
@_of_rollout
def release_halt(
    tx: "Tx", vault: "Vault", environment: "Environment", release_seq: int, now_ms: int, /
) -> "Callable[[Tx], bool]":
    """Offer a release to no device any more, and take back what is not delivered."""
    from cloud_client.reference_server.domain.devices import rollouts

    rollouts.halt(tx, environment, release_seq)
    return lambda tx: rollouts.take_back(tx, vault, environment, now_ms)


def _packed(kind: str, folder: Path) -> tuple[bytes, str, str]:
    """The payload, and the name and version that it states."""
    from device import APP_PACKAGE
    from models.manifest import load_manifest
    from tools.cloud.pack_release import pack_app, pack_model

    if kind == "app":
        payload = pack_app(folder)
        return (
            payload,
            APP_PACKAGE,
            (folder / "VERSION").read_text(encoding="ascii", errors="replace").strip(),
        )
    model_id = load_manifest(folder).model_id
    return pack_model(folder), model_id, model_id
