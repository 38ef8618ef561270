"""The frames of one stream that look up a partition: Attach, which gives it a handle, and FindOffset."""

from __future__ import annotations

from collections.abc import Callable

from comet.errors import PartitionNotFound
from comet.types import AtTime
from comet.v1 import records_pb2 as pb
from comet.wire.protobuf import position_from_pb
from comet_broker.partitions.log_reader import LogReader
from comet_broker.partitions.offset_lookup import check_settled, resolve
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.topics import TopicTable
from comet_broker.streams.answers import Replies


def partition_of(topics: TopicTable, handle: int) -> Partition:
    """The partition that a stream has attached to. Raises PartitionNotFound."""
    partition = topics.by_handle.get(handle)
    if partition is None:
        raise PartitionNotFound(f"partition handle {handle} is not valid here, or no longer: attach again")
    return partition


class PartitionFrames:
    """Owned by one session. `check_draining` raises Draining once the broker takes nothing new."""

    def __init__(
        self, topics: TopicTable, reader: LogReader, replies: Replies, check_draining: Callable[[], None]
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._replies = replies
        self._check_draining = check_draining

    def attach(self, request: int, attach: pb.Attach) -> None:
        self._check_draining()
        if not self._topics.exists(attach.topic):
            self._replies.spawn(request, self._attach_later(request, attach))
            return
        self._attached(request, self._topics.partition(attach.topic, attach.partition))

    async def _attach_later(self, request: int, attach: pb.Attach) -> None:
        """Attaches to a topic that may just have been created through another broker."""
        await self._topics.wait_for(attach.topic)
        self._attached(request, self._topics.partition(attach.topic, attach.partition))

    def _attached(self, request: int, partition: Partition) -> None:
        self._replies.answer(
            pb.ServerFrame(
                request=request,
                attached=pb.Attached(
                    partition=partition.handle,
                    topic_id=partition.topic_id,
                    leader_epoch=partition.leader_epoch,
                    log_start=partition.log.log_start,
                    high_watermark=partition.high_watermark,
                    leader=partition.leads,
                ),
            )
        )

    def find_offset(self, request: int, find: pb.FindOffset) -> None:
        partition = partition_of(self._topics, find.partition)
        position = position_from_pb(find.position)
        if isinstance(position, AtTime):
            self._replies.spawn(request, self._find_later(request, partition, position))
        else:
            self._found(request, partition, resolve(partition, position, uncommitted=find.uncommitted))

    async def _find_later(self, request: int, partition: Partition, position: AtTime) -> None:
        self._found(request, partition, await self._reader.resolve(partition, position))

    def _found(self, request: int, partition: Partition, offset: int) -> None:
        check_settled(partition)  # the answer has the high watermark, which never goes back
        found = pb.FoundOffset(
            offset=offset, log_start=partition.log.log_start, high_watermark=partition.high_watermark
        )
        self._replies.answer(pb.ServerFrame(request=request, found_offset=found))
