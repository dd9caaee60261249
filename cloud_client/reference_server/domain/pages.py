"""Lists: keyset pages with opaque cursors.

A cursor is base64url of ``version ‖ made_s ‖ position ‖ MAC``. The MAC covers tenant, environment, list
and filters too, so a cursor is valid for exactly the list it came from; the filters themselves are not in
it. ``limit`` may change from page to page.

The cost of a page is bounded, whatever the query and the size of the list. With one filter, or none, an
index has the list in its order. With several, the index of the filter that leaves the fewest rows is walked
for at most SCAN_ROWS of them, so such a page may hold fewer items than ``limit``, or none, and still have a
next page.
"""

import base64
import hmac
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.contract.answers import AnswerObject
from cloud_client.reference_server.contract.parameters import cursor_bytes
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.store.base import Row, Tx

Position = tuple[int, str]
"""(milliseconds, id): what a list is ordered by."""

SCAN_ROWS: Final = 2000
"""How many rows a page with several filters looks at: entries of an index, some milliseconds."""

_VERSION = 1
_MAC_BYTES = 16
_MADE = struct.Struct(">BI")


@dataclass(frozen=True, slots=True)
class Listed:
    """A table as it is listed: by ``(at, key)``, rows of one environment that equal ``filters`` by column.

    ``key`` is what a row of the environment is known by, ``columns`` what is read of it, ``page`` the answer.
    ``rising`` says in which direction; ``since`` (inclusive) and ``until`` (exclusive) bound ``at``. What is
    ``endless`` grows at its end: its last page has a cursor too, which whatever comes later follows.
    """

    name: str
    table: str
    at: str
    key: str
    page: Callable[..., AnswerObject]
    filters: Mapping[str, Any]
    rising: bool = False
    since: int | None = None
    until: int | None = None
    endless: bool = False
    columns: str = "*"

    def position(self, row: Row) -> Position:
        return row[self.at], row[self.key]

    @property
    def order(self) -> str:
        direction = "ASC" if self.rising else "DESC"
        return f"ORDER BY {self.at} {direction}, {self.key} {direction}"

    def walked(self, columns: str, after: Position | None, filters: Iterable[str]) -> str:
        """Rows that equal some of the filters, from a position on, in no order yet."""
        words = ["tenant_id = :tenant_id", "livemode = :livemode"]
        words += [f"{name} = :{name}" for name in filters]
        if after is not None:
            words.append(f"({self.at}, {self.key}) {'>' if self.rising else '<'} (:after_at, :after_key)")
        if self.since is not None:
            words.append(f"{self.at} >= :since")
        if self.until is not None:
            words.append(f"{self.at} < :until")
        return f"SELECT {columns} FROM {self.table} WHERE {' AND '.join(words)}"  # noqa: S608 - names of ours


def read_cursor(call: Call, list_name: str, *, max_age_ms: int | None) -> Position | None:
    """The position in the request's cursor, None without a cursor.

    Problem 400 ``invalid_cursor`` for anything that is not a cursor of this list with these filters, 410
    ``cursor_expired`` when it is older than ``max_age_ms``.
    """
    text = call.query.get("cursor")
    if text is None:
        return None
    invalid = Problem(ProblemCode.INVALID_CURSOR)
    raw = cursor_bytes(text)
    payload, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if len(payload) <= _MADE.size or not hmac.compare_digest(mac, _mac(call, list_name, payload)):
        raise invalid
    version, made_s = _MADE.unpack_from(payload)
    if version != _VERSION:
        raise invalid
    if max_age_ms is not None and call.now_ms - made_s * 1000 > max_age_ms:
        raise Problem(ProblemCode.CURSOR_EXPIRED)
    at_ms, name = json.loads(payload[_MADE.size :])
    return at_ms, name


def list_page(
    call: Call,
    tx: Tx,
    listed: Listed,
    after: Position | None,
    item: Callable[[Row], AnswerObject],
) -> ApiAnswer:
    """The page envelope over what follows ``after``."""
    limit = call.query["limit"]
    rows, goes_on_at = _rows(call, tx, listed, after, limit + 1)
    if len(rows) > limit:
        rows, goes_on_at = rows[:limit], listed.position(rows[limit - 1])
    more = goes_on_at is not None
    if listed.endless and not more:
        goes_on_at = listed.position(rows[-1]) if rows else after
    cursor = None if goes_on_at is None else _make_cursor(call, listed.name, goes_on_at)
    return ApiAnswer(200, listed.page(data=[item(row) for row in rows], has_more=more, next_cursor=cursor))


def _rows(
    call: Call, tx: Tx, listed: Listed, after: Position | None, wanted: int
) -> tuple[list[Row], Position | None]:
    """At most ``wanted`` rows, and where the list goes on when not all of it has been looked at."""
    given = {
        **call.environment.params,
        **listed.filters,
        "since": listed.since,
        "until": listed.until,
        "after_at": None if after is None else after[0],
        "after_key": None if after is None else after[1],
    }
    names = list(listed.filters)
    if len(names) <= 1:
        sql = f"{listed.walked(listed.columns, after, names)} {listed.order} LIMIT :wanted"
        return tx.all(sql, wanted=wanted, **given), None
    walked_by = min(names, key=lambda name: _count(tx, listed, after, name, given))
    walk = f"{listed.walked(', '.join([listed.at, listed.key, *names]), after, [walked_by])} {listed.order}"
    others = " AND ".join(f"{name} = :{name}" for name in names if name != walked_by)
    # The innermost LIMIT keeps the engine on the index of one filter. CROSS JOIN makes SQLite look up every
    # row that was found; with IN it reads through all rows of the tenant.
    found = tx.all(
        f"""SELECT {listed.columns} FROM (
                SELECT {listed.key} AS found_key FROM ({walk} LIMIT {SCAN_ROWS}) AS walked
                WHERE {others} {listed.order} LIMIT :wanted) AS found
            CROSS JOIN {listed.table} WHERE tenant_id = :tenant_id AND {listed.key} = found_key
            {listed.order}""",  # noqa: S608 - names of ours
        wanted=wanted,
        **given,
    )
    last = tx.one(f"{walk} LIMIT 1 OFFSET {SCAN_ROWS - 1}", **given)
    return found, None if last is None else listed.position(last)


def _count(tx: Tx, listed: Listed, after: Position | None, name: str, given: Mapping[str, Any]) -> int:
    """How many rows one filter leaves, counted no further than a page looks."""
    # In order, so that an engine to which a common value is a reason to read the table keeps to the index.
    left = f"{listed.walked('1', after, [name])} {listed.order} LIMIT {SCAN_ROWS + 1}"
    count: int = tx.scalar(f"SELECT count(*) FROM ({left}) AS few", **given)  # noqa: S608 - names of ours
    return count


def _make_cursor(call: Call, list_name: str, position: Position) -> str:
    payload = _MADE.pack(_VERSION, call.now_ms // 1000) + json.dumps(position).encode()
    return base64.urlsafe_b64encode(payload + _mac(call, list_name, payload)).decode()


def _mac(call: Call, list_name: str, payload: bytes) -> bytes:
    filters = {name: value for name, value in call.query.items() if name not in {"cursor", "limit"}}
    where = json.dumps(
        [call.environment.tenant_id, call.environment.mode, list_name, sorted(filters.items())]
    )
    return call.vault.mac("cursor", where.encode(), payload)[:_MAC_BYTES]
