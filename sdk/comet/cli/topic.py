"""`comet topic`: creates, shows, alters and deletes topics; moves partitions, elects leaders, deletes records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from comet.admin.acts import OPERATIONS
from comet.admin.documents import document
from comet.cli._acts import act_command, add_commands, title
from comet.cli._guard import guarded
from comet.cli._listing import is_pattern, matching, note_left_out, topic_totals
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json, Settings, Topic, Yes, complete_topic
from comet.cli._output import note, print_fields, print_json, print_table
from comet.cli._topic_flags import given_settings, with_setting_flags
from comet.cli._values import brokers_text, setting_of
from comet.entities import TopicInfo
from comet.errors import InvalidArgument
from comet.settings.topic import TOPIC_SETTINGS
from comet.units import count, format_bytes, least, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from comet import TopicAlteration, TopicDeletion
    from comet.entities import PartitionInfo, TopicDetails, TopicTotals
    from comet.settings.topic import TopicConfig

app = typer.Typer(help="Create, show, change and delete topics.", no_args_is_help=True)


@act_command(app, "CreateTopic")
@with_setting_flags(defaults=True)
@guarded
async def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Its name; several get the same settings.")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")] = 1,
    replicas: Annotated[
        int, typer.Option("--replicas", "-r", min=0, help="Replicas of each partition; 0: the cluster's default.")
    ] = 0,
    set_: Settings = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the topic exists.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
    **flags: str | None,
) -> None:
    import comet

    settings = given_settings(flags, set_)
    topics: list[TopicInfo] = []
    async with comet.Admin(bootstrap) as admin:
        for name in dict.fromkeys(names):
            try:
                topic = await admin.create_topic(name, partitions=partitions, replicas=replicas, **settings)
            except comet.TopicExists:
                if not if_missing:
                    raise
                topic = await admin.describe_topic(name)
                note(f"{name} exists already")
            else:
                if not json_output:
                    copies = f", {topic.replicas} replicas each" if topic.replicas > 1 else ""
                    print(f"created {topic.name} with {count(topic.partition_count, 'partition')}{copies}", flush=True)
            topics.append(topic)
    if json_output:
        documents = [document(topic, TopicInfo) for topic in topics]
        print_json(documents if len(names) > 1 else documents[0])


@act_command(app, "ListTopics")
@guarded
async def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet

    async with comet.Admin(bootstrap) as admin:
        topics = await admin.list_topics()
        if json_output:
            print_json([document(topic) for topic in topics])
            return
        totals = await topic_totals(admin, [topic.name for topic in topics])
    if not topics:
        note("no topics yet; create one: comet topic create NAME")
        return
    print_table(
        ["topic", "partitions", "replicas", "records", "size", "retention", "state"],
        [
            [
                topic.name,
                topic.partition_count,
                topic.replicas,
                *_totals_text(totals.get(topic.name)),
                _retention(topic.config),
                topic_state(topic),
            ]
            for topic in topics
        ],
    )
    note_left_out(len(topics), "topics", "records and sizes", "comet topic describe NAME")


def _totals_text(totals: TopicTotals | None) -> tuple[str, str]:
    if totals is None:
        return "-", "-"
    return (
        least(str(totals.records), complete=totals.complete),
        least(format_bytes(totals.bytes), complete=totals.complete),
    )


def topic_state(topic: TopicInfo) -> str:
    """The number of its partitions with a problem, by problem, or ok."""
    offline = sum(one.leader is None for one in topic.partitions)
    counts = {"offline": offline, "under-replicated": topic.under_replicated}
    return "; ".join(f"{number} {state}" for state, number in counts.items() if number) or "ok"


@act_command(app, "DescribeTopic")
@guarded
async def describe(name: Topic, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet

    async with comet.Admin(bootstrap) as admin:
        topic = await admin.describe_topic(name)
    if json_output:
        print_json(document(topic))
        return
    print_fields({"topic": topic.name, "id": topic.id.hex(), "created": time_text(topic.created_us)})
    print()
    _print_settings(topic)
    print()
    _print_partitions(topic)


@act_command(
    app,
    "AlterTopic",
    more="Can also add partitions. Asks first if records are deleted.",
)
@with_setting_flags(defaults=False)
@guarded
async def alter(
    name: Topic,
    set_: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="A setting that gets the cluster's default again; may repeat."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="The new number of partitions; not lower.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
    **flags: str | None,
) -> None:
    import comet

    settings = given_settings(flags, set_)
    reset = [setting_of(one).name for one in unset or []]
    if not settings and not reset and partitions is None:
        raise InvalidArgument("nothing to change: give --NAME VALUE, --unset NAME or --partitions COUNT")
    async with comet.Admin(bootstrap) as admin:
        change = settings or reset
        plan = await admin.alter_topic(name, unset=reset, dry_run=True, **settings) if change else None
        if partitions is not None:
            added = await admin.add_partitions(name, partitions, dry_run=True)
        if not dry_run:
            if plan is not None and (plan.records or not plan.complete) and not yes:
                typer.confirm(f"{title('alterTopic', topic=name)}? {_deleted(plan)}.", abort=True, err=True)
            if change:
                plan = await admin.alter_topic(name, unset=reset, **settings)
            if partitions is not None:
                added = await admin.add_partitions(name, partitions)
        topic = await admin.describe_topic(name)
    if json_output:
        effect = {"dry_run": dry_run, "records": 0 if plan is None else plan.records}
        print_json(document(plan.after if dry_run and plan is not None else topic, TopicInfo) | effect)
        return
    changes = {} if plan is None else _changes(plan, [*settings, *reset])
    if partitions is not None:
        changes["partitions"] = added.before, added.after
    if dry_run:
        print_fields(
            {"topic": topic.name} | {name: f"{before} -> {after}" for name, (before, after) in changes.items()}
        )
    else:
        print(f"{topic.name}: " + ", ".join(f"{name}={after}" for name, (_, after) in changes.items()))
    if plan is not None and (dry_run or plan.records):
        note(_deleted(plan))


@act_command(app, "DeleteTopic", more="Takes several names, and patterns in quotation marks, such as 'test-*'.")
@guarded
async def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", autocompletion=complete_topic, help="A name, or a pattern with * ? [abc]."),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet

    single = len(names) == 1 and not is_pattern(names[0])
    async with comet.Admin(bootstrap) as admin:
        found = matching(names, [topic.name for topic in await admin.list_topics()])
        plans = [] if yes and not dry_run else [await admin.delete_topic(name, dry_run=True) for name in found]
        if plans and not single and not json_output:
            print_table(["topic", "partitions", "records", "size", "groups"], [_deletion_row(plan) for plan in plans])
        if dry_run:
            _show_deletions(plans, single=single, json_output=json_output, printed=not single)
            return
        if not yes:
            typer.confirm(_deletion_question(plans), abort=True, err=True)
        done: list[TopicDeletion] = []
        for name in found:
            done.append(await admin.delete_topic(name))
            if not json_output:
                print(done[-1], flush=True)
    _show_deletions(done, single=single, json_output=json_output, printed=True)


def _show_deletions(plans: Sequence[TopicDeletion], *, single: bool, json_output: bool, printed: bool) -> None:
    if json_output:
        documents = [document(plan) for plan in plans]
        print_json(documents[0] if single else documents)
    elif not printed:
        print(plans[0])


def _deletion_row(plan: TopicDeletion) -> list[object]:
    records = least(str(plan.records), complete=plan.complete)
    groups = ", ".join(group.name for group in plan.groups) or "-"
    return [plan.topic, plan.partitions, records, format_bytes(plan.bytes), groups]


def _deletion_question(plans: Sequence[TopicDeletion]) -> str:
    _, route = OPERATIONS["deleteTopic"]
    assert route.dialog is not None
    if len(plans) == 1:
        held = str(plans[0])
        return f"{title('deleteTopic', topic=plans[0].topic)}? {held[:1].upper()}{held[1:]}. {route.dialog.note}"
    held = least(count(sum(plan.records for plan in plans), "record"), complete=all(plan.complete for plan in plans))
    return f"Delete {count(len(plans), 'topic')}? {held}. {route.dialog.note}"


def _changes(plan: TopicAlteration, names: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """The values of settings before and after, as texts."""
    states = (plan.before.config, plan.after.config)
    return {name: tuple(TOPIC_SETTINGS[name].format(getattr(state, name)) for state in states) for name in names}


def _deleted(plan: TopicAlteration) -> str:
    size = format_bytes(plan.bytes)
    return (
        f"Retention deletes {least(count(plan.records, 'record'), complete=plan.complete)} ({size}) at its next check"
    )


def _print_settings(topic: TopicDetails) -> None:
    """One row per setting; its default is that of the broker which answered."""
    print_table(
        ["setting", "value", "source", "default"],
        [
            [
                name,
                row.format(getattr(topic.config, name)),
                topic.source(name).value,
                row.format(getattr(topic.defaults, name)),
            ]
            for name, row in TOPIC_SETTINGS.items()
        ],
    )


def _print_partitions(topic: TopicDetails) -> None:
    """One row per partition; its offsets are unknown without a leader."""
    print_table(
        [
            *("partition", "leader", "epoch", "replicas", "in sync"),
            *("first", "next", "records", "size"),
            "segments",
            "state",
        ],
        [
            [
                one.partition,
                one.leader or "-",
                one.leader_epoch,
                brokers_text(one.replicas),
                brokers_text(one.in_sync),
                *("-" if figure is None else figure for figure in (one.log_start, one.log_end, one.records)),
                "-" if one.bytes is None else format_bytes(one.bytes),
                "-" if one.segments is None else one.segments,
                partition_state(topic, one),
            ]
            for one in topic.partitions
        ],
    )


def partition_state(topic: TopicInfo, partition: PartitionInfo) -> str:
    """The problems of a partition, or ok."""
    states = [f"broker {one.broker} in conflict" for one in partition.conflicts]
    if partition.leader is None:
        states.append("offline")
    elif topic.config.refuses_acks_all(len(partition.in_sync)):
        states.append("refuses acks=all")
    states += ["under-replicated"] if partition.under_replicated else []
    states += ["takes no writes: disk failed"] if partition.failed else []
    states += [f"lost {one.first}..{one.end - 1}" for one in partition.lost or ()]
    return "; ".join(states) or "ok"


def _retention(config: TopicConfig) -> str:
    limits = [
        (row := TOPIC_SETTINGS[name]).format(limit) + (f" {row.unit}" if row.unit == "records" else "")
        for name, limit in config.retention().items()
    ]
    return ", ".join(limits) or "forever"


add_commands(app, "topic")
