"""The page of a topic's records: its parameters, its first content, and the rest of its search.

The first content is the result of a short scan of the log; a longer search continues over the channel `search`, with
progress:

    {"rows": [row, …], "progress": {…}, "text": …}      repeatedly
    {…, "end": {"reason": "limit", "cursor": "c1.…"}}   at last; with "nothing": why no record matches

After a control frame with {"stop": true} the client gets the end at once, with a cursor to resume from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

from comet.encryption.envelope import key_id_of
from comet.entities import TopicInfo
from comet.errors import CometError
from comet.filters.search_filters import Filters
from comet.types import Earliest, Latest, Position, position
from comet_gateway.dashboard.channel_session import ChannelSession
from comet_gateway.dashboard.sources import Sources
from comet_gateway.http.problems import Problem
from comet_gateway.http.query_params import whole
from comet_gateway.records.cursor import Cursor
from comet_gateway.records.merge import Order
from comet_gateway.schemas.records import PARTITION_MAX
from comet_gateway.search.fields import SUGGESTED_OF_MAX, Fields, suggested
from comet_gateway.search.filter_hints import hints
from comet_gateway.search.filters import filters_of
from comet_gateway.search.scan import Batch, Budget, Scan
from comet_gateway.search.selection import Selection, located
from comet_gateway.search.slots import Slots, share_key
from comet_web.facts import Progress, RecordPreview, TopicDetail, TopicRecords
from comet_web.page_request import PageRequest
from comet_web.views import records as view

FIRST_S: Final = 0.3  # for the search of the first content
WAIT_S: Final = 5.0  # for brokers that do not answer
FIRST_RECORDS: Final = 100_000
FIRST_BYTES: Final = 64 << 20
PARTITIONS_MAX: Final = 256  # that one page merges; with more, the user chooses one
NAMED_MAX: Final = 10  # of those left out, by number
SHOWN_BYTES: Final = 1_024  # of a key or value, in a list
EVENT_S: Final = 0.1  # between two events of a search
PARAMETER_CHARACTERS_MAX: Final = 2_000


async def load(sources: Sources, request: PageRequest, detail: TopicDetail) -> TopicRecords:
    """The first content of the page. Updates bring no records: those on the page do not change."""
    if not request.first:
        return TopicRecords(detail)
    name = request.params["topic"]
    try:
        async with asyncio.timeout(WAIT_S):
            walk, found = await _first(sources, name, request)
    except TimeoutError:
        why = f"No answer within {WAIT_S:.0f} s. Choose a single partition to read it alone."
        return TopicRecords(detail, problem=why)
    except (Problem, CometError) as error:
        problem = error if isinstance(error, Problem) else Problem.of(error)
        return TopicRecords(detail, problem=problem.detail, faulty=_faulty(problem))
    return TopicRecords(
        detail,
        tuple(found),
        progress(walk.scan),
        walk.scan.reason,
        walk.cursor(),
        problem=f"Shown {walk.without}." if walk.without else "",
        fields=walk.fields.names,
        suggested=walk.suggested,
        hint="" if found else hints(walk.filters),
    )


class RecordScan(NamedTuple):
    """A scan of a topic, with the partitions it leaves out."""

    scan: Scan
    topic_id: bytes
    without: str  # the partitions left out, as text
    filters: Filters
    fields: Fields = Fields()
    suggested: tuple[str, ...] = ()

    def cursor(self) -> str:
        return str(Cursor(self.topic_id, self.scan.cursor()))


async def _first(sources: Sources, name: str, request: PageRequest) -> tuple[RecordScan, list[RecordPreview]]:
    query = request.query
    selection, fields = selected(query), Fields.of(query.get("fields", ""))
    principal = "" if request.open else request.principal
    budget = Budget(view.limit_of(query), FIRST_RECORDS, FIRST_BYTES, FIRST_S)
    found: list[RecordPreview] = []
    values: list[bytes | None] = []
    # Without filters there is no wait for slots of searches.
    with sources.part(Slots).take(principal) if selection.filters else nullcontext():
        walk = await _walk(sources, name, selection, budget)
        async for hits in walk.scan.run():
            found += [preview(hit.batch, hit.number, fields) for hit in hits]
            values += [hit.batch.values[hit.number] for hit in hits[: SUGGESTED_OF_MAX - len(values)]]
    return walk._replace(fields=fields, suggested=suggested(values)), found


async def _walk(sources: Sources, name: str, selection: Selection, budget: Budget) -> RecordScan:
    """A scan of all partitions with a leader: it would wait for the others."""
    return await sources.backend.catalog.with_topic(name, lambda info: _walk_of(sources, info, selection, budget))


async def _walk_of(sources: Sources, info: TopicInfo, selection: Selection, budget: Budget) -> RecordScan:
    backend = sources.backend
    led = tuple(one.partition for one in info.partitions if one.leader is not None)
    without = ""
    if not selection.partitions and 0 < len(led) < len(info.partitions):
        selection = replace(selection, partitions=led)
        without = _without([one.partition for one in info.partitions if one.leader is None])
    most = max(sources.config.limits.merged_partitions_max, PARTITIONS_MAX)
    wanted = await located(selection, info, backend, most)
    return RecordScan(Scan(backend.reader, wanted, budget), info.id, without, selection.filters)


def _without(partitions: Sequence[int]) -> str:
    names = ", ".join(map(str, partitions[:NAMED_MAX])) + (", …" if len(partitions) > NAMED_MAX else "")
    which = (
        f"partition {names}, which has"
        if len(partitions) == 1
        else f"{len(partitions)} partitions ({names}), which have"
    )
    return f"without {which} no leader"


def selected(query: Mapping[str, str]) -> Selection:
    """The selection of the page's parameters. Raises Problem, with `parameter` for a wrong one."""
    start = view.start_of(query)
    partitions = (_number(query, "partition", PARTITION_MAX),) if query.get("partition") else ()
    begin: Position = Earliest()
    if start == "offset":
        if not partitions:
            raise Problem(
                "INVALID_ARGUMENT", "an offset needs a partition: choose one", more={"parameter": "partition"}
            )
        begin = _position(query, "offset", "0")
    elif start == "time":
        begin = _position(query, "time", view.TIME)
    return Selection(
        start=begin,
        end=Latest(),
        order=Order.NEWEST if start in ("newest", "live") else Order.OLDEST,
        partitions=partitions,
        filters=filters(query),
    )


def filters(query: Mapping[str, str]) -> Filters:
    """Raises Problem."""
    text = query.get("filter", "").strip()
    return filters_of(query.get("key", ""), query.get("value", ""), query.get("header", ""), [text] if text else [])


def _number(query: Mapping[str, str], name: str, most: int) -> int:
    try:
        return whole(name, query[name], 0, most)
    except Problem as problem:
        problem.more["parameter"] = name
        raise


def _position(query: Mapping[str, str], name: str, default: str) -> Position:
    given = query.get(name, "").strip() or default
    if (name == "time" and given.isdecimal()) or (name == "offset" and not given.isdecimal()):
        raise Problem("INVALID_ARGUMENT", f"{given[:40]!r} is not a valid {name}", more={"parameter": name})
    try:
        return position(view.utc(given) if name == "time" else given, now_us=time.time_ns() // 1_000)
    except (CometError, ValueError, OverflowError):
        hint = "UTC such as 2026-01-31T12:00, or a relative time such as -15m"
        raise Problem(
            "INVALID_ARGUMENT", f"{given[:40]!r} is not a valid {name}: use {hint}", more={"parameter": name}
        ) from None


def _faulty(problem: Problem) -> str:
    return str(problem.more.get("parameter", ""))


def preview(batch: Batch, number: int, fields: Fields) -> RecordPreview:
    """A record, as a list shows it."""
    key, value = batch.keys[number], batch.values[number]
    return RecordPreview(
        partition=batch.partition,
        offset=batch.offsets[number],
        timestamp_us=batch.timestamps[number],
        key=None if key is None else key[:SHOWN_BYTES],
        value=None if value is None else value[:SHOWN_BYTES],
        size=len(key or b"") + len(value or b""),
        headers=tuple((name, text[:SHOWN_BYTES]) for name, text in batch.headers[number]),
        encrypted=key_id_of(value) or "",
        fields=fields.found(value),
    )


def progress(scan: Scan) -> Progress:
    return Progress(
        scan.scanned, scan.bytes, scan.matched, scan.of, scan.left, scan.through_us, scan.seconds, scan.unreadable
    )  # fmt: skip


# ---- the channel


def texts(params: Mapping[str, Any]) -> dict[str, str]:
    """The channel's parameters, checked to be strings. Raises Problem."""
    if len(params) > 32 or any(
        not isinstance(text, str) or len(text) > PARAMETER_CHARACTERS_MAX
        for name, text in params.items()
        if name != "cursor"
    ):
        raise Problem("VALIDATION", "channel parameters must be strings")
    return {name: str(text) for name, text in params.items()}


async def search(session: ChannelSession, params: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    """Continues where the page or an earlier search ended."""
    query = texts(params)
    name = query.get("topic", "")
    limits = session.sources.config.limits
    selection, fields = selected(query), Fields.of(query.get("fields", ""))
    if query.get("cursor"):
        selection = replace(selection, cursor=Cursor.parse(query["cursor"]))
    budget = Budget(view.limit_of(query), limits.search_records_max, limits.search_bytes_max, limits.search_s)
    with session.sources.part(Slots).take(share_key(session.principal)):
        walk = await _walk(session.sources, name, selection, budget)
        scan = walk.scan
        waiting: list[Any] = []
        sent_at = 0.0
        reason: str = ""
        async for hits in scan.run():
            waiting += [view.wire(view.row(name, preview(hit.batch, hit.number, fields))) for hit in hits]
            now = time.monotonic()
            if now - sent_at >= EVENT_S:
                sent_at = now
                yield _event(walk, query, waiting, "budget")
                waiting = []
            if any("stop" in message for message in session.received()):
                reason = "stopped"
                break
        reason = reason or scan.reason
        end = {"reason": reason, "cursor": walk.cursor()}
        if not scan.matched:
            end["nothing"] = view.nothing(query, hints(walk.filters))
        yield {**_event(walk, query, waiting, reason), "end": end}


def _event(walk: RecordScan, query: Mapping[str, str], rows: list[Any], reason: str) -> dict[str, Any]:
    scan = walk.scan
    text = " · ".join(filter(None, (view.summary(progress(scan), reason, query).text, walk.without)))
    share = 1.0 if not scan.of else 1 - scan.left / scan.of
    return {"rows": rows, "text": text, "share": round(share, 4), "matched": scan.matched, "scanned": scan.scanned}
