"""`comet cluster`: shows brokers, leaders, problems and failures; drains and empties a broker, resumes failures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comet.admin.documents import document
from comet.admin.parameters import BROKER_MAX
from comet.cli._acts import SHOWN_MAX, act_command, add_commands
from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json
from comet.cli._output import note, print_fields, print_json, print_table
from comet.cli._recover import recover
from comet.cli._values import brokers_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import comet
    from comet.entities import BrokerFailure, BrokerInfo, ClusterInfo, PartitionInfo, TopicInfo

app = typer.Typer(help="Show the cluster, drain and empty brokers, resume failures, recover a lost metadata store.")
act_command(app, "RecoverCluster")(recover)
add_commands(app, "cluster")


@app.callback(invoke_without_command=True)
@guarded
async def cluster(
    context: typer.Context,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="All statistics of the broker that answers, as JSON.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Show the brokers, the number of partitions each leads, and partitions with a problem."""
    if context.invoked_subcommand is not None:
        return
    import comet

    async with comet.Admin(bootstrap) as admin:
        if statistics:
            print_json(await admin.statistics())
            return
        found, topics = await admin.describe_cluster(), await admin.list_topics()
        failed = await failures(admin, found)
    health = Health.of(topics)
    if json_output:
        print_json(_document(found, topics, health) | {"failed": [document(one) for one in failed]})
    else:
        _show(found, topics, health)
        show_failed(failed)


@app.command()
@guarded
async def empty(
    broker: Annotated[int, typer.Argument(metavar="ID", min=1, max=BROKER_MAX, help="Id of the broker.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Stop the moves under way and let it lead again; finished moves stay.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return once it holds nothing.")] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="With --wait: fail after this time; the moves go on.")
    ] = "",
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Move all replicas away from a broker, to stop it for good. Drains it first: it leads nothing and gets no new
    partitions until that is undone. Partitions keep their number of replicas. Repeat it to continue."""
    from comet.cli._empty import empty_broker

    await empty_broker(bootstrap, broker, undo=undo, wait=wait, timeout=timeout, dry_run=dry_run, as_json=json_output)


async def failures(admin: comet.Admin, found: ClusterInfo) -> list[BrokerFailure]:
    """Failures of each broker that answers, stopped ones first."""
    import asyncio

    import comet
    from comet.admin.results import broker_failures

    async def of(broker: int) -> Sequence[BrokerFailure]:
        try:
            return broker_failures(broker, await admin.statistics(broker, brief=True))
        except comet.CometError:
            return ()  # that it does not answer shows in leaders and in-sync replicas

    failures = await asyncio.gather(*(of(broker.id) for broker in found.brokers))
    return sorted((one for failed in failures for one in failed), key=lambda one: not one.stopped)


def show_failed(failed: Sequence[BrokerFailure]) -> None:
    if not failed:
        return
    print()
    print_table(
        ["broker", "failed", "name", "state", "times", "reason"],
        [
            [one.broker, one.kind, one.name, "stopped" if one.stopped else "running", one.count, one.reason]
            for one in failed[:SHOWN_MAX]
        ],
    )
    if len(failed) > SHOWN_MAX:
        note(f"and {len(failed) - SHOWN_MAX} more: --json lists all")
    if any(one.stopped for one in failed):
        note("resume stopped ones: comet cluster resume")


@dataclass(frozen=True, slots=True)
class Health:
    """Partitions with a problem, with their topics."""

    offline: Sequence[tuple[TopicInfo, PartitionInfo]]  # without a leader
    under_replicated: Sequence[tuple[TopicInfo, PartitionInfo]]  # a replica is not in sync
    below_min_insync: Sequence[tuple[TopicInfo, PartitionInfo]]  # acks="all" is refused
    in_conflict: Sequence[tuple[TopicInfo, PartitionInfo]]  # a replica does not follow, as it would lose records

    @classmethod
    def of(cls, topics: Sequence[TopicInfo]) -> Health:
        all_of_them = [(topic, partition) for topic in topics for partition in topic.partitions]
        return cls(
            [(topic, one) for topic, one in all_of_them if one.leader is None],
            [(topic, one) for topic, one in all_of_them if one.under_replicated],
            [(topic, one) for topic, one in all_of_them if topic.config.refuses_acks_all(len(one.in_sync))],
            [(topic, one) for topic, one in all_of_them if one.conflicts],
        )


def _leading(topics: Sequence[TopicInfo]) -> Counter[int]:
    return Counter(one.leader for topic in topics for one in topic.partitions if one.leader is not None)


def _holding(topics: Sequence[TopicInfo]) -> Counter[int]:
    return Counter(broker for topic in topics for partition in topic.partitions for broker in partition.replicas)


def _document(found: ClusterInfo, topics: Sequence[TopicInfo], health: Health) -> dict[str, Any]:
    """The cluster, how its partitions are placed, and those with a problem."""
    leading, holding = _leading(topics), _holding(topics)
    brokers = sorted(holding.keys() | {broker.id for broker in found.brokers})
    return {
        **document(found),
        "placement": [{"broker": one, "leading": leading[one], "replicas": holding[one]} for one in brokers],
        **{
            name: [{"topic": topic.name, "partition": one.partition} for topic, one in getattr(health, name)]
            for name in ("offline", "under_replicated", "below_min_insync", "in_conflict")
        },
    }


def _show(found: ClusterInfo, topics: Sequence[TopicInfo], health: Health) -> None:
    leading, holding = _leading(topics), _holding(topics)
    print_fields(
        {
            "cluster": found.cluster_id,
            "topics": found.topics,
            "partitions": found.partitions,
            "under-replicated": len(health.under_replicated),
            "below min_insync": len(health.below_min_insync),
            "offline": len(health.offline),
            "in conflict": len(health.in_conflict),
        }
    )
    print()
    print_table(
        ["broker", "address", "rack", "version", "leads", "holds", "role"],
        [
            [
                broker.id,
                f"{broker.host}:{broker.port}",
                broker.rack or "-",
                broker.version,
                leading[broker.id],
                holding[broker.id],
                _role(broker),
            ]
            for broker in found.brokers
        ],
    )
    away = sorted(holding.keys() - {broker.id for broker in found.brokers})
    if away:
        note(f"not registered: broker {', '.join(map(str, away))}")
    unwell = list(
        dict.fromkeys([*health.in_conflict, *health.offline, *health.below_min_insync, *health.under_replicated])
    )
    if unwell:
        print()
        print_table(
            ["topic", "partition", "leader", "replicas", "in sync", "state"],
            [_unwell_row(topic, one) for topic, one in unwell[:SHOWN_MAX]],
        )
        if len(unwell) > SHOWN_MAX:
            note(f"and {len(unwell) - SHOWN_MAX} more: --json lists all")
    for topic, one in health.in_conflict[:SHOWN_MAX]:
        for conflict in one.conflicts:
            note(
                f"{topic.name}/{one.partition}: the replica on broker {conflict.broker} does not follow broker"
                f" {conflict.leader}: it would lose committed records from offset {conflict.offset} up to"
                f" {conflict.high_watermark}. {conflict.problem or 'See comet topic elect --help'}"
            )


def _role(broker: BrokerInfo) -> str:
    return ", ".join(word for word in ("controller", "draining") if getattr(broker, word))


def _unwell_row(topic: TopicInfo, one: PartitionInfo) -> list[object]:
    if one.conflicts:
        state = "conflict"
    elif one.leader is None:
        state = "offline"
    else:
        state = "refuses acks=all" if topic.config.refuses_acks_all(len(one.in_sync)) else "behind"
    return [topic.name, one.partition, one.leader or "-", brokers_text(one.replicas), brokers_text(one.in_sync), state]
