"""The ASGI application: every request goes through the same checks in the same order.

    route (404, 405) → X-Request-Id → 401 → 429 → 403 scope → 415, 413 → 428, 400 Idempotency-Key
    → 400 query → 400 JSON → idempotency (409, 422, replay) → 422 schema → 404 → 403 livemode → the rest

On the device surface the body is read before 401, because the signature covers it.
"""

import logging
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from cloud_client.contract import (
    IDEMPOTENCY_KEY,
    IDEMPOTENCY_KEY_HEADER,
    IDEMPOTENT_REPLAYED_HEADER,
    REQUEST_ID_HEADER,
    SERVER_TIME_HEADER,
    ProblemCode,
)
from cloud_client.http_signature import normalise_authority
from cloud_client.reference_server import auth, idempotency
from cloud_client.reference_server.bodies import read_model
from cloud_client.reference_server.context import (
    Answer,
    ApiKey,
    Call,
    Caller,
    Device,
    Nobody,
    Provisioning,
    Service,
)
from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.http import Request, send_answer
from cloud_client.reference_server.openapi import document
from cloud_client.reference_server.operation import AsyncHandler, Handler, Keyed, Operation, Surface
from cloud_client.reference_server.problems import Problem, unavailable
from cloud_client.reference_server.query import read_query
from cloud_client.reference_server.rate_limit import Charge, Limiter, Rate
from cloud_client.reference_server.registration import registering_http_key
from cloud_client.reference_server.store import AsyncStore, Tx
from cloud_client.reference_server.strict_json import read_body
from cloud_client.reference_server.times import rfc3339

access_log = logging.getLogger("palm.cloud.access")
log = logging.getLogger("palm.cloud")

Charges = Callable[[Caller, Operation, Mapping[str, Any]], list[Charge]]


@dataclass(slots=True)
class Exchange:
    """What is known of one request so far; the log line and the common headers come from it."""

    request_id: str
    template: str
    started_s: float
    rate_headers: Mapping[str, str]
    device_surface: bool = False
    cacheable: bool = False


class Api:
    """Carries out the operations of a table."""

    def __init__(
        self, service: Service, store: AsyncStore, limiter: Limiter, *, behind_tls_proxy: bool = False
    ) -> None:
        self.service = service
        self.store = store
        self._limiter = limiter
        self._https = behind_tls_proxy

    async def handle(
        self, operations: Mapping[str, Operation], template: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """One request to one path; ``operations`` by method, empty for a path that is no route."""
        request = Request(scope, receive, https=self._https)
        exchange = Exchange(secrets.token_hex(16), template, time.monotonic(), {})
        try:
            answer = await self._answer(operations, request, exchange, scope.get("path_params", {}))
        except Problem as problem:
            answer = _problem_answer(problem, exchange)
        except StoreUnavailable as error:
            log.warning("%s answered 503: %s", exchange.request_id, error)
            answer = _problem_answer(unavailable(), exchange)
        except ConnectionResetError:
            return  # the client has gone away while sending its body
        except Exception as error:  # noqa: BLE001 - the last line of defence: an answer and a log entry
            _log_crash(exchange, error)
            answer = _problem_answer(Problem(ProblemCode.INTERNAL_ERROR), exchange)
        headers = {REQUEST_ID_HEADER: exchange.request_id, **exchange.rate_headers}
        if exchange.device_surface:
            headers[SERVER_TIME_HEADER] = rfc3339(self.service.now_ms())
        if "Cache-Control" not in answer.headers:
            headers["Cache-Control"] = "no-store"
        await send_answer(send, answer, headers, head=request.method == "HEAD")
        access_log.info(
            "%s %s %d %.1f ms %s",
            request.method if request.method in _METHODS else "?",
            template,
            answer.status,
            (time.monotonic() - exchange.started_s) * 1000,
            exchange.request_id,
        )

    async def _answer(
        self,
        operations: Mapping[str, Operation],
        request: Request,
        exchange: Exchange,
        path_params: Mapping[str, str],
    ) -> Answer:
        if not operations:
            raise Problem(ProblemCode.ROUTE_NOT_FOUND)
        method = "GET" if request.method == "HEAD" else request.method
        if method == "OPTIONS":
            return Answer(204, headers={"Allow": _allow(operations)})
        operation = operations.get(method)
        if operation is None:
            raise Problem(ProblemCode.METHOD_NOT_ALLOWED, headers={"Allow": _allow(operations)})
        exchange.device_surface = operation.surface in (Surface.DEVICE, Surface.REGISTRATION)
        exchange.request_id = request.request_id() or exchange.request_id
        body = b""
        if exchange.device_surface:
            body = await request.body(operation.max_bytes)
        caller = await self._authenticate(operation, request, body)
        self._charge(caller, operation, request, exchange)
        if operation.scope and operation.scope not in cast("ApiKey", caller).scopes:
            raise Problem(ProblemCode.INSUFFICIENT_SCOPE)
        if operation.access_only and cast("Device", caller).kind != "access":
            raise Problem(ProblemCode.FORBIDDEN)
        takes_body = operation.body is not None or operation.body_of is not None
        if takes_body:
            request.check_json_type()
        if not exchange.device_surface:
            received = await request.body(operation.max_bytes)
            body = received if takes_body else b""
        key = _idempotency_key(operation, request)
        query = read_query(request.query, operation.query)
        value = read_body(body) if takes_body else None
        etags = tuple(tag.strip() for line in request.header("if-none-match") for tag in line.split(","))
        call = Call(self.service, caller, path_params, query, value, self.service.now_ms(), etags)
        if key is not None:
            return await self._execute_keyed(operation, call, exchange, key=key, body=body)
        return await self._execute(operation, call, None)

    async def _authenticate(self, operation: Operation, request: Request, body: bytes) -> Caller:
        now_ms = self.service.now_ms()
        authorization = request.header("authorization")
        if operation.surface is Surface.PUBLIC:
            return Nobody(request.address)
        if operation.surface is Surface.PARTNER:
            return self.store.read(lambda tx: auth.authenticate_key(tx, authorization))
        hosts = request.header("host")
        parts = auth.SignedParts(
            request.method,
            normalise_authority("https" if request.https else "http", hosts[0] if hosts else ""),
            request.raw_path,
            request.query.decode("latin-1"),
            request.headers,
            body,
        )
        if operation.surface is Surface.DEVICE:
            return await self.store.write(
                lambda tx: auth.authenticate_device(tx, parts, now_ms, for_revoked=operation.for_revoked),
                durable=False,
            )

        def registration(tx: Tx) -> Provisioning:
            holder = auth.authenticate_token(tx, authorization, now_ms)
            http_key = registering_http_key(body)
            # Without a readable key in it the body gets its own answer (400, 422) further on.
            if http_key is not None:
                auth.authenticate_registration(tx, parts, http_key, now_ms)
            return holder

        return await self.store.write(registration, durable=False)

    def _charge(self, caller: Caller, operation: Operation, request: Request, exchange: Exchange) -> None:
        try:
            level = self._limiter.take(charges_of(caller, operation, request.query))
        except Problem as problem:
            exchange.rate_headers = problem.headers
            raise
        exchange.rate_headers = level.headers

    async def _execute_keyed(
        self,
        operation: Operation,
        call: Call,
        exchange: Exchange,
        *,
        key: str,
        body: bytes,
    ) -> Answer:
        claim = partial(
            idempotency.claim,
            vault=self.service.vault,
            credential=_credential(call.caller),
            method=operation.method,
            path=_concrete_path(operation, call.path),
            key=key,
            body=body,
            now_ms=call.now_ms,
        )
        claimed = await self.store.write(claim, durable=False)
        if isinstance(claimed, Answer):
            return _with_header(claimed, IDEMPOTENT_REPLAYED_HEADER, "true")
        try:
            answer = await self._execute(operation, call, claimed)
        except Problem as problem:
            if problem.status >= 500:
                await self.store.write(lambda tx: idempotency.release(tx, claimed), durable=False)
                raise
            answer = _problem_answer(problem, exchange)
            recorded = answer
            await self.store.write(lambda tx: idempotency.record(tx, claimed, recorded), durable=False)
        except BaseException:
            await self.store.write(lambda tx: idempotency.release(tx, claimed), durable=False)
            raise
        return _with_header(answer, IDEMPOTENT_REPLAYED_HEADER, "false")

    async def _execute(self, operation: Operation, call: Call, claimed: idempotency.Claim | None) -> Answer:
        if operation.waits:
            return await cast("AsyncHandler", operation.handler)(_checked(operation, call), self.store)
        handler = cast("Handler", operation.handler)

        def work(tx: Tx) -> Answer:
            answer = handler(_checked(operation, call), tx)
            if claimed is not None:
                idempotency.record(tx, claimed, answer)
            return answer

        if not operation.writes:
            return self.store.read(work)
        answer = await self.store.write(work)
        if answer.wakes is not None:
            self.service.waiters.wake_device(*answer.wakes)
        return answer


def charges_of(caller: Caller, operation: Operation, query: bytes) -> list[Charge]:
    """What a request costs, and whom."""
    if isinstance(caller, Nobody):
        return [Charge(Rate.PUBLIC, caller.address)]
    tenant = f"{caller.environment.tenant_id}:{caller.environment.mode}"
    if isinstance(caller, Provisioning):
        return [Charge(Rate.REGISTRATION, caller.token)]
    if isinstance(caller, Device):
        who = f"{caller.environment.tenant_id}:{caller.device_id}"
        whole = operation.operation_id == "getGallerySnapshot" and b"cursor=" not in query
        charges = [Charge(Rate.DEVICE, who, 5.0 if whole else 1.0)]
        if operation.operation_id == "redeemShortCode":
            charges += [Charge(Rate.REDEEM_OF_DEVICE, who), Charge(Rate.REDEEM_OF_TENANT, tenant)]
        if operation.operation_id == "attestDevice":
            charges.append(Charge(Rate.ATTESTATION, who))
        return charges
    charges = [Charge(Rate.KEY_WRITE if operation.writes else Rate.KEY_READ, caller.key_id)]
    if operation.operation_id == "createEnrollmentSession":
        charges.append(Charge(Rate.SESSIONS_OF_TENANT, tenant))
    return charges


def _checked(operation: Operation, call: Call) -> Call:
    """The call with its body parsed (422) and its path checked (404)."""
    body = call.body
    if operation.body is not None:
        body = read_model(operation.body, body)
    elif operation.body_of is not None:
        body = operation.body_of(body)
    path = dict(call.path)
    for name, rule in operation.paths.items():
        if not rule.pattern.fullmatch(path[name]):
            raise Problem(rule.missing)
        if rule.lower:
            path[name] = path[name].lower()
    return replace(call, body=body, path=path)


def _idempotency_key(operation: Operation, request: Request) -> str | None:
    values = request.header(IDEMPOTENCY_KEY_HEADER.lower())
    if operation.keyed is Keyed.NO:
        return None
    if not values:
        if operation.keyed is Keyed.REQUIRED:
            raise Problem(ProblemCode.IDEMPOTENCY_KEY_REQUIRED)
        return None
    if len(values) > 1 or not IDEMPOTENCY_KEY.fullmatch(values[0]):
        raise Problem(ProblemCode.INVALID_REQUEST, "Idempotency-Key is outside its format")
    return values[0]


def _credential(caller: Caller) -> str:
    if isinstance(caller, ApiKey):
        return f"key:{caller.key_id}"
    if isinstance(caller, Device):
        return f"device:{caller.environment.tenant_id}:{caller.device_id}"
    if isinstance(caller, Provisioning):
        return f"token:{caller.token}"
    return ""


def _concrete_path(operation: Operation, path: Mapping[str, str]) -> str:
    return operation.path.format(**path)


def _problem_answer(problem: Problem, exchange: Exchange) -> Answer:
    return Answer(problem.status, problem.body(exchange.request_id), problem.headers)


def _with_header(answer: Answer, name: str, value: str) -> Answer:
    return replace(answer, headers={**answer.headers, name: value})


_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def _allow(operations: Mapping[str, Operation]) -> str:
    methods = set(operations) | {"OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _log_crash(exchange: Exchange, error: Exception) -> None:
    """Where it happened, never the message: that may quote what was received."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s crashed with %s\n%s", exchange.request_id, type(error).__name__, frames)


class _Path:
    """An ASGI endpoint for all methods of one path (Starlette passes classes like this straight through)."""

    def __init__(self, api: Api, template: str, operations: Mapping[str, Operation]) -> None:
        self._api, self._template, self._operations = api, template, operations

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._api.handle(self._operations, self._template, scope, receive, send)


def make_app(api: Api, operations: tuple[Operation, ...]) -> Starlette:
    """The application over a table of operations; its lifespan watches for other processes' writes."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    description = document(operations)
    by_path["/v1/openapi.json"] = {
        "GET": Operation(
            "getOpenApi",
            "GET",
            "/v1/openapi.json",
            "This document",
            Surface.PUBLIC,
            lambda _call, _tx: Answer(200, description),
            {200: None},
        )
    }
    # A literal path comes before the pattern that would match it too.
    routes: list[BaseRoute] = [
        Route(path, _Path(api, path, by_path[path]))
        for path in sorted(by_path, key=lambda path: path.count("{"))
    ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with api.service.waiters.watching(api.store):
            yield

    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = _Path(api, "(no route)", {})
    return app
