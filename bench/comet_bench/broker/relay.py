"""The bare relay: frames from a producer to a consumer through a third process, as records through a broker.

    relay_pace ──frames──► relay ──frames──► relay_stopwatch

The frames are those of the wire (proto/WIRE.md), read and written on the event loop's thread as there. The relay looks
at their sizes alone: no log, no acknowledgement, no hello.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from comet.wire.framing import HEAD, HEAD_BYTES, head
from comet_bench.limits import HOST, STAMP
from comet_bench.machine import EventCosts
from comet_bench.report import quantiles
from comet_bench.timer import SenderCosts, Ticker

if TYPE_CHECKING:
    from comet_bench.link import Link, Work

BUFFER_BYTES: Final = 256 << 10  # of a connection; every frame fits


class RelayConnection(asyncio.BufferedProtocol):
    """A connection that hands over each whole frame, with its head. `made` and `lost` get its beginning and its end."""

    def __init__(
        self,
        take: Callable[[bytes], None] = lambda _frame: None,
        *,
        made: Callable[[RelayConnection], None] = lambda _connection: None,
        lost: Callable[[RelayConnection], None] = lambda _connection: None,
    ) -> None:
        self._take = take
        self._made = made
        self._lost = lost
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._made(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._lost(self)

    def get_buffer(self, _hint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, count: int) -> None:
        at, end = 0, self._filled + count
        while end - at >= HEAD_BYTES:
            after = at + HEAD_BYTES + HEAD.unpack_from(self._buffer, at)[0]
            if after > end:
                break
            self._take(bytes(self._buffer[at:after]))
            at = after
        rest = bytes(self._buffer[at:end])
        self._buffer[: len(rest)] = rest
        self._filled = len(rest)


async def relay(link: Link, _config: Any) -> dict[str, Any]:
    """Serves producers at one port and consumers at another. A consumer gets an empty frame, then every frame."""
    loop = asyncio.get_running_loop()
    consumers: set[RelayConnection] = set()

    def forward(frame: bytes) -> None:
        for consumer in consumers:
            consumer.transport.write(frame)

    def join(consumer: RelayConnection) -> None:
        consumers.add(consumer)
        consumer.transport.write(head(0))

    producing = await loop.create_server(lambda: RelayConnection(forward), HOST, 0)
    consuming = await loop.create_server(lambda: RelayConnection(made=join, lost=consumers.discard), HOST, 0)
    ports = [server.sockets[0].getsockname()[1] for server in (producing, consuming)]
    await link.go(port=ports[0], consumer_port=ports[1])  # the order here means: stop
    producing.close()
    consuming.close()
    return {}


async def relay_pace(link: Link, config: Any) -> dict[str, Any]:
    """As `pace` of the clients, with frames in place of records."""
    interval_ns = 1_000_000_000 // config["rate"]
    pad = bytes(config["message_bytes"] - STAMP.size)
    prefix = head(config["message_bytes"])
    _, connection = await asyncio.get_running_loop().create_connection(RelayConnection, HOST, config["port"])
    order = await link.go()
    due_ns = time.perf_counter_ns() + int(order["lead_s"] * 1e9)
    ticker = Ticker(due_ns, interval_ns)
    costs = SenderCosts(ticker)
    left, measured = config["records"], config["records"] - config["skip"]
    while left > 0:
        for _ in range(min(await ticker.due(), left)):
            if left == measured:
                costs = SenderCosts(ticker)
            connection.transport.write(prefix + STAMP.pack(due_ns) + pad)
            due_ns += interval_ns
            left -= 1
    ticker.close()
    return costs.per_event(measured)


async def relay_stopwatch(link: Link, config: Any) -> dict[str, Any]:
    """As `stopwatch` of the clients."""
    ages_us: list[float] = []
    records, skip = config["records"], config["skip"]
    loop = asyncio.get_running_loop()
    joined: asyncio.Future[None] = loop.create_future()
    complete: asyncio.Future[dict[str, float]] = loop.create_future()
    costs = EventCosts(consumer=[os.getpid()], **config["servers"])

    def take(frame: bytes) -> None:
        nonlocal costs
        if not joined.done():
            joined.set_result(None)
            return
        ages_us.append((time.perf_counter_ns() - STAMP.unpack_from(frame, HEAD_BYTES)[0]) / 1e3)
        if len(ages_us) == skip:
            costs = EventCosts(consumer=[os.getpid()], **config["servers"])
        elif len(ages_us) == records:
            complete.set_result(costs.per_event(records - skip))

    def lost(_connection: RelayConnection) -> None:
        if not complete.done():
            complete.set_exception(ConnectionError("the relay has closed the connection"))

    await loop.create_connection(lambda: RelayConnection(take, lost=lost), HOST, config["consumer_port"])
    await joined
    await link.go()
    found = await complete
    return quantiles(ages_us[skip:]) | found


WORKS: Final[dict[str, Work]] = {"relay": relay, "relay_pace": relay_pace, "relay_stopwatch": relay_stopwatch}
