"""Redirects to the login and back, to addresses of this gateway only."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.types import Scope, Send

NEXT_CHARS_MAX: Final = 2_000
HOME: Final = "/"
_UNQUOTED: Final = "/:@!$&'()*+,;=~-._%"  # characters of already quoted paths and queries
# A link from another site comes without the session's cookie (SameSite=Strict); a refresh by this page brings it.
_AGAIN: Final = (
    b'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Comet</title>'
    b'<meta http-equiv="refresh" content="0"></head><body><p>One moment.</p></body></html>'
)


def back_to(text: str) -> str:
    r"""The path to go to after the login, without the root path; home for anything else.

    >>> [back_to(one) for one in ("/topics?sort=-in", "//evil.example", "/\\evil.example", "https://evil.example")]
    ['/topics?sort=-in', '/', '/', '/']
    """
    if not text.startswith("/") or text.startswith("//") or len(text) > NEXT_CHARS_MAX or "\\" in text:
        return HOME
    if any(ord(character) < 0x21 or ord(character) == 0x7F for character in text):
        return HOME  # browsers drop some of these, which changes the address
    parts = urlsplit(text)
    if parts.scheme or parts.netloc or not parts.path.startswith("/") or parts.path.startswith("//"):
        return HOME
    if parts.path in ("/login", "/logout") or parts.path.startswith("/login/"):
        return HOME
    path, query = quote(parts.path, safe=_UNQUOTED), quote(parts.query, safe=_UNQUOTED + "?")
    return f"{path}?{query}" if query else path


def login_address(scope: Scope) -> str:
    """The address of the login with the requested page as its return path."""
    root = scope.get("root_path", "")
    path = quote(scope["path"].removeprefix(root), safe=_UNQUOTED.replace("%", ""))
    query = scope["query_string"].decode("latin-1")
    wanted = back_to(f"{path}?{query}" if query else path)
    return f"{root}/login" if wanted == HOME else f"{root}/login?{urlencode({'next': wanted})}"


async def lead_to_login(scope: Scope, send: Send) -> None:
    """Answers an unauthenticated request for a page."""
    if _comes_from_elsewhere(scope):
        head = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", b"%d" % len(_AGAIN))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": _AGAIN})
        return
    await see_other(login_address(scope), send)


async def see_other(address: str, send: Send, *cookies: bytes) -> None:
    head = [(b"location", address.encode("ascii")), (b"content-length", b"0")]
    head += [(b"set-cookie", cookie) for cookie in cookies]
    await send({"type": "http.response.start", "status": 303, "headers": head})
    await send({"type": "http.response.body", "body": b""})


def _comes_from_elsewhere(scope: Scope) -> bool:
    """Whether the request follows a link of another site."""
    headers = scope["comet.headers"]
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-site") in (
        b"cross-site", b"same-site"
    )  # fmt: skip
