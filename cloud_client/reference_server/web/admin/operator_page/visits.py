"""Who is signed in: a random cookie in the browser, and here the API key it belongs to.

The key itself is not kept, only its id and the hash that the database has too. Every request compares the
two again, so a key that is revoked signs its page out with the next click.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cloud_client.reference_server.store.vault import token_hash
from cloud_client.reference_server.web.auth import API_KEY

COOKIE: Final = "palm_operator"
IDLE_S: Final = 30 * 60
LONGEST_S: Final = 12 * 3600
_MOST: Final = 1000
_COOKIE_VALUE = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(slots=True)
class Visit:
    """One signed-in browser."""

    key_id: str
    secret_sha256: bytes
    form_token: str
    """Proves that a form came from a page of this visit."""
    since_s: float
    seen_s: float


class Visits:
    """The visits of one server process; lost with it."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._visits: dict[bytes, Visit] = {}

    def begin(self, api_key: str) -> str:
        """The cookie of a new visit; ``api_key`` has been authenticated."""
        found = API_KEY.fullmatch(api_key)
        if found is None:
            raise ValueError("api_key")
        now_s = self._monotonic_s()
        self._forget(now_s)
        cookie = secrets.token_urlsafe(32)
        self._visits[token_hash(cookie)] = Visit(
            found[2], token_hash(found[3]), secrets.token_urlsafe(32), now_s, now_s
        )
        return cookie

    def find(self, cookie: str | None) -> Visit | None:
        """The visit of a cookie, None when there is none (any more)."""
        if cookie is None or not _COOKIE_VALUE.fullmatch(cookie):
            return None
        now_s = self._monotonic_s()
        visit = self._visits.get(token_hash(cookie))
        if visit is None or _is_over(visit, now_s):
            return None
        visit.seen_s = now_s
        return visit

    def end(self, cookie: str | None) -> None:
        if cookie is not None:
            self._visits.pop(token_hash(cookie), None)

    def _forget(self, now_s: float) -> None:
        self._visits = {name: visit for name, visit in self._visits.items() if not _is_over(visit, now_s)}
        while len(self._visits) >= _MOST:
            del self._visits[min(self._visits, key=lambda name: self._visits[name].seen_s)]


def _is_over(visit: Visit, now_s: float) -> bool:
    return now_s - visit.seen_s > IDLE_S or now_s - visit.since_s > LONGEST_S
