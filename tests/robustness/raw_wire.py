"""The wire as a hostile or broken client speaks it: bytes on a connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from comet.errors import CometError
from comet.v1 import records_pb2 as records
from comet.v1 import types_pb2 as types
from comet.v1 import wire_pb2 as pb
from comet.wire import framing
from comet.wire.framing import Kind
from comet.wire.grpc_channel import GrpcChannel
from comet.wire.wire_stream import STREAM_CALL
from tests.robustness.process import BrokerProcess

HELLO: Final = framing.control(Kind.HELLO, pb.WireHello(version=framing.VERSION, call=STREAM_CALL).SerializeToString())


async def wire_port(process: BrokerProcess) -> int:
    """As a client learns it."""
    return int((await _described(process)).wire_port)


async def wire_socket(process: BrokerProcess) -> Path:
    """As a client learns it."""
    return Path((await _described(process)).wire_socket)


async def _described(process: BrokerProcess) -> types.Broker:
    channel = GrpcChannel(process.address)
    try:
        request, answer = records.FetchMetadataRequest(), records.FetchMetadataResponse
        found = await channel.unary("comet.v1.Comet/FetchMetadata", request, answer, 10.0)
        (broker,) = found.brokers
        assert broker.wire_port and broker.wire_socket
        return broker
    finally:
        await channel.close()


def data(frame: records.ClientFrame) -> bytes:
    content = frame.SerializeToString()
    return framing.head(len(content)) + content


def mutated(random: Random, good: bytes) -> bytes:
    """The bytes of a good client with some changed, missing, doubled or put in."""
    found = bytearray(good)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(found) + 1)
        match random.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << random.randrange(8)
            case 1:
                del found[at : at + random.randint(1, 20)]
            case 2:
                found[at:at] = random.randbytes(random.randint(1, 20))
            case 3:
                found[at:at] = found[at : at + random.randint(1, 50)]
            case _:
                size = random.choice([0, 1, 0xFFFF, 0xFF_FFFF, 0x7FFF_FFFF, 0xFFFF_FFFF])
                found[at : at + 4] = size.to_bytes(4, "little")
    return bytes(found)


class RawWire:
    """A connection without manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, at: int | Path) -> RawWire:
        """To a port, or a Unix socket."""
        if isinstance(at, Path):
            return cls(*await asyncio.open_unix_connection(at))
        return cls(*await asyncio.open_connection("127.0.0.1", at))

    async def write(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def read(self) -> tuple[int, bytes] | None:
        """The kind and content of the next frame; None: the connection is closed."""
        try:
            size, kind = framing.HEAD.unpack(await self._reader.readexactly(framing.HEAD_BYTES))
            return kind, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def end(self) -> CometError | str:
        """How the broker ends the connection."""
        while (found := await self.read()) is not None:
            if found[0] == Kind.END:
                return framing.parse_end(found[1]) or "in good order"
        return "closed"

    def close(self) -> None:
        self._writer.transport.abort()
