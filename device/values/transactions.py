"""What is remembered of a transaction once it has a verdict or has ended."""

from dataclasses import dataclass, field

from link1.canonical import JsonObject
from link1.objects import ErrorCode


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A durable verdict; `wrapper` is the signed object, the same bytes whenever it is given."""

    seq: int
    ref: str
    wrapper: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class TxnMemory:
    """What is known of a txn_id: how it ended, or its verdict and the refs of the answers to that.

    `request_ref` is the `object_ref` of the signed request, so any difference in a repeated one shows.
    """

    txn_id: str
    request_ref: str
    ended: ErrorCode | None = None
    verdict: StoredVerdict | None = None
    decision_ref: str | None = None
    passage_ref: str | None = None
