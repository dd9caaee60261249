"""`palmctl model`: look at a model as a device does before it starts on it, and install a signed one."""

import json
from pathlib import Path
from typing import Any

import click

from tools.palmctl.commands.update import in_json, show_taken, with_config
from tools.palmctl.groups import WholeHelpGroup
from tools.palmctl.language import translated as _


@click.group(cls=WholeHelpGroup)
def model() -> None:
    """The palm model: look at one, install a signed one."""


@model.command()
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@in_json
def check(folder: Path | None, as_json: bool) -> None:
    """Check the model in FOLDER (default: the shipped model) as a device does.

    Every file's SHA-256, the network's input and output, and its answer to a known crop. Exit code 0: a
    device would start on it. 1: it would not, and why.
    """
    from models.manifest import load_manifest, open_embedder, shipped_model_dir

    manifest = load_manifest(folder or shipped_model_dir())
    open_embedder(manifest)
    thresholds = manifest.thresholds
    told: dict[str, Any] = {
        "model_id": manifest.model_id,
        "thr_id": thresholds.thr_id,
        "accept_q": thresholds.accept_q,
        "margin_q": thresholds.margin_q,
        "agree_q": manifest.agree_q,
        "files": [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in manifest.files],
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    for name in ("model_id", "thr_id", "accept_q", "margin_q", "agree_q"):
        click.echo(f"{name:<10}{told[name]}")
    for file in manifest.files:
        click.echo(f"{_('file'):<10}{file.name}, {file.size} bytes, sha256 {file.sha256}")
    click.echo(f"{_('answer'):<10}{_('as it must be')}")


@model.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_config
@in_json
def install(file: Path, config: Path | None, as_json: bool) -> None:
    """Hand the signed model in FILE to the daemon, which judges it as it judges mail.

    `palmctl cloud release create --kind model` makes such a file. A model with another model_id waits for a
    gallery epoch made with it, and both come into force together. The same as `palmctl update apply`, for
    models only.

    Exit code 0: taken. 1: refused, or it has failed. 3: no daemon answers. 4: this user may not ask it.
    """
    from device.updates.manifest import ReleaseKind
    from tools.palmctl.release_file import read_release

    release = read_release(file)
    if release.manifest.kind is not ReleaseKind.MODEL:
        raise click.ClickException(f"{file} is a release of the software; use: palmctl update apply {file}")
    show_taken(release, config, as_json=as_json)
