"""What the two pages are made of: their files, and what they ask the core for."""

import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from device.errors import IpcError, IpcRefused
from tools.palmctl.control_sockets import Ask
from tools.palmctl.enrolment_words import LANGUAGES, WORDS
from tools.palmctl.pages.server import Answer, Reply, json_reply

_STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_WAIT_MS: Final = 10_000


def preview_routes(ask: Ask) -> dict[str, Answer]:
    """The technician's page: pictures, and nothing that changes anything."""
    return _files("preview.html", "preview.css", "preview.js", "icon.svg") | {
        "GET frame": partial(_frame, ask),
        "GET status": lambda _members: _told(ask, "status", lambda header: header["status"]),
    }


def totem_routes(ask: Ask) -> dict[str, Answer]:
    """The screen of a totem: what to do, the terms, and the person's answers; never a picture."""
    changes = {f"POST {op}": partial(_change, ask, op) for op in ("begin", "accept", "refuse", "cancel")}
    words = json_reply({"languages": list(LANGUAGES), "words": WORDS})
    return (
        _files("totem.html", "totem.css", "totem.js", "icon.svg")
        | changes
        | {
            "GET words": lambda _members: words,
            "GET state": partial(_state, ask),
            "GET terms": partial(_terms, ask),
        }
    )


def _files(page: str, *others: str) -> dict[str, Answer]:
    """The page and what belongs to it, read once."""
    read = {f"GET {name}": _file(name) for name in others}
    return {"GET ": _answering(_file(page))} | {name: _answering(reply) for name, reply in read.items()}


def _file(name: str) -> Reply:
    path = _STATIC / name
    return Reply(path.read_bytes(), _KINDS[path.suffix])


def _answering(reply: Reply) -> Answer:
    return lambda _members: reply


def _frame(ask: Ask, _members: dict[str, Any]) -> Reply:
    """The next picture, with what was seen in it as a header; 204 while there is none."""
    try:
        answer = ask("preview.frame", wait_ms=1_000)
    except IpcError as error:
        return _away(error)
    picture = answer.header["picture"]
    if picture is None:
        return Reply(status=HTTPStatus.NO_CONTENT)
    return Reply(answer.payload, "image/jpeg", about=json.dumps(picture))


def _state(ask: Ask, members: dict[str, Any]) -> Reply:
    after = str(members.get("after", "0"))
    wanted = int(after) if after.isdecimal() and len(after) < 16 else 0
    return _told(
        ask,
        "enrolment.state",
        lambda header: {name: header[name] for name in ("seq", "state", "unready", "online")},
        after=wanted,
        wait_ms=_WAIT_MS,
        timeout_s=_WAIT_MS / 1000 + 5,
    )


def _terms(ask: Ask, members: dict[str, Any]) -> Reply:
    return _told(
        ask,
        "enrolment.terms",
        lambda header: header["terms"] | {"required": header["required"]},
        terms_version=str(members.get("version", "")),
        language=str(members.get("language", "")),
    )


def _change(ask: Ask, op: str, members: dict[str, Any]) -> Reply:
    allowed = {"begin": ("short_code",), "accept": ("terms_version", "purposes")}.get(op, ())
    given = {name: members[name] for name in allowed if name in members}
    return _told(ask, f"enrolment.{op}", lambda _header: {}, **given)


def _told(ask: Ask, op: str, read: Callable[[dict[str, Any]], object], **members: Any) -> Reply:
    try:
        return json_reply(read(ask(op, **members).header))
    except IpcError as error:
        return _away(error)


def _away(error: IpcError) -> Reply:
    """The core refuses, or does not answer: the page says so and asks again."""
    if isinstance(error, IpcRefused):
        return json_reply({"code": error.code}, HTTPStatus.CONFLICT)
    return json_reply({"code": "no_core"}, HTTPStatus.SERVICE_UNAVAILABLE)
