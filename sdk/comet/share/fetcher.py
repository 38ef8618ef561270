"""Keeps the partitions of a shared group's member shared with it, on their leaders, and queues what is leased to it.

It is the intake of a consumer with another request, Share for Subscribe, and other deliveries: a Shared frame names the
records that are for this member among those of the batches that it carries. Only these are decoded, when they are
taken.
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
from comet.consumer.fetcher import Intake
from comet.errors import CometError, CorruptRecords, Timeout, Unavailable
from comet.share.acknowledgements import Lot
from comet.types import Earliest, Position, TopicPartition
from comet.v1 import events_pb2 as pb
from comet.v1 import groups_pb2 as groups_pb
from comet.wire.corrupt import headers, opened


@dataclass(frozen=True, slots=True)
class Terms:
    """What every Share of a consumer says."""

    group: str
    in_flight: int
    lease_s: float
    options: groups_pb.ShareOptions


class ShareFeed(BrokerSubscription):
    """One subscription on one connection."""

    def __init__(
        self, client: Client, connection: Connection, terms: Terms, member: Callable[[], str], brokers: int
    ) -> None:
        super().__init__(connection, 0)
        self._client = client
        self._terms = terms
        self._member = member()  # that opened it; one that was put out and has joined again goes on with it
        self._in_flight = max(terms.in_flight // max(brokers, 1), 1)

    async def _subscribe(self, chosen: list[tuple[PartitionSubscription, Attachment]], leader_only: bool) -> None:
        assert leader_only, "only the leader knows what is leased"
        if not chosen:
            return
        terms = self._terms
        share = groups_pb.Share(
            subscription=self.number, group=terms.group, member=self._member, in_flight_max=self._in_flight,
            options=terms.options, partitions=[attachment.handle for _, attachment in chosen],
        )  # fmt: skip
        for reader, attachment in chosen:
            assert isinstance(reader, ShareReader)
            reader.feed, reader.attachment = self, attachment
            reader.lot = Lot(
                self._client, self.connection, self.number, reader.place, attachment.handle, terms.lease_s
            )  # fmt: skip
            self.readers.add(reader)
            self.connection.add_sharer(attachment.handle, reader)
        try:
            await self.connection.call(pb.ClientFrame(share=share))
        except BaseException as error:
            if not isinstance(error, CometError) or isinstance(error, Timeout):
                self.connection.fail(Unavailable("a share was not answered"))
            for reader, _ in chosen:
                reader.leave_feed()
            raise
        self.opened = True

    def taken(self, size: int) -> None:
        """The leases are the credit."""


class ShareReader(PartitionSubscription):
    """One partition that is shared. Hears what is leased of it to this member."""

    lot: Lot | None = None
    heard: Callable[[ShareReader, groups_pb.Shared, Lot], None]

    def shared(self, shared: groups_pb.Shared) -> None:
        if self.lot is not None and not self.retired:
            self.heard(self, shared, self.lot)

    def leave_feed(self) -> None:
        if self.feed is not None and self.attachment is not None:
            self.feed.connection.remove_sharer(self.attachment.handle)
        super().leave_feed()


# A record that is leased: the columns that it is in and where, the attempt, and the lease.
Leased = tuple[ShareReader, records.Batch, int, int, Lot]


class CorruptLeases(NamedTuple):
    """Records that are leased in a batch that cannot be read."""

    error: CorruptRecords
    offsets: list[int]
    lot: Lot


class ShareIntake(Intake):
    """Owned by a SharedConsumer."""

    def __init__(self, client: Client, terms: Terms, member: Callable[[], str]) -> None:
        super().__init__(
            client, None, start=Earliest(), partitions=None, buffer_bytes=0, on_out_of_range="raise",
            read_from="leader", rack="", on_gap=None,
        )  # fmt: skip
        self._terms = terms
        self._member = member
        self._shared: deque[tuple[ShareReader, groups_pb.Shared, Lot]] = deque()
        self.lots: set[Lot] = set()  # with leases, or that had some

    def _new_reader(self, place: TopicPartition, start: Position) -> PartitionSubscription:
        reader = ShareReader(place, start, self._arrived, self._troubled)
        reader.heard = self._heard
        return reader

    def _new_feed(self, connection: Connection, brokers: int) -> BrokerSubscription:
        return ShareFeed(self._client, connection, self._terms, self._member, brokers)

    def _heard(self, reader: ShareReader, shared: groups_pb.Shared, lot: Lot) -> None:
        self.received_bytes += len(shared.batches)
        until = asyncio.get_running_loop().time() + self._terms.lease_s
        for lease in shared.leases:
            lot.held.update(dict.fromkeys(range(lease.first, lease.end), until))
        self.lots.add(lot)
        self._shared.append((reader, shared, lot))
        self._arrive()

    def take_leased(self) -> Iterator[Leased | CorruptLeases] | None:
        """The records of one Shared frame; None when there is none. Raises what stopped a partition."""
        if self._shared:
            return _leased(*self._shared.popleft())
        if self._queue:
            self.take()
        return None

    def _lost(self, connection: Connection, error: CometError) -> None:
        """The leases that came on it have ended, taken or not."""
        self._shared = deque(one for one in self._shared if not one[2].over)
        self.lots = {lot for lot in self.lots if not lot.over}
        super()._lost(connection, error)


def _leased(reader: ShareReader, shared: groups_pb.Shared, lot: Lot) -> Iterator[Leased | CorruptLeases]:
    leases = iter(shared.leases)
    lease: Any = next(leases, None)
    data = memoryview(shared.batches)
    for at, header in headers(data):
        base, end = header.base_offset, header.next_offset
        try:
            batch = opened(header, data, at, *reader.place)
        except CorruptRecords as error:
            lost = [offset for one in shared.leases for offset in range(max(one.first, base), min(one.end, end))]
            yield CorruptLeases(error, lost, lot)
            while lease is not None and lease.end <= end:
                lease = next(leases, None)
            continue
        offsets = batch.offsets
        dense = len(offsets) == end - base
        while lease is not None and lease.first < end:
            if lease.end > base:
                first, last = max(lease.first, base), min(lease.end, end)
                if dense:
                    for offset in range(first, last):
                        yield reader, batch, offset - base, lease.attempt, lot
                else:
                    for index, offset in enumerate(offsets):
                        if first <= offset < last:
                            yield reader, batch, index, lease.attempt, lot
            if lease.end > end:
                break  # it goes on in the next batch
            lease = next(leases, None)
