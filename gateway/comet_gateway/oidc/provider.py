"""Requests to the identity provider: its metadata, its keys, and the exchange of a code for an ID token.

    /.well-known/openid-configuration     kept for an hour
    jwks_uri                              kept for five minutes; read again for an ID token with an unknown key
    token_endpoint                        once for each login

Answers that were read last stay in use while the provider is away. Each request runs in a thread of its own, at most
REQUESTS_MAX at once, so a silent provider takes no thread from other work.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from comet.errors import CometError, CredentialsRefused, InvalidArgument, Unavailable
from comet.security.fetch import OK, Answer, fetch, is_private
from comet.security.signing_keys import SigningKeys, parse_signing_keys
from comet_gateway.oidc.client import OidcClient

T = TypeVar("T")
log = logging.getLogger(__name__)

METADATA_S: Final = 3_600.0
KEYS_S: Final = 300.0
PAUSE_S: Final = 5.0  # between two readings of the same
REQUESTS_MAX: Final = 8
WAITING_MAX: Final = 100  # callers that wait for one reading
REQUEST_S_MAX: Final = 20.0
ID_TOKEN_CHARS_MAX: Final = 64 * 1024
_DISCOVERY: Final = "/.well-known/openid-configuration"
_URL: Final = re.compile(r"[\x21-\x7e]{1,2000}")
_ERROR: Final = re.compile(r"[a-z_]{1,40}")
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    sends_issuer: bool  # with each answer (RFC 9207)


class Provider:
    """Belongs to one application; used on its loop."""

    def __init__(self, client: OidcClient, clock: Callable[[], float] = monotonic) -> None:
        self._client = client
        self._metadata = _Reading("metadata", METADATA_S, clock, self._read_metadata)
        self._keys = _Reading("keys", KEYS_S, clock, self._read_keys)
        self._requests = 0

    async def metadata(self) -> ProviderMetadata:
        """Raises Unavailable."""
        return await self._metadata.value()

    async def keys(self, *, again: bool = False) -> SigningKeys:
        """`again`: a token is signed with none of them. Raises Unavailable."""
        return await self._keys.value(again=again)

    def keys_age_s(self) -> float:
        """The time since they were read."""
        return self._keys.age_s()

    async def close(self) -> None:
        """Ends readings in the background."""
        await self._metadata.close()
        await self._keys.close()

    async def id_token(self, code: str, verifier: str, redirect_url: str) -> str:
        """Exchanges a code. Raises CredentialsRefused, Unavailable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": verifier,
        }
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self._client.secret:
            words = quote(self._client.client_id, safe=""), quote(self._client.secret, safe="")
            headers["authorization"] = "Basic " + base64.b64encode(":".join(words).encode()).decode()
        else:
            form["client_id"] = self._client.client_id
        url = (await self.metadata()).token_endpoint
        body = urlencode(form).encode()
        return await self._in_thread("token endpoint", lambda: _id_token_of(_exchanged(fetch(url, body, headers))))

    async def _read_metadata(self) -> ProviderMetadata:
        url = self._client.issuer.rstrip("/") + _DISCOVERY
        return await self._in_thread("discovery", lambda: metadata_of(fetch(url).content(), self._client.issuer))

    async def _read_keys(self) -> SigningKeys:
        url = (await self.metadata()).jwks_uri
        return await self._in_thread("keys", lambda: parse_signing_keys(fetch(url).content()))

    async def _in_thread(self, what: str, work: Callable[[], T]) -> T:
        """Runs a request. Raises CredentialsRefused, Unavailable."""
        if self._requests >= REQUESTS_MAX:
            raise Unavailable(f"{REQUESTS_MAX} requests to the identity provider are waiting for its answer")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            self._requests -= 1
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type] # without an error it is one

        def run() -> None:
            result: T | None = None
            failed: BaseException | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is raised by the caller
                failed = _failure(what, error)
            with suppress(RuntimeError):  # the gateway has stopped
                loop.call_soon_threadsafe(finish, result, failed)

        threading.Thread(target=run, name="oidc", daemon=True).start()  # a daemon does not hold up the end
        self._requests += 1
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                return await done
        except TimeoutError:
            raise Unavailable(f"the identity provider does not answer: {what}") from None


class _Reading(Generic[T]):
    """A value of the provider. One reading at a time; while an old value is read again, it stays in use."""

    def __init__(self, name: str, fresh_s: float, clock: Callable[[], float], read: Callable[[], Awaitable[T]]) -> None:
        self._name = name
        self._fresh_s = fresh_s
        self._clock = clock
        self._read = read
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._value: T | None = None
        self._problem: Unavailable | None = None  # of the last reading
        self._read_at = -float("inf")  # when the last reading ended
        self._good_at = -float("inf")  # and the last one that succeeded
        self._background: asyncio.Task[None] | None = None

    async def value(self, *, again: bool = False) -> T:
        """`again`: not the one that is there. Raises Unavailable, if it was never read."""
        if self._value is None or again:
            if self._waiting >= WAITING_MAX:
                raise Unavailable(f"{WAITING_MAX} requests wait for the identity provider's {self._name}")
            self._waiting += 1
            try:
                await self._reread()
            finally:
                self._waiting -= 1
        elif self.age_s() >= self._fresh_s and (self._background is None or self._background.done()):
            self._background = asyncio.create_task(self._reread(), name=f"oidc {self._name}")
        if self._value is not None:
            return self._value
        assert self._problem is not None
        raise Unavailable(self._problem.message)

    def age_s(self) -> float:
        """The time since the value was read."""
        return self._clock() - self._good_at

    async def close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait([self._background])

    async def _reread(self) -> None:
        async with self._lock:
            if self._clock() >= self._read_at + PAUSE_S:
                await self._read_once()

    async def _read_once(self) -> None:
        try:
            self._value = await self._read()
        except Unavailable as error:
            if self._problem is None or error.message != self._problem.message:
                log.warning("cannot read the identity provider's %s: %s", self._name, error)
            self._problem = error
        else:
            self._problem, self._good_at = None, self._clock()
        self._read_at = self._clock()


def metadata_of(data: bytes, issuer: str) -> ProviderMetadata:
    """Checks an answer of the discovery. Raises InvalidArgument."""
    found = _document(data)
    if found.get("issuer") != issuer:
        raise InvalidArgument(f"it is of the issuer {_shown(found.get('issuer'))}, and oidc_issuer is {issuer!r}")
    return ProviderMetadata(
        _endpoint(found, "authorization_endpoint"),
        _endpoint(found, "token_endpoint"),
        _endpoint(found, "jwks_uri"),
        sends_issuer=found.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(metadata: dict[str, Any], name: str) -> str:
    url = metadata.get(name)
    if not isinstance(url, str) or not _URL.fullmatch(url) or not is_private(url) or "#" in url:
        raise InvalidArgument(f"its {name} must be an https URL, not {_shown(url)}")
    return url


def _id_token_of(data: bytes) -> str:
    token = _document(data).get("id_token")
    if not isinstance(token, str) or not 0 < len(token) <= ID_TOKEN_CHARS_MAX:
        raise InvalidArgument("the answer has no ID token: is openid among the scopes of this client?")
    return token


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument("the answer is not a JSON object")
    return found


def _failure(what: str, error: Exception) -> Exception:
    """The error that a failed request raises. Endpoints and answers are the provider's, so it may be any."""
    if isinstance(error, CredentialsRefused):
        return error
    why = error.message if isinstance(error, CometError) else str(error)[:_SHOWN_MAX]
    return Unavailable(f"the identity provider's {what}: {why if why and why.isprintable() else type(error).__name__}")


def _exchanged(answer: Answer) -> bytes:
    """The content of an answer of the token endpoint. Raises CredentialsRefused, Unavailable."""
    word = "" if answer.status == OK else _error_of(answer.body)
    if word == "invalid_grant":
        raise CredentialsRefused("the identity provider refuses the code")
    if word:
        raise Unavailable(f"status {answer.status}, {word}")
    return answer.content()


def _error_of(body: bytes) -> str:
    """The code of an error of OAuth; empty without one."""
    try:
        word = _document(body).get("error")
    except InvalidArgument:
        return ""
    return word if isinstance(word, str) and _ERROR.fullmatch(word) else ""


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_MAX]
