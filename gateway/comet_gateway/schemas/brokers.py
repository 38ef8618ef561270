"""Models of the cluster and its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

import comet
from comet.admin.parameters import BROKER_MAX, PARTITION_MAX
from comet_gateway.schemas.common import Int64, Model
from comet_gateway.schemas.derived import model_of
from comet_gateway.schemas.lists import DRY_RUN_TEXT, Name, Strict

MOVES_MAX: Final = 10_000


if TYPE_CHECKING:
    Broker = Any
    BrokerDetails = Any
    Cluster = Any
else:  # the SDK's types
    Broker, BrokerDetails, Cluster = map(model_of, (comet.BrokerInfo, comet.BrokerDetails, comet.ClusterInfo))


class BrokerList(Model):
    items: list[Broker]
    next: str | None = Field(description="`after` of the next page; null: this is the last page.")
    total: int = Field(description="Matches on all pages.")


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
