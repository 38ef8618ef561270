"""Streams over the wire, to the brokers whose metadata offers it.

auto   the wire where a broker has it and answers, else gRPC
wire   the wire, or an error
grpc   gRPC

    Unix socket, on the broker's machine ─► TCP ─► gRPC

Each way that fails gives way to the next one; a way that fails slowly is left out for a while.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from comet.errors import CometError, Forbidden, Unavailable, UnsupportedVersion
from comet.settings.client import Transport
from comet.settings.hosts import is_loopback
from comet.v1 import records_pb2 as pb
from comet.wire.transport import Stream

if TYPE_CHECKING:
    from comet.wire.bearer import Bearer
    from comet.wire.tls import TlsFiles

log = logging.getLogger("comet")

# A port that a firewall swallows costs this long, and gRPC is used then for a while.
CONNECT_S: Final = 1.5
SLOW_S: Final = 0.5  # a quicker refusal is not remembered
AVOID_S: Final = 30.0
UNIX: Final = "wire over its Unix socket"
TCP: Final = "wire over TCP"
GRPC: Final = "gRPC"


class Offer(NamedTuple):
    """What a broker has beside gRPC."""

    broker: int
    port: int  # 0: no wire
    socket: str = ""  # path of its Unix socket; empty: none for this client


class Used(NamedTuple):
    """The transport of the newest stream to a broker, and why not a better one."""

    transport: str
    reasons: tuple[str, ...]
    failed: bool = False  # a better one was offered, and failed


class Wires:
    """Owned by one client."""

    def __init__(self, transport: Transport, tls: TlsFiles | None, bearer: Bearer | None) -> None:
        self.offers: dict[str, Offer] = {}  # of brokers, by their address for gRPC
        self.used: dict[str, Used] = {}  # likewise
        self._transport = transport
        self._tls = tls
        self._bearer = bearer
        self._cluster = ""
        self._avoided: dict[tuple[str, str], tuple[float, str]] = {}  # with the way: until when, and why

    def learn(self, answer: pb.FetchMetadataResponse) -> None:
        self._cluster = answer.cluster_id
        for broker in answer.brokers:
            self.learn_offer(f"{broker.host}:{broker.port}", broker.id, broker.wire_port, broker.wire_socket)

    def learn_offer(self, address: str, broker: int, port: int, path: str | None = None) -> None:
        """Without a path, the known one of the broker stays."""
        known = self.offers.get(address)
        if path is None:
            path = known.socket if known is not None and known.broker == broker else ""
        offer = self.offers[address] = Offer(broker, port, path)
        if known != offer:
            self._avoided.pop((address, UNIX), None)
        if known is None or known[:2] != offer[:2]:
            self._avoided.pop((address, TCP), None)  # it has started again

    def learn_leader(self, error: CometError) -> None:
        """From an error that names another broker."""
        details = error.details
        try:
            broker, port = int(details["leader"]), int(details["wire_port"])
            self.learn_offer(f"{details['host']}:{details['port']}", broker, port)
        except (KeyError, ValueError):
            return  # it names none

    async def open(self, address: str) -> Stream | None:
        """A stream to the broker at an address of gRPC; None: use gRPC. Raises the error of a broker that refuses."""
        offer = self.offers.get(address, Offer(0, 0))
        if self._transport == "grpc":
            self.used[address] = Used(GRPC, ("the client's transport is 'grpc'",))
            return None
        reasons, failure = list[str](), None
        for way in (UNIX, TCP):
            reason = await self._missing(way, address, offer)
            if not reason:
                try:
                    stream = await self._open(way, address, offer)
                except (Unavailable, UnsupportedVersion, Forbidden) as error:
                    if way == TCP and isinstance(error, Forbidden):
                        raise
                    failure, reason = error, error.message
                    log.info(
                        "comet: another transport than the %s of %s is used: %s",
                        way,
                        address,
                        reason,
                        extra={"address": address},
                    )
                else:
                    self.used[address] = Used(way, tuple(reasons), failed=failure is not None)
                    log.debug("comet: the stream to %s is on the %s", address, way)
                    return stream
            reasons.append(reason)
        if self._transport == "wire":
            raise failure or Unavailable(f"no stream over the wire, and transport is 'wire': {'; '.join(reasons)}")
        self.used[address] = Used(GRPC, tuple(reasons), failed=failure is not None)
        return None

    async def _missing(self, way: str, address: str, offer: Offer) -> str:
        """Why the way is not tried; empty: it is."""
        if way == TCP and not offer.port:
            return f"the broker at {address} does not serve the wire"
        if way == UNIX and not offer.socket:
            return f"the broker at {address} names no Unix socket to this client"
        if way == UNIX and not await is_here(address.rpartition(":")[0].strip("[]")):
            return f"{address} is not on this machine"
        until, reason = self._avoided.get((address, way), (0.0, ""))
        return reason if until > asyncio.get_running_loop().time() and self._transport == "auto" else ""

    async def _open(self, way: str, address: str, offer: Offer) -> Stream:
        # Here: clients without streams do without them.
        from comet.v1 import wire_pb2 as wire_pb
        from comet.wire.bearer import SCHEME
        from comet.wire.framing import VERSION
        from comet.wire.wire_stream import STREAM_CALL, WireStream

        hello = wire_pb.WireHello(version=VERSION, call=STREAM_CALL, broker_id=offer.broker, cluster_id=self._cluster)
        if self._bearer is not None:
            hello.authorization = SCHEME + self._bearer.text()
        at, path = f"{address.rpartition(':')[0]}:{offer.port}", Path(offer.socket) if way == UNIX else None
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await WireStream.open(at, hello, self._tls, CONNECT_S, path)
        except (Unavailable, UnsupportedVersion) as error:
            if loop.time() - began > SLOW_S:
                self._avoided[address, way] = loop.time() + AVOID_S, error.message
            raise


async def is_here(host: str) -> bool:
    """Whether a host is this machine: only its own addresses can be bound."""
    if is_loopback(host):
        return True
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return bool(found) and all(_can_bind(family, address) for family, *_, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
