"""A member of a share group by hand, frame by frame."""

from __future__ import annotations

from typing import Any

from comet import records
from comet.v1 import groups_pb2 as groups
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types
from comet.wire.frames import joined
from tests.integration.stream_client import Client

EARLIEST = types.Position(earliest=True)


class Member(Client):
    """Takes what it is sent; `frames` are those that came while something else was waited for."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.frames: list[groups.ShareDelivery] = []
        self.ended: list[pb.StreamError] = []

    async def other(self) -> pb.ServerFrame:
        """The next answer; records that come on the way are kept."""
        while True:
            answer = await self.answer()
            match answer.WhichOneof("frame"):
                case "share_delivery":
                    self.frames.append(answer.share_delivery)
                case "error" if answer.error.HasField("subscription"):
                    self.ended.append(answer.error)
                case _:
                    return answer

    async def share(
        self, *handles: int, group: str = "g", in_flight: int = 100, subscription: int = 1, **options: Any
    ) -> pb.ServerFrame:
        options = {"start": EARLIEST, **options}
        self.send(
            share_subscribe=groups.ShareSubscribe(
                subscription=subscription,
                group=group,
                member="m",
                partitions=handles,
                in_flight_max=in_flight,
                options=groups.ShareOptions(**options),
            )
        )
        return await self.other()

    async def shared(self) -> groups.ShareDelivery:
        while not self.frames:
            answer = await self.answer()
            if answer.WhichOneof("frame") == "share_delivery":
                self.frames.append(answer.share_delivery)
            elif answer.WhichOneof("frame") == "error":
                self.ended.append(answer.error)
        return self.frames.pop(0)

    def now(self) -> list[groups.ShareDelivery]:
        """What there is without waiting."""
        while (frame := self.session.poll()) is not None:
            answer = pb.ServerFrame.FromString(joined(frame))
            if answer.WhichOneof("frame") == "share_delivery":
                self.frames.append(answer.share_delivery)
        found, self.frames = self.frames, []
        return found

    async def take(self, count: int) -> list[tuple[int, bytes | None, int]]:
        """That many records: offset, value and delivery_count of each."""
        got: list[tuple[int, bytes | None, int]] = []
        while len(got) < count:
            got += acquired(await self.shared())
        assert len(got) == count, got
        return got

    async def acknowledge(
        self,
        handle: int,
        *offsets: int,
        kind: groups.AcknowledgeType = groups.ACKNOWLEDGE_TYPE_ACCEPT,
        subscription: int = 1,
        **more: Any,
    ) -> list[tuple[int, int]]:
        """What of it was lost."""
        self.send(
            acknowledge=groups.Acknowledge(
                subscription=subscription,
                partition=handle,
                kind=kind,
                firsts=offsets,
                ends=[one + 1 for one in offsets],
                **more,
            )
        )
        answer = await self.other()
        assert answer.WhichOneof("frame") == "acknowledged", answer
        return list(zip(answer.acknowledged.lost_firsts, answer.acknowledged.lost_ends, strict=True))


def acquired(shared: groups.ShareDelivery) -> list[tuple[int, bytes | None, int]]:
    values = {
        offset: value
        for batch in records.iterate(shared.batches)
        for offset, value in zip(batch.offsets, batch.values, strict=True)
    }
    return [
        (offset, values[offset], lock.delivery_count)
        for lock in shared.acquired
        for offset in range(lock.first, lock.end)
    ]
