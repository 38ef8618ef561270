"""The range of a search, an export, or the records page: parsed from the query, then resolved to offsets by brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from comet.consumer.ranges import locate
from comet.entities import TopicInfo
from comet.errors import CometError
from comet.filters.search_filters import Filters
from comet.types import AtOffset, Earliest, Latest, Position
from comet_gateway.brokers.backend import Backend
from comet_gateway.http.problems import Problem
from comet_gateway.http.query_params import QueryParams, whole
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.merge import AT_ONCE, Isolation, Order, problem_of
from comet_gateway.schemas.records import PARTITION_MAX
from comet_gateway.search.filters import filters_of
from comet_gateway.search.scan import Wanted

NAMES: Final = frozenset({"start", "end", "order", "partitions", "key", "value", "header", "cursor", "isolation"})
LISTS: Final = frozenset({"filter"})


@dataclass(frozen=True, slots=True)
class Selection:
    """A requested range. `start` is before `end` in both orders; `partitions`: empty for all."""

    start: Position = field(default_factory=Earliest)
    end: Position = field(default_factory=Latest)
    order: Order = Order.OLDEST
    partitions: tuple[int, ...] = ()
    filters: Filters = field(default_factory=Filters)
    cursor: Cursor | None = None
    isolation: Isolation = "committed"

    @classmethod
    def of(cls, query: QueryParams) -> Selection:
        """Parses a query. Raises Problem."""
        return cls(
            query.position("start", "earliest"),
            query.position("end", "latest"),
            query.choice("order", Order.OLDEST),
            numbers(query.text("partitions")) if "partitions" in query else (),
            filters_of(query.text("key"), query.text("value"), query.text("header"), query.texts("filter")),
            Cursor.parse(query.text("cursor")) if "cursor" in query else None,
            isolation(query),
        )


def isolation(query: QueryParams) -> Isolation:
    given = query.text("isolation", "committed")
    match given:
        case "committed" | "uncommitted":
            return given
    raise Problem("VALIDATION", f"isolation must be committed or uncommitted, not {given[:40]!r}")


def numbers(text: str) -> tuple[int, ...]:
    """Parses partition numbers, separated by commas. Raises Problem."""
    return tuple(sorted({whole("partitions", name.strip(), 0, PARTITION_MAX) for name in text.split(",")[:1_000]}))


async def located(selection: Selection, info: TopicInfo, backend: Backend, partitions_max: int) -> Wanted:
    """Resolves the range to offsets. Raises Problem, CometError."""
    chosen = _chosen(selection.partitions, info, partitions_max)
    start, end = selection.start, selection.end
    if len(chosen) > 1 and any(isinstance(at, AtOffset) for at in (start, end)):
        raise Problem(
            "INVALID_ARGUMENT",
            "an offset is valid in one partition only: give a time, or one partition in `partitions`",
        )
    positions = _positions(selection.cursor, info)
    gate = asyncio.Semaphore(AT_ONCE)

    async def part(index: int) -> tuple[int, int, int | None]:
        begin = Earliest() if isinstance(start, AtOffset) else start
        try:
            async with gate:
                found = await locate(
                    backend.reader, info.name, index, begin, end, isolation=selection.isolation, topic_id=info.id
                )
        except CometError as error:
            raise problem_of(error, index) from error
        low, high = start.offset if isinstance(start, AtOffset) else found.start, found.end
        position = positions.get(index)
        if position is not None and selection.order is Order.OLDEST:
            low = position.offset
        elif position is not None:
            high = position.offset
        return max(low, found.log_start), min(high, found.log_end), found.end_epoch

    parts = dict(zip(chosen, await asyncio.gather(*map(part, chosen)), strict=True))
    epochs = {index: position.epoch for index, position in positions.items() if selection.order is Order.OLDEST}
    return Wanted(
        info.name, selection.order, {index: (low, high) for index, (low, high, _) in parts.items()}, epochs,
        {index: epoch for index, (_, _, epoch) in parts.items()}, selection.filters, selection.isolation, info.id,
    )  # fmt: skip


def _positions(cursor: Cursor | None, info: TopicInfo) -> Mapping[int, CursorPosition]:
    """The cursor's positions. Partitions that it does not name were added later, and are read completely."""
    if cursor is None:
        return {}
    if cursor.topic_id != info.id:
        raise Problem(
            "TRUNCATED", f"the cursor belongs to another topic, or to a deleted one with the name {info.name!r}"
        )
    return cursor.positions


def _chosen(partitions: tuple[int, ...], info: TopicInfo, most: int) -> tuple[int, ...]:
    count = len(info.partitions)
    for partition in partitions:
        if partition >= count:
            raise Problem(
                "PARTITION_NOT_FOUND", f"topic {info.name!r} has the partitions 0 to {count - 1}, not {partition}"
            )
    chosen = partitions or tuple(range(count))
    if len(chosen) > most:
        detail = f"{len(chosen)} partitions; one request merges at most {most}: choose some with `partitions`"
        raise Problem("INVALID_ARGUMENT", detail, more={"merged_partitions_max": most})
    return chosen
