"""Routes of topics: list, create, describe, alter, delete."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

import comet
from comet.admin.documents import document
from comet.settings.topic import TOPIC_SETTINGS, TopicSetting, plain
from comet_gateway.http.problems import answers
from comet_gateway.routes.admin import (
    STRICT,
    AdminClient,
    TopicCatalog,
    act_route,
    links,
)
from comet_gateway.schemas.lists import PAGE, After, DryRun, Filter, Limit, PositionText, TopicName
from comet_gateway.schemas.topics import (
    SETTINGS_EXAMPLE,
    PartitionOffset,
    Topic,
    TopicAlteration,
    TopicChanges,
    TopicCreation,
    TopicDetails,
    TopicList,
    TopicOffsets,
    TopicSettingList,
    TopicSettingRow,
    TopicSettings,
)

router = APIRouter(prefix="/v1", tags=["topics"], dependencies=STRICT)

_THIS: Final = {"parameters": {"topic": "$response.body#/name"}}
_SAME: Final = {"parameters": {"topic": "$request.path.topic"}}
_NO_MORE: Final = {**_SAME, "requestBody": {"total": "$response.body#/partition_count"}}
_FIRST: Final = {"parameters": {"topic": "$response.body#/name", "partition": 0}}
_IN_NO_GROUP_YET: Final = {
    "parameters": {"group": "engine"},
    "requestBody": {"offsets": [{"topic": "$response.body#/name", "partition": 0, "offset": "0"}]},
}


@act_route(router, "listTopics")
async def list_topics(
    admin: AdminClient,
    limit: Limit = PAGE,
    after: After = "",
    filter: Filter = "",  # noqa: A002 - what the rules of the wire call it
) -> TopicList:
    page = await admin.find_topics(filter, after=after, limit=limit)
    return TopicList(items=[Topic(**document(topic)) for topic in page.topics], next=page.after, total=page.total)


@act_route(
    router,
    "createTopic",
    status_code=201,
    response_model=Topic,
    responses={
        **answers("TOPIC_EXISTS", "LIMIT_EXCEEDED"),
        201: {
            "description": "The topic was created, and its partitions have leaders.",
            "headers": {"Location": {"description": "Path of the topic.", "schema": {"type": "string"}}},
            **links(
                describeTopic=_THIS,
                alterTopic={**_THIS, "requestBody": SETTINGS_EXAMPLE},
                deleteTopic=_THIS,
                describePartition=_FIRST,
                produce={
                    "operationRef": "#/paths/~1v1~1topics~1{topic}~1records/post",
                    **_THIS,
                    "requestBody": {"value": {"symbol": "EURUSD", "bid": 1.08}},
                },
                fetch={
                    "operationRef": "#/paths/~1v1~1topics~1{topic}~1partitions~1{partition}~1records/get",
                    **_FIRST,
                },
                commitOffsets=_IN_NO_GROUP_YET,
            ),
        },
    },
)
async def create_topic(
    admin: AdminClient, catalog: TopicCatalog, body: TopicCreation, request: Request, response: Response
) -> dict[str, Any]:
    settings = body.config.settings()
    with catalog.changing(body.name):
        made = await admin.create_topic(body.name, partitions=body.partitions, replicas=body.replicas, **settings)
    response.headers["location"] = f"{request.scope.get('root_path', '')}/v1/topics/{made.name}"
    return document(made)


@router.get("/topic-settings", operation_id="listTopicSettings", summary="List the settings that topics have")
async def list_topic_settings(admin: AdminClient) -> TopicSettingList:
    """Lists the settings that topics have, with their bounds and with the cluster's defaults for new topics."""
    defaults = (await admin.describe_cluster()).topic_defaults
    rows = [setting_row(row, defaults) for row in TOPIC_SETTINGS.values()]
    return TopicSettingList(items=rows, replicas=defaults.replicas)


def setting_row(row: TopicSetting, defaults: comet.TopicDefaults) -> TopicSettingRow:
    default, replicated = plain(getattr(defaults.config, row.name)), plain(row.default_replicated)
    return TopicSettingRow(
        name=row.name,
        label=row.label,
        about=row.about,
        unit=row.unit,
        words=list(row.words),
        low=row.low,
        high=row.high,
        unlimited=row.unlimited,
        default=str(default),
        default_replicated=None if replicated in (None, default) else str(replicated),
        source=defaults.source(row.name).value,
        since=row.since,
    )


@act_route(
    router,
    "describeTopic",
    response_model=TopicDetails,
    responses={
        **answers("TOPIC_NOT_FOUND"),
        200: links(listTopics={}, addPartitions=_NO_MORE, findOffsets=_SAME, deleteTopic=_SAME),
    },
)
async def describe_topic(admin: AdminClient, topic: TopicName) -> dict[str, Any]:
    return document(await admin.describe_topic(topic))


@router.get(
    "/topics/{topic}/offsets",
    operation_id="findOffsets",
    summary="Find the offsets of a time or position",
    responses=answers("TOPIC_NOT_FOUND", "NOT_LEADER"),
)
async def find_offsets(
    admin: AdminClient,
    topic: TopicName,
    at: Annotated[
        PositionText,
        Query(max_length=100, description="earliest, latest, a time (2026-01-31T12:00:00Z) or a time ago (-15m)."),
    ] = "latest",
) -> TopicOffsets:
    """Gets the offset of a time or position in each partition."""
    found = await admin.offsets(topic, at)
    return TopicOffsets(
        topic=topic,
        at=at,
        partitions=[PartitionOffset(partition=partition, offset=offset) for partition, offset in found.items()],
    )


# ---- changes


@act_route(router, "alterTopic")
async def alter_topic(
    admin: AdminClient, catalog: TopicCatalog, topic: TopicName, body: TopicChanges, dry_run: DryRun = False
) -> TopicAlteration:
    with catalog.changing(topic) if not dry_run else nullcontext():
        done = await admin.alter_topic(topic, unset=body.unset, dry_run=dry_run, **body.settings())
    after = document(done.after)
    return TopicAlteration(
        dry_run=dry_run,
        topic=topic,
        changed=list(done.changed),
        before=TopicSettings(**document(done.before.config)),
        after=TopicSettings(**after["config"]),
        sources=after["sources"],
        records=done.records,
        bytes=done.bytes,
        complete=done.complete,
    )
