"""One Stream call, without the transport: frames in, frames out.

        receive(frame)  never waits: it decides, appends, and queues the answers
    poll()          the next frame: answers first, then acknowledgements (as many as have gathered, in one
                    frame), then deliveries in turn; taken by the `writer`

A session is bounded: answers by SESSION_ANSWERS_MAX (the transport stops reading while `backlogged`), deliveries by the
client's credit and one frame at a time, the rest by the limits on subscriptions. A malformed frame gets a typed error
for that request and affects no other.

Owned by the transport's handler, lives as long as its call, runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from google.protobuf.message import DecodeError

import comet
from comet.errors import (
    CometError,
    Internal,
    InvalidArgument,
    LimitExceeded,
    MalformedFrame,
    PartitionNotFound,
)
from comet.types import Acks, AtOffset, AtTime, Position
from comet.v1 import records_pb2 as pb
from comet.wire.frames import ack_frame, parse_produce
from comet.wire.protobuf import error_to_pb, position_from_pb
from comet_broker import limits
from comet_broker.core.push import Cursor
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.offset_lookup import check_not_truncated, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.transaction_batches import NotInTransaction
from comet_broker.streams.context import SessionContext
from comet_broker.streams.stream_writer import StreamWriter
from comet_broker.streams.subscriptions import Feed


class Session:
    """`ended` is called with the session when it is over."""

    def __init__(self, context: SessionContext, number: int, peer: str, ended: Callable[[Session], None]) -> None:
        self.number = number
        self.peer = peer
        self.client = ""
        self.closed = False
        self.writer = StreamWriter(self.poll, over=self._is_over, close=self.close)
        self.rouse = self.writer.rouse
        self._context = context
        self._ended = ended
        self._meter = context.meter
        self._clock = context.env.clock
        self._feed = Feed(context.env, context.reader, context.meter, self._cursor_ended, self.rouse)
        self._sharing = context.sharing(self, self._feed)
        self._handlers = (context.members(self), self._sharing)
        self._answers: deque[bytes] = deque()
        self._ack_requests: list[int] = []
        self._ack_offsets: list[int] = []
        self._ack_times: list[int] = []
        self._owed = 0  # answers and acknowledgements accepted but not yet passed to the transport
        self._tasks = 0
        self._input_over = False
        self._relief: asyncio.Future[None] | None = None
        self.sent_bytes = 0  # of deliveries
        self.received_bytes = 0

    # ---- the transport's side

    def receive(self, frame: bytes) -> None:
        """Takes one frame of the client."""
        self.received_bytes += len(frame)
        produce = parse_produce(frame)
        if produce is not None:
            self._produce(*produce)
        else:
            self._receive_any(frame)

    def _is_over(self) -> bool:
        """Whether `poll` returns the last frames now."""
        return self.closed or self._all_sent()

    def input_over(self) -> None:
        """Called after the client's last frame; it still gets its answers and subscriptions."""
        self._input_over = True
        self.rouse()

    def _all_sent(self) -> bool:
        return self._input_over and not (self._owed or self._tasks or self._feed.push.cursors)

    def poll(self) -> bytes | None:
        """The next frame to send, if there is one now."""
        if self._answers:
            return self._take_answer()
        if self._ack_requests:
            return self._take_acks()
        frame = self._feed.next_delivery() or self._sharing.next_frame()
        if frame is not None:
            self.sent_bytes += len(frame)
            return frame
        # The attempt to build a delivery may have ended a subscription, and queued the reason.
        return self._take_answer() if self._answers else None

    def _take_answer(self) -> bytes:
        self._settle(1)
        return self._answers.popleft()

    @property
    def backlogged(self) -> bool:
        """Whether the queue of answers is full: reading should pause."""
        return self._owed >= limits.SESSION_ANSWERS_MAX

    async def relieved(self) -> None:
        """Waits until half of the backlog is sent."""
        while self.backlogged and not self.closed:
            self._relief = asyncio.get_running_loop().create_future()
            try:
                await self._relief
            finally:
                self._relief = None

    def close(self) -> None:
        """Removes everything of the session when the call is over."""
        if self.closed:
            return
        self.closed = True
        for end in (*(handler.close for handler in self._handlers), self._feed.close):
            try:
                end()
            except Exception as error:  # noqa: BLE001 - the rest of the stream is still to be removed
                self._context.env.tasks.report(f"the end of stream {self.number}", error)
        self._answers.clear()
        self._ack_requests.clear()
        self.rouse()
        self._relieve()
        self._ended(self)

    def go_away(self, reason: str) -> None:
        """Tells the client that the broker is about to stop."""
        self.answer(pb.ServerFrame(go_away=pb.GoAway(reason=reason)))

    # ---- produce

    def _produce(self, request: int, handle: int, acks: int, batch: memoryview) -> None:
        try:
            if acks > Acks.ALL:
                raise InvalidArgument(f"acks must be 0, 1 or 2, not {acks}")
            partition = self._partition(handle)
            accepted = partition.produce(batch, acks)
        except NotInTransaction:
            self._produce_later(request, partition, batch)
        except CometError as error:
            self._refused(request, error)
        except Exception as error:  # noqa: BLE001 - it concerns this batch; the stream goes on
            self._refused(request, self._unexpected(error))
        else:
            if request and acks != Acks.NONE:
                self._accepted(request, partition, acks, accepted)

    def _unexpected(self, error: Exception) -> CometError:
        """Reports an unexpected error, which ends one request and not the stream."""
        self._context.env.tasks.report(f"a request of stream {self.number}", error)
        return Internal(f"the request failed: {error!r}; see the broker's log")

    def _produce_later(self, request: int, partition: Partition, batch: memoryview) -> None:
        """Produces a batch that begins a transaction in the partition: its coordinator is asked first."""

        def taken(result: Accepted | CometError) -> None:
            self._settle(1)
            if isinstance(result, CometError):
                self._refused(request, result)
            elif request:
                self._accepted(request, partition, Acks.ALL, result)
            self.rouse()  # it may have been the last answer

        self._owed += 1  # counts for the backlog meanwhile
        try:
            partition.transaction_batches.take(batch, taken)
        except CometError as error:
            self._settle(1)
            self._refused(request, error)

    def _refused(self, request: int, error: CometError) -> None:
        if request:
            self.fail(request, error)
        else:
            self._meter.refused_silently += 1

    def _accepted(self, request: int, partition: Partition, acks: int, accepted: Accepted) -> None:
        self._owed += 1
        base_offset, append_time_us = accepted.base_offset, accepted.append_time_us

        def durable(error: CometError | None) -> None:
            if error is None:
                self._acknowledge(request, base_offset, append_time_us)
            else:
                self._owed -= 1
                self.fail(request, error)

        if partition.when_acked(accepted.end_offset, acks, durable):
            self._acknowledge(request, base_offset, append_time_us)

    def _acknowledge(self, request: int, base_offset: int, append_time_us: int) -> None:
        self._ack_requests.append(request)
        self._ack_offsets.append(base_offset)
        self._ack_times.append(append_time_us)
        self._meter.ack_durations.note(self._clock.wall_us() - append_time_us)
        self.rouse()

    def _take_acks(self) -> bytes:
        if len(self._ack_requests) == 1:
            self._settle(1)
            return ack_frame(self._ack_requests.pop(), self._ack_offsets.pop(), self._ack_times.pop())
        acks = pb.ProduceAcks(
            requests=self._ack_requests, base_offsets=self._ack_offsets, append_times_us=self._ack_times
        )
        self._settle(len(self._ack_requests))
        self._ack_requests.clear()
        self._ack_offsets.clear()
        self._ack_times.clear()
        return pb.ServerFrame(acks=acks).SerializeToString()

    # ---- all frames but the hot produce frame

    def _receive_any(self, data: bytes) -> None:
        try:
            frame = pb.ClientFrame.FromString(data)
        except DecodeError:
            self.fail(0, MalformedFrame(f"{len(data)} bytes do not parse as a ClientFrame of comet.v1"))
            return
        request = frame.request
        try:
            self._take(request, frame)
        except CometError as error:
            self.fail(request, error)
        except Exception as error:  # noqa: BLE001 - reported
            self.fail(request, self._unexpected(error))

    def _take(self, request: int, frame: pb.ClientFrame) -> None:
        match frame.WhichOneof("frame"):
            case "produce":
                produce = frame.produce
                self._produce(request, produce.partition, produce.acks, memoryview(produce.batch))
            case "credit":
                self._credit(frame.credit)
            case "attach":
                self._attach(request, frame.attach)
            case "subscribe":
                self._subscribe(request, frame.subscribe)
            case "unsubscribe":
                self._unsubscribe(request, frame.unsubscribe)
            case "find_offset":
                self._find_offset(request, frame.find_offset)
            case "hello":
                self._hello(request, frame.hello)
            case "ping":
                self.answer(pb.ServerFrame(request=request, pong=pb.Pong()))
            case kind:
                if kind is not None:
                    for handler in self._handlers:
                        if handler.take(request, kind, getattr(frame, kind)):
                            return
                raise MalformedFrame("a frame that is empty or of an unknown kind")

    def _hello(self, request: int, hello: pb.Hello) -> None:
        self.client = hello.client[:200]
        welcome = pb.Welcome(
            cluster_id=self._context.cluster_id(),
            broker_id=self._context.env.me,
            version=comet.__version__,
            batch_bytes_max=limits.BATCH_BYTES_MAX,
            credit_bytes_max=limits.CREDIT_BYTES_MAX,
        )
        self.answer(pb.ServerFrame(request=request, welcome=welcome))

    def _partition(self, handle: int) -> Partition:
        partition = self._context.topics.by_handle.get(handle)
        if partition is None:
            raise PartitionNotFound(f"partition handle {handle} is not valid here, or no longer: attach again")
        return partition

    def _attach(self, request: int, attach: pb.Attach) -> None:
        self._context.check_draining()
        if not self._context.topics.exists(attach.topic):
            self.spawn(request, self._attach_later(request, attach))
            return
        self._attached(request, self._context.topics.partition(attach.topic, attach.partition))

    async def _attach_later(self, request: int, attach: pb.Attach) -> None:
        """Attaches to a topic that may just have been created through another broker."""
        await self._context.topics.wait_for(attach.topic)
        self._attached(request, self._context.topics.partition(attach.topic, attach.partition))

    def _attached(self, request: int, partition: Partition) -> None:
        self.answer(
            pb.ServerFrame(
                request=request,
                attached=pb.Attached(
                    partition=partition.handle,
                    topic_id=partition.topic_id,
                    leader_epoch=partition.leader_epoch,
                    log_start=partition.log.log_start,
                    high_watermark=partition.high_watermark,
                    record_bytes_max=partition.log.config.record_bytes_max,
                    leader=partition.leads,
                ),
            )
        )

    # ---- finding offsets

    def _find_offset(self, request: int, find: pb.FindOffset) -> None:
        partition = self._partition(find.partition)
        position = position_from_pb(find.position)
        if isinstance(position, AtTime):
            self.spawn(request, self._find_later(request, partition, position))
        else:
            self._found(request, partition, resolve(partition, position, uncommitted=find.uncommitted))

    async def _find_later(self, request: int, partition: Partition, position: AtTime) -> None:
        self._found(request, partition, await self._context.reader.resolve(partition, position))

    def _found(self, request: int, partition: Partition, offset: int) -> None:
        found = pb.FoundOffset(
            offset=offset, log_start=partition.log.log_start, high_watermark=partition.high_watermark
        )
        self.answer(pb.ServerFrame(request=request, found_offset=found))

    # ---- subscriptions

    def _subscribe(self, request: int, subscribe: pb.Subscribe) -> None:
        starts = [(self._partition(start.partition), position_from_pb(start.position)) for start in subscribe.starts]
        for start, (partition, position) in zip(subscribe.starts, starts, strict=True):
            if subscribe.leader_only and not partition.named:
                raise partition.not_leader()
            if start.HasField("leader_epoch") and isinstance(position, AtOffset):
                check_not_truncated(partition, position.offset, start.leader_epoch)
        handles = {partition.handle for partition, _ in starts}
        if len(handles) < len(starts):
            raise InvalidArgument("a subscribe names a partition twice")
        self._check_free(handles)
        if any(isinstance(position, AtTime) for _, position in starts):
            self._feed.push.open(subscribe.subscription)  # credit that arrives meanwhile counts
            self.spawn(request, self._subscribe_later(request, subscribe, starts))
        else:
            offsets = [
                resolve(partition, position, uncommitted=subscribe.uncommitted) for partition, position in starts
            ]
            self._subscribed(request, subscribe, [partition for partition, _ in starts], offsets)

    async def _subscribe_later(
        self, request: int, subscribe: pb.Subscribe, starts: list[tuple[Partition, Position]]
    ) -> None:
        offsets = [
            await self._context.reader.resolve(partition, position)
            if isinstance(position, AtTime)
            else resolve(partition, position, uncommitted=subscribe.uncommitted)
            for partition, position in starts
        ]
        self._subscribed(request, subscribe, [partition for partition, _ in starts], offsets)

    def _subscribed(
        self, request: int, subscribe: pb.Subscribe, partitions: list[Partition], offsets: list[int]
    ) -> None:
        if self.closed:  # closed while times were looked up: its readers would never be removed
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
                number, partition, offset, leader_only=subscribe.leader_only, uncommitted=subscribe.uncommitted
            )
            answer.partitions.add(partition=partition.handle, offset=offset, high_watermark=partition.high_watermark)
        self.answer(pb.ServerFrame(request=request, subscribed=answer))

    def _check_free(self, handles: Collection[int]) -> None:
        """Raises unless the stream may read all of these, too."""
        for handle in handles:
            self._feed.push.check_free(handle)
        if len(self._feed.push.cursors) + len(handles) > limits.SESSION_CURSORS_MAX:
            raise LimitExceeded(f"a stream reads at most {limits.SESSION_CURSORS_MAX} partitions; open another stream")

    def _unsubscribe(self, request: int, unsubscribe: pb.Unsubscribe) -> None:
        self._feed.remove(unsubscribe.subscription, list(unsubscribe.partitions))
        self._sharing.remove(unsubscribe.subscription, list(unsubscribe.partitions))
        self.answer(
            pb.ServerFrame(request=request, unsubscribed=pb.Unsubscribed(subscription=unsubscribe.subscription))
        )

    def _credit(self, credit: pb.Credit) -> None:
        self._feed.grant(credit.subscription, credit.bytes)

    def _cursor_ended(self, cursor: Cursor[Partition], error: CometError) -> None:
        ended = pb.StreamError(
            error=error_to_pb(error), subscription=cursor.subscription.number, partition=cursor.handle
        )
        self.answer(pb.ServerFrame(error=ended))

    # ---- answers

    def answer(self, frame: pb.ServerFrame) -> None:
        if not self.closed:
            self._owed += 1
            self._answers.append(frame.SerializeToString())
            self.rouse()

    def fail(self, request: int, error: CometError) -> None:
        self._meter.count_error(error)
        self.answer(pb.ServerFrame(request=request, error=pb.StreamError(error=error_to_pb(error))))

    def spawn(self, request: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs a slow request; its errors answer it."""
        if self._tasks >= limits.SESSION_TASKS_MAX:
            work.close()
            raise LimitExceeded(
                f"{self._tasks} slow requests are under way on this stream, its limit; wait for one", retry_after_ms=50
            )
        self._tasks += 1

        async def run() -> None:
            try:
                await work
            except CometError as error:
                self.fail(request, error)
            except Exception as error:  # noqa: BLE001 - reported
                self.fail(request, self._unexpected(error))
            finally:
                self._tasks -= 1
                self.rouse()

        self._context.env.tasks.spawn(run(), f"request {request} of stream {self.number}")

    def _settle(self, count: int) -> None:
        self._owed -= count
        assert self._owed >= 0
        if self._relief is not None and self._owed < limits.SESSION_ANSWERS_MAX // 2:
            self._relieve()

    def _relieve(self) -> None:
        if self._relief is not None and not self._relief.done():
            self._relief.set_result(None)

    def statistics(self) -> dict[str, Any]:
        return {
            "stream": self.number,
            "peer": self.peer,
            "client": self.client,
            "subscriptions": len(self._feed.push.subscriptions),
            "partitions": len(self._feed.push.cursors),
            "owed": self._owed,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }
