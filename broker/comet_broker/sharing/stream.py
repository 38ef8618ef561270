"""Share groups on the leader's side: the subscriptions of one stream.

    Share   ─► a ShareSubscription with a MemberAcquirer at each partition ─► Sharing
    poll    ─► the subscribers that were called, in turn              ─► Shared
    Acknowledge  ─► the state of the partition ─► stored             ─► Acknowledged

A partition that cannot be shared here, or no longer, ends with a StreamError that names it and the subscription; the
others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from comet.errors import CometError, InvalidArgument, LimitExceeded
from comet.types import Position, check_topic_name
from comet.v1 import groups_pb2 as pb
from comet.v1 import records_pb2
from comet.wire.protobuf import error_to_pb
from comet_broker import limits
from comet_broker.core.shares import Holder
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.sharing.context import Agreed, Range
from comet_broker.sharing.state import SharePartition
from comet_broker.sharing.table import ShareTable
from comet_broker.sharing.terms import (
    acknowledge_here,
    agreed_of,
    check_acknowledgement,
    check_dead_letter,
    start_of,
)
from comet_broker.streams.answers import Replies
from comet_broker.streams.partition_frames import partition_of
from comet_broker.streams.subscriptions import Feed

REFILL: Final = 4  # a member gets more records once it could take a fourth of its limit


class ShareSubscription:
    """The acquiring of one member on one stream: a limit of records for all its partitions together."""

    def __init__(self, number: int, group: str, member: str) -> None:
        self.number = number
        self.group = group
        self.member = member
        self.in_flight_max = 0
        self.holder = Holder()
        self.subscribers: dict[int, MemberAcquirer] = {}  # by handle
        self.parked: list[MemberAcquirer] = []  # out of credit

    def credit(self) -> int:
        """The number of records it can take; 0 below a fourth of the limit, since batches are sent whole."""
        free = self.in_flight_max - self.holder.open
        return free if free * REFILL >= self.in_flight_max else 0

    def freed(self) -> None:
        """Called when locks have ended."""
        if self.parked and self.credit():
            parked, self.parked = self.parked, []
            for subscriber in parked:
                subscriber.parked = False
                subscriber.state.acquirers.queue(subscriber)


class MemberAcquirer:
    """One member at one partition. Implements sharing.acquirer_queue.Acquirer."""

    bytes_max = 0

    def __init__(self, sharing: Sharing, subscription: ShareSubscription, state: SharePartition) -> None:
        self.subscription = subscription
        self.state = state
        self.holder = subscription.holder
        self.called = False
        self.parked = False
        self._sharing = sharing

    def credit(self) -> int:
        credit = self.subscription.credit()
        if not credit and not self.parked:
            self.parked = True
            self.subscription.parked.append(self)
        return credit

    def call(self) -> None:
        if not self.called:
            self.called = True
            self._sharing.called(self)

    def freed(self) -> None:
        self.subscription.freed()

    def ended(self, error: CometError) -> None:
        self._sharing.ended(self, error)


class Sharing:
    """Owned by the session. Implements streams.context.ShareHandler."""

    def __init__(self, replies: Replies, feed: Feed, *, topics: TopicTable, table: ShareTable) -> None:
        self._topics = topics
        self._table = table
        self._replies = replies
        self._feed = feed
        self._subscriptions: dict[int, ShareSubscription] = {}
        self._called: deque[MemberAcquirer] = deque()
        self._acknowledging = 0  # acknowledges that wait to be stored

    def take(self, request: int, kind: str, frame: Any) -> bool:
        """Handles one frame; False if it is not about share groups."""
        match kind:
            case "share_subscribe":
                self.share(request, frame)
            case "acknowledge":
                self.acknowledge(request, frame)
            case _:
                return False
        return True

    # ---- joining

    def share(self, request: int, share: pb.ShareSubscribe) -> None:
        """Opens a subscription, adds partitions to one, or changes its limit."""
        agreed, start = agreed_of(share.options), start_of(share.options)
        check_topic_name(share.group)
        if not 1 <= share.in_flight_max <= limits.SHARE_IN_FLIGHT_MAX:
            raise InvalidArgument(f"in_flight_max must be 1 to {limits.SHARE_IN_FLIGHT_MAX}, not {share.in_flight_max}")
        partitions = [partition_of(self._topics, handle) for handle in dict.fromkeys(share.partitions)]
        for partition in partitions:
            check_dead_letter(agreed, partition.topic)
        self._check_subscription(share)
        self._replies.spawn(request, self._share(request, share, partitions, agreed, start))

    def _check_subscription(self, share: pb.ShareSubscribe) -> None:
        known = self._subscriptions.get(share.subscription)
        if known is not None and (known.group, known.member) != (share.group, share.member):
            raise InvalidArgument(f"subscription {share.subscription} is in use for group {known.group!r}")
        if share.subscription in self._feed.push.subscriptions:
            raise InvalidArgument(f"subscription {share.subscription} of this stream is in use as a plain subscription")
        if known is None and len(self._subscriptions) >= limits.SHARE_SUBSCRIPTIONS_MAX:
            raise LimitExceeded(
                f"a stream has at most {limits.SHARE_SUBSCRIPTIONS_MAX} share subscriptions; open another stream"
            )
        subscribers = sum(len(one.subscribers) for one in self._subscriptions.values())
        if subscribers + len(share.partitions) > limits.SESSION_CURSORS_MAX:
            raise LimitExceeded(f"a stream shares at most {limits.SESSION_CURSORS_MAX} partitions; open another stream")

    async def _share(
        self, request: int, share: pb.ShareSubscribe, partitions: Sequence[Partition], agreed: Agreed, start: Position
    ) -> None:
        found = await asyncio.gather(*(self._open(one, share.group, agreed, start) for one in partitions))
        if self._replies.closed:
            return
        for state in found:
            if isinstance(state, InvalidArgument):
                raise state
        self._check_subscription(share)  # again, after an await
        subscription = self._subscriptions.get(share.subscription)
        if subscription is None:
            subscription = self._subscriptions[share.subscription] = ShareSubscription(
                share.subscription, share.group, share.member
            )
        subscription.in_flight_max = share.in_flight_max
        self._replies.answer(
            records_pb2.ServerFrame(
                request=request, share_subscribed=pb.ShareSubscribed(subscription=share.subscription)
            )
        )
        for partition, state in zip(partitions, found, strict=True):
            error = state if isinstance(state, CometError) else self._add_member(subscription, partition, state, agreed)
            if error is not None:
                self._fail(subscription, partition.handle, error)
        subscription.freed()

    async def _open(
        self, partition: Partition, group: str, agreed: Agreed, start: Position
    ) -> SharePartition | CometError:
        try:
            return await self._table.open(partition, group, agreed, start)
        except CometError as error:
            return error

    def _add_member(
        self, subscription: ShareSubscription, partition: Partition, state: SharePartition, agreed: Agreed
    ) -> CometError | None:
        """Adds a subscriber; returns the error if that fails."""
        known = subscription.subscribers.get(partition.handle)
        if known is not None and known.state is state:
            return None
        if state.closed is not None:
            return state.closed
        subscriber = MemberAcquirer(self, subscription, state)
        try:
            state.agree(agreed)
            subscription.subscribers[partition.handle] = subscriber
            state.add_member(subscriber)
        except CometError as error:
            subscription.subscribers.pop(partition.handle, None)
            return error
        return None

    # ---- acquiring

    def called(self, subscriber: MemberAcquirer) -> None:
        self._called.append(subscriber)
        self._replies.rouse()

    def next_frame(self) -> bytes | None:
        """The next delivery to this stream, if there is one."""
        while self._called:
            subscriber = self._called.popleft()
            subscriber.called = False
            try:
                served = subscriber.state.serve(subscriber)
            except Exception as error:  # noqa: BLE001 - it stops this group in this partition, not the stream
                subscriber.state.halt(error)
                continue
            if served is not None:
                chunk, granted = served
                state = subscriber.state
                frame = chunk.frame(subscriber.subscription.number, state.partition.handle, state.epoch, granted)
                state.partition.counts.delivered(0, len(frame))
                return frame
        return None

    # ---- acknowledging

    def acknowledge(self, request: int, acknowledge: pb.Acknowledge) -> None:
        """Answers at once if nothing has to be stored."""
        check_acknowledgement(acknowledge)
        firsts, ends = acknowledge.firsts, acknowledge.ends
        if self._acknowledging >= limits.SHARE_ACKNOWLEDGES_MAX:
            raise LimitExceeded(
                f"{self._acknowledging} acknowledges of this stream wait to be stored; wait for one", retry_after_ms=50
            )
        subscription = self._subscriptions.get(acknowledge.subscription)
        subscriber = None if subscription is None else subscription.subscribers.get(acknowledge.partition)
        if subscriber is None or subscription is None:  # ended meanwhile: its records are released
            self._acknowledged(request, zip(firsts, ends, strict=True))
            return
        self._acknowledge(request, acknowledge, subscriber)
        subscription.freed()

    def _acknowledge(self, request: int, acknowledge: pb.Acknowledge, subscriber: MemberAcquirer) -> None:
        lost: list[Range] = []

        def done(error: CometError | None) -> None:
            self._acknowledging -= 1
            if not request:
                return
            if error is None:
                self._acknowledged(request, lost)
            else:
                self._replies.fail(request, error)

        self._acknowledging += 1
        acknowledge_here(subscriber.state, subscriber.holder, acknowledge, lost, done)

    def _acknowledged(self, request: int, lost: Iterable[Range]) -> None:
        if request:
            ranges = list(lost)
            acknowledged = pb.Acknowledged(
                lost_firsts=[first for first, _ in ranges], lost_ends=[end for _, end in ranges]
            )
            self._replies.answer(records_pb2.ServerFrame(request=request, acknowledged=acknowledged))

    # ---- leaving

    def remove(self, number: int, handles: Sequence[int] = ()) -> None:
        """Ends a subscription, or the named partitions, at the client's request."""
        subscription = self._subscriptions.get(number)
        if subscription is None:
            return
        for handle in handles or list(subscription.subscribers):
            subscriber = subscription.subscribers.pop(handle, None)
            if subscriber is not None:
                self._remove_member(subscriber)
        if not handles:
            del self._subscriptions[number]
        else:
            subscription.freed()

    def ended(self, subscriber: MemberAcquirer, error: CometError) -> None:
        """Ends a partition that is no longer shared here."""
        handle = subscriber.state.partition.handle
        if subscriber.subscription.subscribers.get(handle) is subscriber:
            del subscriber.subscription.subscribers[handle]
            self._remove_member(subscriber)
            self._fail(subscriber.subscription, handle, error)
            subscriber.subscription.freed()

    def _remove_member(self, subscriber: MemberAcquirer) -> None:
        if subscriber.called:
            self._called.remove(subscriber)
        if subscriber.parked:
            subscriber.subscription.parked.remove(subscriber)
        subscriber.state.leave(subscriber)

    def _fail(self, subscription: ShareSubscription, handle: int, error: CometError) -> None:
        ended = records_pb2.StreamError(error=error_to_pb(error), subscription=subscription.number, partition=handle)
        self._replies.answer(records_pb2.ServerFrame(error=ended))

    def close(self) -> None:
        """Releases all records of the stream when it is over."""
        for number in list(self._subscriptions):
            self.remove(number)
