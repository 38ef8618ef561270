"""`comet dead-letters`: lists, shows, redrives and discards dead letters. The index and the redrive are the gateway's:
what one of them settles, the other one shows."""

from __future__ import annotations

import getpass
import math
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, DryRun, Json, Topic, Yes, complete_topic
from comet.cli._output import note, print_fields, print_json, print_table
from comet.errors import CometError, InvalidArgument, OffsetOutOfRange, TopicNotFound, from_code
from comet.units import count, time_text

if TYPE_CHECKING:
    from comet import Admin, Reader
    from comet_gateway.dead_letters.dead_letter import DeadLetter, DeadLetterOffset
    from comet_gateway.dead_letters.index import DeadLetterIndex
    from comet_gateway.dead_letters.redrive import RedriveFailure, RedriveProgress, Task
    from comet_gateway.dead_letters.registry import DeadLetterIndexes
    from comet_gateway.dead_letters.selection import Filter
    from comet_gateway.http.problems import Problem

app = typer.Typer(help="List, show, redrive and discard dead letters.", no_args_is_help=True)

LIMIT: Final = 50
RATE: Final = 100.0  # dead letters a second
FAILURES_SHOWN: Final = 5
_ID: Final = re.compile(r"([0-9]{1,6})/([0-9]{1,19})", re.ASCII)


class StateFilter(Enum):
    """The states of dead letters, for --state."""

    PENDING = "pending"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


OptionalTopic = Annotated[
    str | None, typer.Argument(metavar="TOPIC", autocompletion=complete_topic, help="A dead-letter topic.")
]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="PARTITION/OFFSET", help="Dead letters; or give --all, or filters.")
]
All = Annotated[bool, typer.Option("--all", help="All pending dead letters of the topic.")]
ByGroup = Annotated[str | None, typer.Option("--group", "-g", help="Only of this group.")]
ByReason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Only with this in the reason.")]
BySource = Annotated[str | None, typer.Option("--source", metavar="TOPIC", help="Only of records of this topic.")]
Rate = Annotated[float, typer.Option("--rate", min=0.1, max=100_000, help="Dead letters a second, at most.")]


@app.command("list")
@guarded
async def list_(
    topic: OptionalTopic = None,
    state: Annotated[StateFilter | None, typer.Option("--state", help="Only in this state.")] = None,
    group: ByGroup = None,
    reason: ByReason = None,
    source: BySource = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most this many.")] = LIMIT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """List the topics that hold dead letters, by group and cause; or the newest dead letters of a topic."""
    async with _indexes(bootstrap) as (_, _reader, indexes):
        if topic is None:
            if (state, group, reason, source) != (None, None, None, None):
                raise InvalidArgument("--state, --group, --reason and --source are for one topic: give its name")
            await _list_topics(indexes, json_output)
            return
        found = await _complete(indexes, topic)
        await _list_of_topic(found, _filter(state, group, reason, source), limit, json_output)


@app.command("show")
@guarded
async def show(
    topic: Topic,
    id_: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="As comet dead-letters list has it.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Show one dead letter: where it comes from, why it failed, its headers and value."""
    from comet.cli._records import render

    at = _parse_ids([id_])[0]
    async with _indexes(bootstrap) as (_, reader, indexes):
        dead_letter = (await _complete(indexes, topic)).dead_letter(at)
        if dead_letter is None:
            raise OffsetOutOfRange(
                f"{topic} {id_} is not a dead letter", details={"hint": f"list them: comet dead-letters list {topic}"}
            )
        fetched = await reader.fetch(topic, at.partition, at.offset, records_max=1)
    record = next(record for batch in fetched.batches for record in batch.records())
    row = (record.offset, record.timestamp_us, record.key, record.value, record.headers)
    if json_output:
        import json

        print_json(dead_letter.fields() | {"record": json.loads(render("json", topic, at.partition)(row))})
        return
    print_fields(_fields(dead_letter))
    print("\nheaders")
    for name, content in record.headers:
        print(f"  {name}: {content.decode(errors='replace')}")
    print("\nvalue")
    sys.stdout.flush()
    sys.stdout.buffer.write(render("value", topic, at.partition)(row))
    sys.stdout.buffer.flush()


@app.command("redrive")
@guarded
async def redrive(
    topic: Topic,
    ids: Ids = None,
    every: All = False,
    group: ByGroup = None,
    reason: ByReason = None,
    source: BySource = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Write them there, not to the topic they come from.")
    ] = None,
    rate: Rate = RATE,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Write pending dead letters to their topic again, each once. Every group that reads the topic gets them."""
    chosen = Choice(topic, ids or [], every, group, reason, source)
    await _settle("redriven", chosen, to or "", rate, dry_run, yes, bootstrap, json_output)


@app.command("discard")
@guarded
async def discard(
    topic: Topic,
    ids: Ids = None,
    every: All = False,
    group: ByGroup = None,
    reason: ByReason = None,
    source: BySource = None,
    rate: Rate = RATE,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Mark pending dead letters as discarded. They stay in the log until retention deletes them."""
    chosen = Choice(topic, ids or [], every, group, reason, source)
    await _settle("discarded", chosen, "", rate, dry_run, yes, bootstrap, json_output)


# ---- reading


@asynccontextmanager
async def _indexes(bootstrap: str) -> AsyncIterator[tuple[Admin, Reader, DeadLetterIndexes]]:
    import comet
    from comet_gateway.config import Limits
    from comet_gateway.dead_letters.registry import DeadLetterIndexes

    async with comet.Admin(bootstrap) as admin, comet.Reader(bootstrap) as reader:
        yield admin, reader, DeadLetterIndexes(admin, reader, Limits())


async def _complete(indexes: DeadLetterIndexes, topic: str) -> DeadLetterIndex:
    """The index of a topic, with all records in reach."""
    found = await indexes.topic_index(topic, math.inf)
    if found.older:
        note(f"{count(found.older, 'older record')} of {topic} are not searched: only the newest {found.records:,} are")
    return found


async def _list_topics(indexes: DeadLetterIndexes, json_output: bool) -> None:
    inspected = -1
    while True:
        progress = await indexes.discover(math.inf)
        if progress.inspected >= progress.topics or progress.inspected == inspected:
            break
        inspected = progress.inspected
    rows = [
        (one.topic, group, cause, counts)
        for one in indexes.known()
        for (group, cause), counts in sorted(one.counts.items(), key=lambda item: -item[1].newest_us)
    ]
    if json_output:
        print_json(
            [
                {"topic": topic, "group": group, "cause": cause, "newest_us": str(counts.newest_us)}
                | {state.value: counts.states[_state(state)] for state in StateFilter}
                for topic, group, cause, counts in rows
            ]
        )
    elif not rows:
        note("no dead letters; a share group writes them to its dead-letter topic: dead_letter=TOPIC")
    else:
        print_table(
            ["topic", "group", "pending", "redriven", "discarded", "newest", "cause"],
            [
                [topic, group or "-", *(counts.states[_state(state)] for state in StateFilter),
                 time_text(counts.newest_us), cause]
                for topic, group, cause, counts in rows
            ],
        )  # fmt: skip


def _state(state: StateFilter) -> Any:
    from comet_gateway.dead_letters.dead_letter import DeadLetterState

    return DeadLetterState(state.value)


async def _list_of_topic(index: DeadLetterIndex, wanted: Filter, limit: int, json_output: bool) -> None:
    from comet_gateway.dead_letters.selection import newest

    found, matched = await newest(index, wanted, limit)
    if json_output:
        print_json([_document(one) for one in found])
        return
    if not found:
        note(
            f"{index.topic} has no such dead letters"
            if any(index.dead_letters())
            else f"no dead letters in {index.topic}"
        )
        return
    print_table(
        ["dead letter", "time", "source", "group", "attempts", "state", "reason"],
        [
            [
                f"{one.partition}/{one.offset}",
                time_text(one.time_us),
                f"{one.topic}/{one.source_partition}/{one.source_offset}",
                one.group or "-",
                one.attempts,
                one.state.value,
                one.reason.split("\n", 1)[0],
            ]
            for one in found
        ],
    )
    if matched > len(found):
        note(f"the newest {len(found)} of {matched:,}: --limit shows more")


def _filter(state: StateFilter | None, group: str | None, reason: str | None, source: str | None) -> Filter:
    from comet_gateway.dead_letters.selection import Filter

    return Filter(None if state is None else _state(state), group, None, reason, source)


def _document(one: DeadLetter) -> dict[str, Any]:
    """The members of the gateway's document; 64-bit numbers are strings."""
    found = one.fields() | {
        "timestamp_us": one.time_us,
        "to": one.to or None,
        "by": one.by or None,
    }
    wide = ("offset", "source_offset", "timestamp_us")
    return {name: str(value) if name in wide else value for name, value in found.items()} | {"bytes": str(one.size)}


def _fields(one: DeadLetter) -> dict[str, object]:
    settled = f" to {one.to}" if one.to else ""
    by = f" by {one.by}" if one.by else ""
    return {
        "dead letter": f"{one.partition}/{one.offset}",
        "state": f"{one.state.value}{settled}{by}",
        "source": f"{one.topic}/{one.source_partition}/{one.source_offset}",
        "time": time_text(one.time_us),
        "group": one.group or "-",
        "attempts": one.attempts,
        "redriven before": one.times,
        "key": "-" if one.key is None else one.key.decode(errors="replace"),
        "reason": one.reason,
    }


# ---- settling


@dataclass(frozen=True, slots=True)
class Choice:
    """The dead letters that a command names: by id, all, or by filters."""

    topic: str
    ids: Sequence[str]
    every: bool
    group: str | None
    reason: str | None
    source: str | None

    def check(self) -> None:
        """Raises InvalidArgument unless it names dead letters in one way."""
        filtered = (self.group, self.reason, self.source) != (None, None, None)
        if bool(self.ids) + self.every + filtered != 1:
            raise InvalidArgument("give PARTITION/OFFSET of dead letters, or --all, or --group, --reason or --source")


def _parse_ids(texts: Sequence[str]) -> list[DeadLetterOffset]:
    from comet_gateway.dead_letters.dead_letter import DeadLetterOffset

    found = []
    for text in texts:
        match = _ID.fullmatch(text)
        if match is None:
            raise InvalidArgument(f"invalid dead letter {text!r}: use PARTITION/OFFSET, such as 0/17")
        found.append(DeadLetterOffset(int(match[1]), int(match[2])))
    return found


async def _settle(
    state: str, choice: Choice, to: str, rate: float, dry_run: bool, yes: bool, bootstrap: str, json_output: bool
) -> None:
    from comet_gateway.dead_letters.dead_letter import DeadLetterState
    from comet_gateway.dead_letters.redrive import Task
    from comet_gateway.dead_letters.selection import fitting, named

    choice.check()
    ids = _parse_ids(choice.ids)
    async with _indexes(bootstrap) as (admin, reader, indexes):
        index = await _complete(indexes, choice.topic)
        wanted = _filter(None, choice.group, choice.reason, choice.source)
        chosen = named(index, ids) if ids else await fitting(index, wanted)
        if chosen.unknown:
            names = ", ".join(f"{partition}/{offset}" for partition, offset in chosen.unknown)
            raise OffsetOutOfRange(
                f"not dead letters of {choice.topic}: {names}",
                details={"hint": f"list them: comet dead-letters list {choice.topic}"},
            )
        targets = (
            Counter(to or dead_letter.topic for dead_letter in chosen.dead_letters)
            if state == "redriven"
            else Counter()
        )
        partitions = {one.name: one.partition_count for one in await admin.list_topics() if one.name in targets}
        missing = sorted(targets.keys() - partitions.keys())
        effect = _effect(state, len(chosen.dead_letters), targets)
        if missing and to:
            raise TopicNotFound(f"topic {to!r} does not exist", details={"topic": to})
        plan = {
            "dry_run": dry_run, "topic": choice.topic, "dead_letters": len(chosen.dead_letters),
            "settled": chosen.settled, "targets": dict(targets), "missing": missing,
        }  # fmt: skip
        if not json_output:
            for name in missing:
                note(f"topic {name} does not exist: its dead letters fail, or go to another topic with --to")
            if chosen.settled:
                note(f"settled before: {count(chosen.settled, 'dead letter')}")
        if dry_run or not chosen.dead_letters:
            print_json(plan) if json_output else print(effect)
            return
        if not yes:
            typer.confirm(f"{effect}?", abort=True, err=True)
        task = Task(DeadLetterState(state), chosen.dead_letters, rate, getpass.getuser(), to, None, partitions)
        done = await _run(bootstrap, index, reader, task, quiet=json_output)
    if json_output:
        print_json(plan | {"done": done.done, "already": done.already, "failed": done.failed, "stopped": done.stopped})
    else:
        again = f", {done.already:,} by an earlier run" if done.already else ""
        print(
            f"{state} {count(done.done, 'dead letter')}{again}" + (f"; {done.failed:,} failed" if done.failed else "")
        )
    if done.problem is not None:
        raise _error(done.problem)
    if done.failed:
        raise typer.Exit(1)


async def _run(bootstrap: str, index: DeadLetterIndex, reader: Reader, task: Task, *, quiet: bool) -> RedriveProgress:
    """Does the task. Prints the first failures, and progress on a terminal."""
    import comet
    from comet_gateway.dead_letters.redrive import RedriveProgress, Settling

    shown = 0
    last: RedriveProgress | None = None
    async with comet.Producer(bootstrap, acks="all") as producer:
        settling = Settling(index, reader, producer, task)
        async with aclosing(settling.events()) as events:
            async for event in events:
                if isinstance(event, RedriveProgress):
                    last = event
                    _print_progress(event, quiet)
                elif shown < FAILURES_SHOWN and not quiet:
                    shown += 1
                    _print_failure(event)
    assert last is not None
    return last


def _print_progress(progress: RedriveProgress, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        end = "\n" if progress.over else ""
        print(
            f"\r{progress.done + progress.already:,} of {progress.dead_letters:,}", end=end, file=sys.stderr, flush=True
        )


def _print_failure(failure: RedriveFailure) -> None:
    dead_letter, problem = failure.dead_letter, failure.problem
    note(f"failed: {dead_letter.partition}/{dead_letter.offset}: {problem.detail} [{problem.code}]")


def _effect(state: str, dead_letters: int, targets: Counter[str]) -> str:
    """The effect in one line.

    >>> _effect("redriven", 3, Counter({"orders": 2, "bills": 1}))
    'Redrive 3 dead letters: 2 to orders, 1 to bills'
    """
    verb = "Redrive" if state == "redriven" else "Discard"
    where = ", ".join(f"{number:,} to {topic}" for topic, number in targets.most_common())
    return f"{verb} {count(dead_letters, 'dead letter')}" + (f": {where}" if where else "")


def _error(problem: Problem) -> CometError:
    """The error of the command for a problem that ended a redrive."""
    return from_code(problem.code, problem.detail)
