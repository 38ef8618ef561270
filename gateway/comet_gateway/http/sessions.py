"""Sessions of browsers: a signed cookie with the name of a token or user. Pure and stateless.

    cookie = v1.<body>.<proof>              of a token; the parts in base64url, without padding
    body   = began u64 s | seen u64 s | id, 16 bytes | name of the token
    proof  = HMAC-SHA256(key, "session" body)
    key    = HMAC-SHA256(digest of the token, "comet dashboard session" name role)

    cookie = o1.<body>.<proof>              of a user of the identity provider
    body   = began u64 s | seen u64 s | id, 16 bytes | ends u64 s | role u8 | name of the user, its roles at brokers;
             a line each
    key    = that of the settings `oidc_…` (see oidc.client)

The key depends on the token's row in the tokens file: every gateway with the file accepts the cookie, and a removed
row, or one with a new token or role, ends its sessions. A user's key depends on the settings in the same way. A session
ends after LIFE_S, a user's at `ends`, and IDLE_S after it was last seen; `seen` is renewed at most every RENEW_S.
See docs/adr/0023-sessions-without-a-store.md and docs/adr/0033-login-by-openid-connect.md.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from comet_gateway.http import base64url

COOKIE: Final = "comet_session"
LIFE_S: Final = 7 * 86_400
IDLE_S: Final = 12 * 3_600
RENEW_S: Final = 10 * 60
SKEW_S: Final = 60  # between the clocks of two gateways
COOKIE_CHARS_MAX: Final = 3_600  # of the 4,096 that a browser keeps with name and attributes
CSRF_HEADER: Final = b"x-comet-csrf"

_HEAD: Final = struct.Struct(">QQ16s")
_VERSION: Final = "v1"
_USER_HEAD: Final = struct.Struct(">QQ16sQB")
_USER_VERSION: Final = "o1"
USER_LINES_BYTES_MAX: Final = (COOKIE_CHARS_MAX - len("o1..") - 43) * 3 // 4 - _USER_HEAD.size  # a proof has 43

assert RENEW_S < IDLE_S < LIFE_S


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """The session of the token `name`, whose role is in the tokens file, or of a user, whose role is here."""

    name: str
    began_s: int
    seen_s: int
    id: bytes
    until_s: int = 0  # of a user's session
    role: int = 0  # of a user
    broker_roles: tuple[str, ...] = ()  # of a user

    @property
    def ends_s(self) -> int:
        end_s = self.began_s + LIFE_S
        return min(end_s, self.until_s) if self.role else end_s

    def over(self, now_s: float) -> bool:
        """Whether the session has ended. One from the future also counts: its clock was wrong."""
        return not (
            self.began_s - SKEW_S <= now_s < self.ends_s and self.seen_s - SKEW_S <= now_s < self.seen_s + IDLE_S
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A verified session with its key. At `scope["comet.session"]`."""

    session: BrowserSession
    key: bytes

    @property
    def csrf(self) -> str:
        """The CSRF token of pages; it stays the same for the whole session."""
        return base64url.encode(hmac.digest(self.key, b"csrf" + self.session.id, "sha256"))

    def shows(self, csrf: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())


def csrf(scope: Mapping[str, Any]) -> str:
    """The CSRF token for a page; empty without a login."""
    visit: Visit | None = scope.get("comet.session")
    return "" if visit is None else visit.csrf


def key_of(digest: bytes, name: str, role: str) -> bytes:
    """The key of one row of the tokens file."""
    return hmac.digest(digest, b"comet dashboard session\0" + name.encode() + b"\0" + role.encode(), "sha256")


def begun(name: str, now_s: float) -> BrowserSession:
    return BrowserSession(name, int(now_s), int(now_s), secrets.token_bytes(16))


def begun_by_user(
    name: str, role: int, now_s: float, life_s: int, broker_roles: tuple[str, ...] = ()
) -> BrowserSession:
    return BrowserSession(
        name, int(now_s), int(now_s), secrets.token_bytes(16), int(now_s) + life_s, role, broker_roles
    )


def renewed(session: BrowserSession, now_s: float) -> BrowserSession | None:
    """The session with a new `seen`; None if it was renewed recently."""
    return replace(session, seen_s=int(now_s)) if now_s - session.seen_s >= RENEW_S else None


def written(session: BrowserSession, key: bytes) -> str:
    """The text of the cookie."""
    times = session.began_s, session.seen_s, session.id
    if session.role:
        version, head = _USER_VERSION, _USER_HEAD.pack(*times, session.until_s, session.role)
    else:
        version, head = _VERSION, _HEAD.pack(*times)
    body = head + "\n".join((session.name, *session.broker_roles)).encode()
    return ".".join((version, base64url.encode(body), base64url.encode(_proof(key, body))))


def read(
    text: str, key_of_name: Callable[[str], bytes | None], now_s: float, user_key: bytes | None = None
) -> Visit | None:
    """The session of a cookie; None if it is invalid or ended. `key_of_name` looks up the tokens file."""
    parts = text.split(".") if len(text) <= COOKIE_CHARS_MAX else []
    if len(parts) != 3 or parts[0] not in (_VERSION, _USER_VERSION):
        return None
    body, proof, by_user = base64url.decode(parts[1]), base64url.decode(parts[2]), parts[0] == _USER_VERSION
    head = _USER_HEAD if by_user else _HEAD
    if body is None or proof is None or len(body) <= head.size:
        return None
    try:
        name, *roles = body[head.size :].decode("utf-8" if by_user else "ascii").split("\n")
    except UnicodeDecodeError:
        return None
    key = user_key if by_user else key_of_name(name)
    if key is None or not hmac.compare_digest(_proof(key, body), proof):
        return None
    began, seen, id_, *more = head.unpack_from(body)
    until_s, role = more or (0, 0)
    session = BrowserSession(name, began, seen, id_, until_s, role, tuple(roles))
    return None if session.over(now_s) else Visit(session, key)


# ---- the cookie


def cookie_name(*, tls: bool) -> str:
    """With TLS, its prefix makes browsers accept it from this host only, and only over TLS."""
    return f"__Host-{COOKIE}" if tls else COOKIE


def cookie(headers: Mapping[bytes, bytes], *, tls: bool) -> str | None:
    """The cookie of a request. Two of them count as none: another port of this host may have set one."""
    return one_cookie(headers, cookie_name(tls=tls))


def one_cookie(headers: Mapping[bytes, bytes], name: str) -> str | None:
    given = headers.get(b"cookie")
    if given is None:
        return None
    found = [
        value.strip().decode("latin-1")
        for key, _, value in (pair.partition(b"=") for pair in given.split(b";"))
        if key.strip() == name.encode()
    ]
    return found[0] if len(found) == 1 else None


def set_cookie(
    name: str, value: str, *, tls: bool, max_age_s: int, path: str = "/", same_site: str = "Strict"
) -> bytes:
    """A Set-Cookie header, hidden from scripts and not sent by other sites; a lax one comes along with their links."""
    attributes = f"; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite={same_site}" + ("; Secure" if tls else "")
    return f"{name}={value}{attributes}".encode("ascii")


def session_cookie(visit: Visit, now_s: float, *, tls: bool) -> bytes:
    """The Set-Cookie header of a session."""
    left = max(0, visit.session.ends_s - int(now_s))
    return set_cookie(cookie_name(tls=tls), written(visit.session, visit.key), tls=tls, max_age_s=min(left, IDLE_S))


def expired_cookie(*, tls: bool) -> bytes:
    """The Set-Cookie header that ends it in the browser."""
    return set_cookie(cookie_name(tls=tls), "", tls=tls, max_age_s=0)


def _proof(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"session" + body, "sha256")
