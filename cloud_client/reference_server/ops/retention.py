"""Retention: what is kept how long, and the sweep that deletes what is past it, some records at a time."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from cloud_client.reference_server.contract.times import DAY_MS
from cloud_client.reference_server.domain.gallery import log as gallery_log
from cloud_client.reference_server.domain.mailbox import inbox as mail_inbox
from cloud_client.reference_server.domain.people import erasure, sessions
from cloud_client.reference_server.domain.verdicts.expiry import delete_expired
from cloud_client.reference_server.store.base import CloudStore, Tx
from cloud_client.reference_server.web.api import idempotency

EVENT_MS: Final = 30 * DAY_MS
TOKEN_MS: Final = 30 * DAY_MS
"""Provisioning tokens that have expired are kept this long, to explain why a token was refused."""
STEP_ROWS: Final = 100
"""Records that are deleted in one transaction, in some hundredths of a second; others write in between."""
PAUSE_S: Final = 0.02
"""Between two of them. The writer of a server next to this process looks that often for a free moment."""
LONGEST_GAP_MS: Final = 7 * DAY_MS
"""A clock that stands longer than this after the last sweep may be wrong, and what is deleted is gone."""
DOUBTED_S: Final = 24 * 3600.0
"""So long a server with such a clock deletes nothing, unless an operator says so."""
COUNTED: Final = ("idempotency", "deltas", "events", "verdicts", "sessions")
"""The tables whose records are counted for an operator."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a transaction of a sweep has deleted, by table, and whether there may be more to delete."""

    counts: dict[str, int]
    more: bool

    @property
    def shown(self) -> dict[str, int]:
        """The counts for an operator."""
        return {name: self.counts.get(name, 0) for name in COUNTED}

    def then(self, later: "Swept") -> "Swept":
        """Both of them, of which ``later`` is the last."""
        return Swept(dict(Counter(self.counts) + Counter(later.counts)), later.more)


def sweep(tx: Tx, now_ms: int, most: int = STEP_ROWS) -> Swept:
    """Delete at most ``most`` records that are expired at ``now_ms``.

    Call it again, in another transaction, while there may be more.
    """
    counts: dict[str, int] = {"sessions": sessions.expire(tx, now_ms)}
    left = most
    for expired in _all_expired(tx, now_ms):
        deleted = expired.delete(tx, left)
        counts[expired.table] = counts.get(expired.table, 0) + deleted
        left -= deleted
        if not left:
            break
    tx.purge_after_commit = bool(left)
    return Swept(counts, not left)


def since_last(tx: Tx, now_ms: int) -> int:
    """Milliseconds from the last sweep of a server to ``now_ms``; 0 when there was none."""
    return now_ms - int(tx.scalar("SELECT coalesce(max(at_ms), :now_ms) FROM last_sweep", now_ms=now_ms))


def note_sweep(tx: Tx, now_ms: int) -> None:
    """A server has swept."""
    tx.run("DELETE FROM last_sweep")
    tx.run("INSERT INTO last_sweep (at_ms) VALUES (:now_ms)", now_ms=now_ms)


def sweep_all(store: CloudStore, now_ms: int) -> Swept:
    """Sweep until there is no more, next to a server that may be running."""
    swept = store.write(lambda tx: sweep(tx, now_ms))
    while swept.more:
        time.sleep(PAUSE_S)
        swept = swept.then(store.write(lambda tx: sweep(tx, now_ms)))
    after: str | None = ""
    while after is not None:
        time.sleep(PAUSE_S)
        after = store.write(partial(erasure.settle, after=after))
    store.purge()  # a running server, or the next to start, finishes the purge
    return swept


@dataclass(frozen=True, slots=True)
class _Expired:
    """The records of a table that are past their time. They go in ``order``, where it matters."""

    table: str
    key: str
    where: str
    given: Mapping[str, object]
    order: str = ""

    def delete(self, tx: Tx, most: int) -> int:
        order = f"ORDER BY {self.order}" if self.order else ""
        return tx.run(
            f"""DELETE FROM {self.table} WHERE ({self.key}) IN
                (SELECT {self.key} FROM {self.table} WHERE {self.where} {order} LIMIT :most)""",  # noqa: S608 - fixed words only
            most=most,
            **self.given,
        )


@dataclass(frozen=True, slots=True)
class _ExpiredVerdicts:
    """Those past their 13 months, of which the end of each chain stays."""

    now_ms: int
    table: str = "verdicts"

    def delete(self, tx: Tx, most: int) -> int:
        return delete_expired(tx, self.now_ms, most)


def _all_expired(tx: Tx, now_ms: int) -> Iterator[_Expired | _ExpiredVerdicts]:
    now, mailed = {"now_ms": now_ms}, {"limit_ms": now_ms - mail_inbox.KEEP_ACKNOWLEDGED_MS}
    yield _Expired(
        "idempotency",
        "scope_hash, key_mac",
        "started_ms <= :limit_ms",
        {"limit_ms": now_ms - idempotency.KEEP_MS},
    )
    # From the beginning of a log: a device must not be given what follows a gap.
    yield _Expired(
        "deltas",
        "stream, epoch, seq",
        "created_ms <= :limit_ms",
        {"limit_ms": now_ms - gallery_log.KEEP_DELTAS_MS},
        order="created_ms, stream, epoch, seq",
    )
    for row in tx.all("SELECT stream, epoch, kept_epoch FROM streams"):
        yield _Expired(
            "deltas",
            "stream, epoch, seq",
            "stream = :stream AND epoch < :epoch",
            {"stream": row["stream"], "epoch": row["epoch"]},
        )
        yield _Expired(
            "templates",
            "template_id",
            "stream = :stream AND epoch < :kept_epoch",
            {"stream": row["stream"], "kept_epoch": row["kept_epoch"]},
        )
    yield _Expired("events", "event_id", "created_ms <= :limit_ms", {"limit_ms": now_ms - EVENT_MS})
    yield _ExpiredVerdicts(now_ms)
    yield _Expired("nonces", "kid, nonce", "expires_ms <= :now_ms", now)
    yield _Expired("challenges", "tenant_id, device_id", "expires_ms <= :now_ms", now)
    yield _Expired("snapshots", "snapshot_id", "expires_ms <= :now_ms", now)
    yield _Expired(
        "provisioning_tokens",
        "token_hash",
        "expires_ms <= :limit_ms AND keys_digest IS NULL",
        {"limit_ms": now_ms - TOKEN_MS},
    )
    yield _Expired("inbox", "tenant_id, device_id, seq", "acked_ms <= :limit_ms", mailed)
    yield _Expired(
        "outbox", "tenant_id, device_id, seq", "record IS NULL AND received_ms <= :limit_ms", mailed
    )
    # Replaced templates are kept only for snapshots that were open when they were replaced.
    yield _Expired(
        "templates",
        "template_id",
        """removed_seq IS NOT NULL AND NOT EXISTS
           (SELECT 1 FROM snapshots s WHERE s.stream = templates.stream AND s.seq < templates.removed_seq)""",
        {},
    )
