"""A consumer's subscription at one broker, and the state of each of its partitions.

A BrokerSubscription is one subscription on one connection. It keeps the broker supplied with credit: a window of bytes
that the consumer can buffer, returned in quarters as the application takes deliveries. Nothing is decoded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from comet import limits, records
from comet.client.connection import Attachment, Connection
from comet.consumer.aborted import Discards
from comet.errors import CometError, Timeout, TopicNotFound, Unavailable
from comet.types import AtOffset, Position, TopicPartition
from comet.v1 import groups_pb2 as groups_pb
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import position_to_pb

_UNKNOWN: Final = -1


class PartitionSubscription:
    """One partition of a consumer, while the consumer reads it: the sink of its deliveries.

    position   the offset of the next record for the application
    fetch      the offset of the next record to arrive; a reconnect continues there
    epoch      the leader epoch of the last record that has arrived
    """

    def __init__(
        self,
        tp: TopicPartition,
        start: Position,
        arrived: Callable[[PartitionSubscription, memoryview], None],
        troubled: Callable[[PartitionSubscription, CometError], None],
    ) -> None:
        self.tp = tp
        self.topic, self.partition = tp
        self.start = start  # where to begin, until the broker has answered with the offset
        self.position = _UNKNOWN
        self.fetch = _UNKNOWN
        self.epoch = _UNKNOWN
        self.high_watermark = _UNKNOWN
        self.leader_epoch = 0
        self.topic_id = b""
        self.source = 0  # the broker that it is or was read from
        self.leader_only = True  # because that broker leads
        self.subscription: BrokerSubscription | None = None
        self.attachment: Attachment | None = None
        self.queued_bytes = 0
        self.generation = 0  # a seek raises it: deliveries from before are dropped
        self.stopped: CometError | None = None  # why it stopped; raised after the deliveries that have arrived
        self.paused = False  # a seek is under way
        self.retired = False  # reading has ended for good
        self.last: memoryview | None = None  # the newest delivery, while it is not taken
        self.discards = Discards()
        self.written_in: list[tuple[int, int]] = []  # (offset, epoch): the records taken from there on have that epoch
        self._arrived = arrived
        self._troubled = troubled

    def require_same_topic(self, attachment: Attachment) -> None:
        """Raises TopicNotFound if the topic at the broker is not the one that is read."""
        if self.topic_id and self.topic_id != attachment.topic_id:
            raise TopicNotFound(
                f"topic {self.topic!r} was deleted and recreated: "
                "positions of the old topic are not valid in the new one; start a new consumer"
            )

    @property
    def needs_subscription(self) -> bool:
        """Whether it should be subscribed, and is not."""
        return self.subscription is None and self.stopped is None and not self.paused and not self.retired

    @property
    def next_offset(self) -> int:
        """The next offset for the application; before the broker's first answer that of `start`, if known."""
        if self.position == _UNKNOWN and isinstance(self.start, AtOffset):
            return self.start.offset
        return self.position

    def delivered(self, batches: memoryview, high_watermark: int, leader_epoch: int) -> None:
        self.high_watermark = high_watermark
        self.leader_epoch = leader_epoch
        self.last = batches
        self.queued_bytes += len(batches)
        self._arrived(self, batches)

    def aborted(self, transactions: Sequence[groups_pb.AbortedTransaction]) -> None:
        for one in transactions:
            self.discards.add(one.producer_id, one.epoch, one.first, one.end)

    def ended(self, error: CometError) -> None:
        self.leave_subscription()
        self._troubled(self, error)

    def subscribed(self, offset: int, high_watermark: int) -> None:
        """Sets the offset at which the broker begins."""
        if self.position == _UNKNOWN:
            self.position = offset
        self.fetch = offset
        self.high_watermark = max(high_watermark, self.high_watermark)

    def resume_position(self) -> Position:
        """The position to subscribe at: after the last delivery."""
        if self.last is not None:
            self.fetch, self.epoch = tail_of(self.last)
        return self.start if self.fetch == _UNKNOWN else AtOffset(self.fetch)

    def taken(self, batches: memoryview) -> None:
        """Notes that the application has taken a delivery."""
        if self.last is batches:
            self.fetch, self.epoch = tail_of(batches)
            self.last = None

    def read(self, offset: int, epoch: int) -> None:
        """Notes the leader epoch of a batch that is about to be handed out."""
        if not self.written_in or self.written_in[-1][1] != epoch:
            self.written_in.append((offset, epoch))
            del self.written_in[: -limits.EPOCHS_STORED_MAX]

    def epoch_before(self, offset: int) -> int | None:
        """The leader epoch of the record before an offset; None if unknown."""
        return next((epoch for first, epoch in reversed(self.written_in) if first < offset), None)

    def begin(self, offset: int, epoch: int | None) -> None:
        """Begins at an offset at which another reader stopped."""
        assert self.position == _UNKNOWN
        self.position = self.fetch = offset
        if epoch is not None:
            self.epoch = epoch
            self.written_in.append((offset - 1, epoch))

    def retire(self) -> None:
        """Ends reading for good: drops deliveries that have arrived, and those that still arrive."""
        self.retired = True
        self.generation += 1
        self._arrived = _drop

    def leave_subscription(self) -> None:
        """Leaves its subscription; deliveries that have arrived stay."""
        if self.subscription is not None:
            self.subscription.readers.discard(self)
            if self.attachment is not None:
                self.subscription.connection.subscribers.sinks.pop(self.attachment.handle, None)
        self.subscription = None
        self.attachment = None

    def restart(self, position: Position) -> None:
        """Starts again at another position; earlier deliveries are dropped."""
        assert self.subscription is None
        self.generation += 1
        self.start = position
        self.position = position.offset if isinstance(position, AtOffset) else _UNKNOWN
        self.fetch = self.position
        self.epoch = _UNKNOWN
        self.last = None
        self.stopped = None
        self.discards.clear()
        self.written_in.clear()


def _drop(reader: PartitionSubscription, batches: memoryview) -> None:
    """Drops a delivery that was in flight when the partition was unassigned."""
    reader.queued_bytes -= len(batches)
    if reader.subscription is not None:
        reader.subscription.taken(len(batches))


class BrokerSubscription:
    """A consumer's subscription at one broker. Owned by the consumer; lives as long as its connection."""

    def __init__(
        self, connection: Connection, window_bytes: int, *, uncommitted: bool = False, chosen: str = ""
    ) -> None:
        self.connection = connection
        self.number = connection.subscribers.next_subscription()
        self.window_bytes = window_bytes
        self.readers: set[PartitionSubscription] = set()
        self.opened = False  # the window was granted
        self.uncommitted = uncommitted
        self.chosen = chosen  # the text of a filter, for the broker
        self._owed_bytes = 0
        # One change at a time: a partition is removed only after its subscribe was answered.
        self._changing = asyncio.Lock()

    async def subscribe(self, chosen: list[tuple[PartitionSubscription, Attachment]], *, leader_only: bool) -> None:
        """Adds partitions. Raises the broker's error; then none of them is subscribed."""
        async with self._changing:
            await self._subscribe([one for one in chosen if one[0].needs_subscription], leader_only)

    async def _subscribe(self, chosen: list[tuple[PartitionSubscription, Attachment]], leader_only: bool) -> None:
        if not chosen:
            return
        frame = pb.ClientFrame(
            subscribe=pb.Subscribe(
                subscription=self.number,
                leader_only=leader_only,
                uncommitted=self.uncommitted,
                filter=self.chosen,
            )
        )
        by_handle: dict[int, PartitionSubscription] = {}
        for reader, attachment in chosen:
            by_handle[attachment.handle] = reader
            start = frame.subscribe.starts.add(
                partition=attachment.handle, position=position_to_pb(reader.resume_position())
            )
            if reader.epoch != _UNKNOWN:
                start.leader_epoch = reader.epoch
            reader.subscription, reader.attachment = self, attachment
            self.readers.add(reader)
            self.connection.subscribers.sinks[attachment.handle] = reader
        if not self.opened:
            # Deliveries of an earlier connection that are not taken yet count against the window (see Fetcher).
            self._owed_bytes = 0
            frame.subscribe.credit = max(self.window_bytes - sum(reader.queued_bytes for reader, _ in chosen), 0)
        try:
            answer = await self.connection.call(frame)
        except BaseException as error:
            self._unanswered("a subscribe", error)
            for reader, _ in chosen:
                reader.leave_subscription()
            raise
        self.opened = True
        for started in answer.subscribed.partitions:
            by_handle[started.partition].subscribed(started.offset, started.high_watermark)

    async def unsubscribe(self, reader: PartitionSubscription) -> None:
        """Removes a partition; when this returns, no delivery of it is in flight."""
        async with self._changing:
            attachment = reader.attachment
            if attachment is None or reader.subscription is not self:
                return
            unsubscribe = pb.Unsubscribe(subscription=self.number, partitions=[attachment.handle])
            try:
                await self.connection.call(pb.ClientFrame(unsubscribe=unsubscribe))
            except BaseException as error:
                self._unanswered("an unsubscribe", error)
                raise

    def _unanswered(self, what: str, error: BaseException) -> None:
        """Closes the connection after a change without an answer: deliveries could be of the subscription before or
        after it."""
        if not isinstance(error, CometError) or isinstance(error, Timeout):
            self.connection.fail(Unavailable(f"{what} was not answered"))

    def taken(self, size: int) -> None:
        """Returns credit for bytes that the application took."""
        self._owed_bytes += size
        if self._owed_bytes * 4 >= self.window_bytes:
            credit = pb.Credit(subscription=self.number, bytes=self._owed_bytes)
            self._owed_bytes = 0
            self.connection.send(pb.ClientFrame(credit=credit).SerializeToString())


def end_of(batches: memoryview) -> int:
    """The offset after the last record of some whole batches, without decoding them."""
    return tail_of(batches)[0]


def tail_of(batches: memoryview) -> tuple[int, int]:
    """The offset after the last record of some whole batches, and the leader epoch of that record."""
    at, end, epoch = 0, _UNKNOWN, _UNKNOWN
    while at < len(batches):
        length, end, epoch = records.extent(batches, at)
        at += length
    assert end != _UNKNOWN, "a delivery holds at least one batch"
    return end, epoch


def window_for(buffer_bytes: int, brokers: int) -> int:
    """A broker's share of the consumer's buffer."""
    return max(buffer_bytes // max(brokers, 1), limits.CONSUMER_BUFFER_BYTES_MIN)
