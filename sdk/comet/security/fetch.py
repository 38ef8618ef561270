"""Requests to an issuer of tokens: over TLS or on loopback, with limits of time and size.

Redirects are not followed: another address could be a plain one. A proxy of the environment is not used. When the time
is over, the socket is shut down, so neither connection, handshake, head nor body can take longer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import SplitResult, urlsplit

from comet import limits
from comet.errors import Unavailable
from comet.settings.hosts import is_loopback

if TYPE_CHECKING:
    from http.client import HTTPConnection

OK: Final = 200
_PORTS: Final = {"https": 443, "http": 80}


class Answer(NamedTuple):
    status: int
    body: bytes

    def content(self) -> bytes:
        """The body. Raises Unavailable if the status is another than 200."""
        if self.status != OK:
            raise Unavailable(f"status {self.status}" + (", a redirect is not followed" if self.redirects else ""))
        return self.body

    @property
    def redirects(self) -> bool:
        return 300 <= self.status < 400


def is_private(url: str) -> bool:
    """Whether others can neither read nor replace an answer of this URL.

    >>> [is_private(url) for url in ("https://login.example", "http://127.0.0.1:9", "http://login.example", "https://")]
    [True, True, False, False]
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))


def fetch(
    url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *, ca: str | Path | None = None
) -> Answer:
    """The answer of a GET, or with a body of a POST. Blocks. `ca` is the authority of the server's certificate, if the
    system does not know it. Callers check the URL. Raises Unavailable with the reason."""
    from http.client import HTTPException  # here, as it takes long to import

    with _Exchange(limits.ISSUER_FETCH_MS / 1000) as exchange:
        try:
            parts = urlsplit(url)
            connection = exchange.connect(parts, ca)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(
                "GET" if body is None else "POST", path, body, {"connection": "close", **(headers or {})}
            )
            answer = connection.getresponse()
            data = answer.read(limits.ISSUER_ANSWER_BYTES_MAX + 1)
        except (OSError, HTTPException, ValueError) as error:
            late = exchange.is_late or isinstance(error, TimeoutError)
            raise Unavailable("no answer in time" if late else _reason(error)) from None
        if exchange.is_late:  # the answer may be cut
            raise Unavailable("no answer in time")
    if len(data) > limits.ISSUER_ANSWER_BYTES_MAX:
        raise Unavailable(f"its answer is larger than {limits.ISSUER_ANSWER_BYTES_MAX} bytes")
    return Answer(answer.status, data)


class _Exchange:
    """The socket of one request, which a timer shuts down."""

    def __init__(self, within_s: float) -> None:
        self._end = monotonic() + within_s
        self._socket: socket.socket | None = None
        self._connection: HTTPConnection | None = None
        self._timer = threading.Timer(within_s, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for one in (self._connection, self._socket):
            if one is not None:
                one.close()

    @property
    def is_late(self) -> bool:
        return monotonic() >= self._end

    def connect(self, url: SplitResult, ca: str | Path | None) -> HTTPConnection:
        """Raises OSError, ValueError."""
        from http.client import HTTPConnection
        from ssl import create_default_context

        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        self._take(self._reached(host, port))
        if url.scheme == "https":
            context = create_default_context(cafile=None if ca is None else str(Path(ca).expanduser()))
            assert self._socket is not None
            secure = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
            self._take(secure)
            secure.do_handshake()
        connection = self._connection = HTTPConnection(host, port)
        connection.default_port = _PORTS[url.scheme]  # which the header Host leaves out
        connection.sock = self._socket
        return connection

    def _take(self, found: socket.socket) -> None:
        """From now on the timer shuts down this one; a timer that has fired before raises TimeoutError."""
        self._socket = found
        if self.is_late:
            raise TimeoutError

    def _reached(self, host: str, port: int) -> socket.socket:
        """A connection to the first of its addresses that takes it."""
        failed: OSError = OSError("no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found = socket.socket(family, kind, protocol)
            try:
                found.settimeout(max(0.001, self._end - monotonic()))
                found.connect(address)
            except OSError as error:
                found.close()
                failed = error
                if self.is_late:
                    break
            else:
                return found
        raise failed

    def _cut(self) -> None:
        """Ends what another thread waits for. The method of a TLS socket would also make it a plain one."""
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    certificate = getattr(error, "verify_message", "")
    if certificate:
        return f"its certificate: {certificate}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "its URL is not valid" if isinstance(error, ValueError) else type(error).__name__
