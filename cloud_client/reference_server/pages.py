"""Lists: keyset pages with opaque cursors.

A cursor is base64url of ``version ‖ made_s ‖ position ‖ MAC``. The MAC covers tenant, environment, list
and filters too, so a cursor is good for exactly the list it came from; the filters themselves are not in
it. ``limit`` may change from page to page.
"""

import base64
import binascii
import hmac
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from cloud_client.contract import CURSOR, ProblemCode
from cloud_client.reference_server.context import Answer, Call
from cloud_client.reference_server.problems import Problem
from cloud_client.reference_server.store import Row

Position = tuple[int, str]
"""(milliseconds, id): what a list is ordered by."""

_VERSION = 1
_MAC_BYTES = 16
_MADE = struct.Struct(">BI")


def read_cursor(call: Call, list_name: str, *, max_age_ms: int | None) -> Position | None:
    """The position that the request's cursor stands for, None without one.

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


def cursor_bytes(text: str) -> bytes:
    """What a cursor spells, in its one spelling. Problem 400 ``invalid_cursor``."""
    if CURSOR.fullmatch(text):
        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if base64.urlsafe_b64encode(raw).decode() == text:
            return raw
    raise Problem(ProblemCode.INVALID_CURSOR)


def page(
    call: Call,
    list_name: str,
    rows: list[Row],
    *,
    item: Callable[[Row], Mapping[str, Any]],
    position: Callable[[Row], Position],
) -> Answer:
    """The page envelope over ``rows``, of which there is one more than ``limit`` when more follow."""
    limit = call.query["limit"]
    shown, more = rows[:limit], len(rows) > limit
    cursor = _make_cursor(call, list_name, position(shown[-1])) if more else None
    return Answer(200, {"data": [item(row) for row in shown], "has_more": more, "next_cursor": cursor})


def _make_cursor(call: Call, list_name: str, position: Position) -> str:
    payload = _MADE.pack(_VERSION, call.now_ms // 1000) + json.dumps(position).encode()
    return base64.urlsafe_b64encode(payload + _mac(call, list_name, payload)).decode()


def _mac(call: Call, list_name: str, payload: bytes) -> bytes:
    filters = {name: value for name, value in call.query.items() if name not in {"cursor", "limit"}}
    where = json.dumps(
        [call.environment.tenant_id, call.environment.mode, list_name, sorted(filters.items())]
    )
    return call.vault.mac("cursor", where.encode(), payload)[:_MAC_BYTES]
