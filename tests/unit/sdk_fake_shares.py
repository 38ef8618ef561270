"""The broker of sdk_fake_groups with shared groups: records are leased one by one, until a test or a stream ends that.

`settlements` is what members have said. `expire` ends leases. What is given back is due again at once, or after its
delay.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from comet.v1 import events_pb2 as pb
from comet.v1 import groups_pb2 as groups_pb
from tests.unit.sdk_fake import FakePartition, FakeStream
from tests.unit.sdk_fake_groups import GroupBroker, GroupChannel, GroupStream


@dataclass
class Shares:
    """What the leader knows of one partition."""

    leased: dict[int, tuple[FakeStream, int]] = field(default_factory=dict)  # offset: stream, subscription
    settled: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    members: dict[tuple[FakeStream, int], int] = field(default_factory=dict)  # in_flight_max


class ShareStream(GroupStream):
    broker: ShareBroker

    def _on_share(self, request: int, share: groups_pb.Share) -> None:
        self._check("share", share)
        self.broker.shares_asked.append(share)
        for handle in share.partitions:
            partition = self.broker.partition(handle)
            self.broker.check_leader(partition)
            self.broker.of(partition).members[self, share.subscription] = share.in_flight_max
        self.send(pb.ServerFrame(request=request, sharing=groups_pb.Sharing(subscription=share.subscription)))
        self.broker.lend()

    def _on_settle(self, request: int, settle: groups_pb.Settle) -> None:
        self._check("settle", settle)
        self.broker.settlements.append(settle)
        shares = self.broker.of(self.broker.partition(settle.partition))
        lost: list[int] = []
        for first, end in zip(settle.firsts, settle.ends, strict=True):
            for offset in range(first, end):
                if shares.leased.get(offset) != (self, settle.subscription):
                    lost.append(offset)
                else:
                    self._settle_one(shares, offset, settle)
        answer = groups_pb.Settled(lost_firsts=lost, lost_ends=[offset + 1 for offset in lost])
        self.send(pb.ServerFrame(request=request, settled=answer))
        self.broker.lend()

    def _settle_one(self, shares: Shares, offset: int, settle: groups_pb.Settle) -> None:
        if settle.kind == groups_pb.SETTLEMENT_EXTEND:
            return
        del shares.leased[offset]
        if settle.kind != groups_pb.SETTLEMENT_RELEASE:
            shares.settled.add(offset)
        elif settle.delay_ms:
            shares.waiting.add(offset)
            asyncio.get_running_loop().call_later(settle.delay_ms / 1000, self.broker.due, shares, offset)

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
        self.settlements: list[groups_pb.Settle] = []
        self.shares_asked: list[groups_pb.Share] = []

    def connect(self, address: str) -> ShareChannel:
        return ShareChannel(self, address)

    def of(self, partition: FakePartition) -> Shares:
        return self.shares.setdefault(partition, Shares())

    def appended(self, partition: FakePartition) -> None:
        super().appended(partition)
        self.lend()

    def push(self) -> None:
        super().push()
        self.lend()

    def lend(self) -> None:
        for partition, shares in self.shares.items():
            for (stream, subscription), most in list(shares.members.items()):
                self._lend(partition, shares, stream, subscription, most)

    def _lend(self, partition: FakePartition, shares: Shares, stream: FakeStream, number: int, most: int) -> None:
        room = most - sum(owner == (stream, number) for owner in shares.leased.values())
        for header, batch in partition.batches:
            free = [
                offset
                for offset in range(header.base_offset, header.next_offset)
                if offset not in shares.leased and offset not in shares.settled and offset not in shares.waiting
            ][: max(room, 0)]
            if not free:
                continue
            room -= len(free)
            shared = groups_pb.Shared(subscription=number, partition=partition.handle, leader_epoch=1, batches=batch)
            for offset in free:
                shares.leased[offset] = stream, number
                attempt = shares.attempts[offset] = shares.attempts.get(offset, 0) + 1
                shared.leases.add(first=offset, end=offset + 1, attempt=attempt)
            stream.send(pb.ServerFrame(shared=shared))

    def due(self, shares: Shares, offset: int) -> None:
        shares.waiting.discard(offset)
        self.lend()

    def expire(self, offset: int, partition: int = 0) -> None:
        """The lease of a record has ended, and nobody is given it for now."""
        shares = self.of(self.topics["quotes"][partition])
        del shares.leased[offset]
        shares.waiting.add(offset)

    def drop(self, stream: FakeStream) -> None:
        for shares in self.shares.values():
            shares.leased = {offset: owner for offset, owner in shares.leased.items() if owner[0] is not stream}
            shares.members = {owner: most for owner, most in shares.members.items() if owner[0] is not stream}
        self.lend()
