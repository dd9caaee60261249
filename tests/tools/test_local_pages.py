"""Pages on loopback, over real HTTP: who is let in, who is not, and what the browser is told about it."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device.errors import IpcRefused, IpcUnreachable
from device.platform.ipc import Packet
from models.quality import COMPONENTS
from tests.device.status_makers import some_status
from tests.until import until
from tools.palmctl import pages
from tools.palmctl.pages import WORDS
from tools.palmctl.pages.core_pages import preview_routes, totem_routes
from tools.palmctl.pages.server import MAX_BODY_BYTES, LocalPage
from tools.rig.browser import Tab

STATIC = Path(pages.__file__).parent / "static"
JPEG = b"\xff\xd8 a picture \xff\xd9"
PICTURE = {"number": 7, "width": 640, "height": 480, "hand": None}


class Core:
    """Answers as the technician's socket does, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.frames_at_s: list[float] = []
        self.fault: Exception | None = None
        self.unknown_answers = False
        self.status = some_status()

    def __call__(self, op: str, *, timeout_s: float = 5.0, **members: Any) -> Packet:
        self.asked.append((op, members))
        if op == "preview.frame":
            self.frames_at_s.append(time.monotonic())
        if self.fault is not None:
            raise self.fault
        if self.unknown_answers:
            return Packet({"ok": True})
        match op:
            case "preview.frame":
                return Packet({"ok": True, "picture": PICTURE}, JPEG)
            case "enrolment.state":
                state = {"step": "idle"}
                return Packet({"ok": True, "seq": 3, "state": state, "unready": "", "online": True})
            case "enrolment.terms":
                terms = {"title": "T", "paragraphs": ["p"], "language": "en", "terms_version": "v1"}
                return Packet({"ok": True, "terms": terms, "required": ["enrollment"]})
            case _:
                return Packet({"ok": True, "status": self.status.to_obj()})


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def page(core: Core) -> Iterator[LocalPage]:
    made = LocalPage(totem_routes(core) | preview_routes(core), lives_s=60)
    yield made
    made.close()


def ask(
    page: LocalPage,
    name: str,
    *,
    method: str = "GET",
    token: str | None = None,
    body: bytes = b"",
    **headers: str,
) -> http.client.HTTPResponse:
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    secret = page.url.rsplit("/", 2)[1] if token is None else token
    given = {"Host": f"127.0.0.1:{page.port}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    if method == "POST":
        given = {"Content-Type": "application/json", "Content-Length": str(len(body))} | given
    line.putrequest(method, f"/{secret}/{name}", skip_host=True, skip_accept_encoding=True)
    for key, value in given.items():
        line.putheader(key, value)
    line.endheaders(body or None)
    return line.getresponse()


def test_the_page_comes_with_everything_that_keeps_others_out(page: LocalPage) -> None:
    answer = ask(page, "")
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/html")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


def test_a_page_that_listens_everywhere_is_still_for_this_machine(core: Core) -> None:
    with closing(LocalPage(preview_routes(core), bind="0.0.0.0")) as page:
        assert page.url.startswith(f"http://127.0.0.1:{page.port}/")
        assert ask(page, "frame").status == 200
        assert ask(page, "frame", Host=f"192.0.2.7:{page.port}").status == 421
        assert ask(page, "frame", token="x").status == 404


def test_the_preview_shows_every_component_of_the_quality_in_both_languages() -> None:
    script = (STATIC / "preview.js").read_text(encoding="utf-8")
    shown = re.search(r"const PARTS = (\[.*?\]);", script)
    assert shown is not None
    assert tuple(json.loads(shown[1])) == COMPONENTS
    assert [name for name in COMPONENTS if not re.search(rf'"{name}": "\w+"', script)] == []


@pytest.mark.parametrize("token", ["", "x", "A" * 32, "..", "%00"])
def test_without_the_secret_there_is_nothing(page: LocalPage, core: Core, token: str) -> None:
    for name in ("", "frame", "state"):
        assert ask(page, name, token=token).status == 404
    assert ask(page, "begin", method="POST", body=b"{}", token=token).status == 404
    assert core.asked == []


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "localhost:1", "", "127.0.0.1.evil.example:80"]
)
def test_a_name_that_leads_here_is_refused(page: LocalPage, core: Core, host: str) -> None:
    assert ask(page, "frame", Host=host).status == 421
    assert core.asked == []


def test_both_names_of_this_machine_are_good(page: LocalPage) -> None:
    assert ask(page, "frame", Host=f"localhost:{page.port}").status == 200


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Origin": "https://evil.example"}, b"{}", 403),
        ({"Origin": "null"}, b"{}", 403),
        ({"Content_Type": "text/plain"}, b"{}", 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, b"{}", 415),
        ({}, b"[1]", 400),
        ({}, b"{", 400),
        ({}, b"[" * 3000, 400),
        ({"Content_Length": str(MAX_BODY_BYTES + 1)}, b"", 413),
        ({"Content_Length": "9" * 5000}, b"", 413),
        ({"Content_Length": "-1"}, b"", 411),
    ],
)
def test_nothing_is_changed_from_elsewhere(
    page: LocalPage, core: Core, headers: dict[str, str], body: bytes, status: int
) -> None:
    assert ask(page, "accept", method="POST", body=body, **headers).status == status
    assert core.asked == []


def test_what_the_person_does_reaches_the_core_and_nothing_else_does(page: LocalPage, core: Core) -> None:
    body = json.dumps({"short_code": "4F7K-9QRT", "payload": "x", "timeout_s": 0}).encode()
    origin = f"http://127.0.0.1:{page.port}"
    assert ask(page, "begin", method="POST", body=body, Origin=origin).status == 200
    assert core.asked == [("enrolment.begin", {"short_code": "4F7K-9QRT"})]


@pytest.mark.parametrize(("after", "asked"), [("3", 3), ("", 0), ("x", 0), ("-1", 0), ("9" * 16, 0)])
def test_the_state_is_asked_for_after_the_one_that_the_page_has(
    page: LocalPage, core: Core, after: str, asked: int
) -> None:
    assert ask(page, f"state?after={after}").status == 200
    assert core.asked == [("enrolment.state", {"after": asked, "wait_ms": 10_000})]


def test_terms_of_every_name_are_asked_for_by_it(page: LocalPage, core: Core) -> None:
    """A colon belongs to the names of the contract, and comes encoded."""
    assert ask(page, "terms?version=2026%3A1&language=pt-BR").status == 200
    assert core.asked == [("enrolment.terms", {"terms_version": "2026:1", "language": "pt-BR"})]


def test_a_picture_comes_with_what_was_seen_in_it(page: LocalPage) -> None:
    answer = ask(page, "frame")
    assert (answer.status, answer.read()) == (200, JPEG)
    assert json.loads(answer.headers["X-About"]) == PICTURE


def test_the_totem_has_no_pictures_and_the_preview_no_buttons(core: Core) -> None:
    assert not [name for name in totem_routes(core) if "frame" in name]
    assert not [name for name in preview_routes(core) if name.startswith("POST")]


def test_a_core_that_refuses_or_is_away_is_told_apart(page: LocalPage, core: Core) -> None:
    core.fault = IpcRefused("busy", "another")
    refused = ask(page, "refuse", method="POST", body=b"{}")
    assert (refused.status, json.loads(refused.read())) == (409, {"code": "busy"})
    core.fault = IpcUnreachable("nobody")
    away = ask(page, "state")
    assert (away.status, json.loads(away.read())) == (503, {"code": "no_core"})


def test_what_is_no_code_and_a_core_of_another_version_are_not_understood(
    page: LocalPage, core: Core
) -> None:
    for body in (b"{}", b'{"short_code": 7}', b'{"short_code": "%s"}' % (b"4" * 33)):
        refused = ask(page, "begin", method="POST", body=body)
        assert (refused.status, json.loads(refused.read())) == (409, {"code": "malformed"})
    assert core.asked == []
    assert json.loads(ask(page, "status").read())["device_id"] == some_status().device_id
    core.unknown_answers = True
    for name in ("state", "terms", "frame", "status"):
        assert ask(page, name).status == 409


@pytest.mark.parametrize(
    ("query", "described", "said"),
    [
        ("", "folder of images /day at 15 pictures a second", "camera /dev/video0 gives no picture"),
        ("?language=fr", "folder of images /day at 15 pictures", "camera /dev/video0 gives no picture"),
        ("?language=en", "folder of images /day at 15 pictures", "camera /dev/video0 gives no picture"),
        ("?language=pt-BR", "pasta de imagens /day a 15 imagens", "não entrega nenhuma imagem"),
    ],
)
def test_the_camera_is_described_in_the_language_of_the_page(
    page: LocalPage, core: Core, query: str, described: str, said: str
) -> None:
    text, fault = "folder of images /day at 15 pictures a second", "camera /dev/video0 gives no picture"
    core.status = some_status(camera=replace(some_status().camera, description=text, message=fault))
    told = json.loads(ask(page, f"status{query}").read())["camera"]
    assert told["description"].startswith(described) and said in told["message"]


def test_an_old_address_is_good_for_nothing(core: Core) -> None:
    with closing(LocalPage(preview_routes(core), lives_s=0.0)) as page:
        assert ask(page, "frame").status == 410
        assert not page.alive
        assert core.asked == []


def test_a_page_that_was_closed_ends_unless_it_comes_back(
    page: LocalPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert ask(page, "bye", method="POST", body=b"{}").status == 204
    assert page.alive
    assert ask(page, "").status == 200  # loaded anew
    now_s += 30
    assert page.alive
    assert ask(page, "bye", method="POST", body=b"{}").status == 204
    now_s += 30
    assert not page.alive


def test_both_languages_say_everything() -> None:
    first, *others = WORDS.values()
    for words in others:
        assert words.keys() == first.keys()
    assert all(text for words in WORDS.values() for text in words.values())


def test_a_preview_that_is_refused_says_so_and_asks_once_a_second(
    page: LocalPage, core: Core, tab: Tab
) -> None:
    """As on a device that is wiped while a technician looks."""
    core.fault = IpcRefused("wiped", "this device is wiped")
    tab.open(page.url)
    until(lambda: core.frames_at_s[2:])
    assert tab.value("document.getElementById('state').textContent") == "the core refuses, see palmctl status"
    assert core.frames_at_s[2] - core.frames_at_s[0] > 1.9


def test_every_word_of_the_preview_is_in_portuguese_too() -> None:
    """The script looks each text of the page up in its own table."""
    script, page = ((STATIC / name).read_text() for name in ("preview.js", "preview.html"))
    table = re.search(r"const PORTUGUESE = (\{.*?\n\});", script, re.DOTALL)
    assert table is not None
    words = json.loads(table[1])
    body = re.sub(r"<(script|noscript|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    texts = {text.strip() for text in re.findall(r">([^<]+)<", body)}
    texts |= set(re.findall(r'(?:alt|aria-label)="([^"]+)"', body))
    hints = re.search(r"const HINTS = \{(.*?)\};", script, re.DOTALL)
    parts = re.search(r"const PARTS = (\[.*?\]);", script)
    assert hints is not None and parts is not None
    texts |= set(re.findall(r'"([^"]+)"', hints[1])) | set(json.loads(parts[1]))
    texts |= set(re.findall(r'(?:say|chip|end)\("([^"]+)"', script))
    assert {text for text in texts if re.search("[a-z]", text)} <= words.keys()
