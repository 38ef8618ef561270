"""Members of groups by hand: frames out, answers and assignments in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2 as records_pb
from comet.wire.frames import parse_delivery
from comet_broker.broker import Broker
from comet_broker.streams.session import Session

PartitionName = tuple[str, int]  # topic, partition

WAIT_S = 30.0


class Stream:
    """One stream; what is not an answer to a request is handed to its member."""

    def __init__(self, broker: Broker) -> None:
        self.session: Session = broker.open_session("test")
        self.broker = broker
        self.pushed: deque[records_pb.ServerFrame] = deque()
        self.arrived = asyncio.Event()
        self._request = 0
        self._answers: dict[int, asyncio.Future[records_pb.ServerFrame]] = {}
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while (data := await self.session.writer.next_frame()) is not None:
            if parse_delivery(data) is not None:
                continue
            frame = records_pb.ServerFrame.FromString(data)
            future = self._answers.pop(frame.request, None)
            if future is not None:
                future.set_result(frame)
            else:
                self.pushed.append(frame)
                self.arrived.set()

    def post(self, **frame: Any) -> int:
        self._request += 1
        self.session.receive(records_pb.ClientFrame(request=self._request, **frame).SerializeToString())
        return self._request

    def send(self, **frame: Any) -> asyncio.Future[records_pb.ServerFrame]:
        future: asyncio.Future[records_pb.ServerFrame] = asyncio.get_running_loop().create_future()
        self._answers[self._request + 1] = future
        self.post(**frame)
        return future

    async def ask(self, **frame: Any) -> records_pb.ServerFrame:
        async with asyncio.timeout(WAIT_S):
            return await self.send(**frame)

    async def close(self) -> None:
        self.session.close()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class Member:
    """One member on a stream of its own; releases what it is asked to as soon as it hears of it, unless `keeps`."""

    def __init__(self, broker: Broker, group: str = "g", *, keeps: bool = False) -> None:
        self.stream = Stream(broker)
        self.group = group
        self.keeps = keeps
        self.id = ""
        self.generation = 0
        self.owned: dict[PartitionName, pb.AssignedPartition] = {}
        self.ids: dict[str, bytes] = {}
        self.release: list[pb.TopicPartitions] = []
        self.evicted: pb.Evicted | None = None
        self.assignments = 0
        self.heartbeat_ms = 0

    async def join(self, *topics: str, **more: Any) -> pb.Joined:
        frame = await self.stream.ask(join=pb.Join(group=self.group, topics=topics, **more))
        assert frame.WhichOneof("frame") == "joined", frame
        self.id, self.heartbeat_ms = frame.joined.member, frame.joined.heartbeat_ms
        return frame.joined

    def hear(self) -> None:
        """Takes in what has arrived."""
        while self.stream.pushed:
            frame = self.stream.pushed.popleft()
            match frame.WhichOneof("frame"):
                case "assignment":
                    self._assigned(frame.assignment)
                case "evicted":
                    self.evicted = frame.evicted
        self.stream.arrived.clear()

    def _assigned(self, assignment: pb.Assignment) -> None:
        assert assignment.member == self.id and assignment.generation >= self.generation
        self.assignments += 1
        self.generation = assignment.generation
        self.owned = {(topic.topic, one.partition): one for topic in assignment.owned for one in topic.partitions}
        self.ids = {topic.topic: topic.topic_id for topic in assignment.owned}
        self.release = list(assignment.release)
        if self.release and not self.keeps:
            self.give_back()

    def give_back(self) -> None:
        for topic in self.release:
            for index in topic.partitions:
                del self.owned[topic.topic, index]
        release, self.release = self.release, []
        self.stream.post(
            release=pb.Release(group=self.group, member=self.id, generation=self.generation, partitions=release)
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            self.hear()
            while not condition():
                await self.stream.arrived.wait()
                self.hear()

    async def owns(self, count: int) -> None:
        await self.until(lambda: len(self.owned) == count)

    def commit_frame(self, topic: str, offsets: dict[int, int], **more: Any) -> pb.Commit:
        entries = [pb.PartitionOffset(partition=index, offset=offset) for index, offset in offsets.items()]
        topics = [pb.TopicOffsets(topic=topic, topic_id=self.ids[topic], offsets=entries)]
        generation = more.pop("generation", self.generation)
        return pb.Commit(group=self.group, member=self.id, generation=generation, topics=topics, **more)

    async def commit(self, topic: str, offsets: dict[int, int], **more: Any) -> records_pb.ServerFrame:
        return await self.stream.ask(commit=self.commit_frame(topic, offsets, **more))

    async def leave(self) -> None:
        frame = await self.stream.ask(leave=pb.Leave(group=self.group, member=self.id))
        assert frame.WhichOneof("frame") == "left", frame

    async def close(self) -> None:
        await self.stream.close()


async def settled(members: list[Member], count: int) -> None:
    """Until the members own that many partitions between them, nobody is asked for any, and loads are equal."""

    def quiet() -> bool:
        loads = [len(member.owned) for member in members]
        tps = {tp for member in members for tp in member.owned}
        return sum(loads) == len(tps) == count and max(loads) - min(loads) <= 1

    async with asyncio.timeout(WAIT_S):
        while True:
            for member in members:
                member.hear()
            if quiet() and not any(member.release for member in members):
                return
            waits = [asyncio.ensure_future(member.stream.arrived.wait()) for member in members]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
