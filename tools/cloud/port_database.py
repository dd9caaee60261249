"""`palmctl cloud port-db`: from SQLite to PostgreSQL."""

import json
from pathlib import Path

import click

from tools.cloud.store import in_json, reported


@click.command("port-db")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The data directory whose cloud.db is moved; its server must be stopped.",
)
@click.option("--database", required=True, metavar="URL", help="postgresql://… of an empty database.")
@in_json
@reported
def port_db(*, data: Path, database: str, as_json: bool) -> None:
    """Copy a SQLite store into an empty PostgreSQL database, and prove that nothing was lost."""
    from cloud_client.reference_server.errors import OperatorError
    from cloud_client.reference_server.ops.data_directory import DataDirectory
    from cloud_client.reference_server.ops.port import port

    target = DataDirectory.of(data, database).database
    if isinstance(target, Path):
        raise OperatorError("--database takes the postgresql:// URL to move to")
    proofs = port(data / "cloud.db", target)
    if as_json:
        tables = {name: {"rows": proof.rows, "sha256": proof.sha256} for name, proof in proofs.items()}
        click.echo(json.dumps({"rows": sum(proof.rows for proof in proofs.values()), "tables": tables}))
        return
    for name, proof in sorted(proofs.items()):
        click.echo(f"{name}: {proof.rows} rows, sha256 {proof.sha256}")
    click.echo("Every row was read back from the target. From now on serve with --data and --database.")
