"""The middlewares of the dashboard's server: which hosts it answers for, and who may read."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from elastrain_cli.client import ClusterError
from elastrain_dashboard.access import EVERYTHING, Guard, View

VIEW = web.RequestKey("view", View)
"""What the user of a request sees."""
LOCAL = frozenset({"localhost"})
"""Names under which every dashboard answers, beside all addresses."""
_OPEN = ("/healthz", "/login", "/static/")
"""Paths without data."""
_COOKIE = "elastrain-session"
_MOST_TOKEN_BYTES = 16_384

log = structlog.get_logger(__name__)


def answers_for(hosts: Collection[str]) -> Middleware:
    """Refuse requests for other names than ``hosts``. A foreign page could otherwise read the dashboard through a name
    of its own that it points at this address (DNS rebinding); an address in the URL cannot be such a name."""
    known = LOCAL | {host.lower() for host in hosts}

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = _hostname(request.host)
        if host not in known and not _is_address(host):
            text = f"the dashboard does not answer for the host {host[:253]!r}: allow it by --host (dashboard.hosts)\n"
            raise web.HTTPMisdirectedRequest(text=text)
        request[VIEW] = EVERYTHING
        return await handler(request)

    return middleware


def asks_for(key: str) -> Middleware:
    """Require the key: on a shared machine, other users must not see one user's data."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        cookie = f"elastrain-{request.url.port}"
        if hmac.compare_digest(request.query.get("key", "").encode(), key.encode()):
            response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./"})
            response.set_cookie(cookie, key, httponly=True, samesite="Lax", path="/")
            return response
        if request.path != "/healthz" and not hmac.compare_digest(
            request.cookies.get(cookie, "").encode(), key.encode()
        ):
            raise web.HTTPForbidden(text="the key is missing: open the address that `elastrain dashboard` printed\n")
        return await handler(request)

    return middleware


def authenticates(guard: Guard) -> Middleware:
    """Require a user of the cluster: by ``Authorization: Bearer``, or by the session of the page ``/login``."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(_OPEN):
            return await handler(request)
        try:
            view = await view_of(request, guard)
        except ClusterError as error:
            log.warning("user not reviewed", error=str(error))
            text = "the API server cannot say what you may see; try again\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"}) from None
        if view is None:
            if request.path == "/":
                return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "login"})
            raise web.HTTPUnauthorized(text="log in at /login, or send a token of the cluster\n")
        request[VIEW] = view
        return await handler(request)

    return middleware


async def view_of(request: web.Request, guard: Guard) -> View | None:
    """What the user of a request sees now; None: the user is not known. Raises ``ClusterError``."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        token = guard.token_of(request.cookies.get(_COOKIE, ""))
    user = await guard.user(token.strip()) if token.strip() else None
    return await guard.view(user) if user else None


def routes(guard: Guard, page: Handler) -> list[web.RouteDef]:
    """``GET /login``: the ``page``. ``POST /login``: its form. ``POST /logout``."""

    async def log_in(request: web.Request) -> web.Response:
        _check_origin(request)
        token = str((await request.post()).get("token", "")).strip()
        session = await guard.log_in(token) if 0 < len(token) <= _MOST_TOKEN_BYTES else None
        if session is None:
            return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "login#refused"})
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./"})
        secure = request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        response.set_cookie(_COOKIE, session, httponly=True, samesite="Strict", secure=secure)
        return response

    async def log_out(request: web.Request) -> web.Response:
        _check_origin(request)
        guard.log_out(request.cookies.get(_COOKIE, ""))
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "login"})

    return [web.get("/login", page), web.post("/login", log_in), web.post("/logout", log_out)]


def _check_origin(request: web.Request) -> None:
    """A form of another site must not log a user in or out."""
    origin = request.headers.get("Origin")
    if origin not in (None, "null") and urlsplit(origin).netloc.lower() != request.host.lower():
        raise web.HTTPForbidden(text="the form is of another site\n")


def _hostname(host: str) -> str:
    """The name of a Host header, without its port."""
    return (urlsplit(f"//{host}").hostname or "").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
