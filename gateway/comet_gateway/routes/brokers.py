"""Routes of the cluster, its brokers, and leadership."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request

from comet.admin.documents import document
from comet_gateway.brokers import leader_transfer
from comet_gateway.http.problems import answers
from comet_gateway.routes.admin import STRICT, AdminClient, act_route, links
from comet_gateway.schemas.brokers import (
    Broker,
    BrokerDetails,
    BrokerList,
    Cluster,
    LeaderChange,
    LeaderCount,
    LeaderMoves,
    LeadersMoved,
)
from comet_gateway.schemas.lists import PAGE, BrokerId, DryRun, Filter, Limit

router = APIRouter(prefix="/v1", tags=["brokers"], dependencies=STRICT)

HANDOVERS_MAX: Final = 1_000
EXACT_MAX: Final = 2**53  # beyond it, JSON numbers lose digits in browsers
_SAME: Final = {"parameters": {"broker": "$request.path.broker"}}


@act_route(
    router,
    "describeCluster",
    response_model=Cluster,
    responses={200: links(describeBroker={"parameters": {"broker": "$response.body#/controller"}})},
)
async def describe_cluster(admin: AdminClient) -> dict[str, Any]:
    return document(await admin.describe_cluster())


@act_route(router, "listBrokers")
async def list_brokers(
    admin: AdminClient,
    limit: Limit = PAGE,
    after: Annotated[str, Query(pattern=r"^[0-9]{0,10}$", description="Only brokers with a higher id.")] = "",
    filter: Filter = "",  # noqa: A002 - what the rules of the wire call it
) -> BrokerList:
    cluster = await admin.describe_cluster()
    part = filter.casefold()
    found = [broker for broker in cluster.brokers if part in f"{broker.host}:{broker.port} {broker.rack}".casefold()]
    rest = [broker for broker in found if broker.id > int(after or 0)]
    return BrokerList(
        items=[Broker(**document(broker)) for broker in rest[:limit]],
        next=str(rest[limit - 1].id) if len(rest) > limit else None,
        total=len(found),
    )


@act_route(
    router,
    "describeBroker",
    response_model=BrokerDetails,
    responses={200: links(getStatistics=_SAME, undoDrain=_SAME)},
)
async def describe_broker(admin: AdminClient, broker: BrokerId) -> dict[str, Any]:
    return document(await admin.describe_broker(broker))


@act_route(router, "getStatistics")
async def get_statistics(admin: AdminClient, broker: BrokerId) -> dict[str, Any]:
    found: dict[str, Any] = _exact(await admin.statistics(broker))
    return found


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_exact(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) > EXACT_MAX else value


# ---- leadership


async def _job(request: Request) -> leader_transfer.LeaderJob:
    found: leader_transfer.LeaderJob = request.app.state.backend.leaders
    return found


Job = Annotated[leader_transfer.LeaderJob, Depends(_job)]


@router.get("/leaders", operation_id="describeLeaderMoves", summary="Get the progress of moving leaders")
async def describe_leader_moves(job: Job) -> LeadersMoved:
    """Gets the progress of the job that moves leaders, or the result of this gateway's last job."""
    return _moved(job.progress)


@router.post(
    "/leaders/move",
    operation_id="moveLeaders",
    summary="Move leaders to other replicas",
    responses=answers("TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "LEADERS_MOVING", "LIMIT_EXCEEDED"),
)
async def move_leaders(admin: AdminClient, job: Job, body: LeaderMoves, dry_run: DryRun = False) -> LeadersMoved:
    """Moves leadership of some partitions to other replicas, or balances it over all brokers, a few at a time.

    The answer comes at the start: get the progress with `GET /v1/leaders`. The new leader becomes the partition's
    preferred leader."""
    calm = {one.id for one in (await admin.describe_cluster()).brokers if not one.draining}
    topics = await admin.list_topics()
    if body.partitions is None:
        plan = leader_transfer.spread(topics, calm)
    else:
        plan = leader_transfer.given(topics, [(one.topic, one.partition, one.broker) for one in body.partitions], calm)
    if dry_run:
        return _moved(leader_transfer.TransferProgress("planned", plan), dry_run=True)
    job.start(plan)
    return _moved(job.progress)


@router.post("/leaders/stop", operation_id="stopLeaderMoves", summary="Stop moving leaders")
async def stop_leader_moves(job: Job) -> LeadersMoved:
    """Stops the job before the next partition. Changes that are sent already still take effect."""
    job.stop()
    return _moved(job.progress)


def _moved(progress: leader_transfer.TransferProgress, *, dry_run: bool = False) -> LeadersMoved:
    plan = progress.plan
    return LeadersMoved(
        dry_run=dry_run,
        state=progress.state,
        started_us=progress.started_us,
        changes=len(plan.steps),
        decided=progress.decided,
        led=progress.led,
        error=progress.error,
        brokers=[
            LeaderCount(broker=broker, before=plan.before.get(broker, 0), after=plan.after.get(broker, 0))
            for broker in sorted({*plan.before, *plan.after})
        ],
        partitions=[
            LeaderChange(topic=step.topic, partition=step.partition, leader=step.leader or None, to=step.to)
            for step in plan.steps[:HANDOVERS_MAX]
        ],
    )
