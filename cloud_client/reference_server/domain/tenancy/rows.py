"""Rows that are found by an id."""

from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Row, Tx


def device_params(device: Row) -> dict[str, str]:
    """The parameters that find what is kept of a device, whose row this is or names."""
    return {"tenant_id": device["tenant_id"], "device_id": device["device_id"]}


def own_row(tx: Tx, environment: Environment, table: str, missing: ProblemCode, **key: str) -> Row:
    """The row of ``table`` with this ``key``, one column.

    Problem ``missing`` (404) when there is none or it is another tenant's, 403 when it is of the tenant's
    other environment.
    """
    (name,) = key
    row = tx.one(
        f"SELECT * FROM {table} WHERE {name} = :{name} AND tenant_id = :tenant_id",  # noqa: S608 - our names
        **key,
        tenant_id=environment.tenant_id,
    )
    if row is None:
        raise Problem(missing)
    if row["livemode"] != environment.livemode:
        raise Problem(ProblemCode.LIVEMODE_MISMATCH)
    return row
