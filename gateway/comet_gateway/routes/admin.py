"""Shared by the routes of topics, groups and brokers: the admin client, and conversion of its answers to documents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, TypeVar, get_type_hints

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

import comet
from comet.admin.acts import OPERATIONS
from comet.admin.documents import document
from comet.errors import CometError
from comet.settings.topic import TOPIC_SETTINGS
from comet_gateway.brokers.catalog import Catalog
from comet_gateway.http.problems import Problem
from comet_gateway.schemas.common import ProblemDocument
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import PATH_PARAMETERS, DryRun
from comet_gateway.schemas.topics import OffsetRange, Partition, Replica, Topic, TopicSettings

F = TypeVar("F", bound=Callable[..., Any])
_PARAMETER: Final = re.compile(r"{(\w+)}")
INTERNAL: Final = "__"


async def _admin(request: Request) -> comet.Admin:
    found: comet.Admin = request.app.state.backend.admin
    return found


AdminClient = Annotated[comet.Admin, Depends(_admin)]


async def _catalog(request: Request) -> Catalog:
    found: Catalog = request.app.state.backend.catalog
    return found


TopicCatalog = Annotated[Catalog, Depends(_catalog)]


async def _only_known(request: Request) -> None:
    """Refuses unknown and repeated query parameters: with `dryrun=true` a deletion would be real."""
    route: APIRoute = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    if not known.issuperset(given) or len(set(given)) < len(given):
        takes = ", ".join(sorted(known)) or "none"
        raise Problem("VALIDATION", f"unknown or repeated query parameter; allowed once each: {takes}")


STRICT: Final = (Depends(_only_known),)


def act_route(router: APIRouter, operation: str, **more: Any) -> Callable[[F], F]:
    """Registers a route of the table of acts, with its path and texts."""
    act, route = OPERATIONS[operation]
    return router.api_route(
        route.path.removeprefix(router.prefix),
        methods=[route.method],
        operation_id=operation,
        summary=route.summary or act.summary,
        description=route.about or act.about or f"{act.summary}.",
        **more,
    )


def serve(router: APIRouter, operation: str, *, responses: dict[int | str, Any], **fixed: Any) -> None:
    """Adds the route of an act without a body: `comet.Admin` has the method, its result is the answer. `fixed` are
    further arguments."""
    act, route = OPERATIONS[operation]
    method = getattr(comet.Admin, act.method)
    names = _PARAMETER.findall(route.path)

    async def answer(admin: AdminClient, catalog: TopicCatalog, dry_run: DryRun = False, **path: Any) -> dict[str, Any]:
        changes = "topic" in path and not dry_run
        with catalog.changing(path["topic"]) if changes else nullcontext():
            return document(await method(admin, *(path[name] for name in names), dry_run=dry_run, **fixed))

    shared = [one for one in signature(answer, eval_str=True).parameters.values() if one.name != "path"]
    own = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=PATH_PARAMETERS[name]) for name in names]
    answer.__signature__ = Signature([*shared, *own])  # type: ignore[attr-defined] # which FastAPI reads
    model = model_of(get_type_hints(method)["return"])
    act_route(router, operation, responses=responses, response_model=model)(answer)


def links(**operations: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI links to other operations, by id or `operationRef`, with their parameters from this answer."""
    return {
        "links": {
            name: given if "operationRef" in given else {"operationId": name, **given}
            for name, given in operations.items()
        }
    }


def problem_of(error: CometError) -> ProblemDocument:
    """The problem with a part of a request."""
    return ProblemDocument.model_validate(Problem.of(error).document())


# ---- topics


def settings_document(config: comet.TopicConfig) -> TopicSettings:
    return TopicSettings(**config.plain())


def sources_document(topic: comet.TopicInfo) -> dict[str, str]:
    return {name: topic.source(name).value for name in TOPIC_SETTINGS}


def topic_fields(topic: comet.TopicInfo) -> dict[str, Any]:
    partitions = topic.partitions
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "internal": topic.name.startswith(INTERNAL),
        "created_us": topic.created_us,
        "partition_count": len(partitions),
        "replicas": max((len(one.replicas) for one in partitions), default=0),
        "in_sync": min((len(one.in_sync) for one in partitions), default=0),
        "under_replicated": sum(not set(one.replicas).issubset(one.in_sync) for one in partitions),
        "leaderless": sum(not one.leader for one in partitions),
        "config": settings_document(topic.config),
    }


def topic_document(topic: comet.TopicInfo) -> Topic:
    return Topic(**topic_fields(topic))


_OF_LEADER: Final = ("log_start", "log_end", "high_watermark", "last_stable_offset", "bytes", "segments", "failed")
_OF_REPLICA: Final = ("log_start", "log_end", "high_watermark", "bytes", "segments", "failed")


def _known(status: comet.PartitionStatus | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: None if status is None else getattr(status, name) for name in names}


def partition_fields(partition: comet.PartitionInfo, status: comet.PartitionStatus | None) -> dict[str, Any]:
    lost = None if status is None else [OffsetRange(first=first, end=end) for first, end in status.lost]
    return {
        "partition": partition.index,
        "leader": partition.leader or None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "in_sync": list(partition.in_sync),
        "records": None if status is None else status.log_end - status.log_start,
        "lost": lost,
        **_known(status, _OF_LEADER),
    }


def partition_document(partition: comet.PartitionInfo, status: comet.PartitionStatus | None) -> Partition:
    return Partition(**partition_fields(partition, status))


def by_partition(statuses: Iterable[comet.PartitionStatus]) -> dict[int, comet.PartitionStatus]:
    """The statuses that brokers have answered."""
    return {status.index: status for status in statuses if status.broker}


async def described(admin: comet.Admin, topic: str) -> tuple[comet.TopicInfo, dict[int, comet.PartitionStatus]]:
    info, statuses = await admin.describe_topic(topic)
    return info, by_partition(statuses)


def partition_of(info: comet.TopicInfo, index: int) -> comet.PartitionInfo:
    if index >= len(info.partitions):
        raise comet.PartitionNotFound(
            f"topic {info.name!r} has the partitions 0 to {len(info.partitions) - 1}, not {index}"
        )
    return info.partitions[index]


async def copies(admin: comet.Admin, info: comet.TopicInfo, index: int) -> list[Replica]:
    """The state of each replica, requested from all its brokers at once."""
    partition = partition_of(info, index)

    async def status(broker: int) -> comet.PartitionStatus | None:
        try:
            _, statuses = await admin.describe_topic(info.name, broker=broker)
        except CometError:
            return None  # not reachable; the document has nulls
        return by_partition(statuses).get(index)

    found = await asyncio.gather(*map(status, partition.replicas))
    return replicas_of(partition, [one for one in found if one is not None])


def replicas_of(partition: comet.PartitionInfo, statuses: Iterable[comet.PartitionStatus]) -> list[Replica]:
    """Each replica, with nulls where its broker did not answer."""
    by_broker = {status.broker: status for status in statuses}
    return [
        Replica(
            broker=broker,
            leader=broker == partition.leader,
            in_sync=broker in partition.in_sync,
            **_known(by_broker.get(broker), _OF_REPLICA),
        )
        for broker in partition.replicas
    ]
