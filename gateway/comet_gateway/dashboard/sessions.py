"""Sessions of browsers: a cookie that says who logged in, with a proof of it. Pure; no gateway keeps any of it.

    cookie = v1.<body>.<proof>              the parts in base64url, without padding
    body   = began u64 s | seen u64 s | id, 16 bytes | name of the token
    proof  = HMAC-SHA256(key, "session" body)
    key    = HMAC-SHA256(digest of the token, "comet dashboard session" name role)

The key is of the token's row in the tokens file: every gateway that has the file takes the cookie, and a row that goes,
or gets another token or role, takes its sessions with it. A session is over after LIFE_S, and IDLE_S after it was last
seen; `seen` is written anew at most every RENEW_S. See docs/adr/0023-sessions-without-a-store.md.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

COOKIE: Final = "comet_session"
LIFE_S: Final = 7 * 86_400
IDLE_S: Final = 12 * 3_600
RENEW_S: Final = 10 * 60
SKEW_S: Final = 60  # that the clocks of two gateways may differ
COOKIE_CHARS_MAX: Final = 512
CSRF_HEADER: Final = b"x-comet-csrf"

_HEAD: Final = struct.Struct(">QQ16s")
_VERSION: Final = "v1"

assert RENEW_S < IDLE_S < LIFE_S


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """Of the token called `name`; what it may do stands in the tokens file, not here."""

    name: str
    began_s: int
    seen_s: int
    id: bytes

    @property
    def ends_s(self) -> int:
        return self.began_s + LIFE_S

    def over(self, now_s: float) -> bool:
        """Also of one that is from a time to come: who wrote it has another clock than all of us."""
        return not (
            self.began_s - SKEW_S <= now_s < self.ends_s and self.seen_s - SKEW_S <= now_s < self.seen_s + IDLE_S
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """A session that was proved, with the key that did. At `scope["comet.session"]`."""

    session: BrowserSession
    key: bytes

    @property
    def csrf(self) -> str:
        """What a page shows to act in the session's name; stays the same while the session lasts."""
        return _text(hmac.digest(self.key, b"csrf" + self.session.id, "sha256"))

    def shows(self, csrf: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())


def csrf(scope: Mapping[str, Any]) -> str:
    """For the page that answers this request; empty where nobody is logged in."""
    visit: Visit | None = scope.get("comet.session")
    return "" if visit is None else visit.csrf


def key_of(digest: bytes, name: str, role: str) -> bytes:
    """Of one row of the tokens file."""
    return hmac.digest(digest, b"comet dashboard session\0" + name.encode() + b"\0" + role.encode(), "sha256")


def begun(name: str, now_s: float) -> BrowserSession:
    return BrowserSession(name, int(now_s), int(now_s), secrets.token_bytes(16))


def renewed(session: BrowserSession, now_s: float) -> BrowserSession | None:
    """The session as seen now; None where that was written down a short while ago."""
    return replace(session, seen_s=int(now_s)) if now_s - session.seen_s >= RENEW_S else None


def written(session: BrowserSession, key: bytes) -> str:
    """As the cookie holds it."""
    body = _HEAD.pack(session.began_s, session.seen_s, session.id) + session.name.encode()
    return ".".join((_VERSION, _text(body), _text(_proof(key, body))))


def read(text: str, key_of_name: Callable[[str], bytes | None], now_s: float) -> Visit | None:
    """The session of a cookie; None where it is none of ours, or over. `key_of_name` knows the tokens file."""
    parts = text.split(".") if len(text) <= COOKIE_CHARS_MAX else []
    if len(parts) != 3 or parts[0] != _VERSION:
        return None
    body, proof = _bytes(parts[1]), _bytes(parts[2])
    if body is None or proof is None or len(body) <= _HEAD.size:
        return None
    began, seen, id_ = _HEAD.unpack_from(body)
    try:
        name = body[_HEAD.size :].decode("ascii")
    except UnicodeDecodeError:
        return None
    key = key_of_name(name)
    if key is None or not hmac.compare_digest(_proof(key, body), proof):
        return None
    session = BrowserSession(name, began, seen, id_)
    return None if session.over(now_s) else Visit(session, key)


# ---- the cookie


def cookie_name(*, tls: bool) -> str:
    """On TLS with the prefix that has browsers take it from this host alone, and never from a page without TLS."""
    return f"__Host-{COOKIE}" if tls else COOKIE


def cookie(headers: Mapping[bytes, bytes], *, tls: bool) -> str | None:
    """The cookie of a request; None without. Two of them are none: another port of this host may have set one."""
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


def set_cookie(name: str, value: str, *, tls: bool, max_age_s: int, path: str = "/") -> bytes:
    """A Set-Cookie header that no script reads and no other site sends."""
    attributes = f"; Path={path}; Max-Age={max_age_s}; HttpOnly; SameSite=Strict" + ("; Secure" if tls else "")
    return f"{name}={value}{attributes}".encode("ascii")


def kept(visit: Visit, now_s: float, *, tls: bool) -> bytes:
    """The Set-Cookie header of a session."""
    left = max(0, visit.session.ends_s - int(now_s))
    return set_cookie(cookie_name(tls=tls), written(visit.session, visit.key), tls=tls, max_age_s=min(left, IDLE_S))


def forgotten(*, tls: bool) -> bytes:
    """The Set-Cookie header that ends it in the browser."""
    return set_cookie(cookie_name(tls=tls), "", tls=tls, max_age_s=0)


def _proof(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"session" + body, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """Only what `_text` writes, so that a session has one cookie and no other."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if _text(raw) == text else None
