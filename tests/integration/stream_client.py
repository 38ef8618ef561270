"""The other end of one stream by hand, for tests that look at single frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from comet import records
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import parse_delivery, produce_frame
from comet_broker.broker import Broker
from comet_broker.streams.session import Session

MIB = 1 << 20
Call = Callable[[str, Message], Any]


class Client:
    """The other end of one stream: frames out, answers in, by hand."""

    def __init__(self, broker: Broker) -> None:
        self.session: Session = broker.open_session("test")
        self.deliveries: list[bytes] = []
        self._request = 0

    def send(self, **frame: Any) -> int:
        self._request += 1
        self.session.receive(pb.ClientFrame(request=self._request, **frame).SerializeToString())
        return self._request

    async def next(self) -> bytes:
        async with asyncio.timeout(30):
            frame = await self.session.writer.next_frame()
        assert frame is not None
        return frame

    async def answer(self) -> pb.ServerFrame:
        """The next frame that is no delivery; deliveries on the way are kept."""
        while True:
            frame = await self.next()
            if parse_delivery(frame) is None:
                return pb.ServerFrame.FromString(frame)
            self.deliveries.append(frame)

    async def delivery(self) -> bytes:
        if self.deliveries:
            return self.deliveries.pop(0)
        frame = await self.next()
        assert parse_delivery(frame) is not None, pb.ServerFrame.FromString(frame)
        return frame

    async def attach(self, topic: str = "t", partition: int = 0) -> int:
        self.send(attach=pb.Attach(topic=topic, partition=partition))
        return (await self.answer()).attached.partition

    def produce(self, handle: int, *values: bytes, acks: int = 1, **identity: Any) -> int:
        self._request += 1
        parts = records.encode(list(values), timestamps=1_000, **identity)
        self.session.receive(produce_frame(self._request, handle, acks, parts, sum(map(len, parts))))
        return self._request

    async def subscribe(self, handle: int, credit: int = MIB, subscription: int = 1, **position: Any) -> pb.ServerFrame:
        start = pb.Start(partition=handle, position=types.Position(**position or {"earliest": True}))
        self.send(subscribe=pb.Subscribe(subscription=subscription, starts=[start], credit=credit))
        return await self.answer()

    async def values(self, count: int) -> list[bytes | None]:
        """That many values from deliveries, giving the credit back as they come."""
        got: list[bytes | None] = []
        while len(got) < count:
            frame = await self.delivery()
            got += read(frame)
            self.send(credit=pb.Credit(subscription=1, bytes=len(frame) - 32))
        assert len(got) == count
        return got


def read(frame: bytes) -> list[bytes | None]:
    return [value for batch in records.iterate(memoryview(frame)[32:]) for value in batch.values]


async def idle(client: Client) -> None:
    assert client.session.poll() is None
