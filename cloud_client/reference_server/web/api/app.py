"""The ASGI application: every request goes through the same checks in the same order.

    route (404, 405) → X-Request-Id → 401 → 429 → 403 scope → 415, 413 → 428, 400 Idempotency-Key
    → 400 query → 400 JSON → idempotency (409, 422, replay) → 422 schema → 404 → 403 livemode → the rest

A body is read when its sender is known: the signature of a device covers the digest of the body, which is
compared once the body is there (401 again). Only a registration brings its key in the body; before that is
read its provisioning token counts.
"""

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud_client.contract import IDEMPOTENCY_KEY_HEADER, SERVER_TIME_HEADER
from cloud_client.reference_server.contract.parameters import read_query
from cloud_client.reference_server.contract.problems import Problem, ProblemCode, invalid, unavailable
from cloud_client.reference_server.contract.request_signature import VerifiedRequest, normalise_authority
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.contract.words import IDEMPOTENCY_KEY, MAX_JSON_BYTES, REQUEST_ID_HEADER
from cloud_client.reference_server.domain.call import ApiAnswer, Call, Service
from cloud_client.reference_server.domain.devices.registration import registering_http_key
from cloud_client.reference_server.domain.tenancy.callers import (
    Caller,
    DeviceCaller,
    PartnerCaller,
    ProvisioningCaller,
    PublicCaller,
)
from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import UNLOCKED, Tx
from cloud_client.reference_server.web import auth
from cloud_client.reference_server.web.access_log import ServedRequest
from cloud_client.reference_server.web.api import idempotency
from cloud_client.reference_server.web.api.changes import followed
from cloud_client.reference_server.web.api.openapi import document, encoded_document
from cloud_client.reference_server.web.api.operation import (
    AsyncHandler,
    Handler,
    Keyed,
    Operation,
    Retirement,
    Surface,
)
from cloud_client.reference_server.web.api.rate_limit import Charge, Limiter, Rate
from cloud_client.reference_server.web.http import Bodies, HttpRequest, holder_of, send_answer
from cloud_client.reference_server.web.routing import Routes

log = logging.getLogger("palm.cloud")

NO_ROUTE = "(no route)"
ByPath = Mapping[str, Mapping[str, Operation]]


@dataclass(slots=True)
class Exchange:
    """What is known of one request so far; the log line and the common headers come from it."""

    request_id: str
    template: str
    started_s: float
    rate_headers: Mapping[str, str]
    device_surface: bool = False
    retirement: Retirement | None = None
    reason: str = ""


class Api:
    """Carries out the operations of a table.

    ``on_answer`` is called on the loop after every answer (access log, metrics).
    """

    def __init__(
        self, service: Service, store: AsyncStore, limiter: Limiter, *, behind_tls_proxy: bool = False
    ) -> None:
        self.service = service
        self.store = store
        self.on_answer: Callable[[ServedRequest], None] = lambda _served: None
        self._limiter = limiter
        self._running: set[tuple[str, str, str, str]] = set()
        self._bodies = Bodies()
        self._behind_tls_proxy = behind_tls_proxy

    async def handle(self, routes: Routes, table: ByPath, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; ``table`` has the operations of each template by method."""
        request = HttpRequest(scope, receive, behind_tls_proxy=self._behind_tls_proxy)
        template, path_params = routes.find(request.raw_path) or (NO_ROUTE, {})
        exchange = Exchange(request.request_id() or secrets.token_hex(16), template, time.monotonic(), {})
        operations = table.get(template, {})
        operation = operations.get(request.operation)
        try:
            if operation is not None and operation.polled:
                # Not held while an answer is sent: a client that reads slowly takes nobody's turn.
                async with self.service.waiters.at_work:
                    answer = await self._answer(operations, request, exchange, path_params)
            else:
                answer = await self._answer(operations, request, exchange, path_params)
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
        if request.leaves_much() and "Connection" not in answer.headers:
            headers["Connection"] = "close"
        if exchange.device_surface:
            headers[SERVER_TIME_HEADER] = rfc3339(self.service.now_ms())
        if exchange.retirement is not None:
            headers |= exchange.retirement.headers
        if "Cache-Control" not in answer.headers:
            headers["Cache-Control"] = "no-store"
        await send_answer(send, answer, headers, head=request.method == "HEAD")
        self.on_answer(
            ServedRequest(
                request.method if request.method in _METHODS else "?",
                template,
                answer.status,
                time.monotonic() - exchange.started_s,
                exchange.request_id,
                exchange.reason or answer.reason,
            )
        )

    async def _answer(
        self,
        operations: Mapping[str, Operation],
        request: HttpRequest,
        exchange: Exchange,
        path_params: Mapping[str, str],
    ) -> ApiAnswer:
        request.check_framing()
        if not operations:
            raise Problem(ProblemCode.ROUTE_NOT_FOUND)
        if request.method == "OPTIONS":
            return ApiAnswer(204, headers={"Allow": _allow(operations)})
        operation = operations.get(request.operation)
        if operation is None:
            raise Problem(ProblemCode.METHOD_NOT_ALLOWED, headers={"Allow": _allow(operations)})
        exchange.retirement = operation.retirement
        exchange.device_surface = operation.surface in (Surface.DEVICE, Surface.REGISTRATION)
        request.check_request_id()
        caller, verified = await self._authenticate(operation, request)
        level = await self._limiter.take(charges_of(caller, operation, request.query))
        exchange.rate_headers = level.headers
        if operation.scope and operation.scope not in cast("PartnerCaller", caller).scopes:
            raise Problem(ProblemCode.INSUFFICIENT_SCOPE)
        if operation.access_only and cast("DeviceCaller", caller).kind != "access":
            raise Problem(ProblemCode.FORBIDDEN)
        with self._bodies.held_by(_credential(caller)) as take:
            body = await self._body(operation, request, verified, take)
            key = _idempotency_key(operation, request)
            query = read_query(request.query, operation.query)
            value = await _read(operation, body) if operation.bodies else None
            call = Call(
                self.service,
                caller,
                _named_alike(operation, path_params),
                query,
                value,
                self.service.now_ms(),
                tuple(request.header("if-none-match")),
            )
            if key is not None:
                return await self._execute_keyed(operation, call, exchange, key=key, body=body)
            return await self._execute(operation, call)

    async def _authenticate(
        self, operation: Operation, request: HttpRequest
    ) -> tuple[Caller, VerifiedRequest | None]:
        """Who asks, by the head alone; and what is signed, where the body is yet to be held against it."""
        now_ms = self.service.now_ms()
        authorization = request.header("authorization")
        if operation.surface is Surface.PUBLIC:
            return PublicCaller(holder_of(request.address)), None
        caller: Caller
        verified = None
        if operation.surface is Surface.PARTNER:
            caller = await self.store.read(lambda tx: auth.authenticate_key(tx, authorization))
        elif operation.surface is Surface.REGISTRATION:
            caller = await self.store.read(lambda tx: auth.authenticate_token(tx, authorization, now_ms))
        else:
            parts = self._signed_parts(request)
            caller, verified = await self.store.read(
                lambda tx: auth.verify_device(tx, parts, now_ms, for_revoked=operation.for_revoked)
            )
        request.authenticated(operation.polled)
        return caller, verified

    def _signed_parts(self, request: HttpRequest) -> auth.SignedParts:
        return auth.SignedParts(
            request.method,
            normalise_authority("https" if request.https else "http", request.authority),
            request.raw_path,
            request.query.decode("latin-1"),
            request.headers,
        )

    async def _body(
        self,
        operation: Operation,
        request: HttpRequest,
        verified: VerifiedRequest | None,
        take: Callable[[int], None],
    ) -> bytes:
        """The body, which is its sender's. Of a request that takes none nothing is handed on."""
        if operation.surface is Surface.PUBLIC:
            return b""  # whatever a stranger sends after the head is not read
        if operation.bodies and operation.surface is not Surface.REGISTRATION:
            request.check_json_type()
        if operation.polled and not request.whole:
            # Nor is the turn held while a body comes, however slowly.
            async with self.service.waiters.aside():
                body = await request.body(operation.max_bytes, take)
        else:
            body = await request.body(operation.max_bytes, take)
        now_ms = self.service.now_ms()
        if verified is not None:
            auth.check_body(verified, body)
            await self.store.write(
                lambda tx: auth.admit_device(tx, verified, now_ms, for_revoked=operation.for_revoked),
                durable=False,
                lock=UNLOCKED,
            )
        if operation.surface is Surface.REGISTRATION:
            http_key = registering_http_key(body)
            # Without a readable key in it the body gets its own answer (400, 422) further on.
            if http_key is not None:
                signed = auth.verify_registration(self._signed_parts(request), http_key, body, now_ms)
                await self.store.write(
                    lambda tx: auth.spend_nonce(tx, signed, now_ms), durable=False, lock=UNLOCKED
                )
            request.check_json_type()
        return body if operation.bodies else b""

    async def _execute_keyed(
        self,
        operation: Operation,
        call: Call,
        exchange: Exchange,
        *,
        key: str,
        body: bytes,
    ) -> ApiAnswer:
        """Claim, effects and recorded answer are one transaction: a process that dies leaves none of them."""
        path = operation.path.format(**call.path)
        running = (_credential(call.caller), operation.method, path, key)
        if running in self._running:
            raise Problem(ProblemCode.IDEMPOTENCY_IN_PROGRESS)
        done_ahead = call
        claim = partial(
            idempotency.claim,
            vault=self.service.vault,
            credential=running[0],
            method=operation.method,
            path=path,
            key=key,
            body=body,
            now_ms=call.now_ms,
            newest_only=operation.newest_key_only,
        )

        def work(tx: Tx) -> ApiAnswer:
            claimed = claim(tx)
            if isinstance(claimed, ApiAnswer):
                return claimed
            try:
                answer = cast("Handler", operation.handler)(_checked(operation, done_ahead), tx)
            except Problem as problem:
                if problem.status >= 500:
                    raise
                raise _RefusedRequest(problem) from None
            return idempotency.record(tx, claimed, answer)

        def record(tx: Tx, refusal: ApiAnswer) -> ApiAnswer:
            claimed = claim(tx)
            return claimed if isinstance(claimed, ApiAnswer) else idempotency.record(tx, claimed, refusal)

        self._running.add(running)
        try:
            done_ahead = await self._ahead(operation, call)
            try:
                return await self._done(call, await self.store.write(work, lock=call.environment.tenant_id))
            except _RefusedRequest as refused:
                # Its effects are undone; what is left of it is the answer.
                answer = _problem_answer(refused.problem, exchange)
            return await self.store.write(lambda tx: record(tx, answer), durable=False, lock=UNLOCKED)
        finally:
            self._running.discard(running)

    async def _ahead(self, operation: Operation, call: Call) -> Call:
        """The call with what is done ahead of its transaction; what is refused here is refused there."""
        if operation.ahead is None:
            return call
        try:
            return replace(call, ahead=await operation.ahead(_checked(operation, call), self.store))
        except Problem:
            return call

    async def _execute(self, operation: Operation, call: Call) -> ApiAnswer:
        if operation.waits:
            return await cast("AsyncHandler", operation.handler)(_checked(operation, call), self.store)

        def work(tx: Tx) -> ApiAnswer:
            return cast("Handler", operation.handler)(_checked(operation, call), tx)

        if operation.writes:
            return await self._done(call, await self.store.write(work, lock=call.environment.tenant_id))
        # What opens a person asks the token for the person's key: never on the loop.
        asks_token = operation.surface is not Surface.PUBLIC and self.service.vault.kms.in_token
        if operation.lists or asks_token:
            return await self.store.read_aside(work)
        return await self.store.read(work)

    async def _done(self, call: Call, answer: ApiAnswer) -> ApiAnswer:
        if answer.forgets is not None:
            self.service.palms.forget(call.environment.stream, answer.forgets)
        if answer.unfinished is not None:
            while await self.store.write(answer.unfinished, lock=call.environment.tenant_id):
                pass
        return answer


class _RefusedRequest(Exception):
    """A keyed request ends with a problem that is recorded."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code.value)
        self.problem = problem


def charges_of(caller: Caller, operation: Operation, query: bytes) -> list[Charge]:
    """What a request costs, and whom."""
    match caller:
        case PublicCaller():
            return [Charge(Rate.PUBLIC, caller.address)]
        case ProvisioningCaller():
            return [Charge(Rate.REGISTRATION, caller.token)]
        case DeviceCaller():
            rate, who = Rate.DEVICE, f"{caller.environment.tenant_id}:{caller.device_id}"
        case PartnerCaller():
            rate, who = Rate.KEY_WRITE if operation.writes else Rate.KEY_READ, caller.key_id
    charges = [Charge(rate, who, 1.0 if b"cursor=" in query else operation.cost)]
    if operation.limits:
        tenant = f"{caller.environment.tenant_id}:{caller.environment.mode}"
        charges += [Charge(limit, tenant if limit.of_tenant else who) for limit in operation.limits]
    return charges


def _checked(operation: Operation, call: Call) -> Call:
    """The call with its body parsed (422) and its path checked (404)."""
    body = operation.read_body(call.body) if operation.bodies else None
    for name, rule in operation.paths.items():
        if not rule.pattern.fullmatch(call.path[name]):
            raise Problem(rule.missing)
    if body is None:
        return call
    return replace(call, body=body)


def _named_alike(operation: Operation, path: Mapping[str, str]) -> Mapping[str, str]:
    """The path parameters, an id that is the same in any case in lower case.

    Before anything is looked up by the path: what an Idempotency-Key is good for depends on it too.
    """
    return {
        name: value.lower() if (rule := operation.paths.get(name)) is not None and rule.lower else value
        for name, value in path.items()
    }


async def _read(operation: Operation, body: bytes) -> object:
    """The value of a body. Problem 422 where it has more values than any of the contract's.

    A large one is not even read then: four mebibytes can hold two million values, which take seconds.
    """
    crowded = len(body) - len(body.translate(None, b",[{")) > operation.max_values
    if len(body) <= MAX_JSON_BYTES:
        value = read_body(body, operation.max_depth)
    elif not crowded:
        value = await asyncio.to_thread(read_body, body, operation.max_depth)
    if crowded:
        raise invalid("", "range")
    return value


def _idempotency_key(operation: Operation, request: HttpRequest) -> str | None:
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
    if isinstance(caller, PartnerCaller):
        return f"key:{caller.key_id}"
    if isinstance(caller, DeviceCaller):
        return f"device:{caller.environment.tenant_id}:{caller.device_id}"
    if isinstance(caller, ProvisioningCaller):
        return f"token:{caller.token}"
    return ""


def _problem_answer(problem: Problem, exchange: Exchange) -> ApiAnswer:
    exchange.reason = problem.reason
    return ApiAnswer(problem.status, problem.body(exchange.request_id), problem.headers)


_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


def _allow(operations: Mapping[str, Operation]) -> str:
    methods = set(operations) | {"OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _log_crash(exchange: Exchange, error: Exception) -> None:
    """Where it happened, never the message: that may quote what was received."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s crashed with %s\n%s", exchange.request_id, type(error).__name__, frames)


def make_app(api: Api, operations: tuple[Operation, ...]) -> ASGIApp:
    """The application over a table of operations; its lifespan watches for other processes' writes."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    by_path["/v1/openapi.json"] = {
        "GET": Operation(
            "getOpenApi",
            "GET /v1/openapi.json",
            "This document",
            lambda _call, _tx: ApiAnswer(200, document(operations), encoded=encoded_document(operations)),
            {200: None},
            Surface.PUBLIC,
        )
    }

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        async with followed(api.service, api.store):
            yield

    # Starlette's own routes would match decoded paths, redirect, and answer in plain text.
    routes, rest = Routes(by_path), Router(lifespan=lifespan)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await api.handle(routes, by_path, scope, receive, send)
        else:
            await rest(scope, receive, send)

    return app
