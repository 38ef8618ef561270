"""Leases without a stream, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comet import records
from comet.v1 import groups_pb2 as groups
from comet.v1 import types_pb2 as types
from tests.integration.stream_client import Call

EARLIEST = types.Position(earliest=True)
ACCEPT, RELEASE, REJECT, EXTEND, RETURN = (
    groups.SETTLEMENT_ACCEPT,
    groups.SETTLEMENT_RELEASE,
    groups.SETTLEMENT_REJECT,
    groups.SETTLEMENT_EXTEND,
    groups.SETTLEMENT_RETURN,
)


class One(NamedTuple):
    """A record that was leased."""

    partition: int
    offset: int
    value: bytes | None
    attempt: int
    topic_id: bytes
    lease: int


def request(count: int = 100, *, group: str = "g", topic: str = "t", wait_ms: int = 0, **more: Any) -> Any:
    names = groups.ShareOptions.DESCRIPTOR.fields_by_name
    options = {name: more.pop(name) for name in list(more) if name in names}
    return groups.LeaseRequest(
        group=group,
        topic=topic,
        records_max=count,
        wait_ms=wait_ms,
        options=groups.ShareOptions(**{"start": EARLIEST, **options}),
        **more,
    )


async def lease(call: Call, count: int = 100, **more: Any) -> list[One]:
    answer = await call("comet.v1.Comet/Lease", request(count, **more))
    return [one for leased in answer.ranges for one in taken(leased)]


def taken(leased: groups.LeasedRange) -> list[One]:
    values = {
        offset: value
        for batch in records.iterate(leased.batches)
        for offset, value in zip(batch.offsets, batch.values, strict=True)
    }
    return [
        One(leased.partition, offset, values[offset], one.attempt, leased.topic_id, leased.lease)
        for one in leased.records
        for offset in range(one.first, one.end)
    ]


async def settle(
    call: Call,
    ones: Sequence[One],
    kind: groups.Settlement = ACCEPT,
    *,
    group: str = "g",
    topic: str = "t",
    **more: Any,
) -> list[bool]:
    """Of each record whether that is kept. Raises where the broker says anything else."""
    settlements = [
        groups.LeaseSettlement(
            partition=one.partition,
            topic_id=one.topic_id,
            lease=one.lease,
            kind=kind,
            firsts=[one.offset],
            ends=[one.offset + 1],
            **more,
        )
        for one in ones
    ]
    answer = await call(
        "comet.v1.Comet/SettleLeases", groups.SettleLeasesRequest(group=group, topic=topic, settlements=settlements)
    )
    assert not [one.error for one in answer.settled if one.HasField("error")], answer
    return [not one.lost_firsts for one in answer.settled]


def offsets(ones: Sequence[One]) -> list[int]:
    return [one.offset for one in ones]
