"""The broker of sdk_fake_groups with share groups: records are acquired one by one, until a test or a stream ends that.

`acknowledgements` is what members have said. `expire` ends locks. What is given back is due again at once, or after its
delay.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from tests.unit.sdk_fake import FakePartition, FakeStream
from tests.unit.sdk_fake_groups import GroupBroker, GroupChannel, GroupStream


@dataclass
class Shares:
    """What the leader knows of one partition."""

    acquired: dict[int, tuple[FakeStream, int]] = field(default_factory=dict)  # offset: stream, subscription
    acknowledged: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    members: dict[tuple[FakeStream, int], int] = field(default_factory=dict)  # in_flight_max


class ShareStream(GroupStream):
    broker: ShareBroker

    def _on_share_subscribe(self, request: int, share: groups_pb.ShareSubscribe) -> None:
        self._check("share", share)
        self.broker.shares_asked.append(share)
        for handle in share.partitions:
            partition = self.broker.partition(handle)
            self.broker.check_leader(partition)
            self.broker.of(partition).members[self, share.subscription] = share.in_flight_max
        self.send(
            pb.ServerFrame(request=request, share_subscribed=groups_pb.ShareSubscribed(subscription=share.subscription))
        )
        self.broker.acquire()

    def _on_acknowledge(self, request: int, acknowledge: groups_pb.Acknowledge) -> None:
        self._check("acknowledge", acknowledge)
        self.broker.acknowledgements.append(acknowledge)
        shares = self.broker.of(self.broker.partition(acknowledge.partition))
        lost: list[int] = []
        for first, end in zip(acknowledge.firsts, acknowledge.ends, strict=True):
            for offset in range(first, end):
                if shares.acquired.get(offset) != (self, acknowledge.subscription):
                    lost.append(offset)
                else:
                    self._acknowledge_one(shares, offset, acknowledge)
        answer = groups_pb.Acknowledged(lost_firsts=lost, lost_ends=[offset + 1 for offset in lost])
        self.send(pb.ServerFrame(request=request, acknowledged=answer))
        self.broker.acquire()

    def _acknowledge_one(self, shares: Shares, offset: int, acknowledge: groups_pb.Acknowledge) -> None:
        if acknowledge.kind == groups_pb.ACKNOWLEDGE_TYPE_EXTEND:
            return
        del shares.acquired[offset]
        if acknowledge.kind != groups_pb.ACKNOWLEDGE_TYPE_RELEASE:
            shares.acknowledged.add(offset)
        elif acknowledge.delay_ms:
            shares.waiting.add(offset)
            asyncio.get_running_loop().call_later(acknowledge.delay_ms / 1000, self.broker.due, shares, offset)

    def fail(self, error: Any) -> None:
        super().fail(error)
        self.broker.drop(self)


class ShareChannel(GroupChannel):
    def stream(self) -> FakeStream:
        stream = super().stream()
        stream.__class__ = ShareStream
        return stream


class ShareBroker(GroupBroker):
    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.shares: dict[FakePartition, Shares] = {}
        self.acknowledgements: list[groups_pb.Acknowledge] = []
        self.shares_asked: list[groups_pb.ShareSubscribe] = []

    def connect(self, address: str) -> ShareChannel:
        return ShareChannel(self, address)

    def of(self, partition: FakePartition) -> Shares:
        return self.shares.setdefault(partition, Shares())

    def appended(self, partition: FakePartition) -> None:
        super().appended(partition)
        self.acquire()

    def push(self) -> None:
        super().push()
        self.acquire()

    def acquire(self) -> None:
        for partition, shares in self.shares.items():
            for (stream, subscription), most in list(shares.members.items()):
                self._acquire(partition, shares, stream, subscription, most)

    def _acquire(self, partition: FakePartition, shares: Shares, stream: FakeStream, number: int, most: int) -> None:
        room = most - sum(owner == (stream, number) for owner in shares.acquired.values())
        for header, batch in partition.batches:
            free = [
                offset
                for offset in range(header.base_offset, header.next_offset)
                if offset not in shares.acquired and offset not in shares.acknowledged and offset not in shares.waiting
            ][: max(room, 0)]
            if not free:
                continue
            room -= len(free)
            shared = groups_pb.ShareDelivery(
                subscription=number, partition=partition.handle, leader_epoch=1, batches=batch
            )
            for offset in free:
                shares.acquired[offset] = stream, number
                delivery_count = shares.attempts[offset] = shares.attempts.get(offset, 0) + 1
                shared.acquired.add(first=offset, end=offset + 1, delivery_count=delivery_count)
            stream.send(pb.ServerFrame(share_delivery=shared))

    def due(self, shares: Shares, offset: int) -> None:
        shares.waiting.discard(offset)
        self.acquire()

    def expire(self, offset: int, partition: int = 0) -> None:
        """The lock of a record has ended, and nobody is given it for now."""
        shares = self.of(self.topics["quotes"][partition])
        del shares.acquired[offset]
        shares.waiting.add(offset)

    def drop(self, stream: FakeStream) -> None:
        for shares in self.shares.values():
            shares.acquired = {offset: owner for offset, owner in shares.acquired.items() if owner[0] is not stream}
            shares.members = {owner: most for owner, most in shares.members.items() if owner[0] is not stream}
        self.acquire()
