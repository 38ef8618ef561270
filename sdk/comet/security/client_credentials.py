"""The flow of OAuth 2 by which a program gets a token for itself (RFC 6749, 4.4): client credentials.

POST token_url, grant_type=client_credentials, scope, audience; id and secret ─► {"access_token": a JWT, …}
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote_plus, urlencode, urlsplit

from comet.errors import CredentialsRefused, InvalidArgument, Unavailable
from comet.security.fetch import OK, Answer, fetch, is_private
from comet.security.files import read_secret

_SECRET_BYTES_MAX: Final = 4_096
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
            fits = is_private(self.token_url) and (url.port or 1) > 0
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
        return self._token(self._post(secret.decode("utf-8", "replace").strip()))

    def _post(self, secret: str) -> Answer:
        form = {"grant_type": "client_credentials"}
        form |= {name: given for name in ("scope", "audience") if (given := getattr(self, name))}
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self.auth == "basic":
            pair = f"{quote_plus(self.client_id)}:{quote_plus(secret)}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.client_id, "client_secret": secret}
        try:
            return fetch(self.token_url, urlencode(form).encode(), headers, ca=self.ca)
        except Unavailable as error:
            raise Unavailable(f"no token from {self.token_url}: {error.message}") from None

    def _token(self, answer: Answer) -> str:
        status, document = answer.status, _json(answer.body)
        if answer.redirects:
            raise CredentialsRefused(
                f"{self.token_url} redirects ({status}), which is not followed: give its new address"
            )
        if status in _REFUSALS:
            reason = _code(document) or f"status {status}"
            raise CredentialsRefused(f"{self.token_url} refuses client {self.client_id!r}: {reason}")
        if status != OK:
            raise Unavailable(f"no token from {self.token_url}: status {status}")
        token = document.get("access_token")
        kind = document.get("token_type", "Bearer")
        if not isinstance(token, str) or not isinstance(kind, str) or kind.casefold() != "bearer":
            raise Unavailable(f"no token from {self.token_url}: its answer has no access_token of type Bearer")
        return token


def _json(body: bytes) -> dict[str, Any]:
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
