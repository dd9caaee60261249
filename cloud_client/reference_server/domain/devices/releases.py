"""Releases: software and models, cut into chunks, that devices may be offered (device surface §6)."""

import json

from cloud_client.reference_server.contract.mail import UpdateManifestObject
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Tx
from link1.canonical import JsonObject


def next_seq(tx: Tx, environment: Environment, given: int | None, now_ms: int) -> int:
    """The release_seq of a new release. OperatorError when the one given is not above all there are."""
    highest = int(
        tx.scalar(
            """SELECT coalesce(max(release_seq), 0) FROM releases
               WHERE tenant_id = :tenant_id AND livemode = :livemode""",
            **environment.params,
        )
    )
    if given is None:
        return max(now_ms // 1000, highest + 1)
    if given <= highest:
        raise OperatorError(f"--release-seq has to be above {highest}, the highest of this environment")
    return given


def create(
    tx: Tx,
    environment: Environment,
    manifest: JsonObject,
    payload: bytes,
    *,
    model_id: str | None,
    now_ms: int,
) -> None:
    """Keep a release, offered to nobody. ``model_id``: of a model, the one that it is."""
    checked = UpdateManifestObject.model_validate(manifest)
    key = {"release_seq": checked.release_seq, **environment.params}
    tx.run(
        """INSERT INTO releases (tenant_id, livemode, release_seq, kind, model_id, manifest, created_ms)
           VALUES (:tenant_id, :livemode, :release_seq, :kind, :model_id, :manifest, :now_ms)""",
        kind=checked.kind,
        model_id=model_id,
        manifest=json.dumps(manifest),
        now_ms=now_ms,
        **key,
    )
    for index in range(checked.chunk_count):
        start = index * checked.chunk_size
        tx.run(
            """INSERT INTO release_chunks (tenant_id, livemode, release_seq, chunk_index, data)
               VALUES (:tenant_id, :livemode, :release_seq, :chunk_index, :data)""",
            chunk_index=index,
            data=payload[start : start + checked.chunk_size],
            **key,
        )
