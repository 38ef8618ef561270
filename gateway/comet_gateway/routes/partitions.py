"""Routes of partitions: describe, add, delete records, reassign, elect a leader."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from fastapi import APIRouter, Response

import comet
from comet.errors import CometError, InvalidArgument
from comet.types import AtOffset, position
from comet_gateway.http.problems import answers
from comet_gateway.routes.admin import (
    STRICT,
    AdminClient,
    TopicCatalog,
    copies,
    described,
    links,
    partition_fields,
    partition_of,
    problem_of,
)
from comet_gateway.schemas.lists import DryRun, PartitionIndex, TopicName
from comet_gateway.schemas.topics import (
    Elected,
    Election,
    Move,
    Moved,
    PartitionDetails,
    PartitionsAdded,
    PartitionsWanted,
    PartitionTruncation,
    RecordsDeleted,
    RecordsDeletion,
    Replica,
)

router = APIRouter(prefix="/v1", tags=["topics"], dependencies=STRICT)
AT_ONCE: Final = 32  # requests to brokers


@router.get(
    "/topics/{topic}/partitions/{partition}",
    operation_id="describePartition",
    summary="Describe a partition and its replicas",
    responses={
        **answers("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND"),
        200: links(
            deleteRecords={
                "parameters": {"topic": "$request.path.topic"},
                "requestBody": {"offsets": [{"partition": "$response.body#/partition", "before": "0"}]},
            },
            movePartition={
                "parameters": {"topic": "$request.path.topic", "partition": "$request.path.partition"},
                "requestBody": {"replicas": "$response.body#/replicas"},
            },
        ),
    },
)
async def describe_partition(admin: AdminClient, topic: TopicName, partition: PartitionIndex) -> PartitionDetails:
    """Gets a partition and the state of each replica."""
    info, statuses = await described(admin, topic)
    found = partition_of(info, partition)
    return PartitionDetails(
        topic=topic,
        copies=await copies(admin, info, partition),
        **partition_fields(found, statuses.get(partition)),
    )


@router.post(
    "/topics/{topic}/partitions",
    operation_id="addPartitions",
    summary="Add partitions to a topic",
    responses=answers("TOPIC_NOT_FOUND", "LIMIT_EXCEEDED", "NOT_LEADER"),
)
async def add_partitions(
    admin: AdminClient, catalog: TopicCatalog, topic: TopicName, body: PartitionsWanted, dry_run: DryRun = False
) -> PartitionsAdded:
    """Adds partitions up to `total`. This cannot be undone.

    Many keys map to another partition afterwards: the order of a key's records does not hold across the change."""
    info, _ = await described(admin, topic)
    before, after = len(info.partitions), body.total
    if after < before:
        raise InvalidArgument(f"topic {topic!r} has {before} partitions; their number can only grow")
    if not dry_run:
        with catalog.changing(topic):
            after = len((await admin.add_partitions(topic, after)).partitions)
    # Of the hashes below the least common multiple, the first `before` have the same remainder by both.
    moved = 1 - before / math.lcm(before, after)
    return PartitionsAdded(dry_run=dry_run, topic=topic, before=before, after=after, keys_moved=round(moved, 4))


# ---- records


@router.post(
    "/topics/{topic}/records/delete",
    operation_id="deleteRecords",
    summary="Delete the oldest records of a topic",
    responses={
        **answers("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "NOT_LEADER"),
        207: {"model": RecordsDeleted, "description": "Done in some partitions; `error` says why not in others."},
    },
)
async def delete_records(
    admin: AdminClient, topic: TopicName, body: RecordsDeletion, response: Response, dry_run: DryRun = False
) -> RecordsDeleted:
    """Deletes the records before an offset or a time. This cannot be undone."""
    info, statuses = await described(admin, topic)
    cuts = _cuts(await _wanted(admin, info, body), statuses)
    room = asyncio.Semaphore(AT_ONCE)

    async def cut(one: Cut) -> PartitionTruncation:
        error, after = one.error, one.after
        if error is None and not dry_run and one.records:
            try:
                async with room:
                    after = await admin.delete_records(topic, one.partition, one.after)
            except CometError as failure:
                error = failure
        done = error is None
        return PartitionTruncation(
            partition=one.partition,
            log_start=after if done else None,
            records=max(0, after - one.before) if done else 0,
            error=None if error is None else problem_of(error),
        )

    done = await asyncio.gather(*map(cut, cuts))
    if any(one.error for one in done):
        response.status_code = 207
    return RecordsDeleted(dry_run=dry_run, topic=topic, records=sum(one.records for one in done), partitions=list(done))


async def _wanted(admin: comet.Admin, info: comet.TopicInfo, body: RecordsDeletion) -> Mapping[int, int]:
    """The first offset to keep, by partition."""
    if body.offsets is not None:
        indexes = [one.partition for one in body.offsets]
    else:
        indexes = list(range(len(info.partitions))) if body.partitions is None else body.partitions
    for index in indexes:
        partition_of(info, index)
    if len(set(indexes)) < len(indexes):
        raise InvalidArgument("name each partition once")
    if body.offsets is not None:
        return {one.partition: one.before for one in body.offsets}
    before = position(body.before or "", now_us=time.time_ns() // 1_000)
    if isinstance(before, AtOffset):
        if len(indexes) != 1:
            raise InvalidArgument(f"an offset is valid in one partition, not in {len(indexes)}: name that one")
        return {indexes[0]: before.offset}
    found = await admin.offsets(info.name, before)
    return {index: found[index] for index in indexes if index in found}


class Cut(NamedTuple):
    """The deletion in one partition."""

    partition: int
    before: int
    after: int
    error: CometError | None = None

    @property
    def records(self) -> int:
        return self.after - self.before


def _cuts(wanted: Mapping[int, int], statuses: Mapping[int, comet.PartitionStatus]) -> list[Cut]:
    """Raises InvalidArgument for an offset outside of its partition: no record is deleted then."""
    cuts = []
    for index, offset in wanted.items():
        status = statuses.get(index)
        if status is None:
            error = comet.NotLeader(f"partition {index} has no leader now, or it cannot be reached")
            cuts.append(Cut(index, 0, 0, error))
            continue
        if not 0 <= offset <= status.high_watermark:
            raise InvalidArgument(
                f"{offset} is not between 0 and the end of partition {index}, {status.high_watermark}"
            )
        cuts.append(Cut(index, status.log_start, max(offset, status.log_start)))
    return cuts


# ---- replicas


@router.post(
    "/topics/{topic}/partitions/{partition}/move",
    operation_id="movePartition",
    summary="Reassign the replicas of a partition",
    responses=answers("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "BROKER_NOT_FOUND"),
)
async def move_partition(
    admin: AdminClient, topic: TopicName, partition: PartitionIndex, body: Move, dry_run: DryRun = False
) -> Moved:
    """Moves a partition's replicas to other brokers, or changes their number.

    The answer comes at the start; the partition shows the progress."""
    info, statuses = await described(admin, topic)
    found = partition_of(info, partition)
    before, after = found.replicas, tuple(body.replicas)
    if dry_run:
        await _check_move(admin, info, after)
    else:
        await admin.move_partition(topic, partition, after)
    added = [broker for broker in after if broker not in before]
    status = statuses.get(partition)
    return Moved(
        dry_run=dry_run,
        topic=topic,
        partition=partition,
        before=list(before),
        after=list(after),
        added=added,
        removed=[broker for broker in before if broker not in after],
        bytes=None if status is None else status.bytes * len(added),
    )


async def _check_move(admin: comet.Admin, info: comet.TopicInfo, replicas: tuple[int, ...]) -> None:
    """Checks the request as the cluster does, with the same errors."""
    if len(set(replicas)) < len(replicas):
        raise InvalidArgument(f"replicas must name different brokers, not {list(replicas)}")
    await _check_brokers(admin, replicas)
    if info.config.min_insync > len(replicas):
        raise InvalidArgument(f"min_insync={info.config.min_insync} can never be met with {len(replicas)} replicas")


async def _check_brokers(admin: comet.Admin, wanted: tuple[int, ...]) -> None:
    alive = {broker.id for broker in (await admin.describe_cluster()).brokers}
    for broker in wanted:
        if broker not in alive:
            raise comet.BrokerNotFound(f"no broker {broker}; alive: {', '.join(map(str, sorted(alive)))}")


@router.post(
    "/topics/{topic}/partitions/{partition}/elect-leader",
    operation_id="electLeader",
    summary="Elect a leader that may lack records",
    responses=answers("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "BROKER_NOT_FOUND"),
)
async def elect_leader(
    admin: AdminClient, topic: TopicName, partition: PartitionIndex, body: Election, dry_run: DryRun = False
) -> Elected:
    """Elects a leader that may lack committed records (unclean election), and needs `accept_loss`.

    A last resort if all replicas with every record are damaged or will not return, or if a replica is in conflict with
    its leader. Otherwise refused while the partition has a leader."""
    info, _ = await described(admin, topic)
    found = partition_of(info, partition)
    known = await copies(admin, info, partition)
    if dry_run:
        await _check_brokers(admin, (body.broker,))
        if found.leader and not found.conflicts:
            raise InvalidArgument(f"broker {found.leader} leads partition {partition} of {topic!r}")
        if body.broker not in found.replicas:
            raise InvalidArgument(f"broker {body.broker} has no replica of partition {partition} of {topic!r}")
    else:
        await admin.elect_leader(topic, partition, body.broker, accept_loss=body.accept_loss)
    return Elected(
        dry_run=dry_run,
        topic=topic,
        partition=partition,
        broker=body.broker,
        lost=lost(known, body.broker),
        copies=known,
    )


def lost(known: list[Replica], broker: int) -> int | None:
    """Records that the furthest of the other replicas has beyond this one."""
    ends = {one.broker: one.log_end for one in known if one.log_end is not None}
    return max(ends.values()) - ends[broker] if broker in ends else None
