"""One machine for every market that is heard over a WebSocket. What a market says is for its Dialect, which is pure.

    connect ─► say what the dialect begins with ─► hear ─► subscribed ─► events …
       ▲                                            │
       └── wait: a second, two, … a minute, jittered ┴─ lost, silent for too long, never subscribed, too old, or the
                                                        server asks for it
    refused: the server says that it is no use to go on (a wrong key, an unknown symbol). That is raised.

What makes no sense is counted and skipped: nobody's message ends the feed. A connection that lasts long enough makes
the next wait short again, one that is lost right away does not, whatever it has said before.
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
# HTTP says that trying again would be no use.
REFUSALS: Final = {400, 401, 403, 404, 410, 451}
MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


@dataclass(slots=True)
class Heard:
    """What a message comes to."""

    events: list[Event] = field(default_factory=list)
    say: list[str] = field(default_factory=list)
    subscribed: bool = False
    missed: int = 0  # messages that never came, as the numbers of those that did say
    garbage: int = 0  # parts that make no sense
    again: str = ""  # why to connect again
    refused: str = ""  # why it is no use to go on


class Dialect(Protocol):
    """The protocol of one market. Keeps what it has heard; knows no clock and no network."""

    name: str
    url: str
    silence_s: float | None  # without a message that makes sense; None: it may well be silent
    life_s: float  # of a connection; before the server ends it

    def begin(self) -> list[str]:
        """A connection is open: what to say first."""

    def hear(self, message: Any, now_us: int) -> Heard:
        """A message, decoded from JSON. May raise one of MALFORMED."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient the machine is, in seconds."""

    open_s: float = 10.0
    subscribe_s: float = 15.0  # from the open connection to the server's word that it is subscribed
    ping_s: float = 20.0  # between pings, and for the answer to one
    close_s: float = 2.0
    wait_s: float = 1.0  # before the second try,
    wait_max_s: float = 60.0
    stable_s: float = 60.0  # a connection that lasted as long was a good one
    tell_every_s: float = 10.0


def wait_before(tries: int, random: Random, timing: Timing) -> float:
    """Twice as long each time, and never the same for all who were disconnected at once."""
    return min(timing.wait_s * 2.0 ** min(tries, 16), timing.wait_max_s) * random.uniform(0.5, 1.0)


class _Again(Exception):
    """The connection is over, and another is to be made."""


class SocketProvider:
    """A market heard over a WebSocket, for as long as somebody listens. Used by one task."""

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
        self._told = {"garbage": 0, "missed": 0}
        self._tell_at = 0.0
        self._heard_at = 0.0
        self._subscribed = False
        self._end = ""  # why we ended the connection ourselves

    def statistics(self) -> Mapping[str, int]:
        return dict(self._counts)

    async def stream(self) -> AsyncGenerator[Sequence[Event], None]:
        """Goes on for ever. Raises InvalidArgument where the server refuses what was asked."""
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            began = loop.time()
            try:
                async with aclosing(self._listen()) as heard:
                    async for events in heard:
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
                heard = self._hear(message)
                for text in heard.say:
                    await socket.send(text)
                if heard.events:
                    yield heard.events
                if heard.again:
                    raise _Again(heard.again)
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
            raise comet.InvalidArgument(f"{url!r} is no address of a WebSocket: {error}") from error
        except InvalidStatus as error:
            status = error.response.status_code
            if status in REFUSALS:
                raise comet.InvalidArgument(
                    f"{self.name} refused the connection to {url} with HTTP {status}"
                ) from error
            raise _Again(f"the server answered with HTTP {status}") from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise _Again(f"there is no connection to {url}: {str(error) or type(error).__name__}") from None
        self._heard_at = asyncio.get_running_loop().time()
        return socket

    def _hear(self, message: str | bytes) -> Heard:
        self._counts["messages"] += 1
        try:
            heard = self._dialect.hear(msgspec.json.decode(message), self._now_us())
        except (*MALFORMED, msgspec.DecodeError):
            heard = Heard(garbage=1)
        else:
            self._heard_at = asyncio.get_running_loop().time()
        self._counts["garbage"] += heard.garbage
        self._counts["missed"] += heard.missed
        self._subscribed = self._subscribed or heard.subscribed
        if heard.refused:
            raise comet.InvalidArgument(f"{self.name}: {heard.refused}")
        if heard.garbage or heard.missed:
            self._tell()
        return heard

    def _tell(self) -> None:
        """Now and then, not for each of them."""
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            return
        self._tell_at = now + self._timing.tell_every_s
        news = {kind: self._counts[kind] - told for kind, told in self._told.items()}
        self._told = {kind: self._counts[kind] for kind in self._told}
        if news["missed"]:
            log.warning("%s: %s messages never came", self.name, f"{news['missed']:,}")
        if news["garbage"]:
            log.warning("%s: %s messages made no sense and were skipped", self.name, f"{news['garbage']:,}")

    async def _watch(self, socket: ClientConnection) -> None:
        """Ends a connection that is no use any more."""
        loop, timing, dialect = asyncio.get_running_loop(), self._timing, self._dialect
        opened = loop.time()
        while True:
            reasons = {f"it was connected for {dialect.life_s:g} s": opened + dialect.life_s}
            if not self._subscribed:
                reasons[f"nothing was subscribed within {timing.subscribe_s:g} s"] = opened + timing.subscribe_s
            if dialect.silence_s is not None:
                reasons[f"nothing came for {dialect.silence_s:g} s"] = self._heard_at + dialect.silence_s
            why, due = min(reasons.items(), key=lambda one: one[1])
            if due <= loop.time():
                break
            await asyncio.sleep(due - loop.time())
        self._end = why
        with suppress(OSError):
            socket.transport.abort()  # an end that says nothing would not answer a farewell either
