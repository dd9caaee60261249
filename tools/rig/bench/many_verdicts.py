"""A store with many verdicts, written straight into the tables: for what a list costs when there is much."""

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Tx

DEVICE, GATE = "gate-big", "g-big"
FIRST_MS = 1_789_000_000_000
_SIGNED = '{"verdict":{"pad":{"res":"pass"},"quality_q":80}}'
_SIZE = "x" * 2000
"""About what the signatures and the rest of a verdict take."""


def verdict_id(number: int) -> str:
    """The id of the verdict that ``fill`` writes with a number."""
    return f"{1_000_000_000 + number * 2654435761 % 2**32:032}"


def fill(
    tx: Tx, environment: Environment, subject_id: str, count: int, *, after: int = 0, first_ms: int = FIRST_MS
) -> None:
    """``count`` verdicts behind the ``after`` that are there, one a second, three in four of one device.

    Their ids come in no order, as hashes do. One in a thousand is of the person, one in five hundred a
    conflict, and none an abstention. The first gate rejects one in 45, the other rejects all.
    """
    tx.run(
        """WITH RECURSIVE n(i) AS (SELECT CAST(:after AS BIGINT) + 1
                               UNION ALL SELECT i + 1 FROM n WHERE i < :after + :count)
           INSERT INTO verdicts (verdict_id, tenant_id, livemode, device_id, signer_kid, verdict_seq,
                                 prev_ref, txn_id, gate_id, dbd_id, decision, result, hand, pad_res,
                                 quality_q, model_id, subject_id, decided_ms, received_ms,
                                 passage_sensor, signed_verdict, reconciliation, change_no)
           SELECT '0000000000000000000000' || CAST(1000000000 + i * 2654435761 % 4294967296 AS TEXT),
                  :tenant_id, :livemode,
                  CASE WHEN i % 4 = 0 THEN 'gate-' || CAST(i % 97 AS TEXT) ELSE 'gate-big' END,
                  :kid, i, '00000000000000000000000000000000', '00000000000000000000000000000000',
                  CASE WHEN i % 4 = 0 THEN 'g-' || CAST(i % 97 AS TEXT) ELSE 'g-big' END,
                  'd1', CASE WHEN i % 4 = 0 OR i % 60 = 7 THEN 'reject' ELSE 'accept' END,
                  'MATCH', 'L', 'pass', 80, 'm',
                  CASE WHEN i % 1000 = 0 THEN :subject_id END, :first_ms + i * 1000, :first_ms + i * 1000, 0,
                  :signed, CASE WHEN i % 500 = 0 THEN 'conflict' ELSE 'complete' END,
                  (:first_ms + i * 1000) * 1000
           FROM n""",
        after=after,
        count=count,
        kid=f"{environment.tenant_id[:30]}-{environment.livemode:d}",
        subject_id=subject_id,
        first_ms=first_ms,
        signed=_SIGNED[:-1] + f',"more":"{_SIZE}"}}',
        **environment.params,
    )
