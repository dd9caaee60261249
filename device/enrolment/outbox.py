"""Requests of an enrolment on their way to the service: only in memory, overwritten when they are answered.

A body holds vectors of a person's palms, or the code of a session. It is never written to disk and never
logged. A body without an answer in time is overwritten too, because its session has ended by then. After a
power cut nothing of an enrolment is left here; what the service has accepted, the service completes.

Overwriting reaches every copy in this process, because a body goes into the carrier's socket uncopied. The
carrier's copy is freed there, not overwritten.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MAX_WAITING: Final = 4
"""A kiosk serves one person at a time; more requests wait only while the service is unreachable."""

LONGEST_WAIT_MS: Final = 900_000
"""The longest life of an enrolment session: the service accepts nothing older."""


@dataclass(frozen=True, slots=True)
class EnrolmentAnswer:
    """The answer to a request: the HTTP status and, for a refusal, the service's code.

    201 completed, 202 under review, 200 failure noted or code exchanged; `status` 0 without an answer: code
    ``not_sent`` when none arrived in time, ``unreachable`` when the service could not be reached.
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
    """Holds uploads in order and offers the oldest until it is answered. Times are monotonic ms."""

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
        """Add `body`, which this object then owns; `answered` is called once, unless it is withdrawn. Returns
        its ticket; None, with `body` overwritten, while `MAX_WAITING` are waiting.
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
        """Overwrite an upload that its sender has abandoned; `answered` is not called."""
        for item in [item for item in self._waiting if item.ticket == ticket]:
            self._waiting.remove(item)
            _overwrite(item.body)

    def next(self, now_ms: int) -> WaitingEnrolment | None:
        """The oldest upload, until it is answered or too old."""
        self.expire(now_ms)
        return self._waiting[0] if self._waiting else None

    def answered(self, ticket: int, answer: EnrolmentAnswer) -> bool:
        """The service has answered an upload: overwrite it and report to its sender. False when it is
        unknown."""
        found = next((item for item in self._waiting if item.ticket == ticket), None)
        if found is None:
            return False
        self._end(found, answer)
        return True

    def expire(self, now_ms: int) -> None:
        """Overwrite uploads that are too old for the service."""
        for item in [item for item in self._waiting if item.expires_at_ms <= now_ms]:
            self._end(item, EnrolmentAnswer(0, "not_sent"))

    def clear(self) -> None:
        """Overwrite everything, at a wipe or at the end of the program."""
        for item in tuple(self._waiting):
            self._end(item, EnrolmentAnswer(0, "not_sent"))

    def _end(self, item: WaitingEnrolment, answer: EnrolmentAnswer) -> None:
        self._waiting.remove(item)
        _overwrite(item.body)
        item.answered(answer)


def _overwrite(body: bytearray) -> None:
    body[:] = bytes(len(body))
