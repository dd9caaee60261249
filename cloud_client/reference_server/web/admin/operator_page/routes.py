"""The operator's page over HTTP: signing in and out, five lists, and one device; in English or Portuguese.

Nothing here changes anything. A page is one read of the store; what a key's scopes do not cover is not
shown. Forms carry proof that they come from this page: the browser's own word on where a request started
(Sec-Fetch-Site, Origin), and for signing out also a token of the visit.
"""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.words import Reconciliation, Scope
from cloud_client.reference_server.domain.call import Service
from cloud_client.reference_server.domain.people import erasure, sessions
from cloud_client.reference_server.domain.tenancy.callers import PartnerCaller
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web import auth
from cloud_client.reference_server.web.admin.operator_page import fleet_views, views
from cloud_client.reference_server.web.admin.operator_page.languages import LANGUAGES, language_of, templates
from cloud_client.reference_server.web.admin.operator_page.visits import COOKIE, Visit, Visits

HOME: Final = "/operator"
SIGN_IN: Final = f"{HOME}/sign-in"
LANGUAGE_COOKIE: Final = "palm_operator_language"
_A_YEAR_S: Final = 365 * 24 * 3600
_HERE = Path(__file__).parent
_ASSETS: Final = {"admin.css": "text/css", "live.js": "text/javascript", "mark.svg": "image/svg+xml"}
_MAX_FORM_BYTES = 4096
_MAX_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Section:
    """One list of the page."""

    name: str
    title: str
    scope: Scope
    show: Callable[[Tx, PartnerCaller, int, Request], dict[str, Any]]

    @property
    def path(self) -> str:
        return f"{HOME}/{self.name}"


def _devices(tx: Tx, key: PartnerCaller, now_ms: int, request: Request) -> dict[str, Any]:
    return {
        "page": views.devices(tx, key.environment, now_ms, _number(request)),
        "fleet": fleet_views.fleet_counts(tx, key.environment, now_ms),
    }


def _rollouts(tx: Tx, key: PartnerCaller, now_ms: int, _request: Request) -> dict[str, Any]:
    return {"rollouts": fleet_views.rollout_list(tx, key.environment, now_ms)}


def _verdicts(tx: Tx, key: PartnerCaller, now_ms: int, request: Request) -> dict[str, Any]:
    words_known = [word.value for word in Reconciliation]
    only = request.query_params.get("reconciliation")
    only = only if only in words_known else None
    number = _number(request)
    shown: dict[str, Any] = {
        "page": views.verdicts(tx, key.environment, number, reconciliation=only),
        "only": only,
        "reconciliations": words_known,
    }
    if only is None and number == 1:
        shown["conflicts"] = views.conflicts(tx, key.environment, now_ms)
    return shown


def _enrollment(tx: Tx, key: PartnerCaller, now_ms: int, request: Request) -> dict[str, Any]:
    return {"page": views.enrollment_sessions(tx, key.environment, now_ms, _number(request))}


def _erasures(tx: Tx, key: PartnerCaller, _now_ms: int, request: Request) -> dict[str, Any]:
    return {"page": views.erasures(tx, key.environment, _number(request))}


SECTIONS: Final = (
    Section("devices", "Devices", Scope.DEVICES_READ, _devices),
    Section("rollouts", "Rollouts", Scope.DEVICES_READ, _rollouts),
    Section("verdicts", "Verdicts", Scope.VERDICTS_READ, _verdicts),
    Section("enrollment", "Enrollment", Scope.SUBJECTS_READ, _enrollment),
    Section("erasures", "Erasures", Scope.SUBJECTS_READ, _erasures),
)


class OperatorPage:
    """The handlers, over one service and its store."""

    def __init__(self, service: Service, store: AsyncStore, *, secure: bool) -> None:
        self._service = service
        self._store = store
        self._secure = secure
        self._visits = Visits(time.monotonic)
        self._templates = {language: templates(language) for language in LANGUAGES}

    def routes(self) -> list[BaseRoute]:
        """Everything below ``/operator``."""
        return [
            Route(HOME, self._overview),
            Route(SIGN_IN, self._sign_in_form, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(f"{HOME}/sign-out", self._sign_out, methods=["POST"]),
            Route(f"{HOME}/static/{{name}}", _asset),
            Route(f"{HOME}/devices/{{device_id}}", self._device),
            *(Route(section.path, self._section(section)) for section in SECTIONS),
        ]

    async def _overview(self, request: Request) -> Response:
        def read(tx: Tx, key: PartnerCaller, now_ms: int) -> dict[str, Any]:
            environment = key.environment
            shown: dict[str, Any] = {"devices": None, "conflicts": None, "sessions": None, "erasures": None}
            if Scope.DEVICES_READ in key.scopes:
                shown["devices"] = views.device_counts(tx, environment, now_ms)
                shown["fleet"] = fleet_views.fleet_counts(tx, environment, now_ms)
                shown["unwell"] = views.devices(tx, environment, now_ms, unwell=True)
            if Scope.VERDICTS_READ in key.scopes:
                shown["conflicts"] = views.conflicts(tx, environment, now_ms)
                shown["latest"] = views.verdicts(tx, environment)
            if Scope.SUBJECTS_READ in key.scopes:
                shown["sessions"] = sessions.counts(tx, now_ms, environment)
                shown["erasures"] = erasure.under_way(tx, environment)
            return shown

        return await self._page(request, "overview", "Overview", read)

    async def _device(self, request: Request) -> Response:
        device_id = request.path_params["device_id"]

        def read(tx: Tx, key: PartnerCaller, now_ms: int) -> dict[str, Any]:
            day = fleet_views.device_day(tx, key.environment, device_id, now_ms)
            return {
                "name": "devices",
                "title": device_id if day is not None else "No such device",
                "day": day,
                "found": day is not None,
            }

        return await self._page(request, "device", "Device", read, scope=Scope.DEVICES_READ)

    def _section(self, section: Section) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            def read(tx: Tx, key: PartnerCaller, now_ms: int) -> dict[str, Any]:
                return section.show(tx, key, now_ms, request)

            return await self._page(request, section.name, section.title, read, scope=section.scope)

        return handle

    async def _page(
        self,
        request: Request,
        name: str,
        title: str,
        read: Callable[[Tx, PartnerCaller, int], dict[str, Any]],
        *,
        scope: Scope | None = None,
    ) -> Response:
        """A page for a signed-in visitor; others are sent to sign in."""
        visit = self._visits.find(request.cookies.get(COOKIE))
        now_ms = self._service.now_ms()

        def work(tx: Tx) -> dict[str, Any] | None:
            key = None if visit is None else auth.key_in_force(tx, visit.key_id, visit.secret_sha256)
            if key is None:
                return None
            tenant = views.tenant_name(tx, key.environment)
            common = {"key": key, "tenant": tenant}
            if scope is not None and scope not in key.scopes:
                return common
            return common | read(tx, key, now_ms) | {"allowed": True}

        shown = await self._store.read_aside(work)
        if visit is None or shown is None:
            return self._to_sign_in(request)
        context = {
            "sections": [section for section in SECTIONS if section.scope in shown["key"].scopes],
            "name": name,
            "title": title,
            "now_ms": now_ms,
            "form_token": visit.form_token,
            "needs": scope,
        } | shown
        if not shown.get("allowed"):
            return self._html(request, "refused.html", context, 403)
        return self._html(request, f"{name}.html", context, 200 if shown.get("found", True) else 404)

    async def _sign_in_form(self, request: Request) -> Response:
        if self._visits.find(request.cookies.get(COOKIE)) is not None:
            return RedirectResponse(HOME, 303)
        return self._html(request, "sign_in.html", {"title": "Sign in", "error": ""})

    async def _sign_in(self, request: Request) -> Response:
        context = {"title": "Sign in"}
        if not came_from_here(request):
            error = "The form came from another site. Open this page again and sign in here."
            return self._html(request, "sign_in.html", context | {"error": error}, 403)
        form = await _form(request)
        api_key = form.get("api_key", "").strip()
        try:
            await self._store.read_aside(lambda tx: auth.authenticate_key(tx, [f"Bearer {api_key}"]))
        except Problem:
            # As on the API: no word on what is wrong with it.
            return self._html(
                request, "sign_in.html", context | {"error": "This API key is not accepted."}, 401
            )
        response = RedirectResponse(HOME, 303)
        response.set_cookie(
            COOKIE,
            self._visits.begin(api_key),
            path=HOME,
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        cookie = request.cookies.get(COOKIE)
        visit = self._visits.find(cookie)
        if visit is not None and await _is_own_form(request, visit):
            self._visits.end(cookie)
        return self._to_sign_in(request)

    def _to_sign_in(self, request: Request) -> Response:
        response = RedirectResponse(SIGN_IN, 303)
        if request.cookies.get(COOKIE) is not None and self._visits.find(request.cookies.get(COOKIE)) is None:
            response.delete_cookie(COOKIE, path=HOME, secure=self._secure, httponly=True, samesite="strict")
        return response

    def _html(self, request: Request, template: str, context: dict[str, Any], status: int = 200) -> Response:
        chosen = request.query_params.get("language")
        kept = request.cookies.get(LANGUAGE_COOKIE)
        language = language_of(
            chosen if chosen in LANGUAGES else kept, request.headers.get("accept-language")
        )
        page = self._templates[language].get_template(template).render(context, url=request.url)
        response = HTMLResponse(page, status, {"Vary": "Accept-Language", "Content-Language": language})
        if language == chosen != kept:
            response.set_cookie(
                LANGUAGE_COOKIE,
                language,
                max_age=_A_YEAR_S,
                path=HOME,
                secure=self._secure,
                httponly=True,
                samesite="strict",
            )
        return response


def came_from_here(request: Request) -> bool:
    """Whether the browser says that a form was sent by one of this server's own pages."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return site is not None
    return urlsplit(origin).netloc == request.headers.get("host")


async def _is_own_form(request: Request, visit: Visit) -> bool:
    form = await _form(request)
    token = form.get("form_token", "").encode()
    return came_from_here(request) and hmac.compare_digest(token, visit.form_token.encode())


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small url-encoded form; empty for anything else."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            return {}
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=8)
    except ValueError:
        return {}
    return {name: values[0] for name, values in fields.items()}


def _number(request: Request) -> int:
    text = request.query_params.get("page", "1")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
    return min(max(number, 1), _MAX_PAGE)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        return Response("not found", 404, media_type="text/plain")
    headers = {"Cache-Control": "no-cache"}
    return FileResponse(_HERE / "static" / name, media_type=_ASSETS[name], headers=headers)
