"""Routes of dead letters: list, redrive and discard them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field, WithJsonSchema

import comet
from comet_gateway.config import Limits
from comet_gateway.dead_letters import selection
from comet_gateway.dead_letters.dead_letter import DeadLetter, DeadLetterOffset, DeadLetterState
from comet_gateway.dead_letters.index import DeadLetterIndex
from comet_gateway.dead_letters.redrive import Edit, Settling, Task
from comet_gateway.dead_letters.registry import DeadLetterIndexes
from comet_gateway.http.problems import Problem, answers
from comet_gateway.routes.admin import STRICT, links
from comet_gateway.routes.redrive_answer import AnswerLines, SettlingSlots, Streamed
from comet_gateway.schemas import dead_letters as documents
from comet_gateway.schemas.dead_letters import (
    CauseCounts,
    Chosen,
    DeadLetterId,
    DeadLetterList,
    DeadLetterTopic,
    DeadLetterTopics,
    Discard,
    Redrive,
    Scanned,
    SettlingPlan,
    StateName,
    Target,
)
from comet_gateway.schemas.lists import PAGE, DryRun, Limit, TopicName
from comet_gateway.schemas.records import decode_body
from comet_gateway.search.answer import WalkAnswer

router = APIRouter(prefix="/v1", tags=["dead letters"], dependencies=STRICT)

SCAN_S: Final = 2.0  # of one scan; the next request continues it
SETTLE_SCAN_S: Final = 20.0  # of the scan for notes, before a change
CAUSES: Final = 100  # of one topic, in the list of all
TEXT_MAX: Final = 1_000
NDJSON: Final = "application/x-ndjson"
_ORDER: Final = re.compile(r"l1\.(\d{1,19})-(\d{1,6})-(\d{1,19})", re.ASCII)
_CURSOR: Final = {"type": "string", "pattern": "^(l1\\.[0-9]{1,19}-[0-9]{1,6}-[0-9]{1,19})?$"}
_CONTENT: Final = ("value", "text", "base64", "tombstone")


async def _indexes(request: Request) -> DeadLetterIndexes:
    found: DeadLetterIndexes = request.app.state.backend.dead_letters
    return found


IndexesOf = Annotated[DeadLetterIndexes, Depends(_indexes)]


def _until(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


# ---- lists


@router.get("/dead-letters", operation_id="listDeadLetterTopics", summary="List dead-letter topics")
async def list_topics(indexes: IndexesOf) -> DeadLetterTopics:
    """Lists topics with dead letters, and their counts by group and cause.

    A topic is listed if one of the newest records of a partition is a dead letter. All topics are inspected, a bounded
    number with each request: `scanned` of `topics` is the progress."""
    found = await indexes.discover(_until(SCAN_S))
    return DeadLetterTopics(
        items=[_topic(topic_index) for topic_index in indexes.known()], scanned=found.inspected, topics=found.topics
    )


def _topic(topic_index: DeadLetterIndex) -> DeadLetterTopic:
    states = topic_index.states()
    counts = sorted(topic_index.counts.items(), key=lambda item: (-item[1].states[DeadLetterState.PENDING], item[0]))
    return DeadLetterTopic(
        topic=topic_index.topic,
        pending=states[DeadLetterState.PENDING],
        redriven=states[DeadLetterState.REDRIVEN],
        discarded=states[DeadLetterState.DISCARDED],
        causes=[
            CauseCounts(
                group=group,
                cause=cause,
                pending=one.states[DeadLetterState.PENDING],
                redriven=one.states[DeadLetterState.REDRIVEN],
                discarded=one.states[DeadLetterState.DISCARDED],
                newest_us=one.newest_us,
                topics=sorted(+one.sources),
            )
            for (group, cause), one in counts[:CAUSES]
        ],
        causes_total=len(counts),
        scanned=scanned(topic_index),
    )


def scanned(topic_index: DeadLetterIndex) -> Scanned:
    return Scanned(
        records=topic_index.records, done=topic_index.scanned, older=topic_index.older, complete=topic_index.complete
    )


Text = Annotated[str | None, Field(max_length=TEXT_MAX)]


@router.get(
    "/dead-letters/{topic}",
    operation_id="listDeadLetters",
    summary="List dead letters of a topic",
    responses={
        **answers("TOPIC_NOT_FOUND", "MALFORMED_CURSOR"),
        200: links(
            readPartition={
                "parameters": {
                    "topic": "$request.path.topic",
                    "partition": "$response.body#/items/0/partition",
                    "offset": "$response.body#/items/0/offset",
                }
            },
        ),
    },
)
async def list_dead_letters(
    indexes: IndexesOf,
    topic: TopicName,
    limit: Limit = PAGE,
    cursor: Annotated[
        str,
        Query(description="`next` of the previous page."),
        WithJsonSchema(_CURSOR),
    ] = "",
    state: Annotated[StateName | None, Query(description="Only dead letters in this state.")] = None,
    group: Annotated[Text, Query(description="Only dead letters of this group.")] = None,
    cause: Annotated[Text, Query(description="Only dead letters with this cause, as in the counts.")] = None,
    reason: Annotated[
        Text, Query(description="Only dead letters whose reason contains this text, in any case.")
    ] = None,
    from_topic: Annotated[Text, Query(description="Only dead letters of records of this topic.")] = None,
    from_us: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="Only from this time on.")] = None,
    to_us: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="Only before this time.")] = None,
) -> DeadLetterList:
    """Lists dead letters in a topic, newest record first, page by page."""
    before = _order(cursor) if cursor else None
    topic_index = await indexes.topic_index(topic, _until(SCAN_S))
    wanted = selection.Filter(
        None if state is None else DeadLetterState(state), group, cause, reason, from_topic,
        None if from_us is None else int(from_us), None if to_us is None else int(to_us),
    )  # fmt: skip
    found, matched = await selection.newest(topic_index, wanted, limit + 1, before)
    more = len(found) > limit
    return DeadLetterList(
        items=[dead_letter_document(dead_letter) for dead_letter in found[:limit]],
        next="l1.{}-{}-{}".format(*selection.order(found[limit - 1])) if more else None,
        matched=matched,
        scanned=scanned(topic_index),
    )


def _order(cursor: str) -> selection.Order:
    found = _ORDER.fullmatch(cursor)
    if found is None:
        raise Problem("MALFORMED_CURSOR", f"{cursor!r} is not a cursor of dead letters")
    return int(found[1]), int(found[2]), int(found[3])


def dead_letter_document(dead_letter: DeadLetter) -> documents.DeadLetterItem:
    return documents.DeadLetterItem(
        **dead_letter.fields(),
        timestamp_us=dead_letter.time_us,
        bytes=dead_letter.size,
        to=dead_letter.to or None,
        by=dead_letter.by or None,
    )


# ---- settling

_LINES: Final = (
    "One JSON object a line: `plan`, as in a dry run; `progress`, repeatedly; `failure`, a dead letter with its "
    "problem, for the first 100 failures, which stay pending; last `end`, with `stopped` if some were not tried, or "
    "`problem`."
)
_EXAMPLE: Final = (
    '{"plan":{"dry_run":false,"topic":"orders-failed","dead_letters":1,"settled":0,"unknown":[],"targets":[{"topic":"orders",'
    '"dead_letters":1,"exists":true,"groups":["work"]}],"bytes":"12","seconds":0.01,"rate":100.0}}\n'
    '{"end":{"dead_letters":1,"done":1,"already":0,"failed":0,"stopped":false}}\n'
)


def _settled(*codes: str) -> dict[int | str, dict[str, Any]]:
    return {
        **answers("TOPIC_NOT_FOUND", "TOO_MANY_REQUESTS", "TIMEOUT", *codes),
        200: {
            "description": "With `dry_run` a document, otherwise lines of progress.",
            "content": {NDJSON: {"schema": {"type": "string", "description": _LINES}, "example": _EXAMPLE}},
        },
    }


@router.post(
    "/dead-letters/{topic}/redrive",
    operation_id="redriveDeadLetters",
    summary="Redrive dead letters",
    response_model=SettlingPlan,
    responses=_settled("RECORD_TOO_LARGE"),
)
async def redrive(
    request: Request, indexes: IndexesOf, topic: TopicName, body: Redrive, dry_run: DryRun = False
) -> SettlingPlan | Response:
    """Writes dead letters to their source topic, or another one, as new records: each once, however often it is
    requested.

    A redriven dead letter is marked by a note behind it, and is not redriven again. To stop, disconnect: writes under
    way are finished. Every group that reads the topic gets the records, not only the one that gave up."""
    edit = _edit(body.record) if body.record is not None else None
    return await _settle(request, indexes, topic, body, DeadLetterState.REDRIVEN, dry_run, body.to or "", edit)


@router.post(
    "/dead-letters/{topic}/discard",
    operation_id="discardDeadLetters",
    summary="Discard dead letters",
    response_model=SettlingPlan,
    responses=_settled(),
)
async def discard(
    request: Request, indexes: IndexesOf, topic: TopicName, body: Discard, dry_run: DryRun = False
) -> SettlingPlan | Response:
    """Marks dead letters as discarded, by a note behind each. They can still be read in the log."""
    return await _settle(request, indexes, topic, body, DeadLetterState.DISCARDED, dry_run)


async def _settle(
    request: Request,
    indexes: DeadLetterIndexes,
    topic: str,
    body: Chosen,
    state: DeadLetterState,
    dry_run: bool,
    to: str = "",
    edit: Edit | None = None,
) -> SettlingPlan | Response:
    app = request.app.state
    limits: Limits = app.config.limits
    if body.rate > limits.dead_letter_rate_max:
        raise Problem(
            "VALIDATION", f"rate must be at most {limits.dead_letter_rate_max} at this gateway, not {body.rate:g}"
        )
    topic_index = await indexes.topic_index(topic, _until(SETTLE_SCAN_S))
    if not topic_index.complete and not dry_run:
        raise Problem(
            "TIMEOUT",
            f"the gateway has scanned {topic_index.scanned} of {topic_index.records} records so far, and does not "
            "know yet which dead letters are still pending",
            hint="Send the request again: the scan continues.",
        )
    chosen = await _chosen(topic_index, body)
    task = Task(state, chosen.dead_letters, body.rate, request.scope["comet.principal"].name, to, edit)
    users, principal = app.users, request.scope["comet.principal"]
    targets = await _targets(users.admin_for(principal), task) if state is DeadLetterState.REDRIVEN else []
    await users.check(principal, [("write", "topic", target.topic) for target in targets])
    plan = _plan(topic, task, chosen, targets, dry_run)
    if dry_run:
        return plan
    if to and targets and not targets[0].exists:
        raise Problem("TOPIC_NOT_FOUND", f"topic {to!r} does not exist")
    task = replace(task, partitions=await _partitions(app.backend.catalog, targets))
    settling = Settling(topic_index, indexes.reader, app.backend.producers[comet.Acks.ALL], task)
    lines = AnswerLines(settling, plan, app.draining, request.scope["comet.request_id"])
    headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return Streamed(WalkAnswer(request, app.sources.part(SettlingSlots), lines, headers, limits.idle_s))


async def _chosen(topic_index: DeadLetterIndex, body: Chosen) -> selection.DeadLetterSelection:
    if body.dead_letters is not None:
        return selection.named(topic_index, [DeadLetterOffset(one.partition, one.offset) for one in body.dead_letters])
    given = body.filter
    assert given is not None
    wanted = selection.Filter(None, given.group, given.cause, given.reason, given.topic, given.from_us, given.to_us)
    return await selection.fitting(topic_index, wanted)


def _edit(record: dict[str, Any]) -> Edit:
    """Parses an edited record. Raises Problem."""
    given = {
        name
        for name, members in (("value", _CONTENT), ("key", ("key", "key_base64")), ("headers", ("headers",)))
        if any(member in record for member in members)
    }
    columns = decode_body(msgspec.json.encode(record if "value" in given else {**record, "tombstone": True}), 1)
    if columns.delayed is not None:
        raise Problem("VALIDATION", "record: a dead letter is redriven now: leave delay_ms, due and schedule_id out")
    return Edit(
        frozenset(given),
        columns.values[0],
        None if columns.keys is None else columns.keys[0],
        [] if columns.headers is None else columns.headers[0],
        None if columns.partitions is None else columns.partitions[0],
        None if columns.timestamps_us is None else columns.timestamps_us[0],
        None if columns.ttls_ms is None else columns.ttls_ms[0],
    )


async def _targets(admin: comet.Admin, task: Task) -> list[Target]:
    counts = Counter(task.to or dead_letter.topic for dead_letter in task.dead_letters)
    groups = await admin.list_groups() if counts else []
    topics = {info.name for info in await admin.list_topics()} if counts else set()
    return [
        Target(
            topic=topic,
            dead_letters=count,
            exists=topic in topics,
            groups=[group.name for group in groups if topic in group.topics],
        )
        for topic, count in counts.most_common()
    ]


async def _partitions(catalog: Any, targets: list[Target]) -> dict[str, int]:
    return {one.topic: len((await catalog.topic(one.topic)).partitions) for one in targets if one.exists}


def _plan(
    topic: str, task: Task, chosen: selection.DeadLetterSelection, targets: list[Target], dry_run: bool
) -> SettlingPlan:
    return SettlingPlan(
        dry_run=dry_run,
        topic=topic,
        dead_letters=len(task.dead_letters),
        settled=chosen.settled,
        unknown=[DeadLetterId(partition=id_.partition, offset=id_.offset) for id_ in chosen.unknown],
        targets=targets,
        bytes=sum(dead_letter.size for dead_letter in task.dead_letters),
        seconds=round(len(task.dead_letters) / task.rate, 3),
        rate=task.rate,
    )
