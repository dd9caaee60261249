"""The admin bind: what operators and their tools look at, apart from the partner surface.

``/healthz`` for an orchestrator, ``/metrics`` for Prometheus, ``/docs`` and ``/openapi.json`` for a
developer, ``/operator`` for a person. Plain HTTP on a loopback address only; there, requests that a browser
was tricked into sending to another host name (DNS rebinding) are refused.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud_client.contract import is_loopback
from cloud_client.reference_server.domain.call import Service
from cloud_client.reference_server.errors import StoreUnavailable
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.web.admin.metrics import Metrics, standing
from cloud_client.reference_server.web.admin.operator_page.languages import templates
from cloud_client.reference_server.web.admin.operator_page.routes import HOME, OperatorPage
from cloud_client.reference_server.web.admin.reference import chapters
from cloud_client.reference_server.web.api.openapi import document, encoded_document
from cloud_client.reference_server.web.api.operations import OPERATIONS

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # no-referrer would make browsers send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def make_admin_app(service: Service, store: AsyncStore, metrics: Metrics, *, local: bool = True) -> ASGIApp:
    """The application of the admin bind.

    ``local``: it is reached from this machine only, by plain HTTP and one of this machine's own names. Else
    browsers come by https, under any name, and its cookie is kept to that.
    """

    async def healthz(_request: Request) -> Response:
        try:
            await service.health.check(store)
        except StoreUnavailable:
            return JSONResponse({"status": "unavailable"}, 503, {"Retry-After": "1"})
        return JSONResponse({"status": "ok"})

    async def show_metrics(_request: Request) -> Response:
        try:
            found = await store.read_aside(lambda tx: standing(tx, service.now_ms()))
        except StoreUnavailable:
            return Response("the database cannot be read\n", 503, media_type="text/plain")
        page = metrics.page(found, waiters=service.waiters.count, queued=store.queued)
        return Response(page, media_type=_METRICS_TYPE)

    rendered: list[str] = []

    async def docs(_request: Request) -> Response:
        if not rendered:
            page, description = templates("en").get_template("reference.html"), document(OPERATIONS)
            rendered.append(page.render(info=description["info"], chapters=chapters(description)))
        return Response(rendered[0], media_type="text/html")

    async def openapi(_request: Request) -> Response:
        return Response(encoded_document(OPERATIONS), media_type="application/json")

    async def start(_request: Request) -> Response:
        return RedirectResponse(HOME, 303)

    app = Starlette(
        routes=[
            Route("/", start),
            Route("/healthz", healthz),
            Route("/metrics", show_metrics),
            Route("/docs", docs),
            Route("/openapi.json", openapi),
            *OperatorPage(service, store, secure=not local).routes(),
        ],
        exception_handlers={StoreUnavailable: _unavailable},
    )
    app.router.redirect_slashes = False
    return _guarded(app, local=local)


async def _unavailable(_request: Request, _error: Exception) -> Response:
    return Response("The database cannot be used right now. Try again.\n", 503, {"Retry-After": "1"})


def _guarded(app: ASGIApp, *, local: bool) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """``app`` with the common headers on every answer, and without strangers' host names."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in _HEADERS.items()
                        if name.lower().encode() not in present
                    ),
                ]
            await send(message)

        if local and not is_loopback(_host_name(scope)):
            refusal = Response("this address answers to its own names only\n", 421, media_type="text/plain")
            await refusal(scope, receive, send_with_headers)
            return
        await app(scope, receive, send_with_headers)

    return run


def _host_name(scope: Scope) -> str:
    hosts: list[str] = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1:
        return ""
    name, colon, port = hosts[0].lower().rpartition(":")
    host = name if colon and port.isdecimal() else hosts[0].lower()
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
