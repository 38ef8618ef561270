"""The choice of the broker from which a consumer reads each partition, and when it moves to another.

    "leader"    only the leader
    "any"       the live replicas that are in sync, each with its share of the partitions
    "nearest"   one of those in the reader's rack; the leader if there is none

A follower may be behind: its error about an offset that it lacks does not count, and the leader is asked instead. A
reader leaves a follower that stops while the leader advances, or that is no longer in sync.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment
from comet.consumer.broker_subscription import PartitionSubscription
from comet.consumer.options import ReadFrom
from comet.entities import BrokerInfo, PartitionInfo, TopicInfo
from comet.errors import CometError
from comet.types import Latest, TopicPartition
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import position_to_pb


def suitable(partition: PartitionInfo, brokers: Iterable[BrokerInfo], read_from: ReadFrom, rack: str) -> list[int]:
    """The brokers that a partition can be read from; empty: only the leader.

    >>> three = [BrokerInfo(id, "host", 9092, "0.1.0", rack) for id, rack in [(1, "a"), (2, "b"), (3, "b")]]
    >>> partition = PartitionInfo(0, leader=1, leader_epoch=1, replicas=(1, 2, 3), in_sync=(1, 3))
    >>> suitable(partition, three, "any", ""), suitable(partition, three, "nearest", "b")
    ([1, 3], [3])
    """
    if read_from == "leader":
        return []
    found = [broker for broker in brokers if broker.id in partition.in_sync]
    if read_from == "nearest":
        found = [broker for broker in found if broker.rack == rack]
    return [broker.id for broker in found if not broker.draining] or [broker.id for broker in found]


class Replicas:
    """The choice of replicas to read from. Owned by a fetcher, whose readers it shares."""

    def __init__(
        self,
        client: Client,
        readers: Mapping[TopicPartition, PartitionSubscription],
        leave: Callable[[PartitionSubscription], Awaitable[None]],
        *,
        read_from: ReadFrom = "leader",
        rack: str = "",
    ) -> None:
        self.read_from = read_from
        self._rack = rack
        self._client = client
        self._readers = readers
        self._leave = leave
        self._leader_until: dict[TopicPartition, float] = {}  # partitions whose follower failed

    # ---- choosing

    async def attach(self, reader: PartitionSubscription) -> Attachment:
        try:
            return await self._client.attach(reader.topic, reader.partition, partial(self._choose, reader))
        except BaseException:
            reader.source = 0  # it does not count for that broker
            raise

    def _choose(self, reader: PartitionSubscription, info: TopicInfo, partition: int) -> int | None:
        known = info.partitions[partition]
        found = self._found(reader, known)
        if not found:
            reader.leader_only, reader.source = True, known.leader or 0
            return known.leader
        reader.leader_only = False
        load = Counter(other.source for other in self._readers.values() if other is not reader)
        first = (partition + self._client.salt) % len(found)
        reader.source = min(found[first:] + found[:first], key=lambda broker: load[broker])
        return reader.source

    def misled(self, reader: PartitionSubscription, error: CometError) -> None:
        """Handles a broker's answer that it no longer leads the partition."""
        if reader.leader_only:
            self._client.misled(reader.topic, reader.partition, reader.source, error)

    def ask_leader(self, reader: PartitionSubscription) -> None:
        """Reads the partition from its leader for a while, because a follower lacks records."""
        until = asyncio.get_running_loop().time() + limits.REPLICA_AVOIDED_MS / 1000
        self._leader_until[reader.tp] = until

    # ---- watching

    async def watch(self) -> None:
        """Leaves followers that make no progress, and brokers for which there is a better one."""
        seen: dict[TopicPartition, int] = {}
        while self.read_from != "leader":
            await asyncio.sleep(limits.LAG_CHECK_MS / 1000)
            quiet = [reader for reader in self._readers.values() if _waits(reader)]
            still = [reader for reader in quiet if seen.get(reader.tp) == reader.fetch]
            seen = {reader.tp: reader.fetch for reader in quiet}
            try:
                if still:
                    await self._check(still)
            except CometError:
                continue  # no answer; the current replica may be fine

    async def _check(self, still: list[PartitionSubscription]) -> None:
        infos = await self._client.fetch({reader.topic for reader in still})
        still = [reader for reader in still if reader.topic in infos]
        unsuitable = self._unsuitable(still, infos)
        rest = [reader for reader in still if reader not in unsuitable and not reader.leader_only]
        at = {reader: reader.fetch for reader in rest}
        ends = await asyncio.gather(*map(self._leader_end, rest), return_exceptions=True)
        behind = [reader for reader, end in zip(rest, ends, strict=True) if isinstance(end, int) and end > at[reader]]
        if behind:
            await asyncio.sleep(limits.LAG_GRACE_MS / 1000)
        for reader in behind:
            if _waits(reader) and reader.fetch == at[reader]:
                self.ask_leader(reader)
                unsuitable.append(reader)
        for reader in unsuitable:
            await self._leave(reader)

    def _unsuitable(
        self, still: list[PartitionSubscription], infos: Mapping[str, TopicInfo]
    ) -> list[PartitionSubscription]:
        """Readers whose broker is unsuitable, and those that would balance the load elsewhere."""
        load = Counter(reader.source for reader in self._readers.values())
        found: list[PartitionSubscription] = []
        for reader in still:
            good = self._found(reader, infos[reader.topic].partitions[reader.partition])
            if not good and reader.leader_only:
                continue  # the connection reports a lost leadership itself
            if reader.source not in good or min(load[broker] for broker in good) < load[reader.source] - 1:
                load[reader.source] -= 1
                load[min(good, key=lambda broker: load[broker], default=0)] += 1
                found.append(reader)
        return found

    def _found(self, reader: PartitionSubscription, known: PartitionInfo) -> list[int]:
        if self._leader_until.get(reader.tp, 0) > asyncio.get_running_loop().time():
            return []
        brokers = list(filter(None, map(self._client.broker, known.in_sync)))
        return suitable(known, brokers, self.read_from, self._rack)

    async def _leader_end(self, reader: PartitionSubscription) -> int:
        attachment = await self._client.attach(reader.topic, reader.partition)
        find = pb.FindOffset(partition=attachment.handle, position=position_to_pb(Latest()))
        answer = await attachment.connection.call(pb.ClientFrame(find_offset=find), limits.LAG_CHECK_MS)
        return int(answer.found_offset.offset)


def _waits(reader: PartitionSubscription) -> bool:
    """Whether it is subscribed and waits for the broker: all deliveries are taken, so there is credit."""
    subscription = reader.subscription
    return (
        subscription is not None and not reader.paused and not any(other.queued_bytes for other in subscription.readers)
    )
