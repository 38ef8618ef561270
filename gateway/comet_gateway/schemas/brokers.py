"""Models of the cluster and its brokers."""

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
    draining: bool = Field(description="Drains: it hands its partitions to other leaders.")
    controller: bool = Field(description="It is the cluster's controller.")


class BrokerList(Model):
    items: list[Broker]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


class Failure(Model):
    """An entity with an unexpected error on a broker."""

    kind: str = Field(description="`partition`, `slot`, `group`, `transaction`, `share`, `topic` or `task`.")
    name: str
    step: str = Field(description="The operation that failed.")
    reason: str
    since_us: Int64
    count: int = Field(description="Errors since the first one.")
    stopped: bool = Field(description="Stopped until it is resumed or the broker restarts.")


class BrokerDetails(Broker):
    """A broker and its most important numbers; its statistics have all."""

    started_us: Int64
    now_us: Int64
    sessions: int = Field(description="Clients with an open stream.")
    partitions: int = Field(description="Replicas on it.")
    leading: int = Field(description="Partitions that it leads.")
    bytes: Int64 = Field(description="Bytes of its logs.")
    free_bytes: Int64 = Field(description="On its disk.")
    tail_bytes: Int64 = Field(description="Bytes of recent records in memory.")
    problems: list[str] = Field(description="Services that it cannot provide, and why.")
    failures: int = Field(description="Unexpected errors since it started.")
    failed: list[Failure] = Field(description="Entities with such an error, stopped ones first.")


class Cluster(Model):
    cluster_id: str
    controller: int | None = Field(description="Id of a broker; null: no controller now.")
    brokers: list[Broker]
    topics: int
    partitions: int


# ---- leaders


class LeaderMove(Strict):
    topic: Name
    partition: Annotated[int, Field(ge=0, le=PARTITION_MAX)]
    broker: Annotated[int, Field(ge=1, le=BROKER_MAX)] | None = Field(
        None, description="The new leader, an in-sync replica. Null: the one of them that leads least."
    )


class LeaderMoves(Strict):
    """Partitions that get another leader."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"partitions": [{"topic": "quotes", "partition": 0, "broker": 2}]}]}
    )

    partitions: Annotated[list[LeaderMove], Field(min_length=1, max_length=MOVES_MAX)] | None = Field(
        None, description="Null: as needed to balance leadership over all brokers."
    )


class LeaderChange(Model):
    topic: str
    partition: int
    leader: int | None = Field(description="The leader before; null: none.")
    to: int


class LeaderCount(Model):
    broker: int
    before: int = Field(description="Partitions that the broker leads before.")
    after: int


class LeadersMoved(Model):
    """A job that moves leadership, a few partitions at a time; no record is copied. A gateway runs one at a time, and a
    stop of the gateway ends it; changes made stay."""

    dry_run: bool = Field(description=DRY_RUN_TEXT)
    state: Literal["idle", "planned", "running", "stopping", "stopped", "done", "failed"] = Field(
        description="`planned`: a dry run; `idle`: there was no job."
    )
    started_us: Int64
    changes: int = Field(description="Partitions that get another leader.")
    decided: int = Field(description="Of those, changes sent to the cluster.")
    led: int = Field(description="Of those, partitions with their new leader.")
    error: str = Field(description="Why the job failed.")
    brokers: list[LeaderCount]
    partitions: list[LeaderChange] = Field(description="The first thousand changes.")
