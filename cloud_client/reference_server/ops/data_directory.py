"""The directory in which a server keeps everything; operators' commands open the same one."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cloud_client.reference_server.domain.tenancy import persons, signers
from cloud_client.reference_server.errors import OperatorError, ServerError, StoreUnavailable
from cloud_client.reference_server.store.base import CloudStore, Database, Tx
from cloud_client.reference_server.store.engines import open_store
from cloud_client.reference_server.store.vault import Vault, key_in_force

_PROBE = b"is the key in force at hand?"


@contextlib.contextmanager
def alone(held: int, refusal: str) -> Iterator[None]:
    """Lock an open file, which is closed at the end. OperatorError with ``refusal`` when it is locked."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OperatorError(refusal) from None
    else:
        yield
    finally:
        os.close(held)


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Where a server keeps everything: the database and ``secrets/``."""

    path: Path
    database: Database = field(repr=False)  # a URL may hold a password

    @classmethod
    def of(cls, path: Path, database: str | None = None) -> "DataDirectory":
        """``cloud.db`` and ``secrets/`` in ``path``; ``database`` puts the former elsewhere."""
        if database is None:
            return cls(path, path / "cloud.db")
        if database.startswith("sqlite:///"):
            return cls(path, Path(database.removeprefix("sqlite:///")))
        if database.startswith(("postgresql://", "postgres://")):
            return cls(path, database)
        raise OperatorError(
            "--database takes postgresql://… or sqlite:///PATH; leave it out for cloud.db in --data"
        )

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Be the one server process on a SQLite file. OperatorError when there is another.

        Commands that work on the store next to a server do not ask for this. PostgreSQL takes several.
        """
        if not isinstance(self.database, Path):
            yield
            return
        file = Path(os.path.realpath(self.database))  # to SQLite too, a link to it is no other file
        path = file.with_name(f"{file.name}.server")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OperatorError(
                f"{path} cannot be made ({error.strerror}): give --data a directory of your own"
            ) from error
        # On a separate file: closing any descriptor of the database drops SQLite's locks on it.
        with alone(
            held,
            f"another server is serving {self.database}: stop it first, or give this one another --data; "
            "several servers side by side need PostgreSQL (--database postgresql://…)",
        ):
            yield

    def open(self, now_ms: int) -> tuple[CloudStore, Vault]:
        """Store and keys, made on first use. OperatorError when the directory cannot be used."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        store = open_store(self.database)
        try:
            # The files are made while the lock is held: who comes next finds the signers and the files.
            with store.writing() as tx:
                vault = self._keys(tx)
                _check_keys(tx, vault)
                _check_marks(tx, vault)
                persons.finish_upgrade(tx, vault)
                signers.ensure(tx, vault, now_ms)
        except BaseException:
            store.close()
            raise
        return store, vault

    def _keys(self, tx: Tx) -> Vault:
        """Made where the store is new. Else a file that is lost must come back: another key in its place
        would find no person again, or be a root that no device pins."""
        secrets = self.path / "secrets"
        try:
            if tx.exists("SELECT 1 FROM signers"):
                return Vault.open(secrets, key_in_force(tx))
            return Vault.make(secrets)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> OperatorError:
        return OperatorError(
            f"{self.path} cannot be used ({error.strerror}): give --data a directory of your own"
        )


def _check_keys(tx: Tx, vault: Vault) -> None:
    """OperatorError when ``secrets/`` belongs to another database (a second server with other keys)."""
    row = tx.one("SELECT kid, seed_ct FROM signers LIMIT 1")
    if row is None:
        return
    try:
        vault.kms.unwrap(row["seed_ct"], row["kid"].encode())
        key_id = key_in_force(tx)
        vault.kms.unwrap(vault.kms.wrap_under(key_id, _PROBE, _PROBE), _PROBE)
    except StoreUnavailable:
        raise
    except ServerError:
        raise OperatorError(
            "the keys in secrets/ of --data are not those that this database was made with: "
            "copy secrets/ from the first server's data directory, or from the backup"
        ) from None


def _check_marks(tx: Tx, vault: Vault) -> None:
    """OperatorError when a key is not the one that the database was used with; a store of before notes it."""
    known = {row["name"]: row["mark"] for row in tx.all("SELECT name, mark FROM key_marks")}
    for name, mark in vault.marks().items():
        if name not in known:
            tx.run("INSERT INTO key_marks (name, mark) VALUES (:name, :mark)", name=name, mark=mark)
        elif known[name] != mark:
            raise OperatorError(
                f"secrets/{name} of --data is not the one that this database is in use with: "
                "copy secrets/ from the first server's data directory, or from the backup"
            )
