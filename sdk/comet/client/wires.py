"""Streams over the wire, to the brokers whose metadata names a port for it.

auto   the wire where a broker has it and answers, else gRPC
wire   the wire, or an error
grpc   gRPC
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from comet.errors import CometError, Unavailable, UnsupportedVersion
from comet.settings.client import Transport
from comet.v1 import records_pb2 as pb
from comet.v1 import wire_pb2 as wire_pb
from comet.wire.bearer import SCHEME, Bearer
from comet.wire.framing import VERSION
from comet.wire.tls import TlsFiles
from comet.wire.transport import Stream
from comet.wire.wire_stream import STREAM_CALL, WireStream

log = logging.getLogger("comet")

# A port that a firewall swallows costs this long, and gRPC is used then for a while.
CONNECT_S: Final = 1.5
SLOW_S: Final = 0.5  # a quicker refusal is not remembered
AVOID_S: Final = 30.0


class Wires:
    """Owned by one client."""

    def __init__(self, transport: Transport, tls: TlsFiles | None, bearer: Bearer | None) -> None:
        self._transport = transport
        self._tls = tls
        self._bearer = bearer
        self._cluster = ""
        self._ports: dict[str, tuple[int, int]] = {}  # by address: the broker, and its port
        self._avoided: dict[str, float] = {}  # by address: until when

    def learn(self, answer: pb.FetchMetadataResponse) -> None:
        self._cluster = answer.cluster_id
        for broker in answer.brokers:
            self.learn_port(f"{broker.host}:{broker.port}", broker.id, broker.wire_port)

    def learn_port(self, address: str, broker: int, port: int) -> None:
        if self._ports.get(address) != (broker, port):
            self._ports[address] = broker, port
            self._avoided.pop(address, None)  # it has started again

    def learn_leader(self, error: CometError) -> None:
        """From an error that names another broker."""
        details = error.details
        try:
            broker, port = int(details["leader"]), int(details["wire_port"])
            self.learn_port(f"{details['host']}:{details['port']}", broker, port)
        except (KeyError, ValueError):
            return  # it names none

    async def open(self, address: str) -> Stream | None:
        """A stream to the broker at an address of gRPC; None: use gRPC. Raises the error of a broker that refuses."""
        if self._transport == "grpc":
            return None
        broker, port = self._ports.get(address, (0, 0))
        loop = asyncio.get_running_loop()
        if self._transport == "auto" and (not port or self._avoided.get(address, 0.0) > loop.time()):
            return None
        if not port:
            raise Unavailable(f"the broker at {address} does not serve the wire, and transport is 'wire'")
        hello = wire_pb.WireHello(version=VERSION, call=STREAM_CALL, broker_id=broker, cluster_id=self._cluster)
        if self._bearer is not None:
            hello.authorization = SCHEME + self._bearer.text()
        host, began = address.rpartition(":")[0], loop.time()
        try:
            return await WireStream.open(f"{host}:{port}", hello, self._tls, CONNECT_S)
        except (Unavailable, UnsupportedVersion) as error:
            if self._transport == "wire":
                raise
            log.info("comet: gRPC is used, since the wire fails: %s", error.message)
            if loop.time() - began > SLOW_S:
                self._avoided[address] = loop.time() + AVOID_S
            return None
