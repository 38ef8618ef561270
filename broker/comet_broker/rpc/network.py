"""The connections of a broker to others over gRPC: the SDK's channel, with replication added, and a probe of a port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from comet.errors import Unavailable, UnsupportedVersion
from comet.v1 import wire_pb2 as wire_pb
from comet.wire.framing import VERSION
from comet.wire.grpc_channel import OPTIONS, GrpcChannel, GrpcStream
from comet.wire.tls import TlsFiles
from comet.wire.transport import Stream
from comet.wire.wire_stream import WireStream
from comet_broker import limits
from comet_broker.ports import PeerChannel, WirePeer
from comet_broker.rpc.local_channel import UnreachableChannel

log = logging.getLogger(__name__)

WIRE_CALL: Final = "comet.v1.Replication/Replicate"
REPLICATE: Final = f"/{WIRE_CALL}"
WIRE_CONNECT_S: Final = 1.0
PROBE_S_MAX: Final = 1.0
# As a client's options. gRPC sets TCP_USER_TIMEOUT to the keepalive timeout, so a connection that is dead in one
# direction fails.
PEER_OPTIONS: Final = tuple(
    {
        **dict(OPTIONS),
        "grpc.min_reconnect_backoff_ms": limits.PEER_CONNECT_MS,
        "grpc.keepalive_time_ms": limits.PEER_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": limits.PEER_KEEPALIVE_TIMEOUT_MS,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }.items()
)


class GrpcPeerChannel(GrpcChannel):
    """A connection to another broker."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        super().__init__(address, PEER_OPTIONS, tls)
        self._tls = tls

    async def replicate(self, wire: WirePeer | None) -> Stream:
        if wire is not None:
            hello = wire_pb.WireHello(
                version=VERSION, call=WIRE_CALL, broker_id=wire.broker_id, cluster_id=wire.cluster_id
            )
            try:
                return await WireStream.open(wire.address, hello, self._tls, WIRE_CONNECT_S)
            except (Unavailable, UnsupportedVersion) as error:
                log.info("gRPC is used for replication, since the wire fails: %s", error)
        return GrpcStream(self._channel.stream_stream(REPLICATE)(), self.address)


class GrpcNetwork:
    """ports.Network, for a broker that is a process, which presents the certificate of `tls` to others."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self._tls = tls

    def connect(self, address: str) -> PeerChannel:
        try:
            return GrpcPeerChannel(address, self._tls)
        except Unavailable as error:  # the files of TLS cannot be read now
            return UnreachableChannel(error)

    async def refused(self, address: str) -> bool:
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return False
