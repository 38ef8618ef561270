"""The fetcher of a share consumer: subscribes partitions at their leaders, and queues the records acquired for it.

It is a Fetcher with another request, ShareSubscribe for Subscribe, and other deliveries: a ShareDelivery names the
records of its batches that this member has acquired. Only these are decoded, when they are taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from comet import records
from comet.client.client import Client
from comet.client.connection import Attachment, Connection
from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription
from comet.consumer.fetcher import Fetcher
from comet.consumer.options import ReadingOptions
from comet.errors import CometError, CorruptRecords, Timeout, Unavailable
from comet.share.acknowledgements import Lot
from comet.types import Earliest, Position, TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.corrupt import headers, opened


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of every ShareSubscribe of a consumer."""

    group: str
    in_flight: int
    lock_s: float
    options: groups_pb.ShareOptions


class ShareSubscription(BrokerSubscription):
    """One subscription on one connection."""

    def __init__(
        self, client: Client, connection: Connection, terms: Terms, member: Callable[[], str], brokers: int
    ) -> None:
        super().__init__(connection, 0)
        self._client = client
        self._terms = terms
        self._member = member()  # that opened it; a member that was removed and rejoined keeps the subscription
        self._in_flight = max(terms.in_flight // max(brokers, 1), 1)

    async def _subscribe(self, chosen: list[tuple[PartitionSubscription, Attachment]], leader_only: bool) -> None:
        assert leader_only, "only the leader knows the acquired records"
        if not chosen:
            return
        terms = self._terms
        share = groups_pb.ShareSubscribe(
            subscription=self.number, group=terms.group, member=self._member, in_flight_max=self._in_flight,
            options=terms.options, partitions=[attachment.handle for _, attachment in chosen],
        )  # fmt: skip
        for reader, attachment in chosen:
            assert isinstance(reader, SharePartitionSubscription)
            reader.subscription, reader.attachment = self, attachment
            reader.lot = Lot(
                self._client, self.connection, self.number, reader.tp, attachment.handle, terms.lock_s
            )  # fmt: skip
            self.readers.add(reader)
            self.connection.subscribers.share_partitions[attachment.handle] = reader
        try:
            await self.connection.call(pb.ClientFrame(share_subscribe=share))
        except BaseException as error:
            if not isinstance(error, CometError) or isinstance(error, Timeout):
                self.connection.fail(Unavailable("a share subscription was not answered"))
            for reader, _ in chosen:
                reader.leave_subscription()
            raise
        self.opened = True

    def taken(self, size: int) -> None:
        """The locks are the credit."""


class SharePartitionSubscription(PartitionSubscription):
    """One shared partition. Gets the records that this member acquires."""

    lot: Lot | None = None
    on_delivery: Callable[[SharePartitionSubscription, groups_pb.ShareDelivery, Lot], None]

    def shared(self, shared: groups_pb.ShareDelivery) -> None:
        if self.lot is not None and not self.retired:
            self.on_delivery(self, shared, self.lot)

    def leave_subscription(self) -> None:
        if self.subscription is not None and self.attachment is not None:
            self.subscription.connection.subscribers.share_partitions.pop(self.attachment.handle, None)
        super().leave_subscription()


# An acquired record: its columns and its index there, the delivery_count, and the lock.
Acquired = tuple[SharePartitionSubscription, records.Batch, int, int, Lot]


class CorruptAcquired(NamedTuple):
    """Acquired records of a corrupt batch."""

    error: CorruptRecords
    offsets: list[int]
    lot: Lot


class ShareFetcher(Fetcher):
    """The fetcher of a share consumer. Owned by a ShareConsumer."""

    def __init__(self, client: Client, terms: Terms, member: Callable[[], str]) -> None:
        super().__init__(client, None, ReadingOptions(), start=Earliest(), partitions=None)
        self._terms = terms
        self._member = member
        self._shared: deque[tuple[SharePartitionSubscription, groups_pb.ShareDelivery, Lot]] = deque()
        self.lots: set[Lot] = set()  # with locks, now or before

    def new_reader(self, tp: TopicPartition, start: Position) -> PartitionSubscription:
        reader = SharePartitionSubscription(tp, start, self.queue.add, self._troubled)
        reader.on_delivery = self._enqueue
        return reader

    def new_subscription(self, connection: Connection, brokers: int) -> BrokerSubscription:
        return ShareSubscription(self._client, connection, self._terms, self._member, brokers)

    def _enqueue(self, reader: SharePartitionSubscription, shared: groups_pb.ShareDelivery, lot: Lot) -> None:
        self.queue.received_bytes += len(shared.batches)
        until = asyncio.get_running_loop().time() + self._terms.lock_s
        for lock in shared.acquired:
            lot.held.update(dict.fromkeys(range(lock.first, lock.end), until))
        self.lots.add(lot)
        self._shared.append((reader, shared, lot))
        self.queue.wake()

    def take_acquired(self) -> Iterator[Acquired | CorruptAcquired] | None:
        """The records of one ShareDelivery; None if there is none. Raises the error that stopped a partition."""
        if self._shared:
            return _acquired(*self._shared.popleft())
        self.queue.take()
        return None

    def lost(self) -> None:
        """Handles the end of a subscription, which ends all its locks."""
        self._shared = deque(one for one in self._shared if not one[2].over)
        self.lots = {lot for lot in self.lots if not lot.over}
        super().lost()


def _acquired(
    reader: SharePartitionSubscription, shared: groups_pb.ShareDelivery, lot: Lot
) -> Iterator[Acquired | CorruptAcquired]:
    locks = iter(shared.acquired)
    lock: Any = next(locks, None)
    data = memoryview(shared.batches)
    for at, header in headers(data):
        base, end = header.base_offset, header.next_offset
        try:
            batch = opened(header, data, at, *reader.tp)
        except CorruptRecords as error:
            lost = [offset for one in shared.acquired for offset in range(max(one.first, base), min(one.end, end))]
            yield CorruptAcquired(error, lost, lot)
            while lock is not None and lock.end <= end:
                lock = next(locks, None)
            continue
        offsets = batch.offsets
        dense = len(offsets) == end - base
        while lock is not None and lock.first < end:
            if lock.end > base:
                first, last = max(lock.first, base), min(lock.end, end)
                if dense:
                    for offset in range(first, last):
                        yield reader, batch, offset - base, lock.delivery_count, lot
                else:
                    for index, offset in enumerate(offsets):
                        if first <= offset < last:
                            yield reader, batch, index, lock.delivery_count, lot
            if lock.end > end:
                break  # the range continues in the next batch
            lock = next(locks, None)
