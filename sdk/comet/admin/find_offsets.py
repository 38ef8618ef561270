"""The offset of a position in each partition of a topic, asked of the leaders."""

from __future__ import annotations

import asyncio
from typing import Final

from comet.client.client import Client
from comet.client.connection import Attachment
from comet.client.leader_request import at_leader
from comet.errors import PartitionNotFound
from comet.types import TopicPartition
from comet.v1 import records_pb2 as pb
from comet.v1 import types_pb2 as types

_AT_ONCE: Final = 32  # requests to brokers


async def find_offsets(client: Client, topic: str, where: types.Position, timeout_ms: int) -> dict[int, int]:
    """By partition."""
    client.forget(topic)
    info = await client.topic(topic)
    give_up = asyncio.get_running_loop().time() + timeout_ms / 1000

    async def find(partition: int) -> int:
        async def tp() -> TopicPartition:
            return TopicPartition(topic, partition)

        async def fetch(attachment: Attachment, left_ms: int) -> int:
            frame = pb.ClientFrame(find_offset=pb.FindOffset(partition=attachment.handle, position=where))
            try:
                return (await attachment.connection.call(frame, left_ms)).found_offset.offset
            except PartitionNotFound:  # the topic was deleted and recreated since
                attachment.connection.detach(topic, partition)
                raise

        return await at_leader(client, tp, fetch, give_up=give_up, writes=False)

    indexes = [one.partition for one in info.partitions]
    found: list[int] = []
    for first in range(0, len(indexes), _AT_ONCE):
        found += await asyncio.gather(*map(find, indexes[first : first + _AT_ONCE]))
    return dict(zip(indexes, found, strict=True))
