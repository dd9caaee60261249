"""What the two pages are made of: their files, and what they ask the core for."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from device.errors import IpcError, IpcRefused
from device.platform.ipc import Ask
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
from tools.palmctl.language import LANGUAGES, catalogue_of
from tools.palmctl.pages import WORDS
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
        "GET frame": _asking(_frame, ask),
        "GET status": _asking(_status, ask),
    }


def totem_routes(ask: Ask) -> dict[str, Answer]:
    """The screen of a totem: what to do, the terms, and the person's answers; never a picture."""
    asked = {"begin": CodeTyped, "accept": TermsAccepted, "refuse": None, "cancel": None}
    changes = {f"POST {op}": _asking(partial(_change, op, request), ask) for op, request in asked.items()}
    words = json_reply({"languages": list(WORDS), "words": WORDS})
    return (
        _files("totem.html", "totem.css", "totem.js")
        | changes
        | {
            "GET words": lambda _members: words,
            "GET state": _asking(_state, ask),
            "GET terms": _asking(_terms, ask),
        }
    )


def _files(*names: str) -> dict[str, Answer]:
    return static_files(*(_STATIC / name for name in names))


def static_files(page: Path, *others: Path) -> dict[str, Answer]:
    """Routes to a page, to what belongs to it and to what pages have in common, read once. Raises OSError."""
    read = (*others, _STATIC / "page.js", _STATIC / "icon.svg")
    return {"GET ": _file(page)} | {f"GET {path.name}": _file(path) for path in read}


def _file(path: Path) -> Answer:
    reply = Reply(path.read_bytes(), _KINDS[path.suffix])
    return lambda _members: reply


def _frame(ask: Ask, _members: dict[str, Any]) -> Reply:
    """The next picture, with what was seen in it as a header; 204 while there is none."""
    packet = ask("preview.frame", **NextAsked(wait_ms=1_000).to_obj())
    picture = PictureAnswer.from_obj(packet.header).picture
    if picture is None:
        return Reply(status=HTTPStatus.NO_CONTENT)
    return Reply(packet.payload, "image/jpeg", about=json.dumps(picture))


def _status(ask: Ask, members: dict[str, Any]) -> Reply:
    """The status, with what it says about the camera in the language of the page."""
    told = StatusAnswer.from_obj(ask("status").header).status
    language, camera = members.get("language"), told.camera
    if language in LANGUAGES:
        say = catalogue_of(language).translated
        camera = replace(camera, description=say(camera.description), message=say(camera.message))
    return json_reply(replace(told, camera=camera).to_obj())


def _state(ask: Ask, members: dict[str, Any]) -> Reply:
    after = str(members.get("after", "0"))
    asked = ScreenAsked(int(after) if after.isdecimal() and len(after) < 16 else 0, _WAIT_MS)
    told = ask("enrolment.state", timeout_s=_WAIT_MS / 1000 + 5, **asked.to_obj())
    return json_reply(ScreenAnswer.from_obj(told.header).to_obj())


def _terms(ask: Ask, members: dict[str, Any]) -> Reply:
    asked = TermsAsked(str(members.get("version", "")), str(members.get("language", "")))
    told = TermsAnswer.from_obj(ask("enrolment.terms", **asked.to_obj()).header)
    return json_reply(told.terms.to_obj() | {"required": told.required})


def _change(op: str, asked: type[WireObject] | None, ask: Ask, members: dict[str, Any]) -> Reply:
    """A person's answer; `asked` is the request that the page's members make."""
    ask(f"enrolment.{op}", **({} if asked is None else asked.from_obj(members).to_obj()))
    return json_reply({})


def _asking(answer: Callable[[Ask, dict[str, Any]], Reply], ask: Ask) -> Answer:
    """The page's answer; where the core refuses or does not answer, the page says so and asks again."""

    def answered(members: dict[str, Any]) -> Reply:
        try:
            return answer(ask, members)
        except IpcRefused as error:
            return json_reply({"code": error.code}, HTTPStatus.CONFLICT)
        except FormatError:  # the page, or a core of another version
            return json_reply({"code": "malformed"}, HTTPStatus.CONFLICT)
        except IpcError:
            return json_reply({"code": "no_core"}, HTTPStatus.SERVICE_UNAVAILABLE)

    return answered
