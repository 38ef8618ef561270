"""Routes of partitions: describe, delete records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from itertools import starmap
from typing import Any, Final

from fastapi import APIRouter, Response

import comet
from comet.admin.documents import document
from comet.errors import CometError, InvalidArgument
from comet.types import AtOffset, position
from comet_gateway.http.problems import answers
from comet_gateway.routes.admin import (
    STRICT,
    AdminClient,
    act_route,
    links,
    problem_of,
)
from comet_gateway.schemas.lists import DryRun, PartitionIndex, TopicName
from comet_gateway.schemas.topics import (
    PartitionDetails,
    PartitionTruncation,
    RecordsDeleted,
    RecordsDeletion,
)

router = APIRouter(prefix="/v1", tags=["topics"], dependencies=STRICT)
AT_ONCE: Final = 32  # requests to brokers


@act_route(
    router,
    "describePartition",
    response_model=PartitionDetails,
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
async def describe_partition(admin: AdminClient, topic: TopicName, partition: PartitionIndex) -> dict[str, Any]:
    return document(await admin.describe_partition(topic, partition))


# ---- records


@act_route(
    router,
    "deleteRecords",
    responses={
        207: {"model": RecordsDeleted, "description": "Done in some partitions; `error` says why not in others."},
    },
)
async def delete_records(
    admin: AdminClient, topic: TopicName, body: RecordsDeletion, response: Response, dry_run: DryRun = False
) -> RecordsDeleted:
    info = await admin.describe_topic(topic)
    wanted = await _wanted(admin, info, body)
    plan = await _delete(admin, info, wanted, dry_run=True)
    for found in plan.values():
        if isinstance(found, InvalidArgument):
            raise found  # no record is deleted then
    if not dry_run:
        due = {
            partition: found.log_start for partition, found in plan.items() if isinstance(found, comet.RecordDeletion)
        }
        plan |= await _delete(admin, info, due, dry_run=False)
    partitions = [_truncation(partition, found) for partition, found in plan.items()]
    if any(one.error for one in partitions):
        response.status_code = 207
    records = sum(one.records for one in partitions)
    return RecordsDeleted(dry_run=dry_run, topic=topic, records=records, partitions=partitions)


async def _delete(
    admin: comet.Admin, info: comet.TopicInfo, wanted: Mapping[int, int], *, dry_run: bool
) -> dict[int, comet.RecordDeletion | CometError]:
    """The deletion in each partition, or its error."""
    room = asyncio.Semaphore(AT_ONCE)

    async def delete(partition: int, before: int) -> comet.RecordDeletion | CometError:
        async with room:
            try:
                return await admin.delete_records(info.name, partition, before, topic_id=info.id, dry_run=dry_run)
            except CometError as error:
                return error

    return dict(zip(wanted, await asyncio.gather(*starmap(delete, wanted.items())), strict=True))


def _truncation(partition: int, found: comet.RecordDeletion | CometError) -> PartitionTruncation:
    if isinstance(found, CometError):
        return PartitionTruncation(partition=partition, log_start=None, records=0, error=problem_of(found))
    return PartitionTruncation(partition=partition, log_start=found.log_start, records=found.records, error=None)


async def _wanted(admin: comet.Admin, info: comet.TopicInfo, body: RecordsDeletion) -> Mapping[int, int]:
    """The first offset to keep, by partition."""
    if body.offsets is not None:
        indexes = [one.partition for one in body.offsets]
    else:
        indexes = list(range(len(info.partitions))) if body.partitions is None else body.partitions
    for index in indexes:
        info.partition(index)
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
