"""`palmctl cloud backup`: a consistent copy of the database while servers run."""

from pathlib import Path

import click

from tools.cloud.store import echo, on_data


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@on_data
def backup(*, file: Path, data: Path, database: str | None, as_json: bool) -> None:
    """Copy the database of a SQLite store into FILE, which must not be there yet.

    Servers go on reading and writing meanwhile. The keys in secrets/ are not in the copy.
    """
    from cloud_client.reference_server.ops.backup import copy_database
    from cloud_client.reference_server.ops.data_directory import DataDirectory

    copied = copy_database(DataDirectory.of(data, database).database, file)
    echo({"file": str(file), "bytes": copied.size, "sha256": copied.sha256}, as_json=as_json)
