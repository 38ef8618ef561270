"""The frames of one stream about subscriptions: Subscribe, Unsubscribe and Credit. Their deliveries are the feed's."""

from __future__ import annotations

from collections.abc import Callable, Collection

from comet.errors import CometError, InvalidArgument, LimitExceeded
from comet.types import AtOffset, AtTime, Position
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import error_to_pb, position_from_pb
from comet_broker import limits
from comet_broker.core.push import Cursor
from comet_broker.partitions.filtering import RowFilter, parsed
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import check_not_truncated, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.streams.answers import Replies
from comet_broker.streams.partition_frames import partition_of
from comet_broker.streams.subscriptions import Feed


def report_end(replies: Replies, cursor: Cursor[Partition], error: CometError) -> None:
    """Tells the client that one partition of a subscription has ended, and why."""
    ended = pb.StreamError(error=error_to_pb(error), subscription=cursor.subscription.number, partition=cursor.handle)
    replies.answer(pb.ServerFrame(error=ended))


class SubscriptionFrames:
    """Owned by one session. `remove_shared` ends a subscription of that number, or partitions of it, that acquires for
    a share group."""

    def __init__(
        self,
        topics: TopicTable,
        reader: LogReader,
        feed: Feed,
        replies: Replies,
        remove_shared: Callable[[int, list[int]], None],
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._feed = feed
        self._replies = replies
        self._remove_shared = remove_shared

    def subscribe(self, request: int, subscribe: pb.Subscribe) -> None:
        starts = [
            (partition_of(self._topics, start.partition), position_from_pb(start.position))
            for start in subscribe.starts
        ]
        for start, (partition, position) in zip(subscribe.starts, starts, strict=True):
            if subscribe.leader_only and not partition.named:
                raise partition.not_leader()
            if start.HasField("leader_epoch") and isinstance(position, AtOffset):
                check_not_truncated(partition, position.offset, start.leader_epoch)
        chosen = parsed(subscribe.filter)
        handles = {partition.handle for partition, _ in starts}
        if len(handles) < len(starts):
            raise InvalidArgument("a subscribe names a partition twice")
        self._check_free(handles)
        if any(isinstance(position, AtTime) for _, position in starts):
            self._feed.push.open(subscribe.subscription)  # credit that arrives meanwhile counts
            self._replies.spawn(request, self._subscribe_later(request, subscribe, chosen, starts))
        else:
            offsets = [
                resolve(partition, position, uncommitted=subscribe.uncommitted) for partition, position in starts
            ]
            self._subscribed(request, subscribe, chosen, [partition for partition, _ in starts], offsets)

    async def _subscribe_later(
        self, request: int, subscribe: pb.Subscribe, chosen: RowFilter | None, starts: list[tuple[Partition, Position]]
    ) -> None:
        offsets = [
            await self._reader.resolve(partition, position)
            if isinstance(position, AtTime)
            else resolve(partition, position, uncommitted=subscribe.uncommitted)
            for partition, position in starts
        ]
        self._subscribed(request, subscribe, chosen, [partition for partition, _ in starts], offsets)

    def _subscribed(
        self,
        request: int,
        subscribe: pb.Subscribe,
        chosen: RowFilter | None,
        partitions: list[Partition],
        offsets: list[int],
    ) -> None:
        if self._replies.closed:  # closed while times were looked up: its readers would never be removed
            return
        number = subscribe.subscription
        for partition in partitions:  # all or none: partitions may have been removed while times were looked up
            if partition.closed is not None:
                raise partition.closed
            if subscribe.leader_only and not partition.named:
                raise partition.not_leader()
        self._check_free([partition.handle for partition in partitions])
        self._feed.push.open(number)
        self._feed.push.grant(number, subscribe.credit)
        answer = pb.Subscribed(subscription=number)
        for partition, offset in zip(partitions, offsets, strict=True):
            self._feed.add(
                number, partition, offset, leader_only=subscribe.leader_only, uncommitted=subscribe.uncommitted,
                chosen=chosen,
            )  # fmt: skip
            answer.partitions.add(partition=partition.handle, offset=offset, high_watermark=partition.high_watermark)
        self._replies.answer(pb.ServerFrame(request=request, subscribed=answer))

    def _check_free(self, handles: Collection[int]) -> None:
        """Raises unless the stream may read all of these, too."""
        for handle in handles:
            self._feed.push.check_free(handle)
        if len(self._feed.push.cursors) + len(handles) > limits.SESSION_CURSORS_MAX:
            raise LimitExceeded(f"a stream reads at most {limits.SESSION_CURSORS_MAX} partitions; open another stream")

    def unsubscribe(self, request: int, unsubscribe: pb.Unsubscribe) -> None:
        self._feed.remove(unsubscribe.subscription, list(unsubscribe.partitions))
        self._remove_shared(unsubscribe.subscription, list(unsubscribe.partitions))
        self._replies.answer(
            pb.ServerFrame(request=request, unsubscribed=pb.Unsubscribed(subscription=unsubscribe.subscription))
        )

    def credit(self, _: int, credit: pb.Credit) -> None:
        self._feed.grant(credit.subscription, credit.bytes)
