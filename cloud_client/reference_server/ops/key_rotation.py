"""Rotation of the key-management key while servers run.

The table ``wrapping_keys`` has every state that a rotation can be in. A rotation that was killed therefore
goes on with the next call:

1. A key is noted as ``next``, then made in ``secrets/`` (and in its token).
2. One transaction puts it in force: from its commit on every process wraps under it. The key until then is
   ``retiring``, and opens what it has wrapped.
3. Everything under another key is wrapped again, some rows at a time. No row is held while a token works.
4. When one transaction has found nothing under another key, the retiring key is destroyed, and its row goes.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cloud_client.reference_server.errors import OperatorError, ServerError
from cloud_client.reference_server.ops.data_directory import alone
from cloud_client.reference_server.store.base import CloudStore, Tx
from cloud_client.reference_server.store.key_token import KeyToken
from cloud_client.reference_server.store.vault import (
    FIRST_KEY,
    KEY_ID_BYTES,
    Vault,
    key_file,
    key_in_force,
    load_or_make,
    new_key,
)
from link1.plain_file import sync_folder

ROWS: Final = 200
Rewrapped = tuple[str, bytes, bytes]
"""A row's id, its wrapped key until now, and the same key under the key in force."""
_PROBE: Final = b"does this key open what it wraps?"


@dataclass(frozen=True, slots=True)
class WrappedColumn:
    """A column of wrapped keys. The row's id is also the context that each is bound to."""

    name: str
    table: str
    id: str
    column: str


WRAPPED: Final = (
    WrappedColumn("signers", "signers", "kid", "seed_ct"),
    WrappedColumn("tenants", "tenants", "tenant_id", "tenant_key_ct"),
    WrappedColumn("people", "subjects", "subject_id", "person_key_ct"),
)


@dataclass(frozen=True, slots=True)
class SecretRotation:
    """What one call has done."""

    key_id: str
    in_token: bool
    in_force: bool
    rewrapped: dict[str, int] = field(default_factory=dict)
    destroyed: list[str] = field(default_factory=list)


def prepare(
    store: CloudStore, vault: Vault, uri: str | None, on_step: Callable[[], None] = lambda: None
) -> SecretRotation:
    """Make the next key, or find the one that was made; nothing is wrapped under it yet.

    ``uri`` names a key to make in a PKCS#11 token, None makes a key file. OperatorError when a rotation to
    another place is under way, when the token has such a key already, or when the new key does not work.
    """
    with _only_rotation(vault.kms.directory):
        return _prepared(store, vault, uri, on_step)


def rotate(
    store: CloudStore, vault: Vault, uri: str | None, on_step: Callable[[], None] = lambda: None
) -> SecretRotation:
    """Put the next key in force, wrap everything again and destroy the key until then.

    Goes on with a rotation that was begun. ``on_step`` is called after every change that lasts.
    """
    directory = vault.kms.directory
    with _only_rotation(directory):
        if store.read(lambda tx: _key_of(tx, "retiring")) is None:
            _prepared(store, vault, uri, on_step)
            store.write(_put_in_force)
            on_step()
        key_id = store.read(key_in_force)
        _check_place(directory, key_id, uri)
        rewrapped = {each.name: _rewrap(store, vault, each, key_id, on_step) for each in WRAPPED}
        retired = store.read(lambda tx: _unused(tx, key_id))
        # What was overwritten is cleared from the files while the key is still to be destroyed: a call that
        # was killed comes back to it.
        store.purge()
        in_token = _uri_file(directory, retired).exists()
        retired_file = key_file(directory, retired, in_token=in_token)
        if retired_file.exists():
            _destroy(retired_file)
            on_step()
        store.write(lambda tx: tx.run("DELETE FROM wrapping_keys WHERE state = 'retiring'"))
        return SecretRotation(
            key_id,
            in_token=_uri_file(directory, key_id).exists(),
            in_force=True,
            rewrapped=rewrapped,
            destroyed=[retired_file.name],
        )


def _prepared(
    store: CloudStore, vault: Vault, uri: str | None, on_step: Callable[[], None]
) -> SecretRotation:
    directory = vault.kms.directory
    if store.read(lambda tx: _key_of(tx, "retiring")) is not None:
        raise OperatorError("a rotation is under way: finish it with `palmctl cloud secret rotate`")
    key_id = store.read(lambda tx: _key_of(tx, "next"))
    if key_id is None:
        key_id = store.write(_note_next)
        on_step()
    _check_place(directory, key_id, uri)
    path = key_file(directory, key_id, in_token=uri is not None)
    token = None if uri is None else KeyToken(uri)
    if not path.exists():
        if token is not None and token.exists():
            raise OperatorError(
                "the token has a key of that name already: name a new one, for a rotation makes its own key "
                "and destroys it in the end"
            )
        load_or_make(path, new_key if uri is None else f"{uri}\n".encode)
        on_step()
    if token is not None and not token.exists():
        token.generate()
        on_step()
    if vault.kms.unwrap(vault.kms.wrap_under(key_id, _PROBE, _PROBE), _PROBE) != _PROBE:
        raise ServerError("the new key does not open what it wraps: nothing was changed")
    return SecretRotation(key_id, in_token=uri is not None, in_force=False)


def _note_next(tx: Tx) -> str:
    key_id = os.urandom(KEY_ID_BYTES).hex()
    tx.run("INSERT INTO wrapping_keys (key_id, state) VALUES (:key_id, 'next')", key_id=key_id)
    return key_id


def _put_in_force(tx: Tx) -> None:
    known = key_in_force(tx)
    tx.run("DELETE FROM wrapping_keys WHERE state = 'in_force'")
    tx.run("INSERT INTO wrapping_keys (key_id, state) VALUES (:key_id, 'retiring')", key_id=known)
    tx.run("UPDATE wrapping_keys SET state = 'in_force' WHERE state = 'next'")


def _key_of(tx: Tx, state: str) -> str | None:
    key_id: str | None = tx.scalar("SELECT key_id FROM wrapping_keys WHERE state = :state", state=state)
    return key_id


def _rewrap(
    store: CloudStore, vault: Vault, each: WrappedColumn, key_id: str, on_step: Callable[[], None]
) -> int:
    """Wrap again what is under another key; how many."""
    count, last = 0, ""
    while rows := store.read(partial(_under_another, each=each, key_id=key_id, after=last)):
        again: list[Rewrapped] = []
        for row_id, wrapped in rows:
            context = row_id.encode()
            secret = vault.kms.unwrap(wrapped, context)
            again.append((row_id, wrapped, vault.kms.wrap_under(key_id, secret, context)))
        count += store.write(partial(_replace, each=each, again=again))
        last = rows[-1][0]
        on_step()
    return count


def _replace(tx: Tx, each: WrappedColumn, again: list[Rewrapped]) -> int:
    # A row that was erased meanwhile stays erased.
    return sum(
        tx.run(
            f"UPDATE {each.table} SET {each.column} = :new "  # noqa: S608 - names of our own schema
            f"WHERE {each.id} = :id AND {each.column} = :old",
            id=row_id,
            old=old,
            new=new,
        )
        for row_id, old, new in again
    )


def _under_another(tx: Tx, each: WrappedColumn, key_id: str, after: str) -> list[tuple[str, bytes]]:
    rows = tx.all(
        f"""SELECT {each.id} AS id, {each.column} AS wrapped FROM {each.table}
            WHERE {each.id} > :after AND substr({each.column}, 1, :length) <> :prefix
            ORDER BY {each.id} LIMIT :rows""",  # noqa: S608 - names of our own schema
        after=after,
        length=KEY_ID_BYTES,
        prefix=bytes.fromhex(key_id),
        rows=ROWS,
    )
    return [(row["id"], bytes(row["wrapped"])) for row in rows]


def _unused(tx: Tx, key_id: str) -> str:
    """The retiring key, under which nothing is wrapped any more. ServerError when something is."""
    for each in WRAPPED:
        if _under_another(tx, each, key_id, ""):
            raise ServerError(
                f"the table {each.table} still has keys under another key: call the rotation again"
            )
    return str(tx.row("SELECT key_id FROM wrapping_keys WHERE state = 'retiring'")["key_id"])


def _destroy(path: Path) -> None:
    """Destroy a key that may be destroyed already."""
    if path.suffix == ".uri" and path.exists():
        KeyToken(path.read_text().strip()).destroy()
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _check_place(directory: Path, key_id: str, uri: str | None) -> None:
    """OperatorError when the key is being made, or was made, elsewhere than asked for now."""
    path = _uri_file(directory, key_id)
    begun = path.read_text().strip() if path.exists() else None
    file_begun = key_file(directory, key_id).exists()
    if (begun is not None and begun != uri) or (file_begun and uri is not None):
        raise OperatorError(
            f"a rotation to {begun or 'a key file'} is under way: finish it first, "
            f"{'with that --to' if begun else 'without --to'}"
        )


def _uri_file(directory: Path, key_id: str) -> Path:
    # `kms.key` is never in a token.
    return key_file(directory, key_id, in_token=key_id != FIRST_KEY)


def _only_rotation(directory: Path) -> AbstractContextManager[None]:
    held = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    return alone(held, "another `palmctl cloud secret` is at work on this directory: wait for it")
