"""The cluster and its brokers as documents."""

from __future__ import annotations

from pydantic import Field

from comet_gateway.schemas.common import Int64, Model
from comet_gateway.schemas.lists import DRY_RUN_TEXT


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
    failures: int = Field(description="Tasks of its own that have failed.")


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
