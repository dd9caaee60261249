"""The device's end of the device surface: HTTPS requests signed with the device's http key.

Every request gets a new signature (RFC 9421, fresh nonce), so a caller repeats a POST by calling again with
the same idempotency key and the same body bytes. Answers are passed on as received: the core verifies what
the service signed. A refusal becomes `CloudProblem`, the lack of a whole answer
`CloudUnreachable`. Nothing here waits between attempts; see `cloud_client.retry`.

    async with CloudClient(ServerAddress.parse("https://cloud.example", ca_file), http_key, wall_ms) as cloud:
        page = await cloud.gallery_deltas(epoch=1, after_seq=41, wait_s=55)
"""

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import httpx

from cloud_client import contract
from cloud_client.errors import CloudAnswerError, CloudProblem, CloudUnreachable, ServerAddressError
from cloud_client.http_signature import new_nonce, sign_request
from link1.errors import reason_of
from link1.keys import SigningKey
from link1.plain_file import read_plain_file

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The largest answer, a page of 500 deltas, has 1.6 MiB; an answer that goes on is cut off here."""

_MAX_PROBLEM_BYTES = 64 * 1024
_CONNECT_S = 10.0
READ_S = 20.0
IDLE_S: Final = 3.0
"""A connection without a request is not used for longer: many servers end it after 5 s, and a request that is
sent at that moment gets no answer."""
WHOLE_S = 180.0
"""A page of 0.6 MB over a modem of 5 kB/s; a server that trickles is given up after it."""

_LONGEST_RETRY_AFTER_S = 900.0
"""A proxy's page for its maintenance may ask for a day. A gallery serves for six hours, and an order to wipe
waits for the next request."""
_MAX_REASON_CHARACTERS = 200

_HEADERS: Final = {
    "Accept": contract.JSON_TYPE,
    "Accept-Encoding": "identity",
    "User-Agent": "palm-syncd",
}
_CODE = re.compile(r"[a-z_]{1,64}")
_POINTER = re.compile(r"(?:/[A-Za-z0-9_]{1,64}){0,16}")
_SERVER_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)

MAX_CA_BYTES: Final = 4 * 1024 * 1024
"""A whole system's store of authorities has 220 KiB."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the service is: an origin, and the CA that its certificate must lead to (None: the system's)."""

    origin: str
    ca_file: Path | None = None

    @classmethod
    def parse(cls, url: str, ca_file: Path | None = None) -> Self:
        """Check an address from a configuration; ServerAddressError says what is wrong with it.

        Plain HTTP is refused for every host but a loopback one: vectors travel on this surface.
        """
        try:
            parsed = httpx.URL(url)
            host = parsed.host
        except (httpx.InvalidURL, UnicodeError):
            raise ServerAddressError("the cloud url is not a URL; expected https://host[:port]") from None
        port = 443 if parsed.port is None else parsed.port
        if parsed.scheme not in ("http", "https") or not host or not 1 <= port <= 65_535:
            raise ServerAddressError("the cloud url must look like https://host[:port]")
        if not contract.is_host(host):
            raise ServerAddressError("the cloud url's host is neither a name nor an address")
        if parsed.userinfo or parsed.query or parsed.fragment or parsed.path not in ("", "/"):
            raise ServerAddressError(
                "the cloud url must be https://host[:port] alone, without user, path, query or fragment"
            )
        if parsed.scheme == "http" and not contract.is_loopback(host):
            raise ServerAddressError(
                "plain http is accepted for a loopback address only; use https for any other host"
            )
        return cls(f"{parsed.scheme}://{parsed.netloc.decode('ascii')}", ca_file)

    def tls_context(self) -> ssl.SSLContext | bool:
        """What httpx verifies with; ServerAddressError when the CA file cannot be used."""
        if not self.origin.startswith("https:"):
            return False
        try:
            if self.ca_file is not None:
                read_plain_file(self.ca_file, MAX_CA_BYTES)  # OpenSSL would wait for a FIFO's writer
            # The system's store, not a package's: the device's image decides which authorities to trust.
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ServerAddressError(
                f"ca_file {self.ca_file} cannot be used ({reason_of(error)}); "
                "expected a PEM file of CA certificates"
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its body as received (b"" for 204)."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def server_time_ms(self) -> int | None:
        """The server's clock (epoch), if it was sent; None also for a time before 1970."""
        text = self.headers.get(contract.SERVER_TIME_HEADER, "")
        if not _SERVER_TIME.fullmatch(text):
            return None
        try:
            moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        except ValueError:
            return None
        at_ms = round(moment.timestamp() * 1000)
        return at_ms if at_ms >= 0 else None

    def has_type(self, media_type: str) -> bool:
        """Whether its Content-Type is `media_type`, with any parameters."""
        sent: str = self.headers.get("Content-Type", "")
        return sent.partition(";")[0].strip().lower() == media_type


class CloudClient:
    """Signed requests to one service. `wall_ms` is epoch milliseconds; several requests may run at once.

    A device whose clock is off by more than the signature allows would be locked out for ever: after a 401
    that shows such a difference, the request is repeated once with `created` taken from the server's clock.
    """

    def __init__(
        self,
        address: ServerAddress,
        http_key: SigningKey,
        wall_ms: Callable[[], int],
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport`: None for HTTP."""
        self._address = address
        self._key = http_key
        self._wall_ms = wall_ms
        self._clock_offset_ms = 0
        # Not httpx's client, which keeps cookies, and fails on a redirection that it cannot read though it
        # follows none. A proxy of the environment must not redirect a device's traffic.
        self._http: httpx.AsyncBaseTransport = transport or httpx.AsyncHTTPTransport(
            verify=address.tls_context(), trust_env=False, limits=httpx.Limits(keepalive_expiry=IDLE_S)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, body: bytes, token: str, idempotency_key: str) -> Answer:
        """POST /v1/devices/register; `token` is the provisioning token."""
        authorization = {"Authorization": f"{contract.PROVISIONING_SCHEME} {token}"}
        return await self._post("/v1/devices/register", body, idempotency_key, authorization)

    async def device_status(self) -> Answer:
        """GET /v1/devices/self/status: the signed status, a wipe order included."""
        return await self._get("/v1/devices/self/status")

    async def signing_keys(self) -> Answer:
        """GET /v1/keys: what the service signs with, now and next."""
        return await self._get("/v1/keys")

    async def gallery_deltas(self, *, epoch: int, after_seq: int, wait_s: int = 0) -> Answer:
        """GET /v1/gallery/deltas; `after_seq` acknowledges, `wait_s` (0..55) makes it a long poll."""
        query = f"epoch={epoch}&after_seq={after_seq}&limit={contract.DEFAULT_DELTA_PAGE}&wait_s={wait_s}"
        return await self._get(f"/v1/gallery/deltas?{query}", wait_s=wait_s)

    async def gallery_snapshot(self, cursor: str | None) -> Answer:
        """GET /v1/gallery/snapshot; None begins a new snapshot."""
        return await self._get(f"/v1/gallery/snapshot{f'?cursor={cursor}' if cursor else ''}")

    async def upload_verdicts(self, body: bytes, idempotency_key: str) -> Answer:
        return await self._post("/v1/verdicts/batch", body, idempotency_key)

    async def enroll(self, body: bytes, idempotency_key: str) -> Answer:
        """POST /v1/enrollments: 201 completed, 202 under review, 200 failed as reported."""
        return await self._post("/v1/enrollments", body, idempotency_key)

    async def redeem(self, body: bytes, idempotency_key: str) -> Answer:
        """POST /v1/enrollment-sessions/redeem: a short code for the session's token."""
        return await self._post("/v1/enrollment-sessions/redeem", body, idempotency_key)

    async def report(self, body: bytes, idempotency_key: str) -> Answer:
        return await self._post("/v1/devices/self/report", body, idempotency_key)

    async def updates(self) -> Answer:
        """GET /v1/devices/self/updates: the releases offered to this device, and the signed offer."""
        return await self._get("/v1/devices/self/updates")

    async def update_chunk(self, release_seq: int, index: int) -> Answer:
        """GET /v1/updates/{release_seq}/chunks/{index}; 404 `update_not_found` when it is not offered."""
        return await self._get(f"/v1/updates/{release_seq}/chunks/{index}")

    async def attest(self, body: bytes, idempotency_key: str) -> Answer:
        return await self._post("/v1/devices/attest", body, idempotency_key)

    async def wiped(self, body: bytes, idempotency_key: str) -> Answer:
        """POST /v1/devices/self/wiped: 204 once; 401 when it had arrived before."""
        return await self._post("/v1/devices/self/wiped", body, idempotency_key)

    async def _get(self, target: str, wait_s: int = 0) -> Answer:
        return await self._request("GET", target, None, {}, wait_s)

    async def _post(
        self, target: str, body: bytes, idempotency_key: str, extra: Mapping[str, str] | None = None
    ) -> Answer:
        headers = {
            "Content-Type": contract.JSON_TYPE,
            contract.IDEMPOTENCY_KEY_HEADER: idempotency_key,
            **(extra or {}),
        }
        return await self._request("POST", target, body, headers, 0)

    async def _request(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], wait_s: int
    ) -> Answer:
        created_ms = self._now_ms()
        answer = await self._send(method, target, body, headers, wait_s, created_ms=created_ms)
        if answer.status == 401 and self._learn_clock(answer, created_ms):
            answer = await self._send(method, target, body, headers, wait_s, created_ms=self._now_ms())
        if not 200 <= answer.status < 300:
            raise _problem_of(answer)
        if answer.status != 204 and not answer.has_type(contract.JSON_TYPE):
            # A captive portal answers 200 with its login page.
            raise CloudAnswerError(f"an answer {answer.status} is not JSON; is there a proxy in between?")
        return answer

    def _now_ms(self) -> int:
        """The server's time, as far as it is known here."""
        return self._wall_ms() + self._clock_offset_ms

    def _learn_clock(self, answer: Answer, created_ms: int) -> bool:
        """Take over the server's clock when the time at which a request was signed explains its 401; False
        when it does not. Since then another request may have taken it over, or the wall clock been set."""
        server_time_ms = answer.server_time_ms
        if server_time_ms is None:
            return False
        # A tenth less than the limit: both clocks have moved on since the signature was judged.
        allowed_ms = contract.SIGNATURE_SKEW_S * 900
        if abs(created_ms - server_time_ms) <= allowed_ms:
            return False
        self._clock_offset_ms = server_time_ms - self._wall_ms()
        return True

    async def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        wait_s: int,
        *,
        created_ms: int,
    ) -> Answer:
        timeout = httpx.Timeout(READ_S, connect=_CONNECT_S, read=wait_s + READ_S)
        request = httpx.Request(
            method,
            f"{self._address.origin}{target}",
            content=body,
            headers={**_HEADERS, **headers},
            extensions={"timeout": timeout.as_dict()},
        )
        # Sign what is sent: httpx decides on the target's spelling.
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        authority = request.headers["Host"]
        request.headers.update(
            sign_request(
                method,
                authority,
                path,
                query,
                body,
                key=self._key,
                created_s=created_ms // 1000,
                nonce=new_nonce(),
            )
        )
        try:
            async with asyncio.timeout(wait_s + WHOLE_S):
                response = await self._http.handle_async_request(request)
                try:
                    received = await _read_capped(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise CloudUnreachable(f"no whole answer within {wait_s + WHOLE_S:g} s") from error
        except httpx.TimeoutException as error:
            raise CloudUnreachable(f"{self._address.origin} did not answer in time") from error
        except (httpx.TransportError, ssl.SSLError) as error:
            # A fault of TLS in an open connection comes through httpx as it is. The text of a fault may hold
            # what the other end sent, as much as it likes.
            reason = reason_of(error)[:_MAX_REASON_CHARACTERS]
            raise CloudUnreachable(f"{self._address.origin} cannot be reached: {reason}") from error
        return Answer(response.status_code, response.headers, received)


async def _read_capped(response: httpx.Response) -> bytes:
    received = bytearray()
    async for piece in response.aiter_raw():
        received += piece
        if len(received) > MAX_ANSWER_BYTES:
            raise CloudAnswerError(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(received)


def _problem_of(answer: Answer) -> CloudProblem:
    retry_after = answer.headers.get("Retry-After", "")
    members = _problem_members(answer)
    code, request_id = members.get("code"), members.get("instance")
    return CloudProblem(
        answer.status,
        code if isinstance(code, str) and _CODE.fullmatch(code) else "",
        retryable=members.get("retryable") is True,
        retry_after_s=min(_LONGEST_RETRY_AFTER_S, float(retry_after))
        if re.fullmatch(r"[0-9]{1,9}", retry_after)
        else 0.0,
        request_id=request_id
        if isinstance(request_id, str) and contract.NAME_64.fullmatch(request_id)
        else "",
        pointers=_pointers(members.get("errors")),
    )


def _problem_members(answer: Answer) -> dict[str, Any]:
    if not answer.has_type(contract.PROBLEM_TYPE) or len(answer.body) > _MAX_PROBLEM_BYTES:
        return {}
    try:
        members = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return members if isinstance(members, dict) else {}


def _pointers(errors: object) -> tuple[str, ...]:
    """The places that a problem names; at most eight, and nothing that is no plain pointer."""
    if not isinstance(errors, list):
        return ()
    pointers = (item.get("pointer") for item in errors[:8] if isinstance(item, dict))
    return tuple(p for p in pointers if isinstance(p, str) and p and _POINTER.fullmatch(p))
