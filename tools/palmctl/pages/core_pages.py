"""What the two pages are made of: their files, and what they ask the core for."""

import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from device.errors import IpcError, IpcRefused
from device.platform.ipc import Ask, Packet
from device.values.control import (
    CodeTyped,
    NextAsked,
    PictureAnswer,
    ScreenAnswer,
    ScreenAsked,
    TermsAccepted,
    TermsAnswer,
    TermsAsked,
)
from device.values.status import StatusAnswer
from link1.errors import FormatError
from link1.wire import WireObject
from tools.palmctl.enrolment_words import WORDS
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
    return _files("preview.html", "preview.css", "preview.js") | {
        "GET frame": partial(_frame, ask),
        "GET status": partial(_status, ask),
    }


def totem_routes(ask: Ask) -> dict[str, Answer]:
    """The screen of a totem: what to do, the terms, and the person's answers; never a picture."""
    asked = {"begin": CodeTyped, "accept": TermsAccepted, "refuse": None, "cancel": None}
    changes = {f"POST {op}": partial(_change, ask, op, request) for op, request in asked.items()}
    words = json_reply({"languages": list(WORDS), "words": WORDS})
    return (
        _files("totem.html", "totem.css", "totem.js")
        | changes
        | {
            "GET words": lambda _members: words,
            "GET state": partial(_state, ask),
            "GET terms": partial(_terms, ask),
        }
    )


def _files(*names: str) -> dict[str, Answer]:
    return static_files(*(_STATIC / name for name in names))


def static_files(page: Path, *others: Path) -> dict[str, Answer]:
    """Routes to a page, to what belongs to it and to the icon, read once. Raises OSError."""
    read = (*others, _STATIC / "icon.svg")
    return {"GET ": _file(page)} | {f"GET {path.name}": _file(path) for path in read}


def _file(path: Path) -> Answer:
    reply = Reply(path.read_bytes(), _KINDS[path.suffix])
    return lambda _members: reply


def _frame(ask: Ask, _members: dict[str, Any]) -> Reply:
    """The next picture, with what was seen in it as a header; 204 while there is none."""

    def answer(packet: Packet) -> Reply:
        picture = PictureAnswer.from_obj(packet.header).picture
        if picture is None:
            return Reply(status=HTTPStatus.NO_CONTENT)
        return Reply(packet.payload, "image/jpeg", about=json.dumps(picture))

    return _answer_of(lambda: ask("preview.frame", **NextAsked(wait_ms=1_000).to_obj()), answer)


def _status(ask: Ask, _members: dict[str, Any]) -> Reply:
    return _answer_of(
        lambda: ask("status"),
        lambda packet: json_reply(StatusAnswer.from_obj(packet.header).status.to_obj()),
    )


def _state(ask: Ask, members: dict[str, Any]) -> Reply:
    after = str(members.get("after", "0"))
    asked = ScreenAsked(int(after) if after.isdecimal() and len(after) < 16 else 0, _WAIT_MS)
    return _answer_of(
        lambda: ask("enrolment.state", timeout_s=_WAIT_MS / 1000 + 5, **asked.to_obj()),
        lambda packet: json_reply(ScreenAnswer.from_obj(packet.header).to_obj()),
    )


def _terms(ask: Ask, members: dict[str, Any]) -> Reply:
    asked = TermsAsked(str(members.get("version", "")), str(members.get("language", "")))

    def answer(packet: Packet) -> Reply:
        told = TermsAnswer.from_obj(packet.header)
        return json_reply(told.terms.to_obj() | {"required": told.required})

    return _answer_of(lambda: ask("enrolment.terms", **asked.to_obj()), answer)


def _change(ask: Ask, op: str, asked: type[WireObject] | None, members: dict[str, Any]) -> Reply:
    """A person's answer; `asked` is the request that the page's members make."""
    return _answer_of(
        lambda: ask(f"enrolment.{op}", **({} if asked is None else asked.from_obj(members).to_obj())),
        lambda _packet: json_reply({}),
    )


def _answer_of(ask: Callable[[], Packet], answer: Callable[[Packet], Reply]) -> Reply:
    """The page's answer; where the core refuses or does not answer, the page says so and asks again."""
    try:
        return answer(ask())
    except IpcRefused as error:
        return json_reply({"code": error.code}, HTTPStatus.CONFLICT)
    except FormatError:  # the page, or a core of another version
        return json_reply({"code": "malformed"}, HTTPStatus.CONFLICT)
    except IpcError:
        return json_reply({"code": "no_core"}, HTTPStatus.SERVICE_UNAVAILABLE)
