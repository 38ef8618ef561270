"""Routes to search a topic, export records as a file, and download one value."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request

import comet
from comet.entities import TopicInfo
from comet.errors import CometError
from comet.types import AtOffset
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem, answers
from comet_gateway.http.query_params import QueryParams, whole
from comet_gateway.http.raw_route import Answer, RawRoute, Reply
from comet_gateway.records.cursor import INT64_MAX, Cursor
from comet_gateway.records.merge import problem_of
from comet_gateway.records.record_json import Values, each
from comet_gateway.schemas.records import PARTITION_MAX
from comet_gateway.schemas.search_api import EXPORT, SEARCH, VALUE
from comet_gateway.search.answer import WalkAnswer
from comet_gateway.search.export import CONTENT_TYPES, Format, exported, writer
from comet_gateway.search.scan import Budget, Hit, Scan
from comet_gateway.search.selection import LISTS, NAMES, Selection, located
from comet_gateway.search.slots import Slots, share_key

router = APIRouter(prefix="/v1", route_class=RawRoute)

LIMIT: Final = 100
EXPORT_LIMIT: Final = 10_000
PROGRESS_S: Final = 0.1  # between two lines of progress only
_HEADERS: Final = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
_KNOWN: Final = NAMES | {"limit", "values"}
_WRONG: Final = (
    "TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "OFFSET_OUT_OF_RANGE", "TRUNCATED", "DATA_LOSS", "MALFORMED_CURSOR",
    "MALFORMED_FILTER", "VALIDATION", "NOT_LEADER", "LOG_FAILED",
)  # fmt: skip


@router.get(
    "/topics/{topic}/search",
    operation_id="searchTopic",
    summary="Search records of a topic",
    tags=["records"],
    openapi_extra=SEARCH,
    responses=answers(*_WRONG),
)
async def search(request: Request) -> Answer:
    """Searches for matching records in order of timestamps, and returns each as it is found.

    The answer is lines of JSON: `progress`, `record`, and last `end`, whose reason is `limit`, `end` or `budget`, with
    a cursor to continue. Records, duration and number of searches are limited. A search stops when its client
    disconnects.
    """
    state = request.scope["app"].state
    limits: Limits = state.config.limits
    query = QueryParams(request.scope["query_string"], _KNOWN | {"preview"}, LISTS)
    selection = Selection.of(query)
    values = query.choice("values", Values.AUTO)
    preview = query.number("preview", 0, 1, limits.answer_bytes_max)
    limit = query.number("limit", LIMIT, 1, limits.records_max)
    budget = Budget(limit, limits.search_records_max, limits.search_bytes_max, limits.search_s)
    scan, topic_id = await _scan(request, selection, budget)
    found = _Found(values, preview, state.metrics)

    async def lines() -> AsyncGenerator[bytes]:
        sent_at = 0.0
        try:
            async for hits in scan.run():
                data = b"".join(map(found.line, hits))
                now = time.monotonic()
                if hits or now - sent_at >= PROGRESS_S:
                    sent_at = now
                    data += _line("progress", progress(scan))
                yield data
                if state.draining.is_set():
                    raise Problem("DRAINING", "the gateway is about to stop")
        except (Problem, CometError) as error:
            problem = error if isinstance(error, Problem) else Problem.of(error)
            if not sent_at:
                raise problem from error
            yield _line("problem", problem.document(request.scope["comet.request_id"]))
            return
        cursor = str(Cursor(topic_id, scan.cursor()))
        yield _line("end", {"reason": scan.reason, "cursor": cursor, **progress(scan)})

    headers = [(b"content-type", b"application/x-ndjson"), *_HEADERS]
    return WalkAnswer(request, state.sources.part(Slots), lines, headers, limits.idle_s)


@router.get(
    "/topics/{topic}/export",
    operation_id="exportTopic",
    summary="Export records as a file",
    tags=["records"],
    openapi_extra=EXPORT,
    responses=answers(*_WRONG, "NOT_ACCEPTABLE"),
)
async def export(request: Request) -> Answer:
    """Exports the records that a search with the same query finds, as a file: JSON, NDJSON, CSV or Parquet.

    The file is written while records are read. After an error on the way the answer is cut off, and is not complete. A
    corrupt batch is such an error, unless `corrupt=skip`.
    """
    state = request.scope["app"].state
    limits: Limits = state.config.limits
    query = QueryParams(request.scope["query_string"], _KNOWN | {"format", "corrupt"}, LISTS)
    selection = Selection.of(query)
    form = query.choice("format", Format.NDJSON)
    skip_corrupt = query.choice("corrupt", OnCorrupt.RAISE) is OnCorrupt.SKIP
    into = writer(form, query.choice("values", Values.AUTO))
    limit = query.number("limit", min(EXPORT_LIMIT, limits.export_records_max), 1, limits.export_records_max)
    budget = Budget(limit, INT64_MAX, INT64_MAX, limits.export_s)
    scan, _ = await _scan(request, selection, budget, skip_corrupt=skip_corrupt)
    topic: str = request.scope["path_params"]["topic"]
    headers = [
        (b"content-type", CONTENT_TYPES[form]),
        (b"content-disposition", f'attachment; filename="{topic}.{form.value}"'.encode()),
        *_HEADERS,
    ]
    return WalkAnswer(request, state.sources.part(Slots), lambda: exported(scan, into), headers, limits.idle_s)


@router.get(
    "/topics/{topic}/partitions/{partition}/records/{offset}/value",
    operation_id="readValue",
    summary="Download the value of a record",
    tags=["records"],
    openapi_extra=VALUE,
    responses=answers(*_WRONG, "NOT_FOUND"),
)
async def value(request: Request) -> Answer:
    """Returns the bytes of one record's value as a file."""
    params = request.scope["path_params"]
    backend: Backend = request.scope["app"].state.backend
    topic: str = params["topic"]
    partition = whole("partition", params["partition"], 0, PARTITION_MAX)
    offset = whole("offset", params["offset"], 0, INT64_MAX - 1)

    async def read(info: TopicInfo) -> comet.Fetched:
        try:
            return await backend.reader.fetch(topic, partition, AtOffset(offset), records_max=1, topic_id=info.id)
        except CometError as error:
            raise problem_of(error, partition) from error

    found = await backend.catalog.with_topic(topic, read)
    record = next((one for batch in found.batches for one in batch.records()), None)
    if record is None or record.offset != offset or record.value is None:
        what = "is a tombstone" if record is not None and record.offset == offset else "is not a record"
        raise Problem("NOT_FOUND", f"offset {offset} of {topic}/{partition} {what}")
    name = f'attachment; filename="{topic}-{partition}-{offset}.bin"'
    return Reply(record.value, kind=b"application/octet-stream", headers={"content-disposition": name})


async def _scan(
    request: Request, selection: Selection, budget: Budget, *, skip_corrupt: bool = True
) -> tuple[Scan, bytes]:
    state = request.scope["app"].state
    state.sources.part(Slots).check(share_key(request.scope["comet.principal"]))  # before requests to brokers
    backend: Backend = state.backend
    most = state.config.limits.merged_partitions_max
    wanted = await backend.catalog.with_topic(
        request.scope["path_params"]["topic"], lambda info: located(selection, info, backend, most)
    )
    return Scan(backend.reader, wanted, budget, skip_corrupt=skip_corrupt), wanted.topic_id


class OnCorrupt(Enum):
    """Treatment of a corrupt batch by an export."""

    RAISE = "raise"
    SKIP = "skip"


class _Found:
    """Encodes matches; with `preview`, values are cut to that length."""

    def __init__(self, values: Values, preview: int, metrics: Any) -> None:
        self._values = values
        self._preview = preview
        self._metrics = metrics

    def line(self, hit: Hit) -> bytes:
        self._metrics.records_out += 1
        record = hit.record
        if self._preview and record.value is not None and len(record.value) > self._preview:
            values = Values.BASE64 if self._values is Values.BASE64 else Values.TEXT
            size, record = len(record.value), record._replace(value=cut(record.value, self._preview))
            return b'{"record":%b,"cut":true,"size":%d}\n' % (each([record], values)[0], size)
        return b'{"record":%b}\n' % each([record], self._values)[0]


def cut(value: bytes, size: int) -> bytes:
    """The beginning of a value; text is not cut within a character."""
    found = value[:size]
    for back in range(min(3, len(found)) + 1):
        part = found[: len(found) - back]
        try:
            part.decode()
        except UnicodeDecodeError:
            continue
        return part
    return found


def progress(scan: Scan) -> dict[str, Any]:
    """The progress of a search for its answer."""
    through = scan.through_us
    return {
        "scanned": str(scan.scanned),
        "bytes": str(scan.bytes),
        "matched": str(scan.matched),
        "of": str(scan.of),
        "left": str(scan.left),
        "unreadable": str(scan.unreadable),
        "through_us": None if through is None else str(through),
        "seconds": round(scan.seconds, 3),
    }


def _line(name: str, data: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: data}) + b"\n"
