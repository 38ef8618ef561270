"""Routes to read records: of one partition, or of a topic in order of timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from enum import Enum
from typing import Final

from fastapi import APIRouter, Request

import comet
from comet.consumer.options import filter_of_brokers
from comet.entities import TopicInfo
from comet.filters import Filter
from comet.types import AtOffset, AtTime, Earliest, Latest, Position
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.http.client_disconnect import while_there
from comet_gateway.http.negotiation import Form, form
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.query_params import QueryParams, whole
from comet_gateway.http.raw_route import Answer, RawRoute, Reply
from comet_gateway.http.shares import holder_of
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.merge import Isolation, Merged, MergePartition, Order, Range, merge, problem_of
from comet_gateway.records.record_json import Values, fragments
from comet_gateway.schemas.records import PARTITION_MAX
from comet_gateway.schemas.records_api import FETCH, FETCH_TOPIC
from comet_gateway.search.filters import filter_of
from comet_gateway.search.selection import LISTS

router = APIRouter(prefix="/v1", route_class=RawRoute)

Batch = comet.RecordBatch[bytes]

LIMIT: Final = 100
BYTES: Final = 1 << 20
_OFFSET_MAX: Final = 2**63 - 1


class Committed(Enum):
    """Isolation level."""

    COMMITTED = "committed"
    UNCOMMITTED = "uncommitted"


_KNOWN: Final = frozenset({"start", "cursor", "limit", "max_bytes", "values", "isolation"})
_KNOWN_OF_PARTITION: Final = _KNOWN | {"offset", "wait_ms"}
_KNOWN_OF_TOPIC: Final = _KNOWN | {"end", "order", "partitions"}
_WRONG: Final = (
    "TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "OFFSET_OUT_OF_RANGE", "TRUNCATED", "DATA_LOSS", "MALFORMED_CURSOR",
    "MALFORMED_FILTER", "NOT_ACCEPTABLE", "VALIDATION", "NOT_LEADER", "LOG_FAILED",
)  # fmt: skip


@router.get(
    "/topics/{topic}/partitions/{partition}/records",
    operation_id="readPartition",
    summary="Read records of a partition",
    tags=["records"],
    openapi_extra=FETCH,
    responses=answers(*_WRONG),
)
async def fetch(request: Request) -> Answer:
    """Reads records of one partition from an offset, a time or a cursor on, and returns a cursor to continue.

    With `wait_ms` it waits for the first record if there is none yet.
    """
    scope = request.scope
    state = scope["app"].state
    backend: Backend = state.backend
    limits: Limits = state.config.limits
    query = QueryParams(scope["query_string"], _KNOWN_OF_PARTITION, LISTS)
    wanted = form(scope["comet.headers"].get(b"accept", b""))
    topic: str = scope["path_params"]["topic"]
    partition = whole("partition", scope["path_params"]["partition"], 0, PARTITION_MAX)
    start, epoch = _start(query, partition)
    values = query.choice("values", Values.AUTO)
    wait_ms = query.number("wait_ms", 0, 0, limits.wait_ms_max)
    chosen = filter_of(query.texts("filter"))
    limit = query.number("limit", LIMIT, 1, limits.records_max)

    async def read(info: TopicInfo) -> Answer:
        at, known = start, epoch
        if "cursor" in query:
            position = _cursor(query, info).positions.get(partition)
            at, known = (Earliest(), None) if position is None else (AtOffset(position.offset), position.epoch)
        reading = backend.reader.fetch(
            topic, partition, at, epoch=known,
            records_max=limit if chosen is None else limits.records_max,
            bytes_max=query.number("max_bytes", BYTES, 1, limits.answer_bytes_max),
            wait_ms=wait_ms, isolation=_isolation(query), topic_id=info.id, filter_hint=filter_of_brokers(chosen),
        )  # fmt: skip
        try:
            found = await (while_there(request, reading, state.draining) if wait_ms else reading)
        except comet.CometError as error:
            problem = problem_of(error, partition)
            if isinstance(error, comet.CorruptRecords):
                problem.hint = "Continue behind it, with `cursor` or from offset `end`."
                problem.more["cursor"] = str(Cursor(info.id, {partition: CursorPosition(int(error.details["end"]))}))
            raise problem from error
        if chosen is not None:
            found = matching(found, chosen, limit)
        state.metrics.records_out += sum(map(len, found.batches))
        cursor = Cursor(info.id, {partition: CursorPosition(found.next_offset, found.epoch)})
        return _fetched(wanted, found, cursor, values)

    with state.traffic.waiting.held(holder_of(scope)) if wait_ms else nullcontext():
        return await backend.catalog.with_topic(topic, read)


def matching(found: comet.Fetched, chosen: Filter, limit: int) -> comet.Fetched:
    """Up to `limit` of the records that match; the position is behind those that were looked at."""
    batches: list[Batch] = []
    for batch in found.batches:
        rows = chosen.rows(batch)
        if len(rows) >= limit:  # the others were not looked at, as far as the client knows
            picked = batch.before(batch.offsets[rows[limit - 1]] + 1)
            assert picked is not None
            picked = picked.pick(rows[:limit])
            assert picked is not None
            return found._replace(batches=[*batches, picked], next_offset=picked.next_offset, epoch=picked.epoch)
        limit -= len(rows)
        picked = batch.pick(rows)
        if picked is not None:
            batches.append(picked)
    return found._replace(batches=batches)


def _start(query: QueryParams, partition: int) -> tuple[Position, int | None]:
    given = [name for name in ("offset", "start", "cursor") if name in query]
    if len(given) > 1:
        raise Problem("INVALID_ARGUMENT", f"{' and '.join(given)} of partition {partition}: give only one")
    if "offset" in query:
        return AtOffset(query.number("offset", 0, 0, _OFFSET_MAX)), None
    return query.position("start", "earliest"), None


def _isolation(query: QueryParams) -> Isolation:
    return query.choice("isolation", Committed.COMMITTED).value


def _cursor(query: QueryParams, info: TopicInfo) -> Cursor:
    cursor = Cursor.parse(query.text("cursor"))
    if cursor.topic_id != info.id:
        raise Problem(
            "TRUNCATED", f"the cursor belongs to another topic, or to a deleted one with the name {info.name!r}"
        )
    return cursor


def _fetched(wanted: Form, found: comet.Fetched, cursor: Cursor, values: Values) -> Answer:
    if wanted is Form.JSON:
        records = b",".join([text for batch in found.batches for text in fragments(batch, values)])
        return Reply(
            b'{"records":[%b],"next_offset":"%d","log_start":"%d","log_end":"%d","cursor":"%b"}'
            % (records, found.next_offset, found.log_start, found.log_end, str(cursor).encode())
        )
    headers = {
        "comet-cursor": str(cursor), "comet-next-offset": str(found.next_offset),
        "comet-log-start": str(found.log_start), "comet-log-end": str(found.log_end),
    }  # fmt: skip
    if wanted is Form.NDJSON:
        return _lines((text for batch in found.batches for text in fragments(batch, values)), headers)
    from comet_gateway.records import arrow

    return Reply(arrow.stream(found.batches), kind=Form.ARROW.value.encode(), headers=headers)


def _lines(texts: Iterable[bytes], headers: Mapping[str, str]) -> Reply:
    return Reply(b"".join([text + b"\n" for text in texts]), kind=Form.NDJSON.value.encode(), headers=headers)


# ---- a topic


@router.get(
    "/topics/{topic}/records",
    operation_id="readTopic",
    summary="Read records of a topic in order of timestamps",
    tags=["records"],
    openapi_extra=FETCH_TOPIC,
    responses=answers(*_WRONG),
)
async def fetch_topic(request: Request) -> Answer:
    """Reads records of all partitions, oldest or newest first, and returns a cursor to continue.

    Records of a partition keep their order. Of equal timestamps, the lower partition comes first.
    """
    scope = request.scope
    state = scope["app"].state
    backend: Backend = state.backend
    query = QueryParams(scope["query_string"], _KNOWN_OF_TOPIC, LISTS)
    wanted = form(scope["comet.headers"].get(b"accept", b""))
    values = query.choice("values", Values.AUTO)
    order = query.choice("order", Order.OLDEST)

    async def read(info: TopicInfo) -> Answer:
        range_ = await _range(query, order, info, backend, state.config.limits)
        merged = await merge(backend.reader, order, range_)
        state.metrics.records_out += len(merged.records)
        return _merged(wanted, merged, Cursor(info.id, merged.positions), values)

    return await backend.catalog.with_topic(scope["path_params"]["topic"], read)


async def _range(query: QueryParams, order: Order, info: TopicInfo, backend: Backend, limits: Limits) -> Range:
    chosen = _partitions(query, info, limits.merged_partitions_max)
    start, end = query.position("start", "earliest"), query.position("end", "latest")
    if any(isinstance(at, AtOffset) for at in (start, end)) and len(chosen) > 1:
        raise Problem(
            "INVALID_ARGUMENT",
            "an offset is valid in one partition only: give a time, or one partition in `partitions`",
        )
    begin, bound = (start, end) if order is Order.OLDEST else (end, start)
    positions: dict[int, Position | CursorPosition] = dict.fromkeys(chosen, begin)
    if "cursor" in query:
        cursor = _cursor(query, info)
        # Partitions that the cursor does not name were added later: all their records follow, in either order.
        new: Position = Earliest() if order is Order.OLDEST else Latest()
        positions = {partition: cursor.positions.get(partition, new) for partition in chosen}
    elif order is Order.NEWEST and isinstance(begin, AtTime | Earliest):
        offsets = await backend.admin.offsets(info.name, begin)
        positions = {partition: AtOffset(offsets[partition]) for partition in chosen if partition in offsets}
    return Range(
        info.name,
        info.id,
        positions,
        await _bounds(bound, order, info.name, chosen, backend),
        records_max=query.number("limit", LIMIT, 1, limits.records_max),
        bytes_max=query.number("max_bytes", BYTES, 1, limits.answer_bytes_max),
        isolation=_isolation(query),
        filter=filter_of(query.texts("filter")),
        scan_records_max=limits.records_max,
        scan_bytes_max=limits.answer_bytes_max,
    )


def _partitions(query: QueryParams, info: TopicInfo, most: int) -> list[int]:
    if "partitions" in query:
        names = query.text("partitions").split(",")[: most + 1]
        chosen = sorted({whole("partitions", name.strip(), 0, PARTITION_MAX) for name in names})
        for partition in chosen:
            if partition >= len(info.partitions):
                detail = f"topic {info.name!r} has the partitions 0 to {len(info.partitions) - 1}, not {partition}"
                raise Problem("PARTITION_NOT_FOUND", detail)
    else:
        chosen = list(range(len(info.partitions)))
    if len(chosen) > most:
        detail = f"{len(chosen)} partitions; one request merges at most {most}: choose some with `partitions`"
        raise Problem("INVALID_ARGUMENT", detail, more={"merged_partitions_max": most})
    return chosen


async def _bounds(
    bound: Position, order: Order, topic: str, chosen: Iterable[int], backend: Backend
) -> Mapping[int, int]:
    """The end offset of each partition at present; absent if it is the log's own end."""
    match bound:
        case AtOffset():
            return dict.fromkeys(chosen, bound.offset)
        case Latest() if order is Order.OLDEST:
            return {}
        case Earliest() if order is Order.NEWEST:
            return {}
    return await backend.admin.offsets(topic, bound)


def _merged(wanted: Form, merged: Merged, cursor: Cursor, values: Values) -> Answer:
    if wanted is Form.ARROW:
        from comet_gateway.records import arrow

        return Reply(arrow.merged(merged.runs()), kind=wanted.value.encode(), headers=_heads(merged, cursor))
    texts: list[bytes] = []
    made: dict[int, list[bytes]] = {}
    for batch, indexes in merged.runs():
        of_batch = made.get(id(batch))
        if of_batch is None:
            of_batch = made[id(batch)] = fragments(batch, values)
        texts.extend(of_batch[index] for index in indexes)
    if wanted is Form.NDJSON:
        return _lines(texts, _heads(merged, cursor))
    more = b"true" if merged.more else b"false"
    return Reply(
        b'{"records":[%b],"cursor":"%b","more":%b,"partitions":[%b]}'
        % (b",".join(texts), str(cursor).encode(), more, b",".join(map(_source, merged.sources)))
    )


def _heads(merged: Merged, cursor: Cursor) -> dict[str, str]:
    heads = {"comet-cursor": str(cursor), "comet-more": "true" if merged.more else "false"}
    skipped = [f"{source.partition}/{first}-{end}" for source in merged.sources for first, end in source.skipped]
    if skipped:
        heads["comet-unreadable"] = ", ".join(skipped)
    return heads


def _source(source: MergePartition) -> bytes:
    skipped = [b'{"first":"%d","end":"%d"}' % one for one in source.skipped]
    unreadable = b',"unreadable":[%b]' % b",".join(skipped) if skipped else b""
    return b'{"partition":%d,"next_offset":"%d","log_start":"%d","log_end":"%d"%b}' % (
        source.partition, source.position.offset, source.log_start, source.log_end, unreadable,
    )  # fmt: skip
