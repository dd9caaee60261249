"""`palmctl cloud release`: a release packed, signed by the bundle signer, and queued or written to a file."""

from pathlib import Path
from typing import Any

import click

from tools.cloud.store import Work, environment_of, of_environment, on_store


@click.command()
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
@click.option("--min-app-version", default="0.0.1", show_default=True, metavar="V")
@click.option(
    "--release-seq", type=click.IntRange(1), help="Higher than any before.  [default: seconds of now]"
)
@click.option(
    "--device-id", "device_ids", multiple=True, metavar="D", help="Queue it to this device by mail."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a file for a stick.")
@of_environment
@on_store
def release(
    *,
    tenant: str,
    mode: str,
    kind: str,
    folder: Path,
    name: str | None,
    version_: str | None,
    min_app_version: str,
    release_seq: int | None,
    device_ids: tuple[str, ...],
    out: Path | None,
) -> Work:
    """Make a release of a model or of the software.

    It is packed, signed, and put into the inboxes of the devices named (manifest first, then its chunks), or
    written to a file for `palmctl update apply`, or both. A model of another model_id takes effect together
    with a gallery epoch made with it: follow with `palmctl cloud epoch new --model-id ID`.
    """
    from cloud_client.reference_server.ops import mail_send as sending
    from device.updates.manifest import ReleaseKind
    from link1.canonical import canonical_bytes
    from tools.cloud.pack_release import chunk_bodies, manifest_obj
    from tools.palmctl.release_file import write_release

    if not device_ids and out is None:
        raise click.UsageError("name at least one --device-id, or --out for a file")
    payload, own_name, own_version = _packed(kind, folder)

    def work(tx: Any, vault: Any, now_ms: int) -> dict[str, Any]:
        environment = environment_of(tenant, mode)
        obj = manifest_obj(
            payload,
            kind=ReleaseKind(kind),
            name=name or own_name,
            version=version_ or own_version,
            min_app_version=min_app_version,
            release_seq=release_seq or now_ms // 1000,
        )
        if out is not None:
            write_release(out, sending.sign_manifest(tx, vault, obj, now_ms), payload)
        devices = []
        for device_id in device_ids:
            content = canonical_bytes(obj)
            first = sending.send(
                tx, vault, environment, device_id, ("svc.update.manifest", content), now_ms=now_ms
            )
            last = first
            for body in chunk_bodies(payload, obj["release_seq"]):
                last = sending.send(
                    tx,
                    vault,
                    environment,
                    device_id,
                    ("svc.update.chunk", canonical_bytes(body)),
                    now_ms=now_ms,
                )
            devices.append({"device_id": device_id, "first_seq": first["seq"], "last_seq": last["seq"]})
        told = {key: obj[key] for key in ("kind", "name", "version", "size", "sha256", "chunk_count")}
        return {"release_seq": obj["release_seq"], **told, "devices": devices, "out": out and str(out)}

    return work


def _packed(kind: str, folder: Path) -> tuple[bytes, str, str]:
    """The payload, and the name and version that it states."""
    from device.updates.manifest import APP_NAME
    from models.manifest import load_manifest
    from tools.cloud.pack_release import pack_app, pack_model

    if kind == "app":
        payload = pack_app(folder)
        return payload, APP_NAME, (folder / "VERSION").read_text(encoding="ascii").strip()
    model_id = load_manifest(folder).model_id
    return pack_model(folder), model_id, model_id
