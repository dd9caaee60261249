"""Bringing a database up to the schema of this version."""

from typing import Final

from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import CloudStore, Tx
from cloud_client.reference_server.store.schema import ENGINE_MIGRATIONS, MIGRATIONS

VERSION_TABLE: Final = "schema_version"


def migrate(store: CloudStore) -> None:
    """Apply what is missing, in one transaction; nothing is written when nothing is.

    OperatorError for a database that a newer version of the server has migrated.
    """
    with store.reading() as tx:
        version = _version(store, tx)
    if version == len(MIGRATIONS):
        return
    with store.writing() as tx:
        migrate_within(store, tx)


def migrate_within(store: CloudStore, tx: Tx) -> None:
    """Apply what is missing in a transaction that holds the whole database."""
    # Another process may have come first.
    version = _version(store, tx)
    if version > len(MIGRATIONS):
        raise OperatorError(
            f"the database has schema version {version}, this server knows {len(MIGRATIONS)}: "
            "run the newer version, or restore the backup that was made before the upgrade"
        )
    if store.engine == "postgresql":
        # A server's statements have a limit; an index over a year of verdicts takes longer.
        tx.run("SET LOCAL statement_timeout = 0")
    if version == 0:
        tx.run(f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER NOT NULL)")
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        for statement in statements:
            tx.run(store.dialect(statement))
        for statement in ENGINE_MIGRATIONS[store.engine].get(number, ()):
            tx.run(statement)
        tx.run("INSERT INTO schema_version (version) VALUES (:number)", number=number)


def _version(store: CloudStore, tx: Tx) -> int:
    if not store.has_table(tx, VERSION_TABLE):
        return 0
    return int(tx.scalar("SELECT coalesce(max(version), 0) FROM schema_version"))
