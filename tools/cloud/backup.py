"""`palmctl cloud backup`: a consistent copy of the database while servers run."""

import json
from pathlib import Path
from typing import Any

import click

from tools.cloud.store import on_data, reported


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@on_data
@reported
def backup(*, file: Path, data: Path, database: str | None, as_json: bool) -> None:
    """Copy the database of a SQLite store into FILE, which must not be there yet.

    Servers go on reading and writing meanwhile. The keys in secrets/ are not in the copy.
    """
    from cloud_client.reference_server.ops.backup import copy_database
    from cloud_client.reference_server.ops.data_directory import DataDirectory

    copied = copy_database(DataDirectory.of(data, database).database, file)
    printed: dict[str, Any] = {"file": str(file), "bytes": copied.size, "sha256": copied.sha256}
    if as_json:
        click.echo(json.dumps(printed))
        return
    for name, value in printed.items():
        click.echo(f"{name}: {value}")
