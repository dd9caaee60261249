"""Reading requests and writing answers: the part of a route that is the same for all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.types import Receive, Scope, Send

from cloud_client.contract import JSON_TYPE, NAME_64, PROBLEM_TYPE
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, unavailable
from cloud_client.reference_server.contract.words import REQUEST_ID_HEADER
from cloud_client.reference_server.contract.written import encode
from cloud_client.reference_server.domain.call import ApiAnswer
from cloud_client.reference_server.domain.people.cpf import shows_cpf
from cloud_client.reference_server.web.routing import RequestTarget

AUTHENTICATED: Final = "authenticated"
"""The member of ``scope["state"]`` that is called once the caller is authenticated.

Its argument says whether the request is one that thousands may send at the same moment.
"""

DRAINED_BYTES: Final = 64 * 1024
"""A body of a refused request is read to its end up to this size, so that its connection goes on."""

BODIES_BYTES: Final = 64 * 1024 * 1024
BODIES_BYTES_OF_ONE: Final = 16 * 1024 * 1024


class Bodies:
    """Memory for the bodies of all requests under way, and how much of it one credential may have."""

    def __init__(self) -> None:
        self._free = BODIES_BYTES
        self._held: dict[str, int] = {}

    @contextmanager
    def held_by(self, who: str) -> Iterator[Callable[[int], None]]:
        """Inside, more bytes are taken by a call; Problem 503 when there is no room for them."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            held = self._held.get(who, 0) + size
            if size > self._free or held > BODIES_BYTES_OF_ONE:
                raise unavailable(headers={"Connection": "close"})
            self._held[who] = held
            self._free -= size
            taken += size

        try:
            yield take
        finally:
            self._free += taken
            left = self._held.get(who, 0) - taken
            if left:
                self._held[who] = left
            else:
                self._held.pop(who, None)


class HttpRequest:
    """Headers and raw parts of a request, read once."""

    def __init__(self, scope: Scope, receive: Receive, *, behind_tls_proxy: bool) -> None:
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.https = behind_tls_proxy or scope["scheme"] == "https"
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        target = RequestTarget.read(raw_path.decode("ascii", "replace").partition("?")[0])
        self.raw_path = target.path
        self.headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        if behind_tls_proxy and (client_of_proxy := _forwarded_for(self.header("x-forwarded-for"))):
            self.address = client_of_proxy
        # The authority of a target in absolute form goes before Host (RFC 9112 §3.2.2).
        self.authority = target.authority or next(iter(self.headers.get("host", ())), "")
        self.authenticated: Callable[[bool], None] = scope.get("state", {}).get(AUTHENTICATED, lambda _: None)
        """To be called once it is known who asks: the connection keeps its place then."""
        self._receive = receive
        # RFC 9112 §6.3: a request without either has no body.
        self.whole = "content-length" not in self.headers and "transfer-encoding" not in self.headers

    @property
    def operation(self) -> str:
        """The method of the operation that is asked for: a HEAD is a GET whose body is not sent."""
        return "GET" if self.method == "HEAD" else self.method

    def header(self, name: str) -> list[str]:
        """Every value of a header, in order; ``name`` in lower case."""
        return self.headers.get(name, [])

    def check_framing(self) -> None:
        """Problem 400, and the connection ends, when two headers say where the body does (RFC 9112 §6.1).

        Bytes that we and a proxy in front of us delimit differently would be another client's request.
        """
        if "transfer-encoding" in self.headers and "content-length" in self.headers:
            raise Problem(ProblemCode.INVALID_REQUEST, headers={"Connection": "close"})

    def request_id(self) -> str | None:
        """The client's correlation id, None when there is none, or something that is no such thing.

        What shows a CPF is none: the id is echoed and logged.
        """
        match self.header(REQUEST_ID_HEADER.lower()):
            case [value] if NAME_64.fullmatch(value) and not shows_cpf(value):
                return value
            case _:
                return None

    def check_request_id(self) -> None:
        """Problem 400 when what was sent as a correlation id is no such thing."""
        if self.header(REQUEST_ID_HEADER.lower()) and self.request_id() is None:
            raise Problem(ProblemCode.INVALID_REQUEST, "X-Request-Id is outside its format, or shows a CPF")

    def check_json_type(self) -> None:
        """Problem 415 unless the body is said to be plain UTF-8 JSON."""
        coded = any(value.strip().lower() != "identity" for value in self.header("content-encoding"))
        if coded or not _is_json(self.header("content-type")):
            raise Problem(ProblemCode.UNSUPPORTED_MEDIA_TYPE)

    async def body(self, max_bytes: int, take: Callable[[int], None]) -> bytes:
        """The whole body, for whose memory ``take`` is called as it comes. Problem 413 beyond ``max_bytes``.

        The connection ends with such an answer; what the client still sends is read and dropped there.
        """
        if self.whole:
            return b""
        if any(int(length) > max_bytes for length in self.header("content-length")):
            raise _too_large()  # before the client is asked for it (RFC 9110 §10.1.1)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > max_bytes:
                raise _too_large()
            take(len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                self.whole = True
                return b"".join(chunks)

    def leaves_much(self) -> bool:
        """Whether the body was not read, and is too large to be dropped: the connection ends then."""
        return not self.whole and not is_drained(self.header("content-length"))


def _too_large() -> Problem:
    return Problem(ProblemCode.PAYLOAD_TOO_LARGE, headers={"Connection": "close"})


def _is_json(types: Sequence[str]) -> bool:
    if len(types) != 1:
        return False
    media_type, *parameters = (part.strip().lower() for part in types[0].split(";"))
    return media_type == JSON_TYPE and all(
        parameter in {"", "charset=utf-8", 'charset="utf-8"'} for parameter in parameters
    )


def is_drained(lengths: Sequence[str]) -> bool:
    """Whether a body with these Content-Length headers is read to its end when no handler reads it."""
    return (
        len(lengths) == 1
        and 0 < len(lengths[0]) < 8
        and lengths[0].isdecimal()
        and int(lengths[0]) <= DRAINED_BYTES
    )


def _forwarded_for(values: Sequence[str]) -> str | None:
    """The client of a proxy in front of us: the last address; those before it may be its invention."""
    last = values[-1].rpartition(",")[2].strip() if values else ""
    try:
        return str(ip_address(last))
    except ValueError:
        return None


def holder_of(address: str) -> str:
    """What limits count an address as: itself, or the /64 of an IPv6 one, which one host has whole."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped else found.packed[:8].hex()


async def send_answer(send: Send, answer: ApiAnswer, headers: Mapping[str, str], *, head: bool) -> None:
    """Write an answer out; ``head`` leaves the body away and keeps its length."""
    data = answer.encoded or (b"" if answer.body is None else encode(answer.body))
    raw = [
        (name.lower().encode(), value.encode("latin-1"))
        for fields in (answer.headers, headers)
        for name, value in fields.items()
    ]
    if answer.body is not None and "Content-Type" not in answer.headers:
        raw.append((b"content-type", _PROBLEM_TYPE if answer.status >= 400 else _JSON_TYPE))
    if answer.status not in (204, 304):
        raw.append((b"content-length", b"%d" % len(data)))
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if head else data})


_JSON_TYPE, _PROBLEM_TYPE = JSON_TYPE.encode(), PROBLEM_TYPE.encode()
