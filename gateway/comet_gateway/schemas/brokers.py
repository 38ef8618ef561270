"""The cluster and its brokers as documents."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from comet_gateway.schemas.common import Int64, Model
from comet_gateway.schemas.lists import BROKER_MAX, DRY_RUN_TEXT, PARTITION_MAX, Name, Strict

MOVES_MAX: Final = 10_000


class Broker(Model):
    id: int = Field(examples=[1])
    host: str
    port: int
    version: str
    rack: str
    draining: bool = Field(description="It is being emptied: it leads nothing for longer than it must.")
    controller: bool = Field(description="It is the one that decides who leads what.")


class BrokerList(Model):
    items: list[Broker]
    next: str | None = Field(description="`after` of the next page; null: that was all.")
    total: int = Field(description="All that the filter lets through, on this page or not.")


class Failure(Model):
    """An entity of which a broker has met with an unexpected error."""

    kind: str = Field(description="`partition`, `slot`, `group`, `transaction`, `share`, `topic` or `task`.")
    name: str
    step: str = Field(description="What was being done.")
    reason: str
    since_us: Int64
    count: int = Field(description="Errors since then.")
    standing: bool = Field(description="It stands still until it is resumed or the broker starts again.")


class Resumed(Model):
    """What was taken up again on a broker, and what stands still after that."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    broker: int
    resumed: int = Field(description="Partitions, topics, slots, groups and transactional ids.")
    failed: list[Failure] = Field(description="In a dry run, what stands still now.")


class BrokerDetails(Broker):
    """A broker and its most important numbers; all of them are in its statistics."""

    started_us: Int64
    now_us: Int64
    sessions: int = Field(description="Clients that hold a stream to it.")
    partitions: int = Field(description="Replicas on it.")
    leading: int = Field(description="Of those, which it leads.")
    bytes: Int64 = Field(description="Of the logs of these partitions.")
    free_bytes: Int64 = Field(description="On its disk.")
    tail_bytes: Int64 = Field(description="Recent records that it keeps in memory.")
    problems: list[str] = Field(description="What it cannot serve, and why.")
    failures: int = Field(description="Unexpected errors since it started.")
    failed: list[Failure] = Field(description="What has failed of such an error, what stands still first.")


class Cluster(Model):
    cluster_id: str
    controller: int | None = Field(description="Id of a broker; null: there is none now.")
    brokers: list[Broker]
    topics: int
    partitions: int


class Handover(Model):
    topic: str
    partition: int
    to: int | None = Field(description="Who leads it next; null: nobody else has everything, so it stays.")


class Drain(Model):
    """What a broker leads, and where that goes. A drain is decided when it is answered: the broker goes on serving,
    and passes on one partition after the other."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    broker: int
    draining: bool = Field(description="Whether it drains now; in a dry run, whether it did before.")
    leading: int = Field(description="Partitions that it leads now.")
    staying: int = Field(description="Of those, which nobody else can take over.")
    partitions: list[Handover] = Field(description="The first thousand of those that it leads.")


# ---- leaders


class LeaderMove(Strict):
    topic: Name
    partition: Annotated[int, Field(ge=0, le=PARTITION_MAX)]
    broker: Annotated[int, Field(ge=1, le=BROKER_MAX)] | None = Field(
        None, description="Who is to lead it: a replica that is in sync. Null: of those, whoever leads least."
    )


class LeaderMoves(Strict):
    """Which partitions are to have another leader."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partitions": [{"topic": "quotes", "partition": 0, "broker": 2}]}]}
    )

    partitions: Annotated[list[LeaderMove], Field(min_length=1, max_length=MOVES_MAX)] | None = Field(
        None, description="Null: those that it takes for all brokers to lead about as many."
    )


class LeaderChange(Model):
    topic: str
    partition: int
    leader: int | None = Field(description="Who leads it before; null: nobody.")
    to: int


class LeaderCount(Model):
    broker: int
    before: int = Field(description="Partitions that it leads.")
    after: int


class LeadersMoved(Model):
    """A job that gives partitions other leaders, some at a time; no record is copied. A gateway has one at a time,
    which ends with it: what was decided stays."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    state: Literal["idle", "planned", "running", "stopping", "stopped", "done", "failed"] = Field(
        description="`planned` is a dry run, `idle` says that there was no job."
    )
    started_us: Int64
    changes: int = Field(description="Partitions that are to have another leader.")
    decided: int = Field(description="Of those, of which the cluster was told.")
    led: int = Field(description="Of those, which have their new leader.")
    error: str = Field(description="Why it failed.")
    brokers: list[LeaderCount]
    partitions: list[LeaderChange] = Field(description="The first thousand of them.")
