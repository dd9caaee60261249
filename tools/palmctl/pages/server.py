"""A page on this machine for this machine: loopback, a secret in its address, nothing stored.

Every request must, in this order,
1. name this server in Host (another name that resolves to this address is refused: DNS rebinding),
2. carry the secret as the first part of its path, compared in constant time, while the page is alive,
3. when it changes something, be JSON and not come from another origin.
No cross-origin header is ever sent, scripts come from here alone, nothing may be cached or framed.
"""

import contextlib
import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 4096
_MOST_LENGTH_DIGITS: Final = 9
SOCKET_S: Final = 60.0
GONE_AFTER_BYE_S: Final = 4.0
"""A page that closes may be reloading."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back. `about` is sent in a header, for a body that is a picture."""

    body: bytes = field(default=b"", repr=False)
    kind: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    about: str = ""


def json_reply(value: object, status: HTTPStatus = HTTPStatus.OK) -> Reply:
    return Reply(json.dumps(value, ensure_ascii=False).encode(), status=status)


Answer = Callable[[dict[str, Any]], Reply]
"""Answers one request: the members of its JSON body, or of its query."""


class LocalPage:
    """Serves `routes` ("GET frame" → answer; "GET " is the page itself) until it is ended, too old, or left.

    `lives_s` None: until it is ended. `bind`: an address other than loopback is for a container, whose port
    is published on the loopback of its host. Raises OSError when `port` (0: any) is taken.
    """

    def __init__(
        self,
        routes: Mapping[str, Answer],
        *,
        bind: str = HOST,
        port: int = 0,
        lives_s: float | None = None,
        most_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._routes = routes
        self.most_body_bytes = most_body_bytes
        self._token = secrets.token_urlsafe(24)
        self._dies_s = None if lives_s is None else time.monotonic() + lives_s
        self._ended = threading.Event()
        self._left_s: float | None = None
        page = self

        class Handler(_Handler):
            local = page

        self._server = _Server((bind, port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="page", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address, its secret included: for who sits at this machine, and for no log."""
        return f"http://{HOST}:{self.port}/{self._token}/"

    @property
    def alive(self) -> bool:
        """Whether requests are still answered."""
        now_s = time.monotonic()
        if self._left_s is not None and now_s - self._left_s > GONE_AFTER_BYE_S:
            return False
        return not self._ended.is_set() and (self._dies_s is None or now_s < self._dies_s)

    def serve(self) -> None:
        """Wait until the page is left, too old, or interrupted."""
        try:
            while self.alive:
                self._ended.wait(0.2)
        finally:
            self.close()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(SOCKET_S)

    def admits(self, host: str, token: str) -> HTTPStatus | None:
        """None for a request that may be answered; else how it is refused."""
        if host not in (f"{HOST}:{self.port}", f"localhost:{self.port}"):
            return HTTPStatus.MISDIRECTED_REQUEST
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return HTTPStatus.NOT_FOUND
        return None if self.alive else HTTPStatus.GONE

    def answer(self, method: str, name: str, members: dict[str, Any]) -> Reply:
        if (method, name) == ("POST", "bye"):
            self._left_s = time.monotonic()  # the server ends soon, unless another request comes
            return Reply(status=HTTPStatus.NO_CONTENT)
        self._left_s = None
        answer = self._routes.get(f"{method} {name}")
        return Reply(status=HTTPStatus.NOT_FOUND) if answer is None else answer(members)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    local: LocalPage
    protocol_version = "HTTP/1.1"
    server_version = "palmctl"
    sys_version = ""
    timeout = SOCKET_S

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        path, _, query = self.path.partition("?")
        token, slash, name = path.lstrip("/").partition("/")
        refused = self.local.admits(self.headers.get("Host", ""), token)
        if refused is None and not slash:
            refused = HTTPStatus.NOT_FOUND
        members: dict[str, Any] = {}
        if refused is None and method == "POST":
            refused = self._read_body(members)
        if refused is not None:
            self.close_connection = True  # a body that was not read must not be taken for a request
            self._send(Reply(status=refused, kind="text/plain"))
            return
        if method == "GET":
            members = dict(parse_qsl(query, keep_blank_values=True))
        self._send(self.local.answer(method, name, members))

    def _read_body(self, members: dict[str, Any]) -> HTTPStatus | None:
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers['Host']}":
            return HTTPStatus.FORBIDDEN
        if self.headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return HTTPStatus.LENGTH_REQUIRED
        if len(length) > _MOST_LENGTH_DIGITS or int(length) > self.local.most_body_bytes:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        read: object = None
        with contextlib.suppress(ValueError, RecursionError):
            read = json.loads(self.rfile.read(int(length)) or b"{}")
        if not isinstance(read, dict):
            return HTTPStatus.BAD_REQUEST
        members.update(read)
        return None

    def _send(self, answer: Reply) -> None:
        try:
            self.send_response(answer.status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            if answer.status is not HTTPStatus.NO_CONTENT:
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body)))
            if answer.about:
                self.send_header("X-About", answer.about)
            self.end_headers()
            self.wfile.write(answer.body)
        except OSError:
            self.close_connection = True  # the browser has gone; there is no one to answer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (http.server's name)
        """No log: the address holds the secret."""
