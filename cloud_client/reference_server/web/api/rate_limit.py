"""Rate limits: token buckets, and the three headers that tell a client about them.

``RateLimit-Limit`` is the capacity of the bucket, ``-Remaining`` the whole tokens left, ``-Reset`` the
whole seconds until it is full again (draft-ietf-httpapi-ratelimit-headers-06). Where several limits apply
to a request, the headers show the tightest.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Tx
from cloud_client.reference_server.store.vault import Vault

_FORGET_ABOVE = 20_000  # buckets; full ones are forgotten, which loses nothing
_FORGET_EVERY = 1000  # requests
_FORGET_AFTER_S = 3600.0  # every bucket is full again by then
_WAITED_S = 10.0
"""Beyond any wait for a bucket's row: a time so far ahead is of a clock that was put back since."""
_ROUNDING = 1e-6
"""Refilling in steps leaves rounding below a whole token."""


class Rate(Enum):
    """A limit of the contract: its name, the capacity of a bucket, and tokens a second.

    ``of_tenant``: one bucket for all of an environment's callers.
    """

    PUBLIC = ("public", 200, 100)
    KEY_READ = ("key_read", 200, 100)
    KEY_WRITE = ("key_write", 40, 20)
    SESSIONS_OF_TENANT = ("sessions_of_tenant", 60, 60 / 60, True)
    DEVICE = ("device", 20, 10)
    REPORT = ("report", 6, 1 / 5)
    REDEEM_OF_DEVICE = ("redeem_of_device", 10, 10 / 600)
    REDEEM_OF_TENANT = ("redeem_of_tenant", 60, 60 / 60, True)
    REGISTRATION = ("registration", 10, 10 / 60)
    ATTESTATION = ("attestation", 10, 10 / 60)

    def __init__(self, word: str, capacity: float, per_s: float, of_tenant: bool = False) -> None:
        self.word = word
        self.capacity = capacity
        self.per_s = per_s
        self.of_tenant = of_tenant


@dataclass(frozen=True, slots=True)
class Charge:
    """What one request costs at one bucket."""

    rate: Rate
    who: str
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """The state of a bucket after a request."""

    limit: int
    remaining: int
    reset_s: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset_s),
        }


class Limiter(Protocol):
    """Takes from the buckets of a request."""

    async def take(self, charges: list[Charge]) -> Level:
        """Pay all charges; the tightest level. Problem 429 (with all headers) where a bucket lacks tokens."""


class LocalLimiter:
    """The buckets of the one server process; ``scale`` multiplies every limit (load tests)."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic, scale: float = 1.0) -> None:
        self._monotonic_s = monotonic_s
        self._scale = scale
        self._buckets: dict[tuple[Rate, str], tuple[float, float]] = {}

    async def take(self, charges: list[Charge]) -> Level:
        now_s = self._monotonic_s()
        return _tightest([self._take(charge, now_s) for charge in charges])

    def _take(self, charge: Charge, now_s: float) -> Level:
        capacity, per_s = charge.rate.capacity * self._scale, charge.rate.per_s * self._scale
        tokens, at_s = self._buckets.get((charge.rate, charge.who), (capacity, now_s))
        tokens = min(capacity, tokens + (now_s - at_s) * per_s)
        granted = tokens + _ROUNDING >= charge.cost
        if granted:
            tokens = max(0.0, tokens - charge.cost)
        self._buckets[charge.rate, charge.who] = (tokens, now_s)
        if len(self._buckets) > _FORGET_ABOVE:
            self._forget_full(now_s)
        return _level(charge, capacity, per_s, tokens, granted=granted)

    def _forget_full(self, now_s: float) -> None:
        self._buckets = {
            (rate, who): (tokens, at_s)
            for (rate, who), (tokens, at_s) in self._buckets.items()
            if tokens + (now_s - at_s) * rate.per_s * self._scale < rate.capacity * self._scale
        }


class SharedLimiter:
    """The buckets that all server processes over one PostgreSQL database take from.

    One atomic statement a bucket. The database's clock counts, since those of several machines differ;
    ``now_s`` is another one for tests.
    """

    def __init__(
        self, store: AsyncStore, vault: Vault, scale: float = 1.0, now_s: Callable[[], float] | None = None
    ) -> None:
        self._store = store
        self._vault = vault
        self._scale = scale
        self._now_s = now_s
        self._taken = 0

    async def take(self, charges: list[Charge]) -> Level:
        now_s = None if self._now_s is None else self._now_s()
        self._taken += 1
        forget = self._taken % _FORGET_EVERY == 0

        def work(tx: Tx) -> Level:
            if forget:
                tx.run(_FORGET, now_s=now_s, age_s=_FORGET_AFTER_S)
            return _tightest([self._take(tx, charge, now_s) for charge in charges])

        # A refusal is kept too, so the transaction must not end in an exception.
        outcome = await self._store.write(partial(_caught, work), durable=False, lock=UNLOCKED)
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    def _take(self, tx: Tx, charge: Charge, now_s: float | None) -> Level:
        capacity, per_s = charge.rate.capacity * self._scale, charge.rate.per_s * self._scale
        row = tx.row(
            _TAKE,
            bucket=self._vault.mac("rate-bucket", charge.rate.word.encode(), charge.who.encode()),
            capacity=float(capacity),
            per_s=float(per_s),
            cost=float(charge.cost),
            rounding=_ROUNDING,
            now_s=now_s,
        )
        return _level(charge, capacity, per_s, row["tokens"], granted=row["granted"])


_NOW = "coalesce(CAST(:now_s AS DOUBLE PRECISION), extract(epoch FROM clock_timestamp()))"
_FILLED = "least(:capacity, b.tokens + greatest(0, excluded.at_s - b.at_s) * :per_s)"
_TAKE = f"""
    INSERT INTO rate_buckets AS b (bucket, tokens, at_s, granted)
    VALUES (:bucket, CASE WHEN :capacity + :rounding >= :cost THEN greatest(0, :capacity - :cost)
                          ELSE :capacity END, {_NOW}, :capacity + :rounding >= :cost)
    ON CONFLICT (bucket) DO UPDATE SET
        tokens = CASE WHEN {_FILLED} + :rounding >= :cost THEN greatest(0, {_FILLED} - :cost)
                      ELSE {_FILLED} END,
        granted = {_FILLED} + :rounding >= :cost,
        at_s = CASE WHEN b.at_s > excluded.at_s + {_WAITED_S} THEN excluded.at_s
                    ELSE greatest(b.at_s, excluded.at_s) END
    RETURNING tokens, granted"""  # noqa: S608 - fixed parts only
_FORGET = f"DELETE FROM rate_buckets WHERE at_s < {_NOW} - :age_s"  # noqa: S608 - fixed parts only


def _level(charge: Charge, capacity: float, per_s: float, tokens: float, *, granted: bool) -> Level:
    """The level after taking. Problem 429 when nothing was taken."""
    level = Level(int(capacity), int(tokens + _ROUNDING), math.ceil((capacity - tokens) / per_s))
    if not granted:
        wait_s = math.ceil((charge.cost - tokens) / per_s)
        raise Problem(ProblemCode.RATE_LIMITED, headers=level.headers | {"Retry-After": str(wait_s)})
    return level


def _tightest(levels: list[Level]) -> Level:
    return min(levels, key=lambda level: level.remaining / level.limit)


def _caught(work: Callable[[Tx], Level], tx: Tx) -> Level | Problem:
    try:
        return work(tx)
    except Problem as refusal:
        return refusal
