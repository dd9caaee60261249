"""What happens in the playground, decoded: frames and messages of the cable, requests, and the story.

An event is one JSON object: `n` (from 1), `at_ms` (virtual, since the start), `kind` and the members of its
kind. `frame`: `from`, `frame` and the line of `tools.kit.link_monitor`. `request`, `answer`: `from` and what
is in the HTTP message. `story`: `what`, and what that names. The page and a replay get the same bytes.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import httpx

from link1.canonical import JsonObject
from tools.kit.link_monitor import CableLog
from tools.kit.link_pcap import Captured, Direction

KEPT: Final = 3_000
"""Of each sort, bookkeeping and everything else, the page can still be given so many events."""
_MOST_TEXT: Final = 140
_MOST_ITEMS: Final = 12
_MOST_BODY_BYTES: Final = 400_000
_SHOWN_HEADERS: Final = ("signature-input", "signature", "content-digest", "idempotency-key", "authorization")
_DIRECTIONS: Final = {"device": Direction.FROM_DEVICE, "validator": Direction.FROM_VALIDATOR}
_HEARTBEATS: Final = ("ACK", "PING", "PONG")


class EventLog:
    """All events so far: counted, digested, and the newest kept."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()
        self._cable = CableLog()
        self._kept: tuple[deque[tuple[int, str]], ...] = (deque(maxlen=KEPT), deque(maxlen=KEPT))
        self.line_written: Callable[[str], object] = lambda _line: None

    @property
    def digest(self) -> str:
        """SHA-256 of the lines so far."""
        return self._digest.hexdigest()

    def add(self, at_ms: int, kind: str, /, *, quiet: bool = False, **members: Any) -> None:
        """An event; `quiet`: the page shows it only on request."""
        self.count += 1
        event = {"n": self.count, "at_ms": at_ms, "kind": kind} | ({"quiet": True} if quiet else {}) | members
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        self._digest.update(line.encode() + b"\n")
        self._kept[quiet].append((self.count, line))
        self.line_written(line)

    def after(self, number: int, most: int) -> list[str]:
        """The lines kept after event `number`, in order; of too many the newest."""
        # A copy at once: the run goes on in its thread.
        found = [pair for kept in self._kept for pair in kept.copy() if pair[0] > number]
        return [line for _, line in sorted(found)[-most:]]

    def heard(self, at_ms: int, side: str, data: bytes) -> None:
        """Bytes that one end of the cable writes."""
        for line in self._cable.feed(Captured(at_ms * 1_000, _DIRECTIONS[side], data)):
            quiet = line["kind"] in _HEARTBEATS or (line["kind"] == "DATA" and "type" not in line)
            self.add(at_ms, "frame", quiet=quiet, frame=line.pop("kind"), **_shortened(line))

    def asked(self, at_ms: int, who: str, request: httpx.Request, *, lost: bool) -> None:
        """A request leaves a client; `lost`: there is no way to the service."""
        members: dict[str, Any] = {"from": who, **_named(request)}
        if lost:
            members["lost"] = True
        headers = {name: request.headers[name] for name in _SHOWN_HEADERS if name in request.headers}
        members |= {"headers": _shortened(headers), "body": _body(request.content)}
        self.add(at_ms, "request", **members)

    def answered(self, at_ms: int, who: str, request: httpx.Request, status: int, body: bytes) -> None:
        """An answer reaches its client."""
        self.add(at_ms, "answer", **{"from": who, **_named(request), "status": status, "body": _body(body)})


def _named(request: httpx.Request) -> JsonObject:
    return {"method": request.method, "path": request.url.path, "query": request.url.query.decode()}


def _body(data: bytes) -> Any:
    """A JSON body, made short; else how long it is."""
    if not data:
        return None
    if len(data) <= _MOST_BODY_BYTES:
        try:
            return _shortened(json.loads(data))
        except ValueError:
            pass
    return f"… {len(data):,} bytes"


def _shortened(value: Any) -> Any:
    """The same with long texts and lists cut, which says how much is left out."""
    match value:
        case str() if len(value) > _MOST_TEXT:
            return f"{value[: _MOST_TEXT // 2]}… {len(value):,} characters"
        case dict():
            return {name: _shortened(item) for name, item in value.items()}
        case list() if len(value) > _MOST_ITEMS:
            return [*map(_shortened, value[:_MOST_ITEMS]), f"… {len(value):,} items"]
        case list():
            return [_shortened(item) for item in value]
        case _:
            return value
