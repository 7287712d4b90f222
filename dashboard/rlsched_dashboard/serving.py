"""The server: waitress, and who may come in."""

from __future__ import annotations

import errno
import hmac
import os
import secrets
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dash import Dash
from dash.exceptions import DependencyException, InvalidResourceError
from flask import Response, redirect, request

from rlsched_dashboard.app import create_app
from rlsched_dashboard.settings import LOOPBACK, Settings

COOKIE = "rlsched_token"
PROCESS = "X-Rlsched-Process"
"""Header that tells pages that another process answers now, which counts its news anew."""

THREADS = 8


def serve(settings: Settings) -> None:
    """Serve the dashboard until the process is ended.

    Raises:
        OSError: The address is taken, or is none of this machine.
    """
    import waitress

    app = create_app(settings)
    guard(app, settings)
    try:
        server = waitress.create_server(
            app.server, host=settings.host, port=settings.port, threads=THREADS, ident=None
        )
    except ValueError as error:  # a name that leads nowhere
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)) from error
    server.run()


def guard(app: Dash, settings: Settings) -> None:
    """Let only those in who may come, and only requests that the dashboard's own page makes."""
    process = secrets.token_hex(8)

    @app.server.before_request
    def _check() -> Any:
        if not settings.is_authenticated and settings.is_local and not _is_loopback(request.host):
            # Another site's name that leads to this machine would make its page one of ours.
            return Response(f"Open this dashboard as http://127.0.0.1:{settings.port}/", 403)
        if request.method not in ("GET", "HEAD") and not _is_same_origin():
            return Response("Only the dashboard's own page may ask that.", 403)
        if settings.user_header and not request.headers.get(settings.user_header):
            return Response(f"The proxy sent no header {settings.user_header}.", 401)
        if settings.token is not None:
            return _check_token(settings, settings.token)
        return None

    @app.server.errorhandler(DependencyException)
    @app.server.errorhandler(InvalidResourceError)
    def _absent(_: Exception) -> Response:
        return Response("There is no such file.", 404)

    @app.server.after_request
    def _harden(response: Response) -> Response:
        response.headers[PROCESS] = process
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
        response.headers["Referrer-Policy"] = "same-origin"
        return response


def _check_token(settings: Settings, token: str) -> Any:
    given = request.args.get("token")
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        rest = [each for each in request.args.items(multi=True) if each[0] != "token"]
        path = quote("/" + request.path.lstrip("/"))
        response = redirect(f"{path}?{urlencode(rest)}" if rest else path)
        response.set_cookie(
            COOKIE,
            token,
            path=settings.url_prefix,
            httponly=True,
            samesite="Strict",
            secure=request.is_secure,
        )
        return response
    cookie = request.cookies.get(COOKIE, "")
    if hmac.compare_digest(cookie.encode(), token.encode()):
        return None
    return Response(
        "This dashboard asks for its token: add ?token=… to the address, once in this browser.",
        401,
        mimetype="text/plain",
    )


def _is_loopback(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK
    except ValueError:
        return False


def _is_same_origin() -> bool:
    """Whether a request that may change something comes from a page of ours."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin in (f"http://{request.host}", f"https://{request.host}")
