"""Checks of Host and Origin, and CORS. Pure; `Front` applies them to every request and WebSocket.

A browser sends requests for any page. Three rules protect a gateway without tokens, as on a developer's machine:

    Host        must be an address, localhost, or a configured name: a page cannot point its own name to this host
                and then count as the same origin (DNS rebinding). 421
    Origin      of unsafe methods, of WebSockets and of fetches by scripts of other pages must be the gateway's own or
                be listed. Browsers send the source of a request (Sec-Fetch-Site, Origin); a request with neither does
                not come from a browser. 403
    CORS        only pages of listed origins can read answers, and their cookies are ignored. A cookie authenticates
                requests of our own pages only; its presence proves nothing, as browsers also send it with a form on
                another port of this host (see `own`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from comet.errors import InvalidArgument
from comet.settings.hosts import HostNames
from comet_gateway.config import GatewayConfig
from comet_gateway.http.problems import Problem

HeaderPairs = list[tuple[bytes, bytes]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
KNOWN_HOSTS_MAX: Final = 1_000  # valid Host headers that are cached

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# On every answer.
HEADERS: Final[HeaderPairs] = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers would not send the Origin of our own forms
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
# On every page of the dashboard; the API's page does not support it.
PAGE_HEADERS: Final[HeaderPairs] = [
    (b"content-security-policy-report-only", b"require-trusted-types-for 'script'"),
]
TLS_HEADERS: Final[HeaderPairs] = [(b"strict-transport-security", b"max-age=31536000")]

ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS: Final = (
    b"authorization, content-type, content-encoding, accept, idempotency-key, if-match, if-none-match, last-event-id, "
    b"x-request-id"
)
EXPOSED_HEADERS: Final = (
    b"x-request-id, retry-after, comet-cursor, comet-more, comet-next-offset, comet-log-start, comet-log-end, "
    b"comet-unreadable, location, allow, content-disposition, etag"
)
PREFLIGHT_S: Final = 600  # that a browser may cache the answer


class Security:
    """The checks of Host and Origin. One for an application."""

    def __init__(self, config: GatewayConfig) -> None:
        self._origins = frozenset(checked_origin(origin) for origin in config.origins)
        self._hosts = HostNames((config.host, *config.hosts))
        self._good_hosts: set[bytes] = set()
        self.headers = HEADERS + (TLS_HEADERS if config.tls_cert else [])

    def check_host(self, host: bytes | None) -> None:
        """Checks the Host header. Raises FOREIGN_HOST."""
        if host in self._good_hosts:
            return
        if host is None or not self._hosts.knows(host):
            shown = "no Host" if host is None else repr(host.decode("latin-1"))
            raise Problem("FOREIGN_HOST", f"{shown} is not a name of this gateway")
        if len(self._good_hosts) < KNOWN_HOSTS_MAX:
            self._good_hosts.add(host)

    def allowed(self, origin: str, host: str, scheme: str) -> bool:
        """Whether a page of that origin may call: it is listed, or our own, under a name that `check_host` accepts."""
        return origin.lower() in self._origins or _is_own(origin, host, scheme)

    def readable(self, origin: bytes) -> bool:
        """Whether pages of that origin may read answers: the listed ones; our own need no CORS."""
        return origin.decode("latin-1").lower() in self._origins

    def check_origin(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Refuses requests of pages of other origins. Raises FOREIGN_ORIGIN."""
        fetch_site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if fetch_site is None and origin is None:
            return  # not a browser
        if fetch_site == b"same-origin":
            return
        if method in SAFE_METHODS and (fetch_site is None or fetch_site == b"none" or _is_navigation(headers)):
            return  # no change, and CORS keeps the answer from the page
        if origin is not None and self.allowed(
            origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"), scheme
        ):
            return
        raise Problem("FOREIGN_ORIGIN", f"a page of {_shown(origin)} may not do this")

    def own(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> bool:
        """Whether one of our pages, or the address bar, sent the request: only then does a cookie authenticate.

        Browsers mark all requests but a GET without a script to an address that is neither TLS nor localhost; that is
        accepted, as it changes nothing and no other page can read the answer."""
        fetch_site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        safe = method in SAFE_METHODS
        if fetch_site is not None:
            return fetch_site == b"same-origin" or (fetch_site == b"none" and safe)
        if origin is None:
            return safe
        return _is_own(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"), scheme)

    def check_socket(self, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Checks as `check_origin`, for a WebSocket, whose handshake is a GET without CORS."""
        self.check_origin("POST", headers, scheme)

    def preflight(self, headers: Mapping[bytes, bytes]) -> HeaderPairs:
        """The answer to a CORS preflight. Raises FOREIGN_ORIGIN."""
        origin = headers[b"origin"]
        if not self.readable(origin):
            raise Problem("FOREIGN_ORIGIN", f"a page of {_shown(origin)} may not call this gateway")
        return [
            *self.cors(origin),
            (b"access-control-allow-methods", ALLOWED_METHODS),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", str(PREFLIGHT_S).encode()),
        ]

    def cors(self, origin: bytes) -> HeaderPairs:
        """CORS headers of an answer to a page of a listed origin."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            (b"vary", b"origin"),
        ]

    @property
    def shares(self) -> bool:
        """Whether other origins are listed."""
        return bool(self._origins)


def origin_allowed(scope: Mapping[str, Any]) -> bool:
    """Whether the page behind a request or WebSocket may call; a request without an origin is not from a page."""
    security: Security = scope["app"].state.security
    try:
        security.check_socket(dict(scope["headers"]), scope["scheme"])
    except Problem:
        return False
    return True


def checked_origin(origin: str) -> str:
    """The origin in the form that browsers send. Raises InvalidArgument."""
    parts = urlsplit(origin.lower())
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or origin.lower() != f"{parts.scheme}://{parts.netloc}"
    ):
        raise InvalidArgument(f"{origin!r} is not an origin: write scheme://host or scheme://host:port, without a path")
    return origin.lower()


def _is_own(origin: str, host: str, scheme: str) -> bool:
    # Behind a proxy that ends TLS, pages are https and requests arrive as http.
    own = ("https",) if scheme in ("https", "wss") else ("http", "https")
    return any(origin.lower() == f"{each}://{host.lower()}" for each in own)


def _is_navigation(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"sec-fetch-mode") == b"navigate"


def _shown(origin: bytes | None) -> str:
    return "another origin" if origin is None else repr(origin.decode("latin-1"))
