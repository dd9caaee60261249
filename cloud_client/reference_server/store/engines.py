"""Which engine a database is of: a connection to it, with its tables."""

from pathlib import Path

from cloud_client.reference_server.store.base import CloudStore, Database
from cloud_client.reference_server.store.migrations import migrate
from cloud_client.reference_server.store.sqlite import SqliteStore


def connect_store(database: Database) -> CloudStore:
    """A connection to a database whose tables are there. StoreUnavailable when there is none."""
    if isinstance(database, Path):
        return SqliteStore(database)
    # A server on SQLite does without the driver.
    from cloud_client.reference_server.store.postgresql import PostgresStore

    return PostgresStore(database)


def open_store(database: Database) -> CloudStore:
    """A connection to a database, made and migrated if necessary."""
    store = connect_store(database)
    try:
        migrate(store)
    except BaseException:
        store.close()
        raise
    return store
