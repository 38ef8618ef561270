"""`/login` and `/logout`: exchange a token for a session, and end the session.

Both are forms, so they work without scripts. Forms are accepted from pages of this gateway only: checked by the origin
headers and a token, for the login a random text that is also in a cookie, for the logout the session's CSRF token.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.types import Scope, Send

from comet_gateway.http import sessions
from comet_gateway.http.auth import Gatekeeper, Principal
from comet_gateway.http.login_redirect import back_to, see_other
from comet_gateway.http.origins import PAGE_HEADERS, Security
from comet_gateway.http.problems import Problem
from comet_gateway.http.quotas import client_address
from comet_gateway.http.raw_route import Answer, RawRoute
from comet_gateway.http.sessions import Visit
from comet_web import render

router = APIRouter()

FORM_COOKIE: Final = "comet_login"
FORM_S: Final = 3_600  # lifetime of a login form
FORM_BYTES_MAX: Final = 8 * 1024
FORM: Final = b"application/x-www-form-urlencoded"
_SANE_FORM: Final = re.compile(r"[A-Za-z0-9_-]{32}")


async def page(request: Request) -> Answer:
    """The login page; redirects if no login is needed."""
    scope, wanted = request.scope, back_to(request.query_params.get("next", ""))
    if _keeper(scope).open or _visit(scope, "GET") is not None:
        return _to(scope, wanted)
    return _shown(scope, wanted)


async def log_in(request: Request) -> Answer:
    """Exchanges the token for a session: always a new one, against session fixation."""
    scope, keeper = request.scope, _keeper(request.scope)
    form = await _form(request)
    wanted = back_to(form.get("next", ""))
    if keeper.open:
        return _to(scope, wanted)
    tls = _tls(scope)
    given = sessions.one_cookie(scope["comet.headers"], _form_cookie(tls=tls)) or ""
    if not given or not hmac.compare_digest(given.encode(), form.get("form", "").encode()):
        return _shown(scope, wanted, status=403, problem="The form has expired or cookies are off. Try again.")
    try:
        visit, principal = keeper.log_in(client_address(scope), form.get("token", "").strip())
    except Problem as problem:
        return _shown(scope, wanted, status=problem.kind.status, problem=_reason(problem), wait_s=problem.retry_after_s)
    scope["comet.principal"], scope["comet.session"] = principal, visit  # for the audit log
    cookies = sessions.session_cookie(visit, keeper.wall(), tls=tls), _form_text("", tls=tls, max_age_s=0)
    return _to(scope, wanted, *cookies)


async def log_out(request: Request) -> Answer:
    """Ends the session: its connections at this gateway, and its cookie."""
    scope = request.scope
    form = await _form(request)
    found = _visit(scope, "POST")
    if found is not None:
        visit, principal = found
        if not visit.shows(form.get("csrf", "")):
            raise Problem("STALE_PAGE", "this page belongs to another session; reload it")
        scope["comet.principal"], scope["comet.session"] = principal, visit
        _keeper(scope).log_out(visit)
    return _to(scope, "/login", sessions.expired_cookie(tls=_tls(scope)))


router.routes += [
    RawRoute("/login", page, methods=["GET"], include_in_schema=False),
    RawRoute("/login", log_in, methods=["POST"], include_in_schema=False),
    RawRoute("/logout", log_out, methods=["POST"], include_in_schema=False),
]


def _shown(scope: Scope, wanted: str, *, status: int = 200, problem: str = "", wait_s: float = 0) -> Answer:
    root, tls = scope.get("root_path", ""), _tls(scope)
    form = sessions.one_cookie(scope["comet.headers"], _form_cookie(tls=tls)) or ""
    if not _SANE_FORM.fullmatch(form):  # else keep that of another open login tab
        form = secrets.token_urlsafe(24)
    body = render.page(
        "login.html", root=root, static=f"{root}/static/{render.version()}", wanted=wanted, form=form, problem=problem
    ).encode()
    head = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"set-cookie", _form_text(form, tls=tls, max_age_s=FORM_S)),
        *PAGE_HEADERS,
    ]
    if wait_s:
        head.append((b"retry-after", b"%d" % max(1, round(wait_s))))

    async def answer(send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return answer


def _to(scope: Scope, path: str, *cookies: bytes) -> Answer:
    async def answer(send: Send) -> None:
        await see_other(scope.get("root_path", "") + path, send, *cookies)

    return answer


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form from a page of this gateway. Raises Problem."""
    scope = request.scope
    headers, security = scope["comet.headers"], request.app.state.security
    assert isinstance(security, Security)
    if not security.own("POST", headers, scope["scheme"]):
        raise Problem("FOREIGN_ORIGIN", "this form is accepted from pages of this gateway only")
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != FORM:
        raise Problem("UNSUPPORTED_MEDIA_TYPE", f"this path accepts {FORM.decode()}")
    parts: list[bytes] = []
    async for part in request.stream():
        parts.append(part)
        if sum(map(len, parts)) > FORM_BYTES_MAX:
            raise Problem("BODY_TOO_LARGE", f"this form has more than {FORM_BYTES_MAX} bytes")
    try:
        fields = parse_qs(b"".join(parts).decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=8)
    except (UnicodeDecodeError, ValueError):
        raise Problem("MALFORMED_BODY", "this is not a valid form") from None
    return {name: values[0] for name, values in fields.items()}


def _visit(scope: Scope, method: str) -> tuple[Visit, Principal] | None:
    """The session of a request from a page of this gateway."""
    headers, state = scope["comet.headers"], scope["app"].state
    cookie = sessions.cookie(headers, tls=_tls(scope))
    if cookie is None or not state.security.own(method, headers, scope["scheme"]):
        return None
    return _keeper(scope).visit(cookie)


def _reason(problem: Problem) -> str:
    if problem.code == "TOO_MANY_REQUESTS":
        return f"Too many unknown tokens from your address. Try again in {max(1, round(problem.retry_after_s))} s."
    return "Unknown token."


def _form_cookie(*, tls: bool) -> str:
    return f"__Host-{FORM_COOKIE}" if tls else FORM_COOKIE


def _form_text(form: str, *, tls: bool, max_age_s: int) -> bytes:
    return sessions.set_cookie(_form_cookie(tls=tls), form, tls=tls, max_age_s=max_age_s)


def _keeper(scope: Scope) -> Gatekeeper:
    keeper: Gatekeeper = scope["app"].state.gatekeeper
    return keeper


def _tls(scope: Scope) -> bool:
    return bool(scope["scheme"] == "https")
