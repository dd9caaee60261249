"""A person as the service holds one: identifiers sealed under the person's own key."""

import json
import os
from dataclasses import dataclass

from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import own_row
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import KEY_BYTES, Vault, seal, unseal


@dataclass(frozen=True, slots=True)
class SubjectIdentity:
    """What handlers need of a person apart from the columns of the row."""

    subject_id: str
    subject_ref: str
    key: bytes
    external_ref: str
    onboard_ref: str | None
    suspended: bool


def new_key(tx: Tx, vault: Vault, subject_id: str) -> tuple[bytes, bytes]:
    """A person's key and its wrapped form."""
    key = os.urandom(KEY_BYTES)
    return key, vault.kms.wrap(tx, key, subject_id.encode())


def key_of_row(vault: Vault, row: Row) -> bytes:
    """The person's key out of a row with ``subject_id`` and ``person_key_ct``."""
    return vault.kms.unwrap(row["person_key_ct"], row["subject_id"].encode())


def seal_refs(key: bytes, subject_id: str, external_ref: str, onboard_ref: str | None) -> bytes:
    """The sealed identifiers of a person."""
    refs = {"external_ref": external_ref}
    if onboard_ref is not None:
        refs["onboard_ref"] = onboard_ref
    return seal(key, json.dumps(refs).encode(), subject_id.encode())


def seal_cpf(key: bytes, subject_id: str, cpf: str) -> bytes:
    """A person's CPF, under the person's own key."""
    return seal(key, cpf.encode(), _cpf_context(subject_id))


def _cpf_context(subject_id: str) -> bytes:
    return f"cpf {subject_id}".encode()


def finish_upgrade(tx: Tx, vault: Vault) -> None:
    """Seal every CPF under its person's own key, where a database of schema version 2 has just been migrated.

    Until then it is sealed under the key-management key.
    """
    if not tx.run("DELETE FROM upgrade_steps WHERE step = 'seal_cpf'"):
        return
    for row in tx.all("SELECT subject_id, person_key_ct, cpf_ct FROM subjects WHERE cpf_ct IS NOT NULL"):
        subject_id = row["subject_id"]
        cpf = vault.kms.unwrap(row["cpf_ct"], _cpf_context(subject_id)).decode()
        tx.run(
            "UPDATE subjects SET cpf_ct = :cpf_ct WHERE subject_id = :subject_id",
            cpf_ct=seal_cpf(key_of_row(vault, row), subject_id, cpf),
            subject_id=subject_id,
        )
    tx.purge_after_commit = True


def external_ref_mac(vault: Vault, environment: Environment, external_ref: str) -> bytes:
    """What a person is found by."""
    return vault.mac(
        "external-ref", environment.tenant_id.encode(), environment.mode.encode(), external_ref.encode()
    )


def row_by_id(tx: Tx, environment: Environment, subject_id: str) -> Row:
    """A person's row. Problem 404 (missing, other tenant) or 403 (other environment)."""
    return own_row(tx, environment, "subjects", ProblemCode.SUBJECT_NOT_FOUND, subject_id=subject_id)


def row_by_external_ref(tx: Tx, vault: Vault, environment: Environment, external_ref: str) -> Row | None:
    """A person's row by the partner's own name, which exists inside one environment."""
    return tx.one(
        """SELECT * FROM subjects
           WHERE tenant_id = :tenant_id AND livemode = :livemode AND external_ref_mac = :mac""",
        mac=external_ref_mac(vault, environment, external_ref),
        **environment.params,
    )


def load(vault: Vault, row: Row) -> SubjectIdentity:
    """The person of a row of ``subjects``, or of another query's with its sealed columns."""
    key = key_of_row(vault, row)
    refs = json.loads(unseal(key, row["refs_ct"], row["subject_id"].encode()).decode())
    return SubjectIdentity(
        row["subject_id"],
        row["subject_ref"],
        key,
        refs["external_ref"],
        refs.get("onboard_ref"),
        bool(row["suspended"]),
    )


def load_by_id(tx: Tx, vault: Vault, environment: Environment, subject_id: str) -> SubjectIdentity:
    """The person of an id that is known to exist in this environment."""
    return load(vault, row_by_id(tx, environment, subject_id))
