"""`/login` and `/logout`: exchange a token, or a login at the identity provider, for a session, and end the session.

All work without scripts. Forms are accepted from pages of this gateway only: checked by the origin headers and a
token, for the login a random text that is also in a cookie, for the logout the session's CSRF token. `/login/oidc`
leads to the provider, which leads back to `/login/oidc/callback`: see `oidc.login_flow`.
"""

from __future__ import annotations

import hmac
import re
import secrets
from html import escape
from typing import Final
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Request
from starlette.types import Scope, Send

from comet.units import format_duration_ms
from comet_gateway.http import sessions
from comet_gateway.http.auth import Gatekeeper, Principal
from comet_gateway.http.login_redirect import HOME, back_to, see_other
from comet_gateway.http.origins import PAGE_HEADERS, Security
from comet_gateway.http.problems import Problem
from comet_gateway.http.raw_route import Answer, RawRoute
from comet_gateway.http.sessions import Visit
from comet_gateway.http.shares import client_address
from comet_gateway.oidc import login_attempt
from comet_gateway.oidc.client import CALLBACK
from comet_gateway.oidc.login_flow import REFUSALS, LoginFlow, LoginRefused
from comet_web import render

router = APIRouter()

FORM_COOKIE: Final = "comet_login"
FORM_S: Final = 3_600  # lifetime of a login form
FORM_BYTES_MAX: Final = 8 * 1024
FORM: Final = b"application/x-www-form-urlencoded"
# An answer at the callback's address, which holds a code: it leads away at once, and tells no page that address.
_FAILED: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Not logged in · Comet</title>'
    '<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={0}"></head>'
    '<body><p>Not logged in. <a href="{0}">Try again</a></p></body></html>'
)
_SANE_FORM: Final = re.compile(r"[A-Za-z0-9_-]{32}")


async def page(request: Request) -> Answer:
    """The login page; redirects if no login is needed."""
    scope, wanted = request.scope, back_to(request.query_params.get("next", ""))
    if _keeper(scope).open or _visit(scope, "GET") is not None:
        return _to(scope, wanted)
    refusal = REFUSALS.get(request.query_params.get("failed", ""))
    return _shown(scope, wanted, problem=refusal.text if refusal else "")


async def begin_oidc(request: Request) -> Answer:
    """Leads to the identity provider."""
    scope, flow = request.scope, _flow(request.scope)
    wanted, tls = back_to(request.query_params.get("next", "")), _tls(request.scope)
    try:
        attempt, location = await flow.begin(client_address(scope), _callback(scope, flow), wanted)
    except LoginRefused as refused:
        return _failed(scope, refused)
    cookie = _attempt_cookie(attempt.cookie, tls=tls, max_age_s=login_attempt.ATTEMPT_S)

    async def answer(send: Send) -> None:
        await see_other(location, send, cookie)

    return answer


async def finish_oidc(request: Request) -> Answer:
    """Exchanges the provider's answer for a session."""
    scope, keeper, flow = request.scope, _keeper(request.scope), _flow(request.scope)
    tls = _tls(scope)
    cookie = sessions.one_cookie(scope["comet.headers"], _attempt_name(tls=tls)) or ""
    given = request.query_params.multi_items()
    answered = dict(given) if len(dict(given)) == len(given) else {}  # one that is there twice is ambiguous
    try:
        principal, wanted = await flow.finish(client_address(scope), cookie, answered, _callback(scope, flow))
    except LoginRefused as refused:
        return _failed(scope, refused)
    visit = keeper.log_in_user(principal, flow.client.session_s)
    scope["comet.principal"], scope["comet.session"] = principal, visit  # for the audit log
    cookies = sessions.session_cookie(visit, keeper.wall(), tls=tls), _attempt_cookie("", tls=tls, max_age_s=0)
    return _to(scope, wanted, *cookies)


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
    RawRoute("/login/oidc", begin_oidc, methods=["GET"], include_in_schema=False),
    RawRoute(CALLBACK, finish_oidc, methods=["GET"], include_in_schema=False),
    RawRoute("/logout", log_out, methods=["POST"], include_in_schema=False),
]


def _shown(scope: Scope, wanted: str, *, status: int = 200, problem: str = "", wait_s: float = 0) -> Answer:
    root, tls = scope.get("root_path", ""), _tls(scope)
    form = sessions.one_cookie(scope["comet.headers"], _form_cookie(tls=tls)) or ""
    if not _SANE_FORM.fullmatch(form):  # else keep that of another open login tab
        form = secrets.token_urlsafe(24)
    flow: LoginFlow | None = scope["app"].state.oidc
    body = render.page(
        "login.html",
        root=root,
        static=f"{root}/static/{render.version()}",
        wanted=wanted,
        form=form,
        problem=problem,
        tokens=_keeper(scope).takes_tokens,
        provider=flow.client.host if flow else "",
        provider_query="" if wanted == HOME else f"?{urlencode({'next': wanted})}",
        user_session=format_duration_ms(flow.client.session_s * 1_000) if flow else "",
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


def _failed(scope: Scope, refused: LoginRefused) -> Answer:
    """Leads to the login page, which says why."""
    query = {"failed": refused.word} | ({} if refused.wanted == HOME else {"next": refused.wanted})
    body = _FAILED.format(escape(f"{scope.get('root_path', '')}/login?{urlencode(query)}")).encode()
    head = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if refused.retry_after_s:
        head.append((b"retry-after", b"%d" % max(1, round(refused.retry_after_s))))

    async def answer(send: Send) -> None:
        await send({"type": "http.response.start", "status": refused.refusal.status, "headers": head})
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


def _attempt_name(*, tls: bool) -> str:
    return f"__Host-{login_attempt.COOKIE}" if tls else login_attempt.COOKIE


def _attempt_cookie(text: str, *, tls: bool, max_age_s: int) -> bytes:
    """Lax: the provider's answer is a link from another site."""
    return sessions.set_cookie(_attempt_name(tls=tls), text, tls=tls, max_age_s=max_age_s, same_site="Lax")


def _callback(scope: Scope, flow: LoginFlow) -> str:
    """The URL to which the provider leads back. The Host of the request has been checked."""
    host = scope["comet.headers"].get(b"host", b"").decode("latin-1")
    return flow.client.redirect_url or f"{scope['scheme']}://{host}{scope.get('root_path', '')}{CALLBACK}"


def _flow(scope: Scope) -> LoginFlow:
    """Raises NOT_FOUND without a provider."""
    flow: LoginFlow | None = scope["app"].state.oidc
    if flow is None:
        raise Problem("NOT_FOUND", "this gateway has no login by OpenID Connect", hint="Set oidc_issuer.")
    return flow


def _keeper(scope: Scope) -> Gatekeeper:
    keeper: Gatekeeper = scope["app"].state.gatekeeper
    return keeper


def _tls(scope: Scope) -> bool:
    return bool(scope["scheme"] == "https")
