"""`comet topic`: create, list, describe, alter, delete topics; add partitions; delete records."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Settings, Topic, Yes
from comet.cli._output import note, print_fields, print_json, print_table
from comet.cli._values import format_bytes, format_setting, parse_settings
from comet.errors import InvalidArgument
from comet.types import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from comet.types import PartitionStatus, TopicInfo

app = typer.Typer(help="Create, look at, change and delete topics.", no_args_is_help=True)


@app.command("create")
@guarded
async def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = 1,
    set_: Settings = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if it exists already.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Create a topic."""
    import comet

    settings = parse_settings(set_ or [])
    async with comet.Admin(bootstrap) as admin:
        try:
            topic = await admin.create_topic(name, partitions=partitions, **settings)
        except comet.TopicExists:
            if not if_missing:
                raise
            topic, _ = await admin.describe_topic(name)
            note(f"{name} exists already")
    if json_output:
        print_json(topic_document(topic))
    else:
        print(f"created {topic.name} with {_count(len(topic.partitions), 'partition')}")


@app.command("list")
@guarded
async def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    """List all topics."""
    import comet

    async with comet.Admin(bootstrap) as admin:
        topics = await admin.list_topics()
    if json_output:
        print_json([topic_document(topic) for topic in topics])
        return
    if not topics:
        note("no topics yet; make one: comet topic create NAME")
        return
    print_table(
        ["topic", "partitions", "retention", "flush"],
        [[topic.name, len(topic.partitions), _retention(topic.config), topic.config.flush.value] for topic in topics],
    )


@app.command("describe")
@guarded
async def describe(name: Topic, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    """Show a topic's settings and what its partitions hold."""
    import comet

    async with comet.Admin(bootstrap) as admin:
        topic, partitions = await admin.describe_topic(name)
    if json_output:
        print_json(topic_document(topic) | {"status": [_status_document(status) for status in partitions]})
        return
    print_fields(
        {"topic": topic.name, "id": topic.id.hex(), "created": _when(topic.created_us)}
        | {setting: format_setting(setting, getattr(topic.config, setting)) for setting in TopicConfig.names()}
    )
    print()
    _print_partitions(topic, partitions)


@app.command("alter")
@guarded
async def alter(
    name: Topic,
    set_: Settings = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to this many partitions.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Change a topic's settings, or give it more partitions (keys then move between partitions)."""
    import comet

    settings = parse_settings(set_ or [])
    if not settings and partitions is None:
        raise InvalidArgument("nothing to change: give --set NAME=VALUE or --partitions COUNT")
    async with comet.Admin(bootstrap) as admin:
        if settings:
            topic = await admin.alter_topic(name, **settings)
        if partitions is not None:
            topic = await admin.add_partitions(name, partitions)
    if json_output:
        print_json(topic_document(topic))
        return
    changed = {setting: format_setting(setting, getattr(topic.config, setting)) for setting in settings}
    if partitions is not None:
        changed["partitions"] = str(len(topic.partitions))
    print(f"{topic.name}: " + ", ".join(f"{setting}={value}" for setting, value in changed.items()))


@app.command("delete")
@guarded
async def delete(
    name: Topic, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False
) -> None:
    """Delete a topic and all it holds."""
    import comet

    async with comet.Admin(bootstrap) as admin:
        _, partitions = await admin.describe_topic(name)
        if not yes:
            records = sum(status.log_end - status.log_start for status in partitions)
            typer.confirm(f"Delete {name} with {_count(records, 'record')}?", abort=True, err=True)
        await admin.delete_topic(name)
    print_json({"deleted": name}) if json_output else print(f"deleted {name}")


@app.command("delete-records")
@guarded
async def delete_records(
    name: Topic,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Which partition.")],
    before: Annotated[int, typer.Option("--before", min=-1, help="First offset to keep; -1: keep nothing.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Delete the oldest records of one partition."""
    import comet

    if not yes:
        what = "all records" if before == -1 else f"all records before offset {before}"
        typer.confirm(f"Delete {what} of {name}/{partition}?", abort=True, err=True)
    async with comet.Admin(bootstrap) as admin:
        log_start = await admin.delete_records(name, partition, None if before == -1 else before)
    if json_output:
        print_json({"topic": name, "partition": partition, "log_start": log_start})
    else:
        print(f"{name}/{partition} now starts at offset {log_start}")


def topic_document(topic: TopicInfo) -> dict[str, Any]:
    """A topic as --json shows it, here and in other commands."""
    config: dict[str, Any] = {name: getattr(topic.config, name) for name in TopicConfig.names()}
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "created_us": topic.created_us,
        "config": config | {"flush": topic.config.flush.value},
        "partitions": [
            {
                "index": partition.index,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "in_sync": list(partition.in_sync),
            }
            for partition in topic.partitions
        ],
    }


def _status_document(status: PartitionStatus) -> dict[str, Any]:
    return {
        "index": status.index,
        "log_start": status.log_start,
        "log_end": status.log_end,
        "high_watermark": status.high_watermark,
        "bytes": status.bytes,
        "segments": status.segments,
        "failed": status.failed,
        "lost": [list(span) for span in status.lost],
    }


def _print_partitions(topic: TopicInfo, partitions: Sequence[PartitionStatus]) -> None:
    leader = {partition.index: partition.leader for partition in topic.partitions}
    print_table(
        ["partition", "leader", "first", "next", "records", "size", "segments", "state"],
        [
            [
                status.index,
                leader.get(status.index, "-"),
                status.log_start,
                status.log_end,
                status.log_end - status.log_start,
                format_bytes(status.bytes),
                status.segments,
                _state(status),
            ]
            for status in partitions
        ],
    )


def _state(status: PartitionStatus) -> str:
    lost = ", ".join(f"{first}..{end - 1}" for first, end in status.lost)
    states = ["takes no writes: disk failed"] if status.failed else []
    return "; ".join([*states, *([f"lost {lost}"] if lost else [])]) or "ok"


def _retention(config: TopicConfig) -> str:
    limits = [
        format_setting(name, getattr(config, name)) + (" events" if name == "retention_events" else "")
        for name in ("retention_ms", "retention_bytes", "retention_events")
        if getattr(config, name) >= 0
    ]
    return ", ".join(limits) or "forever"


def _when(timestamp_us: int) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(timestamp_us / 1e6, UTC).isoformat(timespec="seconds")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
