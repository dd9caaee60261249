"""Tenants: their key, their settings, and what is made with the key."""

import hmac
import os
from dataclasses import dataclass

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import KEY_BYTES, Vault
from gallery.stream import head_zero

DEFAULT_TERMS_VERSION = "v1"
DEFAULT_DUPLICATE_COSINE = 0.60


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with its key unwrapped."""

    tenant_id: str
    key: bytes
    terms_version: str
    duplicate_cosine: float
    offline_after_s: int

    def subject_ref(self, subject_id: str) -> str:
        """The pseudonym of a person: 32 hex of HMAC-SHA256(tenant key, the 36 characters of subject_id)."""
        return hmac.digest(self.key, subject_id.encode(), "sha256").hex()[:32]

    def cpf_mac(self, environment: Environment, cpf: str) -> bytes:
        """A MAC that recognises a CPF without disclosing it."""
        return hmac.digest(self.key, f"cpf\0{environment.mode}\0{cpf}".encode(), "sha256")


def create(tx: Tx, vault: Vault, tenant_id: str, name: str, now_ms: int) -> None:
    """A new tenant with both of its environments."""
    tx.run(
        """INSERT INTO tenants (tenant_id, name, tenant_key_ct, terms_version, duplicate_cosine, created_ms)
           VALUES (:tenant_id, :name, :key_ct, :terms_version, :duplicate_cosine, :now_ms)""",
        tenant_id=tenant_id,
        name=name,
        key_ct=vault.kms.wrap(tx, os.urandom(KEY_BYTES), tenant_id.encode()),
        terms_version=DEFAULT_TERMS_VERSION,
        duplicate_cosine=DEFAULT_DUPLICATE_COSINE,
        now_ms=now_ms,
    )
    for livemode in (False, True):
        environment = Environment(tenant_id, livemode)
        tx.run(
            """INSERT INTO streams (stream, tenant_id, livemode, epoch, seq, head, count)
               VALUES (:stream, :tenant_id, :livemode, 1, 0, :head, 0)""",
            stream=environment.stream,
            head=head_zero(environment.stream, 1),
            **environment.params,
        )


def load(tx: Tx, vault: Vault, tenant_id: str) -> Tenant:
    """A tenant by its id. OperatorError when there is none (requests have proved theirs before)."""
    row = tx.one(
        """SELECT tenant_key_ct, terms_version, duplicate_cosine, offline_after_s FROM tenants
           WHERE tenant_id = :tenant_id""",
        tenant_id=tenant_id,
    )
    if row is None:
        raise OperatorError("no such tenant: `palmctl cloud tenant create` prints the tenant_id to give here")
    key = vault.kms.unwrap(row["tenant_key_ct"], tenant_id.encode())
    return Tenant(tenant_id, key, row["terms_version"], row["duplicate_cosine"], row["offline_after_s"])


def change(
    tx: Tx,
    vault: Vault,
    tenant_id: str,
    *,
    terms_version: str | None,
    duplicate_cosine: float | None,
    offline_after_s: int | None,
) -> Tenant:
    """Change settings that are given; the tenant as it is then."""
    load(tx, vault, tenant_id)
    tx.run(
        """UPDATE tenants SET terms_version = coalesce(:terms_version, terms_version),
               duplicate_cosine = coalesce(:duplicate_cosine, duplicate_cosine),
               offline_after_s = coalesce(:offline_after_s, offline_after_s)
           WHERE tenant_id = :tenant_id""",
        terms_version=terms_version,
        duplicate_cosine=duplicate_cosine,
        offline_after_s=offline_after_s,
        tenant_id=tenant_id,
    )
    return load(tx, vault, tenant_id)
