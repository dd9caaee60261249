"""Enrolments on their way to the service: in memory only, and overwritten as soon as they are answered.

A body holds vectors of somebody's palms. It is never written to disk and never logged; one that is not
answered in time is overwritten too, for its session has ended by then. Overwriting reaches the copy kept
here; the short-lived copies in socket buffers are freed, not overwritten.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from link1.canonical import JsonObject, canonical_bytes

MAX_WAITING: Final = 4
"""A kiosk serves one person at a time; more than a few waiting means that the service is away."""

LONGEST_WAIT_MS: Final = 900_000
"""The longest life of an enrolment session: nothing older can still be taken."""


@dataclass(frozen=True, slots=True)
class EnrolmentAnswer:
    """What became of an enrolment: the HTTP status and, for a refusal, the service's word for it.

    201 completed, 202 under review, 200 failed as told; `status` 0 with code ``not_sent`` when no answer came
    while the session could still be alive.
    """

    status: int
    code: str = ""
    body: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class WaitingEnrolment:
    """One upload. `ticket` names it to the carrier, `idempotency_key` to the service."""

    ticket: int
    idempotency_key: str
    expires_at_ms: int
    body: bytearray = field(repr=False)
    answered: Callable[[EnrolmentAnswer], None] = field(repr=False)


class EnrolmentOutbox:
    """Holds uploads in order; the oldest is offered until it is answered. Times are monotonic ms."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to fetch."""
        self._wake = wake
        self._waiting: list[WaitingEnrolment] = []
        self._last_ticket = 0

    def submit(
        self,
        body: JsonObject,
        answered: Callable[[EnrolmentAnswer], None],
        now_ms: int,
        lives_ms: int = LONGEST_WAIT_MS,
    ) -> bool:
        """Take the body of ``POST /v1/enrollments``; `answered` is called once, whatever happens.

        False, and nothing taken, while `MAX_WAITING` are waiting.
        """
        self.expire(now_ms)
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._last_ticket += 1
        key = f"enrol-{secrets.token_hex(16)}"
        expires_at_ms = now_ms + min(lives_ms, LONGEST_WAIT_MS)
        self._waiting.append(
            WaitingEnrolment(
                self._last_ticket, key, expires_at_ms, bytearray(canonical_bytes(body)), answered
            )
        )
        self._wake()
        return True

    def next(self, now_ms: int) -> WaitingEnrolment | None:
        """The oldest upload, the same one until it is answered or too old."""
        self.expire(now_ms)
        return self._waiting[0] if self._waiting else None

    def answered(self, ticket: int, answer: EnrolmentAnswer) -> bool:
        """The service has judged an upload: overwrite it and tell its sender. False when it is not known."""
        found = next((item for item in self._waiting if item.ticket == ticket), None)
        if found is None:
            return False
        self._end(found, answer)
        return True

    def expire(self, now_ms: int) -> None:
        """Overwrite what is too old to be taken by the service."""
        for item in [item for item in self._waiting if item.expires_at_ms <= now_ms]:
            self._end(item, EnrolmentAnswer(0, "not_sent"))

    def clear(self) -> None:
        """Overwrite everything, at a wipe or at the end of the program."""
        for item in tuple(self._waiting):
            self._end(item, EnrolmentAnswer(0, "not_sent"))

    @property
    def waiting(self) -> int:
        """How many uploads wait."""
        return len(self._waiting)

    def _end(self, item: WaitingEnrolment, answer: EnrolmentAnswer) -> None:
        self._waiting.remove(item)
        item.body[:] = bytes(len(item.body))
        item.answered(answer)
