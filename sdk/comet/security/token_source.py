"""Tokens that a client fetches: the one that is held, its renewal before it expires, and failed fetches.

    Bootstrap(token=provider) ─► TokenSource, one for each provider in a process
    new connection ─► ready: at once while a token holds, else a fetch
    each client    ─► keep: a fetch at 70 to 80 % of the token's life
    refused        ─► renewed: a fetch, unless another token is there already

All share one fetch at a time. After a failed one there is none for a second, then two, up to a minute; until then the
error is the answer of those without a token, and clients with a token that holds notice nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Any, Final, Protocol

from comet import limits
from comet.errors import CometError, CredentialsRefused, Unavailable
from comet.wire.bearer import is_token

log = logging.getLogger("comet")

_RENEWED_AT: Final = (0.7, 0.8)  # of its life, so that clients do not all ask at once
_GRACE_S: Final = 5.0  # for a fetch in a loop that was closed


class TokenProvider(Protocol):
    """A function that returns a new token (JWT), async or not: the option `token` of a Bootstrap.

    It is called for the first connection, and again before the token expires, in one place at a time. A function that
    is not async runs in a thread. It raises comet.CredentialsRefused if there will be no token; any other error is
    taken for an issuer that is away. The text of a foreign error is not shown, as it may hold a secret.

    >>> async def fetched() -> str: ...  # a call of your identity provider
    >>> brokers = comet.Bootstrap("broker-1.example.com:9092", token=fetched)
    """

    def __call__(self) -> str | Awaitable[str]: ...


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token, when it expires, and when it is to be renewed; times of the wall clock."""

    text: str
    expires_s: float
    renew_s: float

    def __repr__(self) -> str:
        return f"<HeldToken until {self.expires_s:.0f}>"


class TokenFetch:
    """One fetch, and those who wait for it in their loops."""

    def __init__(self) -> None:
        self.error: CometError | None = None
        self._lock = threading.Lock()
        self._over = False
        self._waiters: list[asyncio.Future[None]] = []

    async def result(self) -> None:
        """Waits for the end. Raises the error."""
        waiter = asyncio.get_running_loop().create_future()
        with self._lock:
            if not self._over:
                self._waiters.append(waiter)
            else:
                waiter.set_result(None)
        await waiter
        if self.error is not None:
            raise self.error

    def end(self, error: CometError | None) -> None:
        """Called in the loop of the fetch."""
        with self._lock:
            self.error, self._over = error, True
            waiters, self._waiters = self._waiters, []
        here = asyncio.get_running_loop()
        for waiter in waiters:
            loop = waiter.get_loop()
            if loop is here:
                _wake(waiter)
            else:
                with suppress(RuntimeError):  # that loop was closed
                    loop.call_soon_threadsafe(_wake, waiter)


class TokenSource:
    """The tokens of one provider. Shared by the clients of a process; safe in any thread and loop."""

    def __init__(
        self, provider: TokenProvider, *, clock: Callable[[], float] = time.time, random: Random | None = None
    ) -> None:
        self.provider = provider
        self._clock = clock
        self._random = random or SystemRandom()
        self._lock = threading.Lock()
        self._held: HeldToken | None = None
        self._fetching: TokenFetch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None  # the last call of a provider that is not async
        self._failed: CometError | None = None
        self._failures = 0
        self._not_before_s = 0.0  # of the next fetch after a failed one
        self._forced_s = float("-inf")  # the last fetch for a refused token

    @classmethod
    def of(cls, provider: TokenProvider) -> TokenSource:
        """The source of a provider, the same for equal ones."""
        if type(provider).__hash__ is None:
            return cls(provider)
        with _registering:
            found = _sources.pop(provider, None) or cls(provider)
            while len(_sources) >= limits.TOKEN_SOURCES_MAX:
                del _sources[next(iter(_sources))]
            _sources[provider] = found  # the last used is forgotten last
        return found

    def __repr__(self) -> str:
        return f"<TokenSource of {_name(self.provider)}>"

    def __reduce__(self) -> Any:
        return TokenSource.of, (self.provider,)

    # ---- as a Bearer

    def text(self) -> str:
        held = self._valid()
        if held is None:
            failed = self._failed or Unavailable(f"no token of {_name(self.provider)} yet; retry")
            raise _anew(failed, self._not_before_s - self._clock())
        return held.text

    async def ready(self) -> None:
        if self._valid() is None:
            await self._fetch(self._held)

    async def renewed(self, refused: str) -> bool:
        held, now = self._valid(), self._clock()
        if held is not None and held.text == refused:
            if self._fetching is None:
                if now < self._forced_s + limits.TOKEN_PAUSE_MS / 1000:
                    return False
                self._forced_s = now
            try:
                await self._fetch(held)
            except CometError:
                return False
            held = self._valid()
        return held is not None and held.text != refused

    async def keep(self) -> None:
        while True:
            held, now = self._held, self._clock()
            due_s = max(now if held is None else held.renew_s, self._not_before_s)
            await asyncio.sleep(max(due_s - now, limits.TOKEN_PAUSE_MS / 1000))
            held = self._held
            if held is None or self._clock() < held.renew_s:
                continue  # a new connection fetches the first one, and another client may have renewed it
            try:
                await self._fetch(held)
            except CometError as error:
                if self._failures == 1:
                    left_s = max(held.expires_s - self._clock(), 0)
                    log.warning("comet: token not renewed, it holds for %.0f s more: %s", left_s, error)

    def _valid(self) -> HeldToken | None:
        held = self._held
        return held if held is not None and self._clock() < held.expires_s else None

    # ---- fetching

    async def _fetch(self, known: HeldToken | None) -> None:
        """Fetches a token in place of the known one, with all who wait for one. Raises the error of the fetch."""
        with self._lock:
            if self._held is not known:
                return
            fetch = self._fetching
            if fetch is None:
                if self._failed is not None and self._clock() < self._not_before_s:
                    raise _anew(self._failed, self._not_before_s - self._clock())
                fetch = self._fetching = TokenFetch()
                task = asyncio.get_running_loop().create_task(self._run(fetch))  # goes on if this caller is cancelled
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(limits.ISSUER_FETCH_MS / 1000 + _GRACE_S):
                await fetch.result()
        except CometError as error:
            raise _anew(error, self._not_before_s - self._clock()) from error.__cause__
        except TimeoutError:
            with self._lock:
                if self._fetching is fetch:
                    self._fetching = None
            raise Unavailable("the fetch of a token was interrupted; retry") from None

    async def _run(self, fetch: TokenFetch) -> None:
        error: CometError | None = Unavailable("the fetch of a token was interrupted; retry")
        counts = False  # an interrupted fetch says nothing of the issuer
        try:
            async with asyncio.timeout(limits.ISSUER_FETCH_MS / 1000):
                held = self._checked(await self._called())
            self._held, error = held, None
        except TimeoutError:
            error, counts = (
                Unavailable(f"{_name(self.provider)} gave no token within {limits.ISSUER_FETCH_MS / 1000:g} s"),
                True,
            )
        except CometError as failed:
            error, counts = failed, True
        except Exception as failed:  # noqa: BLE001 - a provider is foreign code; its text may hold a secret
            error, counts = Unavailable(f"{_name(self.provider)} failed: {type(failed).__name__}"), True
            error.__cause__ = failed
        finally:
            self._ended(fetch, error, counts=counts)

    def _ended(self, fetch: TokenFetch, error: CometError | None, *, counts: bool) -> None:
        with self._lock:
            if self._fetching is fetch:
                self._fetching = None
            if error is None:
                self._failed, self._failures, self._not_before_s = None, 0, 0.0
            elif counts:
                self._failures += 1
                wait_ms = min(limits.TOKEN_PAUSE_MS << min(self._failures - 1, 16), limits.TOKEN_PAUSE_MS_MAX)
                self._failed, self._not_before_s = error, self._clock() + wait_ms / 1000
        fetch.end(error)

    async def _called(self) -> str:
        """Calls the provider, in a thread of its own unless it is async."""
        provider: Any = self.provider
        is_async = inspect.iscoroutinefunction(provider) or inspect.iscoroutinefunction(type(provider).__call__)
        found = provider() if is_async else await self._in_thread(provider)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, str):
            raise CredentialsRefused(f"{_name(provider)} gave {type(found).__name__} in place of a token")
        return found

    async def _in_thread(self, provider: Callable[[], Any]) -> Any:
        if self._thread is not None and self._thread.is_alive():
            raise Unavailable(f"the last call of {_name(provider)} has not returned")
        result: Future[Any] = Future()
        result.set_running_or_notify_cancel()

        def call() -> None:
            try:
                result.set_result(provider())
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                result.set_exception(error)

        self._thread = threading.Thread(target=call, name="comet: token", daemon=True)
        self._thread.start()
        return await asyncio.wrap_future(result)

    def _checked(self, text: str) -> HeldToken:
        """The token with its times. Raises CredentialsRefused or Unavailable; no error shows the token."""
        name, now = _name(self.provider), self._clock()
        expires_s = expiry_of(text)
        if expires_s is None:
            raise CredentialsRefused(f"{name} gave no token that brokers take: a JWT that has `exp`")
        if expires_s <= now:
            raise Unavailable(f"{name} gave a token that expired {now - expires_s:.0f} s ago: compare the clocks")
        return HeldToken(text, expires_s, now + (expires_s - now) * self._random.uniform(*_RENEWED_AT))


def expiry_of(token: str) -> float | None:
    """The time at which a JWT expires, unverified. None: the text is not a JWT, or has no `exp`."""
    if not is_token(token):
        return None
    payload = token.split(".")[1]
    try:
        expires = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return float(expires) if isinstance(expires, int | float) and 0 < expires < 1 << 40 else None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _name(provider: Any) -> str:
    """The provider, without anything secret."""
    url = getattr(provider, "token_url", None)
    if isinstance(url, str):
        return url
    return f"the token provider {getattr(provider, '__qualname__', type(provider).__name__)}"


def _anew(error: CometError, wait_s: float) -> CometError:
    """The same error for one more caller, which may retry after a time."""
    return type(error)(error.message, details=error.details, retry_after_ms=max(int(wait_s * 1000), 0))


_registering: Final = threading.Lock()
_sources: dict[TokenProvider, TokenSource] = {}
