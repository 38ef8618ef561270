"""`comet group`: shows groups, their members and lag; resets and deletes their committed offsets."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.admin.documents import document
from comet.cli._acts import act_command, add_commands, title
from comet.cli._guard import guarded
from comet.cli._lag import history_rows, lag_table, lag_totals, partitions_text, topic_trends, unwritten
from comet.cli._listing import group_lags, note_left_out
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Group, Json, Yes
from comet.cli._output import note, print_fields, print_json, print_table
from comet.cli._values import format_age
from comet.errors import InvalidArgument
from comet.types import position
from comet.units import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from comet import Admin
    from comet.types import GroupInfo, GroupMember, GroupSummary, ResetPartition

app = typer.Typer(help="Show groups and their lag; set and delete their committed offsets.", no_args_is_help=True)

WATCH_S: Final = 1.0  # the coordinator measures once a second, too
HISTORY_POINTS: Final = 60
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"


@act_command(app, "ListGroups")
@guarded
async def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet

    async with comet.Admin(bootstrap) as admin:
        groups = await admin.list_groups()
        if json_output:
            print_json([document(group) for group in groups])
            return
        lags = await group_lags(admin, [group.name for group in groups])
    if not groups:
        note("no groups yet; a consumer creates one: comet consume TOPIC --group NAME")
        return
    print_table(
        ["group", "kind", "state", "members", "lag", "age", "drained in", "topics"],
        [
            [
                one.name,
                one.kind,
                one.state,
                one.members,
                *lag_totals(lags.get(one.name)),
                ", ".join(one.topics) or "-",
            ]
            for one in groups
        ],
    )
    note_left_out(len(groups), "groups", "lag", "comet group lag NAME")


@act_command(app, "DescribeGroup")
@guarded
async def describe(name: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json_output: Json = False) -> None:
    import comet

    async with comet.Admin(bootstrap) as admin:
        group = await admin.describe_group(name)
    if json_output:
        print_json(group_document(group))
        return
    summary = group.summary
    print_fields(_summary_fields(summary))
    if group.members:
        print()
        print_table(
            ["member", "instance", "client", "owns", "gives up", "assignment", "rack", "last heard", "session"],
            [_member_row(member) for member in group.members],
        )
    else:
        note("the group has no members now")
    if group.lags:
        print()
        _print_lags(group)


def _print_lags(group: GroupInfo) -> None:
    print_table(*lag_table(group.lags, shared=group.summary.kind == "share"))
    for line in unwritten(group.lags):
        note(line)


@act_command(app, "GroupLag")
@guarded
async def lag(
    name: Group,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat every second, until Ctrl-C.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Past lag, as far back as the coordinator keeps it.")
    ] = False,
    points: Annotated[
        int, typer.Option("--points", min=2, max=10_000, help="With --history: the most moments of each topic.")
    ] = HISTORY_POINTS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import asyncio

    import comet

    async with comet.Admin(bootstrap) as admin:
        await _show_lag(admin, name, history=history, points=points, json_output=json_output)
        while watch:
            await asyncio.sleep(WATCH_S)
            if sys.stdout.isatty():
                sys.stdout.write(_HOME_AND_CLEAR)
            elif not json_output:
                print()
            await _show_lag(admin, name, history=history, points=points, json_output=json_output)


async def _show_lag(admin: Admin, name: str, *, history: bool, points: int, json_output: bool) -> None:
    if not history and not json_output:
        group = await admin.describe_group(name)
        if not group.lags:
            note(f"group {name} has no partitions and no committed offsets")
        else:
            _print_lags(group)
    else:
        found = await admin.group_lag(name, points=points)
        if json_output:
            left_out = () if history else ("history",)
            print_json({name: value for name, value in document(found).items() if name not in left_out})
        elif not found.history:
            note("no history yet: the coordinator measures once a second")
        else:
            print_table(["topic", "now", "most", "for", "lag over time"], topic_trends(found.history))
            if rows := history_rows(found.history):
                print()
                print_table(["time", "topic", "lag", "age", "committed", "end"], rows)
            else:
                note("there was no lag in that time")
    sys.stdout.flush()


@act_command(app, "ResetGroup", more="Shows the effect and asks for confirmation.")
@guarded
async def reset(
    name: Group,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help="earliest, latest, an offset, -15m, or 2026-01-31T12:00:00Z."),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option("--shift", metavar="RECORDS", help="Move by this number of records; negative: back."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:P,P]", help="Only this topic or these partitions; may repeat."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    import comet

    if (to is None) == (shift is None):
        raise InvalidArgument("give either --to POSITION or --shift RECORDS")
    # The plan and the reset use the same moment.
    where = None if to is None else position(to, now_us=time.time_ns() // 1000)
    topics = parse_topics(topic or [])
    async with comet.Admin(bootstrap) as admin:
        plan = await admin.reset_group(name, where, shift=shift, topics=topics, dry_run=True)
        if not json_output:
            _print_plan(plan)
        if dry_run or not plan:
            if json_output:
                print_json(_reset_document(name, plan, dry_run=dry_run))
            elif not plan:
                note(f"group {name} has no committed offsets; set some with --topic TOPIC")
            return
        if not yes:
            typer.confirm(f"{title('resetGroup', group=name)}? {_effect(plan)}", abort=True, err=True)
        done = await admin.reset_group(name, where, shift=shift, topics=topics)
    if json_output:
        print_json(_reset_document(name, done, dry_run=False))
    else:
        print(f"group {name}: {count(len(done), 'partition')} set; {_effect(done)}")


_TOPIC: Final = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")


def parse_topics(words: Sequence[str]) -> list[str | tuple[str, int]]:
    """Topics and single partitions, from `quotes` and `quotes:0,2`.

    >>> parse_topics(["quotes", "orders:0,2"])
    ['quotes', ('orders', 0), ('orders', 2)]
    """
    found: list[str | tuple[str, int]] = []
    for word in words:
        match = _TOPIC.fullmatch(word)
        if match is None:
            raise InvalidArgument(f"invalid --topic {word!r}: use TOPIC, or TOPIC:P,P for some of its partitions")
        found += [match[1]] if match[2] is None else [(match[1], int(index)) for index in match[2].split(",")]
    return found


def group_document(group: GroupInfo) -> dict[str, Any]:
    """A group as a document of --json."""
    return document(group.summary) | {
        "members": [document(member) for member in group.members],
        "partitions": [document(one) for one in group.lags],
    }


def _summary_fields(summary: GroupSummary) -> dict[str, object]:
    return {
        "group": summary.name,
        "kind": summary.kind,
        "state": summary.state,
        "coordinator": f"broker {summary.coordinator}",
        "generation": summary.generation,
        **({"assignment": summary.assignment} if summary.assignment else {}),
        "topics": ", ".join(summary.topics) or "-",
    }


def _member_row(member: GroupMember) -> list[object]:
    return [
        member.id,
        member.instance or "-",
        member.client or "-",
        partitions_text(member.owned),
        partitions_text(member.release),
        member.assignment or "-",
        member.rack or "-",
        f"{format_age(member.silent_ms / 1000)} ago",
        format_age(member.session_timeout_ms / 1000),
    ]


def _reset_document(name: str, changes: Sequence[ResetPartition], *, dry_run: bool) -> dict[str, Any]:
    return {"group": name, "dry_run": dry_run, "partitions": [document(change) for change in changes]}


def _print_plan(plan: Sequence[ResetPartition]) -> None:
    if plan:
        print_table(
            ["topic", "partition", "before", "after", "skipped", "read again", "note"],
            [
                [
                    one.topic,
                    one.partition,
                    "-" if one.before is None else one.before,
                    one.after,
                    max(one.skipped, 0),
                    max(-one.skipped, 0),
                    one.note,
                ]
                for one in plan
            ],
        )


def _effect(changes: Sequence[ResetPartition]) -> str:
    """The effect of a reset, in one line.

    >>> _effect([])
    '0 records skipped, 0 read again'
    """
    skipped = sum(max(one.skipped, 0) for one in changes)
    again = sum(max(-one.skipped, 0) for one in changes)
    return f"{count(skipped, 'record')} skipped, {again:,} read again"


add_commands(app, "group")
