"""Locks without a stream, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comet import records
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types
from tests.integration.stream_client import Call

EARLIEST = types.Position(earliest=True)
ACCEPT, RELEASE, REJECT, EXTEND, RETURN = (
    groups.ACKNOWLEDGE_TYPE_ACCEPT,
    groups.ACKNOWLEDGE_TYPE_RELEASE,
    groups.ACKNOWLEDGE_TYPE_REJECT,
    groups.ACKNOWLEDGE_TYPE_EXTEND,
    groups.ACKNOWLEDGE_TYPE_RETURN,
)


class One(NamedTuple):
    """A record that was acquired."""

    partition: int
    offset: int
    value: bytes | None
    delivery_count: int
    topic_id: bytes
    lock_id: int


def request(count: int = 100, *, group: str = "g", topic: str = "t", wait_ms: int = 0, **more: Any) -> Any:
    names = groups.ShareOptions.DESCRIPTOR.fields_by_name
    options = {name: more.pop(name) for name in list(more) if name in names}
    return groups.AcquireRequest(
        group=group,
        topic=topic,
        records_max=count,
        wait_ms=wait_ms,
        options=groups.ShareOptions(**{"start": EARLIEST, **options}),
        **more,
    )


async def acquire(call: Call, count: int = 100, **more: Any) -> list[One]:
    answer = await call("comet.v1.Comet/Acquire", request(count, **more))
    return [one for acquired in answer.ranges for one in taken(acquired)]


def taken(acquired: groups.AcquiredRange) -> list[One]:
    values = {
        offset: value
        for batch in records.iterate(acquired.batches)
        for offset, value in zip(batch.offsets, batch.values, strict=True)
    }
    return [
        One(acquired.partition, offset, values[offset], one.delivery_count, acquired.topic_id, acquired.lock_id)
        for one in acquired.records
        for offset in range(one.first, one.end)
    ]


async def acknowledge(
    call: Call,
    ones: Sequence[One],
    kind: groups.AcknowledgeType = ACCEPT,
    *,
    group: str = "g",
    topic: str = "t",
    **more: Any,
) -> list[bool]:
    """Of each record whether that is kept. Raises where the broker says anything else."""
    acknowledgements = [
        groups.Acknowledgement(
            partition=one.partition,
            topic_id=one.topic_id,
            lock_id=one.lock_id,
            kind=kind,
            firsts=[one.offset],
            ends=[one.offset + 1],
            **more,
        )
        for one in ones
    ]
    answer = await call(
        "comet.v1.Comet/Acknowledge",
        groups.AcknowledgeRequest(group=group, topic=topic, acknowledgements=acknowledgements),
    )
    assert not [one.error for one in answer.acknowledged if one.HasField("error")], answer
    return [not one.lost_firsts for one in answer.acknowledged]


def offsets(ones: Sequence[One]) -> list[int]:
    return [one.offset for one in ones]
