"""When to ask again: exponential backoff with jitter, and which failures are worth repeating.

Pure: the random source is handed in, nothing sleeps here. One `Backoff` belongs to one thing that is
retried; it starts again after a success.
"""

from collections.abc import Callable
from typing import Final

from cloud_client.errors import CloudProblem, CloudUnreachable

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0

Random = Callable[[], float]
"""Uniform in [0, 1), like ``random.random``."""


class Backoff:
    """Delays of 1, 2, 4 … 60 s, each shortened at random by up to half.

    The jitter keeps the devices of a station, cut off by one outage, from coming back in one wave.
    """

    def __init__(self, random: Random, first_s: float = FIRST_DELAY_S, longest_s: float = LONGEST_DELAY_S):
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0
        """Since the last success."""

    def failed(self, at_least_s: float = 0.0) -> float:
        """Count a failure; seconds to wait, never under `at_least_s` (a server's Retry-After)."""
        # 2**16 is far over any longest_s; the exponent is bounded so that a week offline stays cheap.
        full_s = min(self._longest_s, self._first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return max(at_least_s, full_s * (1.0 - self._random() / 2.0))

    def succeeded(self) -> None:
        """Start again."""
        self.failures = 0


def is_transient(error: Exception) -> bool:
    """Whether the same request, with the same key and body, may succeed later without intervention."""
    if isinstance(error, CloudProblem):
        return error.retryable or error.status in (429, 500, 502, 503, 504)
    return isinstance(error, CloudUnreachable)
