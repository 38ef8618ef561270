"""Who may call at all: by which name, from which page. Pure; `front` asks for every request and every WebSocket.

A browser sends requests for any page that asks it to. What protects a gateway that needs no token, as on a developer's
machine, is in three rules:

    Host        must be an address, localhost, or a name that was configured: a page cannot make its own name point
                here and then count as the same origin (DNS rebinding). 421
    Origin      of unsafe methods, of WebSockets and of what scripts of other pages fetch must be the gateway's own or
                be listed. Browsers say where a request comes from (Sec-Fetch-Site, Origin); what says neither is no
                browser. 403
    CORS        answers are readable for pages of listed origins only, and their requests are nobody's, whatever cookie
                came along. A cookie is heard with requests of our own pages alone; that it came proves nothing, as
                browsers send it along with a form on another port of this host (see `own`).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from comet.errors import InvalidArgument
from comet_gateway.config import GatewayConfig
from comet_gateway.http.problems import Problem

HeaderPairs = list[tuple[bytes, bytes]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
KNOWN_HOSTS_MAX: Final = 1_000  # Host headers that are remembered as good

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# On every answer.
HEADERS: Final[HeaderPairs] = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers would not say whose page a form of ours is on
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
# On every page of the dashboard; that of the API is not written for it.
PAGE_HEADERS: Final[HeaderPairs] = [
    (b"content-security-policy-report-only", b"require-trusted-types-for 'script'"),
]
TLS_HEADERS: Final[HeaderPairs] = [(b"strict-transport-security", b"max-age=31536000")]

ALLOWED_METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS: Final = (
    b"authorization, content-type, content-encoding, accept, idempotency-key, last-event-id, x-request-id"
)
EXPOSED_HEADERS: Final = (
    b"x-request-id, retry-after, comet-cursor, comet-more, comet-next-offset, comet-log-start, comet-log-end, "
    b"comet-unreadable, location, allow, content-disposition"
)
PREFLIGHT_S: Final = 600  # that a browser may remember the answer


class Security:
    """One for an application."""

    def __init__(self, config: GatewayConfig) -> None:
        self._origins = frozenset(checked_origin(origin) for origin in config.origins)
        self._any_host = "*" in config.hosts
        self._hosts = {"localhost", config.host.lower(), *(host.lower() for host in config.hosts)}
        self._good_hosts: set[bytes] = set()
        self.headers = HEADERS + (TLS_HEADERS if config.tls_cert else [])

    def check_host(self, host: bytes | None) -> None:
        """Raises FOREIGN_HOST."""
        if host in self._good_hosts:
            return
        if host is None or not self._known_host(host):
            shown = "no Host" if host is None else repr(host.decode("latin-1"))
            raise Problem("FOREIGN_HOST", f"this gateway is not called {shown}")
        if len(self._good_hosts) < KNOWN_HOSTS_MAX:
            self._good_hosts.add(host)

    def _known_host(self, host: bytes) -> bool:
        name = _name(host.decode("latin-1"))
        if not name:
            return False
        # An address cannot be pointed elsewhere, and nobody but this machine resolves localhost.
        return self._any_host or name in self._hosts or name.endswith(".localhost") or _is_address(name)

    def allowed(self, origin: str, host: str, scheme: str) -> bool:
        """Whether a page of that origin may call: it is listed, or our own, under a name that `check_host` knows."""
        return origin.lower() in self._origins or _is_own(origin, host, scheme)

    def readable(self, origin: bytes) -> bool:
        """Whether pages of that origin may read answers: the listed ones; our own need no leave."""
        return origin.decode("latin-1").lower() in self._origins

    def check_origin(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Raises FOREIGN_ORIGIN for what a page of another origin had its browser send."""
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is None and origin is None:
            return  # no browser
        if site == b"same-origin":
            return
        if method in SAFE_METHODS and (site is None or site == b"none" or _is_navigation(headers)):
            return  # it changes nothing, and who may not read it is not shown it
        if origin is not None and self.allowed(
            origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"), scheme
        ):
            return
        raise Problem("FOREIGN_ORIGIN", f"a page of {_shown(origin)} may not do this")

    def own(self, method: str, headers: Mapping[bytes, bytes], scheme: str) -> bool:
        """Whether a page of ours sent it, or the address bar: only then does a cookie say who is asking.

        Browsers say so of all but a GET without a script to an address that is neither TLS nor localhost; that is
        taken, as it changes nothing and no other page may read it."""
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        safe = method in SAFE_METHODS
        if site is not None:
            return site == b"same-origin" or (site == b"none" and safe)
        if origin is None:
            return safe
        return _is_own(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"), scheme)

    def check_socket(self, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """As `check_origin`, for a WebSocket, whose handshake is a GET that no browser guards."""
        self.check_origin("POST", headers, scheme)

    def preflight(self, headers: Mapping[bytes, bytes]) -> HeaderPairs:
        """What a browser is told that asks whether a page may call. Raises FOREIGN_ORIGIN."""
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
        """For the answer to a page of a listed origin."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            (b"vary", b"origin"),
        ]

    @property
    def shares(self) -> bool:
        """Whether any other origin is listed."""
        return bool(self._origins)


def origin_allowed(scope: Mapping[str, Any]) -> bool:
    """Whether the page behind a request or WebSocket may call; what names no origin is no page."""
    security: Security = scope["app"].state.security
    try:
        security.check_socket(dict(scope["headers"]), scope["scheme"])
    except Problem:
        return False
    return True


def checked_origin(origin: str) -> str:
    """As browsers write it. Raises InvalidArgument."""
    parts = urlsplit(origin.lower())
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or origin.lower() != f"{parts.scheme}://{parts.netloc}"
    ):
        raise InvalidArgument(f"{origin!r} is no origin: write scheme://host or scheme://host:port, without a path")
    return origin.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _name(host: str) -> str:
    """Without the port; empty where it is none."""
    name, colon, port = (host, "", "") if host.endswith("]") else host.rpartition(":")
    if not colon:
        name, port = host, "0"
    if not port.isdecimal():
        return ""
    return name.removeprefix("[").removesuffix("]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str, scheme: str) -> bool:
    # Where a proxy ends TLS, pages are https and what comes here is http.
    own = ("https",) if scheme in ("https", "wss") else ("http", "https")
    return any(origin.lower() == f"{each}://{host.lower()}" for each in own)


def _is_navigation(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"sec-fetch-mode") == b"navigate"


def _shown(origin: bytes | None) -> str:
    return "another origin" if origin is None else repr(origin.decode("latin-1"))
