"""The flow of OAuth 2 by which a program gets a token for itself (RFC 6749, 4.4): client credentials.

POST token_url, grant_type=client_credentials, scope, audience; id and secret ─► {"access_token": a JWT, …}
"""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote_plus, urlencode, urlsplit

from comet import limits
from comet.errors import CredentialsRefused, InvalidArgument, Unavailable
from comet.security.files import read_secret
from comet.settings.hosts import is_loopback

if TYPE_CHECKING:
    from http.client import HTTPConnection

_SECRET_BYTES_MAX: Final = 4_096
_OK: Final = 200
_REFUSALS: Final = (400, 401, 403)
_ERROR_CHARS_MAX: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Fetches the token of a program from its issuer: the option `token` of a Bootstrap.

    `client_secret_file` is the path of a file that only its owner can read; it is read for each fetch, so a new secret
    needs no restart. `scope` and `audience` are sent if they are given. `auth` is the place of id and secret:
    "basic", the header; "post", the body, for issuers that take no other. `ca` is the authority of the issuer's
    certificate, if the system does not know it. The URL is https, or http on this machine; redirects are not followed.

    >>> issuer = comet.ClientCredentials(
    ...     token_url="https://login.example.com/oauth/token", client_id="billing",
    ...     client_secret_file="/etc/comet/billing.secret", audience="comet",
    ... )
    >>> brokers = comet.Bootstrap("broker-1.example.com:9092", token=issuer)
    """

    token_url: str
    client_id: str
    client_secret_file: str | Path
    scope: str = ""
    audience: str = ""
    auth: Literal["basic", "post"] = "basic"
    ca: str | Path | None = None

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.token_url)
            plain = url.scheme == "http" and url.hostname is not None and is_loopback(url.hostname)
            fits = bool(url.hostname) and (url.scheme == "https" or plain) and (url.port or 1) > 0
        except ValueError:
            fits = False
        if not fits or url.username is not None or url.fragment or not self.token_url.isascii():
            raise InvalidArgument("token_url must be an https URL, or http on this machine, without user and fragment")
        if any(one.isspace() or not one.isprintable() for one in self.token_url):
            raise InvalidArgument("token_url has spaces or control characters")
        if not self.client_id or not str(self.client_secret_file):
            raise InvalidArgument("client credentials need client_id and client_secret_file")
        if self.auth not in ("basic", "post"):
            raise InvalidArgument(f'auth must be "basic" or "post", not {self.auth!r}')

    def __call__(self) -> str:
        """A new token. Blocks, for up to 10 s. Raises CredentialsRefused if the issuer refuses, and Unavailable if it
        cannot be reached, is silent, or answers nonsense."""
        try:
            secret = read_secret(Path(self.client_secret_file).expanduser(), _SECRET_BYTES_MAX)
        except InvalidArgument as error:  # it may be about to be replaced
            raise Unavailable(error.message) from None
        status, body = self._post(secret.decode("utf-8", "replace").strip())
        return self._token(status, body)

    def _post(self, secret: str) -> tuple[int, bytes]:
        from http.client import HTTPException  # here, as it takes long to import

        form = {"grant_type": "client_credentials"}
        form |= {name: given for name in ("scope", "audience") if (given := getattr(self, name))}
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self.auth == "basic":
            pair = f"{quote_plus(self.client_id)}:{quote_plus(secret)}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.client_id, "client_secret": secret}
        url = urlsplit(self.token_url)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        began = time.monotonic()
        try:
            connection = self._connection()
            # The time-out of a socket is one of each step; this ends an answer that comes byte by byte.
            deadline = threading.Timer(limits.TOKEN_FETCH_MS / 1000, _cut, (connection,))
            deadline.daemon = True
            deadline.start()
            try:
                connection.request("POST", path, urlencode(form).encode(), headers)
                answer = connection.getresponse()
                body = answer.read(limits.TOKEN_ANSWER_BYTES_MAX + 1)
            finally:
                deadline.cancel()
                connection.close()
        except (OSError, HTTPException, ValueError) as error:
            late = isinstance(error, TimeoutError) or time.monotonic() - began >= limits.TOKEN_FETCH_MS / 1000
            reason = "no answer in time" if late else _reason(error)
            raise Unavailable(f"no token from {self.token_url}: {reason}") from None
        if time.monotonic() - began >= limits.TOKEN_FETCH_MS / 1000:
            raise Unavailable(f"no token from {self.token_url}: no answer in time")
        return answer.status, body

    def _connection(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection
        from ssl import create_default_context

        url, timeout_s = urlsplit(self.token_url), limits.TOKEN_FETCH_MS / 1000
        assert url.hostname is not None, "the constructor has checked it"
        if url.scheme == "http":
            return HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        ca = None if self.ca is None else str(Path(self.ca).expanduser())
        context = create_default_context(cafile=ca)
        return HTTPSConnection(url.hostname, url.port, timeout=timeout_s, context=context)

    def _token(self, status: int, body: bytes) -> str:
        if 300 <= status < 400:
            raise CredentialsRefused(
                f"{self.token_url} redirects ({status}), which is not followed: give its new address"
            )
        document = _json(body)
        if status in _REFUSALS:
            reason = _code(document) or f"status {status}"
            raise CredentialsRefused(f"{self.token_url} refuses client {self.client_id!r}: {reason}")
        if status != _OK:
            raise Unavailable(f"no token from {self.token_url}: status {status}")
        token = document.get("access_token")
        kind = document.get("token_type", "Bearer")
        if not isinstance(token, str) or not isinstance(kind, str) or kind.casefold() != "bearer":
            raise Unavailable(f"no token from {self.token_url}: its answer has no access_token of type Bearer")
        return token


def _json(body: bytes) -> dict[str, Any]:
    if len(body) > limits.TOKEN_ANSWER_BYTES_MAX:
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _code(document: dict[str, Any]) -> str:
    """The error code of an answer. Its other texts may repeat the request."""
    code = document.get("error")
    fits = isinstance(code, str) and len(code) <= _ERROR_CHARS_MAX and code.replace("_", "").isalnum()
    return str(code) if fits else ""


def _reason(error: Exception) -> str:
    certificate = getattr(error, "verify_message", "")
    if certificate:
        return f"its certificate: {certificate}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def _cut(connection: HTTPConnection) -> None:
    """Ends the answer that another thread reads."""
    sock: Any = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
