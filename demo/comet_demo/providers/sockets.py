"""One state machine for all markets with a WebSocket. Its Dialect, which is pure, interprets a market's messages.

    connect ─► send the dialect's first texts ─► receive ─► subscribed ─► events …
       ▲                                            │
       └── wait: a second, two, … a minute, jittered ┴─ lost, silent for too long, never subscribed, too old, or the
                                                        server asks for it
    refused: the server gives a permanent error (a wrong key, an unknown symbol). It is raised.

Malformed messages are counted and skipped: none of them ends the feed. A connection that lasts long enough resets the
wait; one that is lost right away does not, even if it has delivered events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

import comet
from comet_demo.providers import Event

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger("comet_demo.feed")

MESSAGE_BYTES_MAX: Final = 1 << 20
# HTTP statuses of permanent errors.
REFUSALS: Final = {400, 401, 403, 404, 410, 451}
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(slots=True)
class ParsedMessage:
    """The content of a message."""

    events: list[Event] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    subscribed: bool = False
    missed: int = 0  # missing messages, by sequence numbers
    garbage: int = 0  # malformed parts
    again: str = ""  # the reason to connect again
    refused: str = ""  # the server's permanent error


class Dialect(Protocol):
    """The protocol of one market. Has state, but neither a clock nor a network."""

    name: str
    url: str
    silence_s: float | None  # limit for the time without a valid message; None: silence is normal
    life_s: float  # of a connection; less than the server allows

    def begin(self) -> list[str]:
        """The texts to send first on a new connection."""

    def parse(self, message: Any, now_us: int) -> ParsedMessage:
        """Interprets a message, decoded from JSON. May raise one of MALFORMED."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts of the connection, in seconds."""

    open_s: float = 10.0
    subscribe_s: float = 15.0  # from the open connection to the server's confirmation of the subscription
    ping_s: float = 20.0  # between pings, and for the answer to one
    close_s: float = 2.0
    wait_s: float = 1.0  # before the second try
    wait_max_s: float = 60.0
    stable_s: float = 60.0  # a connection that lasts longer resets the wait
    log_every_s: float = 10.0


def wait_before(tries: int, random: Random, timing: Timing) -> float:
    """The wait before the next try: doubles each time, jittered so that clients do not return all at once."""
    return min(timing.wait_s * 2.0 ** min(tries, 16), timing.wait_max_s) * random.uniform(0.5, 1.0)


class _Again(Exception):
    """The connection has ended; connect again."""


class SocketProvider:
    """The events of a market with a WebSocket, while its `stream` is read. Used by one task."""

    live = True

    def __init__(
        self,
        dialect: Dialect,
        random: Random,
        *,
        timing: Timing | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._random = random
        self._timing = timing or Timing()
        self._now_us = now_us
        self._counts = {"connections": 0, "messages": 0, "garbage": 0, "missed": 0}
        self._logged = {"garbage": 0, "missed": 0}
        self._log_at = 0.0
        self._received_at = 0.0
        self._subscribed = False
        self._end = ""  # the reason for which we ended the connection

    def statistics(self) -> Mapping[str, int]:
        return dict(self._counts)

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        """Yields events forever. Raises InvalidArgument if the server refuses the connection or the subscription."""
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            began = loop.time()
            try:
                async with aclosing(self._listen()) as parsed:
                    async for events in parsed:
                        yield events
            except _Again as why:
                tries = 0 if loop.time() - began >= self._timing.stable_s else tries + 1
                delay_s = wait_before(tries - 1 if tries else 0, self._random, self._timing)
                log.warning("%s: %s; connecting again in %.1f s", self.name, why, delay_s)
                await asyncio.sleep(delay_s)

    async def _listen(self) -> AsyncGenerator[Sequence[Event], None]:
        """One connection. Ends with _Again."""
        from websockets.exceptions import ConnectionClosed

        socket = await self._connect()
        watching = asyncio.ensure_future(self._watch(socket))
        try:
            for text in self._dialect.begin():
                await socket.send(text)
            async for message in socket:
                parsed = self._parse(message)
                for text in parsed.replies:
                    await socket.send(text)
                if parsed.events:
                    yield parsed.events
                if parsed.again:
                    raise _Again(parsed.again)
            raise _Again(self._end or f"the server closed the connection ({socket.close_code} {socket.close_reason})")
        except ConnectionClosed as error:
            raise _Again(self._end or f"the connection was lost: {error}") from None
        finally:
            watching.cancel()
            await socket.close()

    async def _connect(self) -> ClientConnection:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

        timing, url = self._timing, self._dialect.url
        self._end, self._subscribed = "", False
        self._counts["connections"] += 1
        try:
            socket = await connect(
                url,
                open_timeout=timing.open_s,
                ping_interval=timing.ping_s,
                ping_timeout=timing.ping_s,
                close_timeout=timing.close_s,
                max_size=MESSAGE_BYTES_MAX,
            )
        except InvalidURI as error:
            raise comet.InvalidArgument(f"{url!r} is not an address of a WebSocket: {error}") from error
        except InvalidStatus as error:
            status = error.response.status_code
            if status in REFUSALS:
                raise comet.InvalidArgument(
                    f"{self.name} refused the connection to {url} with HTTP {status}"
                ) from error
            raise _Again(f"the server answered with HTTP {status}") from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise _Again(f"no connection to {url}: {str(error) or type(error).__name__}") from None
        self._received_at = asyncio.get_running_loop().time()
        return socket

    def _parse(self, message: str | bytes) -> ParsedMessage:
        self._counts["messages"] += 1
        try:
            parsed = self._dialect.parse(msgspec.json.decode(message), self._now_us())
        except (*MALFORMED, msgspec.DecodeError):
            parsed = ParsedMessage(garbage=1)
        else:
            self._received_at = asyncio.get_running_loop().time()
        self._counts["garbage"] += parsed.garbage
        self._counts["missed"] += parsed.missed
        self._subscribed = self._subscribed or parsed.subscribed
        if parsed.refused:
            raise comet.InvalidArgument(f"{self.name}: {parsed.refused}")
        if parsed.garbage or parsed.missed:
            self._log_problems()
        return parsed

    def _log_problems(self) -> None:
        """Logs missed and malformed messages, at most once every `log_every_s`."""
        now = asyncio.get_running_loop().time()
        if now < self._log_at:
            return
        self._log_at = now + self._timing.log_every_s
        news = {kind: self._counts[kind] - logged for kind, logged in self._logged.items()}
        self._logged = {kind: self._counts[kind] for kind in self._logged}
        if news["missed"]:
            log.warning("%s: %s messages never arrived", self.name, f"{news['missed']:,}")
        if news["garbage"]:
            log.warning("%s: skipped %s malformed messages", self.name, f"{news['garbage']:,}")

    async def _watch(self, socket: ClientConnection) -> None:
        """Ends a connection that is too old, silent, or not subscribed in time."""
        loop, timing, dialect = asyncio.get_running_loop(), self._timing, self._dialect
        opened = loop.time()
        while True:
            reasons = {f"connected for {dialect.life_s:g} s": opened + dialect.life_s}
            if not self._subscribed:
                reasons[f"no subscription within {timing.subscribe_s:g} s"] = opened + timing.subscribe_s
            if dialect.silence_s is not None:
                reasons[f"no message for {dialect.silence_s:g} s"] = self._received_at + dialect.silence_s
            why, due = min(reasons.items(), key=lambda one: one[1])
            if due <= loop.time():
                break
            await asyncio.sleep(due - loop.time())
        self._end = why
        with suppress(OSError):
            socket.transport.abort()  # a silent server would not answer a closing handshake either
