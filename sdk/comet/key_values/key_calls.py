"""The requests of a KV to the leaders, or any replica, of the partitions of its topic.

Requests go over the connection to the leader as it was found last. After an error that a retry can help, the leader is
found again, and the same request repeated: a write has an idempotency key, so that it is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from comet.client.client import Client
from comet.client.connection import Attachment
from comet.client.leader_request import at_leader
from comet.client.new_topic import Create, create_missing
from comet.entities import TopicInfo
from comet.errors import CometError, Timeout, Unavailable
from comet.records import partition_for
from comet.types import TopicPartition
from comet.v1 import records_pb2 as pb
from comet.v1.types_pb2 import ACKS_ALL

UNDECIDED: Final = "undecided"  # in the details of an error: a key that an open transaction has written


class Undecided(Exception):
    """A request of several records wrote nothing, as an open transaction has written one of their keys."""


class KeyCalls:
    """Owned by a KV, and owns the client."""

    def __init__(self, client: Client, topic: str, timeout_s: float, create: Create) -> None:
        self._client = client
        self._topic = topic
        self._timeout_s = timeout_s
        self._create = create
        self._random = client.random
        self._attached: dict[int, Attachment] = {}  # by partition, while their connections live

    async def start(self) -> None:
        self._client.check_open()
        await create_missing(self._client, [self._topic], self._create)
        await self._client.topic(self._topic)

    async def close(self) -> None:
        if not self._client.closed:
            await self._client.close()

    async def read(self, partition: int, request: pb.ReadKeysRequest) -> pb.ReadKeysResponse:
        request.partition = partition
        frame = pb.ClientFrame(read_keys=request)
        if request.stale:
            attachment = await self._replica(partition)
            if attachment is not None:
                try:
                    return (await attachment.connection.call(frame)).keys
                except CometError as error:
                    if not error.retriable:
                        raise
        give_up = asyncio.get_running_loop().time() + self._timeout_s
        return (await self._ask(partition, frame, give_up, writes=False)).keys

    async def publish(self, partition: int, records: Sequence[pb.Record], give_up: float) -> list[int]:
        """Writes records of different keys, all or none. Returns their offsets. If there are several, it may raise
        Undecided."""
        request = pb.PublishRequest(
            topic=self._topic,
            partition=partition,
            records=records,
            acks=ACKS_ALL,
            idempotency_key=f"{self._random.getrandbits(128):032x}",
        )
        answer = await self._ask(partition, pb.ClientFrame(publish=request), give_up, writes=True)
        return [receipt.offset for receipt in answer.published.receipts]

    async def _replica(self, partition: int) -> Attachment | None:
        """A connection to any in-sync replica; None: only the leader can be reached."""

        def choose(info: TopicInfo, index: int) -> int | None:
            in_sync = info.partitions[index].in_sync
            return self._random.choice(in_sync) if in_sync else None

        try:
            return await self._client.attach(self._topic, partition, choose)
        except CometError:
            return None

    async def _ask(self, partition: int, frame: pb.ClientFrame, give_up: float, *, writes: bool) -> pb.ServerFrame:
        """The answer of the partition's leader."""
        problem: CometError | None = None
        attachment = self._attached.get(partition)
        if attachment is not None and attachment.connection.lost is None and not attachment.connection.leaving:
            try:
                left_ms = max(int((give_up - asyncio.get_running_loop().time()) * 1000), 1)
                return await _call(attachment, frame, left_ms)
            except CometError as error:
                if not error.retriable:
                    raise
                problem = error
                self._attached.pop(partition, None)  # it is found again, and the same request is repeated
        try:
            return await self._ask_again(partition, frame, give_up, writes=writes)
        except CometError as error:
            unknown = problem is not None and (problem.outcome_unknown or isinstance(problem, Unavailable))
            if writes and problem is not None and unknown and error.retriable and not error.outcome_unknown:
                raise Timeout(f"the write may or may not have been done: {problem.message}; {error.message}") from error
            raise

    async def _ask_again(
        self, partition: int, frame: pb.ClientFrame, give_up: float, *, writes: bool
    ) -> pb.ServerFrame:
        where = TopicPartition(self._topic, partition)

        async def find() -> TopicPartition:
            return where

        async def call(attachment: Attachment, left_ms: int) -> pb.ServerFrame:
            answer = await _call(attachment, frame, left_ms)
            self._attached[partition] = attachment
            return answer

        return await at_leader(self._client, find, call, give_up=give_up, writes=writes)

    async def partitions(self) -> int:
        return len((await self._client.topic(self._topic)).partitions)

    async def partition(self, key: bytes) -> int:
        return partition_for(key, await self.partitions())


async def _call(attachment: Attachment, frame: pb.ClientFrame, left_ms: int) -> pb.ServerFrame:
    try:
        return await attachment.connection.call(frame, left_ms)
    except Unavailable as error:
        if UNDECIDED in error.details and len(frame.publish.records) > 1:
            raise Undecided from error
        raise
