"""The carrier's policy: pure decisions about fetching, uploading and waiting.

This module reads no socket and no clock. It gets the outcome of a request and returns the next request, or
the seconds to wait before it; `device.syncd.tasks` does the communication.

Invariants
1. A delta request names the position that the core reported last: it acknowledges it, so it never runs ahead
   of what the core has applied.
2. After a refusal of the service or the core the next attempt waits for a growing time, so no answer, however
   wrong, causes a busy loop.
3. An upload is repeated with the same key and the same bytes until it is answered.
4. The first request after a start or a failure does not wait at the service: it shows that the service is
   reachable, and brings the fresh head with which an expired gallery serves again.
"""

import json
from dataclasses import dataclass
from typing import Final, TypeGuard

from cloud_client.contract import CURSOR, MAX_BATCH_ITEMS, MAX_WAIT_S, ServiceCode
from cloud_client.errors import CloudError, CloudProblem
from cloud_client.retry import Backoff, is_transient
from device.values.carrier import ONLINE, CloudState, GalleryPosition

QUICK_ANSWER_S: Final = 1.0
"""A long poll that returns empty sooner than this was ended by another request, not by time."""

_SNAPSHOT_HEALS: Final = frozenset({"gap", "bad_chain", "wrong_epoch", "state_mismatch"})
"""Refusals of the core that mean: these pages do not continue its gallery."""

_NOT_THE_CONTENT: Final = frozenset(
    {
        ServiceCode.UNAUTHENTICATED,
        ServiceCode.FORBIDDEN,
        ServiceCode.LIVEMODE_MISMATCH,
        ServiceCode.ROUTE_NOT_FOUND,
        ServiceCode.METHOD_NOT_ALLOWED,
        ServiceCode.NOT_IMPLEMENTED,
        ServiceCode.IDEMPOTENCY_IN_PROGRESS,
        ServiceCode.IDEMPOTENCY_KEY_REQUIRED,
        ServiceCode.UNSUPPORTED_MEDIA_TYPE,
    }
)
"""Refusals that say nothing about the body, so the same body may be accepted later. The last two are about
headers that a proxy drops or changes."""


@dataclass(frozen=True, slots=True)
class FetchDeltas:
    """Ask for the deltas after `position`; `wait_s` is 0, or the time of a long poll."""

    position: GalleryPosition
    wait_s: int


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Ask for a page of a snapshot; None begins one."""

    cursor: str | None


class GalleryCourse:
    """Keeps one gallery in step: deltas by long poll, a snapshot when deltas cannot continue.

    deltas ──410 history_expired, or a refusal that a snapshot heals──▶ snapshot(first page)
    snapshot ──page taken──▶ snapshot(next page) ──last page taken──▶ deltas
    snapshot ──410 cursor_expired, page refused──▶ snapshot(first page), after a wait
    """

    def __init__(self, position: GalleryPosition, backoff: Backoff) -> None:
        self.position = position
        """The core's, at its last report."""
        self._next: FetchDeltas | FetchSnapshot = FetchDeltas(position, 0)
        self._backoff = backoff

    def next_request(self) -> FetchDeltas | FetchSnapshot:
        """The next request to the service."""
        return self._next

    def deltas_taken(self, position: GalleryPosition, elapsed_s: float) -> float:
        """The core applied a page of deltas, possibly empty; seconds to wait."""
        moved = position != self.position
        polled = isinstance(self._next, FetchDeltas) and self._next.wait_s > 0
        self.position = position
        self._next = FetchDeltas(position, MAX_WAIT_S)
        if polled and not moved and elapsed_s < QUICK_ANSWER_S:
            return self._backoff.failed()
        self._backoff.succeeded()
        return 0.0

    def snapshot_page_taken(self, position: GalleryPosition, *, done: bool, next_cursor: str | None) -> float:
        """The core applied a page of a snapshot; seconds to wait."""
        self.position = position
        if not done and next_cursor is None:
            # More pages are announced, without a cursor to ask for them.
            self._next = FetchSnapshot(None)
            return self._backoff.failed()
        self._next = FetchDeltas(position, 0) if done else FetchSnapshot(next_cursor)
        return 0.0

    def page_refused(self, code: str, position: GalleryPosition) -> float:
        """The core refused a page with `code` and then reported `position`; seconds to wait."""
        moved = position != self.position
        self.position = position
        if isinstance(self._next, FetchSnapshot) or (code in _SNAPSHOT_HEALS and not moved):
            self._next = FetchSnapshot(None)
        else:
            self._next = FetchDeltas(position, 0)
        return self._backoff.failed()

    def failed(self, error: CloudError) -> float:
        """The service refused or did not answer; seconds to wait."""
        code = error.code if isinstance(error, CloudProblem) else ""
        if code == ServiceCode.HISTORY_EXPIRED and isinstance(self._next, FetchDeltas):
            self._next = FetchSnapshot(None)
            # The next step is known, so it follows at once, unless a snapshot led straight back here. Only a
            # page of deltas resets the count of failures.
            first = self._backoff.failures == 0
            delay_s = self._backoff.failed()
            return 0.0 if first else delay_s
        if isinstance(self._next, FetchSnapshot) and code in (
            ServiceCode.CURSOR_EXPIRED,
            ServiceCode.INVALID_CURSOR,
        ):
            self._next = FetchSnapshot(None)
        elif isinstance(self._next, FetchDeltas):
            self._next = FetchDeltas(self.position, 0)
        return self._backoff.failed(error.retry_after_s)


def next_cursor_of(page: bytes) -> str | None:
    """The cursor of the page after this snapshot page; None at the end or without a valid one."""
    try:
        members = json.loads(page)
    except (ValueError, RecursionError):
        return None
    cursor = members.get("next_cursor") if isinstance(members, dict) else None
    return cursor if isinstance(cursor, str) and CURSOR.fullmatch(cursor) else None


def is_judged(error: CloudError) -> TypeGuard[CloudProblem]:
    """Whether the service refused the content of a batch or an enrolment, and will not accept it later; else
    the same body is sent again with the same key, after a wait.

    Only a problem document of the service counts as a judgement: the error page of a proxy is no reason to
    discard a passage.
    """
    if not isinstance(error, CloudProblem) or not error.code or is_transient(error):
        return False
    return error.code not in _NOT_THE_CONTENT


class BatchSize:
    """The number of verdicts in a batch: halved while whole batches are refused, so that the one item at
    fault is found and set aside, and doubled after each success."""

    def __init__(self, largest: int = MAX_BATCH_ITEMS) -> None:
        self._largest = largest
        self.size = largest
        """Items to ask for."""

    def taken(self) -> None:
        self.size = min(self._largest, self.size * 2)

    def refused(self, items: int) -> bool:
        """A batch of `items` was refused as a whole. True for a single item, which is then the one at
        fault."""
        if items <= 1:
            return True
        self.size = max(1, items // 2)
        return False


class Reachability:
    """Derives from all requests whether the service is reachable, and reports changes. What the core refuses
    of its answers is part of it: a service that answers well and signs with an unknown key is of no use."""

    def __init__(self) -> None:
        self.known = False
        """Whether any request has ended yet."""
        self.state = CloudState(online=False, detail="no request has been answered yet")
        self._refused: dict[str, str] = {}

    def answered(self) -> CloudState | None:
        """A request was answered; the new state if it changed."""
        refused = "; ".join(self._refused.values())
        return self._change(CloudState(online=True, detail=f"online, but {refused}" if refused else ONLINE))

    def refused(self, task: str, why: str) -> CloudState | None:
        """The core refused the answer to a request of this task; the new state if it changed."""
        self._refused[task] = why
        return self.answered()

    def taken(self, task: str) -> CloudState | None:
        """The core took the answer to a request of this task; the new state if it changed."""
        return None if self._refused.pop(task, None) is None else self.answered()

    def failed(self, error: CloudError) -> CloudState | None:
        """A request failed; the new state if it changed.

        A refusal with a code of the service is an answer too, except when it does not accept the device.
        """
        if isinstance(error, CloudProblem) and error.code and error.status < 500:
            if error.code != ServiceCode.UNAUTHENTICATED:
                return self.answered()
            return self._change(
                CloudState(
                    online=True,
                    detail="the service does not accept this device's key: revoked, or not registered there",
                )
            )
        if isinstance(error, CloudProblem):
            # Without the id of the request, which would make every failure a change.
            return self._change(
                CloudState(online=False, detail=f"the service answers {error.status} {error.code}".rstrip())
            )
        return self._change(CloudState(online=False, detail=str(error)))

    def _change(self, state: CloudState) -> CloudState | None:
        if self.known and state == self.state:
            return None
        self.known, self.state = True, state
        return state
