"""The memory of a transaction that has a verdict or has ended."""

from dataclasses import dataclass, field

from link1.canonical import JsonObject
from link1.objects import ErrorCode


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A durable verdict; `wrapper` is the signed object, identical each time it is sent."""

    seq: int
    ref: str
    wrapper: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class TxnMemory:
    """The memory of a txn_id: how it ended, or its verdict and the refs of the answers to it.

    `request_ref` is the `object_ref` of the signed request, so that a repeated request that differs is
    noticed.
    """

    txn_id: str
    request_ref: str
    ended: ErrorCode | None = None
    verdict: StoredVerdict | None = None
    decision_ref: str | None = None
    passage_ref: str | None = None
