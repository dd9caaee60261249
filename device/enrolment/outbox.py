"""Requests of an enrolment on their way to the service: in memory only, overwritten once they are answered.

A body holds vectors of somebody's palms, or a code that leads to a session. It is never written to disk and
never logged; one that is not answered in time is overwritten too, for its session has ended by then. So a
power cut forgets an enrolment whole, and one that the service took is finished by the service.

Overwriting reaches every copy in this process, for a body goes from here into the carrier's socket as it is.
What the carrier holds while it sends is freed there, not overwritten.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MAX_WAITING: Final = 4
"""A kiosk serves one person at a time; more than a few waiting means that the service is away."""

LONGEST_WAIT_MS: Final = 900_000
"""The longest life of an enrolment session: nothing older can still be taken."""


@dataclass(frozen=True, slots=True)
class EnrolmentAnswer:
    """What became of an enrolment: the HTTP status and, for a refusal, the service's word for it.

    201 completed, 202 under review, 200 failed as told or code exchanged; `status` 0 when there was none:
    code ``not_sent`` when none came while it could still be taken, ``unreachable`` when none could be had.
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
        body: bytearray,
        answered: Callable[[EnrolmentAnswer], None],
        now_ms: int,
        lives_ms: int = LONGEST_WAIT_MS,
    ) -> int | None:
        """Take `body`, which belongs to this object from here on; `answered` is called once, unless it is
        withdrawn. Returns its ticket.

        None, and `body` overwritten, while `MAX_WAITING` are waiting.
        """
        self.expire(now_ms)
        if len(self._waiting) >= MAX_WAITING:
            _overwrite(body)
            return None
        self._last_ticket += 1
        key = f"enrol-{secrets.token_hex(16)}"
        expires_at_ms = now_ms + min(lives_ms, LONGEST_WAIT_MS)
        self._waiting.append(WaitingEnrolment(self._last_ticket, key, expires_at_ms, body, answered))
        self._wake()
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Overwrite an upload whose sender has given it up; nobody is told."""
        for item in [item for item in self._waiting if item.ticket == ticket]:
            self._waiting.remove(item)
            _overwrite(item.body)

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
        _overwrite(item.body)
        item.answered(answer)


def _overwrite(body: bytearray) -> None:
    body[:] = bytes(len(body))
