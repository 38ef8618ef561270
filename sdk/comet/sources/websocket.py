"""Reads the events of a WebSocket feed for as long as it lives. A Dialect, which is pure, interprets its messages.

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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from comet.errors import InvalidArgument
from comet.processes.restart_policy import RestartBackoff, Schedule
from comet.sources import clock

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MESSAGE_BYTES_MAX: Final = 1 << 20
AGAIN: Final = Schedule(pauses_s=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0), calm_s=60.0)
# HTTP statuses of permanent errors.
REFUSALS: Final = {400, 401, 403, 404, 410, 451}
# The errors of a message that has unexpected values.
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(slots=True)
class ParsedMessage(Generic[T]):
    """The content of a message."""

    events: list[T] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    subscribed: bool = False
    missed: int = 0  # missing messages, by sequence numbers
    malformed: int = 0  # parts
    again: str = ""  # the reason to connect again
    refused: str = ""  # the server's permanent error


class Dialect(Protocol[T]):
    """The protocol of one server. Has state, but neither a clock nor a network."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def silence_s(self) -> float | None:
        """The limit for the time without a valid message; None: silence is normal."""

    @property
    def life_s(self) -> float:
        """The limit for the life of a connection: less than the server allows."""

    def begin(self) -> list[str]:
        """The texts to send first on a new connection."""

    def parse(self, message: Any, now_us: int) -> ParsedMessage[T]:
        """Interprets a message, decoded from JSON. May raise one of MALFORMED."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts of a connection in seconds, and the pauses between connections."""

    open_s: float = 10.0
    subscribe_s: float = 15.0  # from the open connection to the server's confirmation of the subscription
    ping_s: float = 20.0  # between pings, and for the answer to one
    close_s: float = 2.0
    again: Schedule = AGAIN


class _Again(Exception):
    """The connection has ended; connect again."""


class WebSocketSource(Generic[T]):
    """The events of a server with a WebSocket, while its `stream` is read. Used by one task.

    async with aclosing(WebSocketSource(Prices()).stream()) as stream:
        async for events in stream:
            await producer.send_many("prices", events)
    """

    log = logging.getLogger("comet")

    def __init__(
        self,
        dialect: Dialect[T],
        random: Random | None = None,
        *,
        timing: Timing | None = None,
        now_us: Callable[[], int] = clock.now_us,
    ) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._random = random or Random()
        self._timing = timing or Timing()
        self._now_us = now_us
        self._counts = {"connections": 0, "messages": 0, "malformed": 0, "missed": 0}
        self._opened_at = 0.0
        self._received_at = 0.0  # the last valid message
        self._subscribed = False

    def statistics(self) -> Mapping[str, int]:
        return dict(self._counts)

    async def stream(self) -> AsyncGenerator[Sequence[T], None]:
        """Yields events forever. Raises InvalidArgument if the server refuses the connection or the subscription."""
        loop = asyncio.get_running_loop()
        backoff = RestartBackoff(self._timing.again)
        while True:
            began = loop.time()
            try:
                async with aclosing(self._listen()) as parsed:
                    async for events in parsed:
                        yield events
            except _Again as why:
                pause_s = backoff.failed(loop.time() - began)
                assert pause_s is not None, "the schedule is endless"
                pause_s *= self._random.uniform(0.5, 1.0)  # so that clients do not return all at once
                self.log.warning("%s: %s; connecting again in %.1f s", self.name, why, pause_s)
                await asyncio.sleep(pause_s)

    async def _listen(self) -> AsyncGenerator[Sequence[T], None]:
        """One connection. Ends with _Again."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

        timing, url = self._timing, self._dialect.url
        self._subscribed = False
        self._counts["connections"] += 1
        try:
            async with connect(
                url,
                open_timeout=timing.open_s,
                ping_interval=timing.ping_s,
                ping_timeout=timing.ping_s,
                close_timeout=timing.close_s,
                max_size=MESSAGE_BYTES_MAX,
            ) as socket:
                self._opened_at = self._received_at = asyncio.get_running_loop().time()
                for text in self._dialect.begin():
                    await socket.send(text)
                while True:
                    parsed = self._parse(await self._receive(socket))
                    for text in parsed.replies:
                        await socket.send(text)
                    if parsed.events:
                        yield parsed.events
                    if parsed.again:
                        raise _Again(parsed.again)
        except InvalidURI as error:
            raise InvalidArgument(f"{url!r} is not an address of a WebSocket: {error}") from error
        except InvalidStatus as error:
            refusal = f"HTTP {error.response.status_code} from {url}"
            if error.response.status_code in REFUSALS:
                raise InvalidArgument(f"{self.name} refused the connection: {refusal}") from error
            raise _Again(refusal) from None
        except ConnectionClosed as error:
            raise _Again(f"the connection was lost: {error}") from None
        except (OSError, InvalidHandshake) as error:
            raise _Again(f"no connection to {url}: {str(error) or type(error).__name__}") from None

    async def _receive(self, socket: ClientConnection) -> str | bytes:
        """The next message. Raises _Again if the connection is too old, silent, or not subscribed in time."""
        timing, dialect = self._timing, self._dialect
        limits = {f"connected for {dialect.life_s:g} s": self._opened_at + dialect.life_s}
        if not self._subscribed:
            limits[f"no subscription within {timing.subscribe_s:g} s"] = self._opened_at + timing.subscribe_s
        if dialect.silence_s is not None:
            limits[f"no message for {dialect.silence_s:g} s"] = self._received_at + dialect.silence_s
        why, due = min(limits.items(), key=lambda one: one[1])
        try:
            async with asyncio.timeout_at(due):
                return await socket.recv()
        except TimeoutError:
            socket.transport.abort()  # a silent server would not answer a closing handshake either
            raise _Again(why) from None

    def _parse(self, message: str | bytes) -> ParsedMessage[T]:
        self._counts["messages"] += 1
        try:
            parsed = self._dialect.parse(msgspec.json.decode(message), self._now_us())
        except (*MALFORMED, msgspec.DecodeError):
            parsed = ParsedMessage(malformed=1)
        else:
            self._received_at = asyncio.get_running_loop().time()
        self._counts["malformed"] += parsed.malformed
        self._counts["missed"] += parsed.missed
        self._subscribed = self._subscribed or parsed.subscribed
        if parsed.refused:
            raise InvalidArgument(f"{self.name}: {parsed.refused}")
        return parsed
