"""The batches that one stream produces, and their acknowledgements.

    Produce ─► Partition.produce ─► enough replicas have it ─► acknowledged, all that have gathered in a frame
                  └─► NotInTransaction ─► the coordinator adds the partition first

On the hot path: nothing is built for a batch but its acknowledgement.
"""

from __future__ import annotations

from math import ceil

from comet.errors import CometError, InvalidArgument
from comet.types import Acks
from comet.v1 import records_pb2 as pb
from comet.wire.frames import ack_frame
from comet_broker.metrics.meter import RequestMeter
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.partitions.transaction_batches import NotInTransaction
from comet_broker.ports import Clock
from comet_broker.streams.answers import AnswerQueue, Replies
from comet_broker.streams.context import StreamClient
from comet_broker.streams.partition_frames import partition_of


class ProduceFrames:
    """Owned by one session."""

    def __init__(
        self,
        topics: TopicTable,
        clock: Clock,
        meter: RequestMeter,
        answers: AnswerQueue,
        replies: Replies,
        client: StreamClient,
    ) -> None:
        self.acknowledged: list[int] = []  # requests whose acknowledgements are not sent yet
        self._offsets: list[int] = []  # of their batches
        self._times: list[int] = []
        self._topics = topics
        self._clock = clock
        self._meter = meter
        self._answers = answers
        self._replies = replies
        self._rouse = replies.rouse
        self._access = client.access
        self._usage = client.usage
        self._enforced = client.access.enforced
        self._writable: set[int] = set()  # handles of partitions that this stream may write

    def take(self, request: int, produce: pb.Produce) -> None:
        """Takes a produce frame whose fields are in another order than the usual one."""
        self.produce(request, produce.partition, produce.acks, memoryview(produce.batch))

    def produce(self, request: int, handle: int, acks: int, batch: memoryview) -> None:
        try:
            if acks > Acks.ALL:
                raise InvalidArgument(f"acks must be 0, 1 or 2, not {acks}")
            partition = partition_of(self._topics, handle)
            if self._enforced and handle not in self._writable:
                self._access.check([("write", "topic", partition.topic)])
                self._writable.add(handle)
            accepted = partition.produce(batch, acks)
        except NotInTransaction:
            self._produce_later(request, partition, batch)
        except CometError as error:
            self._refused(request, error)
        except Exception as error:  # noqa: BLE001 - it concerns this batch; the stream goes on
            self._refused(request, self._replies.unexpected(error))
        else:
            if request and acks != Acks.NONE:
                self._accepted(request, partition, acks, accepted)

    def _produce_later(self, request: int, partition: Partition, batch: memoryview) -> None:
        """Produces a batch that begins a transaction in the partition: its coordinator is asked first."""

        def taken(result: Accepted | CometError) -> None:
            self._answers.settle(1)
            if isinstance(result, CometError):
                self._refused(request, result)
            elif request:
                self._accepted(request, partition, Acks.ALL, result)
            self._rouse()  # it may have been the last answer

        self._answers.owed += 1  # counts for the backlog meanwhile
        try:
            partition.transaction_batches.take(batch, taken)
        except CometError as error:
            self._answers.settle(1)
            self._refused(request, error)

    def _refused(self, request: int, error: CometError) -> None:
        if request:
            self._replies.fail(request, error)
        else:
            self._meter.refused_silently += 1

    def _accepted(self, request: int, partition: Partition, acks: int, accepted: Accepted) -> None:
        self._answers.owed += 1
        base_offset, append_time_us = accepted.base_offset, accepted.append_time_us

        def durable(error: CometError | None) -> None:
            if error is None:
                self._acknowledge(request, base_offset, append_time_us)
            else:
                self._answers.owed -= 1
                self._replies.fail(request, error)

        if partition.when_acked(accepted.end_offset, acks, durable):
            self._acknowledge(request, base_offset, append_time_us)

    def _acknowledge(self, request: int, base_offset: int, append_time_us: int) -> None:
        self.acknowledged.append(request)
        self._offsets.append(base_offset)
        self._times.append(append_time_us)
        self._meter.ack_durations.note(self._clock.wall_us() - append_time_us)
        self._rouse()

    def take_acks(self) -> bytes:
        """All acknowledgements that have gathered, in one frame."""
        throttled_ms = ceil(self._usage.read_later_s() * 1000) if self._usage.limited else 0
        if len(self.acknowledged) == 1 and not throttled_ms:
            self._answers.settle(1)
            return ack_frame(self.acknowledged.pop(), self._offsets.pop(), self._times.pop())
        acks = pb.ProduceAcks(requests=self.acknowledged, base_offsets=self._offsets, append_times_us=self._times)
        acks.throttled_ms = throttled_ms
        self._answers.settle(len(self.acknowledged))
        self.acknowledged.clear()
        self._offsets.clear()
        self._times.clear()
        return pb.ServerFrame(acks=acks).SerializeToString()

    def close(self) -> None:
        """Drops the acknowledgements with the stream."""
        self.acknowledged.clear()
