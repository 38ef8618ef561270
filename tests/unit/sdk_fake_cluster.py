"""Several fake brokers that make a cluster: leaders move, followers lag, brokers die, freeze, or are out of date.

Used on the virtual time of comet_testing.simulation.loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from comet.entities import BrokerInfo, PartitionInfo, TopicInfo
from comet.errors import NotEnoughReplicas, NotLeader, Unavailable
from tests.unit.sdk_fake import FakeBroker, FakeChannel, FakePartition


@dataclass(frozen=True)
class Picture:
    """What a broker believes of the cluster."""

    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    partitions: dict[tuple[str, int], PartitionInfo] = field(default_factory=dict)

    def info(self, partition: FakePartition) -> PartitionInfo:
        return self.partitions[partition.topic, partition.index]


class ClusterBroker(FakeBroker):
    """One broker of a FakeCluster, with a log of its own for every partition."""

    def __init__(self, cluster: FakeCluster, number: int, topics: dict[str, int]) -> None:
        super().__init__(topics, number)
        self.cluster = cluster
        self.address = f"fake{number}:9092"
        self.outdated: Picture | None = None  # what it believes, where that is not the truth
        self.isolated = False  # as a follower it gets nothing

    @property
    def picture(self) -> Picture:
        return self.outdated or self.cluster.picture

    def replica(self, topic: str = "quotes", index: int = 0) -> FakePartition:
        return self.topics[topic][index]

    def reading(self) -> int:
        """How many partitions are read from here."""
        return sum(len(stream.cursors) for stream in self.streams)

    def check_leader(self, partition: FakePartition) -> None:
        leader = self.picture.info(partition).leader
        if leader == self.id:
            return
        details = {}
        if leader in self.picture.brokers:
            known = self.picture.brokers[leader]
            details = {"leader": str(leader), "host": known.host, "port": str(known.port)}
        raise NotLeader(f"{self.id} does not lead, {leader} does", details=details)

    def check_produce(self, partition: FakePartition, acks: int) -> None:
        self.check_leader(partition)
        if self.cluster.picture.info(partition).leader != self.id:
            raise Unavailable("it believes that it leads, but may not")
        if acks == 2 and len(self.picture.info(partition).in_sync) < self.cluster.min_insync:
            raise NotEnoughReplicas("too few are in sync")

    def appended(self, partition: FakePartition) -> None:
        self.cluster.replicate(partition.topic, partition.index)

    def brokers(self) -> list[BrokerInfo]:
        return list(self.picture.brokers.values())

    def describe(self, name: str) -> TopicInfo:
        partitions = tuple(self.picture.info(partition) for partition in self.topics[name])
        return TopicInfo(name, self.ids[name], partitions, self.config, 0)


class FakeCluster:
    """Brokers that hold every partition, each. Replication takes no time, unless a follower is isolated."""

    def __init__(self, topics: dict[str, int] | None = None, *, brokers: int = 3, racks: str = "abc") -> None:
        self.min_insync = 1
        self.election_s = 0.1  # how long a partition has no leader when its leader died
        topics = topics or {"quotes": 1}
        everyone = tuple(range(1, brokers + 1))
        self.brokers = {number: ClusterBroker(self, number, topics) for number in everyone}
        self._known = {
            number: BrokerInfo(number, f"fake{number}", 9092, "fake", racks[number - 1]) for number in everyone
        }
        self.picture = Picture(
            self._known,
            {
                (name, index): PartitionInfo(index, everyone[index % brokers], 1, everyone, everyone)
                for name, count in topics.items()
                for index in range(count)
            },
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    @property
    def calls(self) -> int:
        return sum(len(broker.calls) for broker in self.brokers.values())

    def connect(self, address: str) -> FakeChannel:
        for broker in self.brokers.values():
            if broker.address == address:
                return FakeChannel(broker, address)
        nobody = FakeBroker()
        nobody.up = False
        return FakeChannel(nobody, address)

    def leader(self, topic: str = "quotes", index: int = 0) -> ClusterBroker:
        leader = self.picture.partitions[topic, index].leader
        assert leader is not None
        return self.brokers[leader]

    def change(self, topic: str, index: int, **changes: Any) -> None:
        """Writes down who leads and who is in sync; brokers that no longer lead say so to who cares."""
        tp = topic, index
        known = self.picture.partitions[tp]
        if changes.get("leader"):
            changes["leader_epoch"] = known.leader_epoch + 1
        info = replace(known, **changes)
        self.picture = Picture(self.picture.brokers, {**self.picture.partitions, tp: info})
        for broker in self.brokers.values():
            partition = broker.replica(topic, index)
            partition.epoch = info.leader_epoch
            if broker.id != info.leader and broker.outdated is None:
                _depose(broker, partition)
        self.replicate(topic, index)

    def move(self, leader: int, topic: str = "quotes", index: int = 0) -> None:
        self.change(topic, index, leader=leader)

    def replicate(self, topic: str, index: int) -> None:
        """Followers that can take over what the leader has and they have not."""
        info = self.picture.partitions[topic, index]
        source = (
            self.brokers[info.leader].replica(topic, index) if info.leader and self.leader(topic, index).up else None
        )
        for broker in self.brokers.values():
            target = broker.replica(topic, index)
            if source is not None and target is not source and broker.up and not broker.isolated:
                for header, batch in source.batches[len(target.batches) :]:
                    if header.base_offset >= target.end:
                        target.take(header, batch)
            broker.push()

    def register(self, number: int, *, present: bool) -> None:
        brokers = {**self.picture.brokers, number: self._known[number]}
        if not present:
            del brokers[number]
        self.picture = Picture(brokers, self.picture.partitions)

    def kill(self, number: int) -> None:
        broker = self.brokers[number]
        broker.up = False
        broker.cut()
        self.give_up(number)

    def give_up(self, number: int) -> None:
        """The cluster takes a broker for dead: it leads nothing, and after a while others do."""
        self.register(number, present=False)
        for (topic, index), info in list(self.picture.partitions.items()):
            self.change(topic, index, in_sync=tuple(one for one in info.in_sync if one != number))
            if info.leader == number:
                self.change(topic, index, leader=None)
                task = asyncio.get_running_loop().create_task(self._elect(topic, index))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _elect(self, topic: str, index: int) -> None:
        await asyncio.sleep(self.election_s)
        self.change(topic, index, leader=self.picture.partitions[topic, index].in_sync[0])

    def revive(self, number: int) -> None:
        broker = self.brokers[number]
        broker.up, broker.frozen = True, False
        broker.renumber()
        self.register(number, present=True)
        for (topic, index), info in list(self.picture.partitions.items()):
            self.change(topic, index, in_sync=tuple(sorted({*info.in_sync, number})))


def _depose(broker: ClusterBroker, partition: FakePartition) -> None:
    for stream in list(broker.streams):
        if partition.handle in stream.leader_only:
            try:
                broker.check_leader(partition)
            except NotLeader as error:
                stream.end_cursor(partition.handle, error)
