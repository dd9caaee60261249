"""Rate limits: token buckets, and the three headers that tell a client about them.

``RateLimit-Limit`` is the capacity of the bucket, ``-Remaining`` the whole tokens left, ``-Reset`` the
whole seconds until it is full again (draft-ietf-httpapi-ratelimit-headers-06). Where several limits apply
to a request, the headers show the tightest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cloud_client.contract import ProblemCode
from cloud_client.reference_server.problems import Problem

_FORGET_ABOVE = 20_000  # buckets; full ones are forgotten, which loses nothing


class Rate(Enum):
    """A limit of the contract: its name, the capacity of a bucket, and tokens a second."""

    PUBLIC = ("public", 200, 100)
    KEY_READ = ("key_read", 200, 100)
    KEY_WRITE = ("key_write", 40, 20)
    SESSIONS_OF_TENANT = ("sessions_of_tenant", 60, 60 / 60)
    DEVICE = ("device", 20, 10)
    REDEEM_OF_DEVICE = ("redeem_of_device", 10, 10 / 600)
    REDEEM_OF_TENANT = ("redeem_of_tenant", 60, 60 / 60)
    REGISTRATION = ("registration", 10, 10 / 60)
    ATTESTATION = ("attestation", 10, 10 / 60)

    def __init__(self, word: str, capacity: float, per_s: float) -> None:
        self.word = word
        self.capacity = capacity
        self.per_s = per_s


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


class Limiter:
    """The buckets of one server process; ``scale`` multiplies every limit (load tests)."""

    def __init__(self, monotonic_s: Callable[[], float], scale: float = 1.0) -> None:
        self._monotonic_s = monotonic_s
        self._scale = scale
        self._buckets: dict[tuple[Rate, str], tuple[float, float]] = {}

    def take(self, charges: list[Charge]) -> Level:
        """Pay all charges. Problem 429 (with all headers) when a bucket does not hold enough."""
        now_s = self._monotonic_s()
        levels = []
        for charge in charges:
            level, wait_s = self._take(charge, now_s)
            if wait_s > 0:
                headers = level.headers | {"Retry-After": str(math.ceil(wait_s))}
                raise Problem(ProblemCode.RATE_LIMITED, headers=headers)
            levels.append(level)
        return min(levels, key=lambda level: level.remaining / level.limit)

    def _take(self, charge: Charge, now_s: float) -> tuple[Level, float]:
        capacity, per_s = charge.rate.capacity * self._scale, charge.rate.per_s * self._scale
        tokens, at_s = self._buckets.get((charge.rate, charge.who), (capacity, now_s))
        tokens = min(capacity, tokens + (now_s - at_s) * per_s)
        # Refilling in steps leaves rounding below a whole token.
        enough = tokens + 1e-6 >= charge.cost
        wait_s = 0.0 if enough else (charge.cost - tokens) / per_s
        if enough:
            tokens = max(0.0, tokens - charge.cost)
        self._buckets[charge.rate, charge.who] = (tokens, now_s)
        if len(self._buckets) > _FORGET_ABOVE:
            self._forget_full(now_s)
        level = Level(int(capacity), int(tokens + 1e-6), math.ceil((capacity - tokens) / per_s))
        return level, wait_s

    def _forget_full(self, now_s: float) -> None:
        self._buckets = {
            (rate, who): (tokens, at_s)
            for (rate, who), (tokens, at_s) in self._buckets.items()
            if tokens + (now_s - at_s) * rate.per_s * self._scale < rate.capacity * self._scale
        }
