"""A bounded read of a topic for `comet search` and `comet export`: the records that are there as it begins, merged by
timestamp, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.errors import CorruptRecords, InvalidArgument
from comet.types import AtOffset, Gap, Position, position

if TYPE_CHECKING:
    from comet import MergedRecord, Reader, TopicDetails
    from comet.filters.search_filters import Filters

STEP_BYTES: Final = 4 << 20  # of the reads of all partitions together
STEP_RECORDS: Final = 4096  # of one read
STEP_RECORDS_LEAST: Final = 64

From = Annotated[
    str,
    typer.Option(
        "--from", metavar="POSITION", help="earliest, an offset of one partition, -1h, or 2026-01-31T12:00:00Z."
    ),
]
Until = Annotated[str, typer.Option("--until", metavar="POSITION", help="Stop before it; as --from, and latest.")]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may repeat.")
]
KeyPart = Annotated[str, typer.Option("--key", metavar="TEXT", help="Only records whose key contains this.")]
ValuePart = Annotated[str, typer.Option("--value", metavar="TEXT", help="Only records whose value contains this.")]
HeaderPart = Annotated[
    str, typer.Option("--header", metavar="TEXT", help="Only records with a header 'name: value' that contains this.")
]


@dataclass(frozen=True, slots=True)
class ScanRange:
    """The requested range. `partitions`: empty for all."""

    start: Position
    end: Position
    partitions: tuple[int, ...] = ()

    @classmethod
    def of(cls, start: str, end: str, partitions: Sequence[int] | None) -> ScanRange:
        """Parses the options of a command. Raises InvalidArgument."""
        now_us = time.time_ns() // 1000
        chosen = tuple(sorted(set(partitions or ())))
        return cls(position(start, now_us=now_us), position(end, now_us=now_us), chosen)


class TopicScan:
    """One read. Used by one task. `hits` yields the records that match; the counts can be read at any time."""

    def __init__(
        self,
        reader: Reader,
        topic: TopicDetails,
        wanted: ScanRange,
        *,
        backward: bool = False,
        filters: Filters | None = None,
        skip_corrupt: bool = True,
        limit: int | None = None,
        records_max: int | None = None,
    ) -> None:
        """At most `limit` matches, and an end once about `records_max` records were looked at. Raises InvalidArgument
        for an offset in several partitions."""
        import comet
        from comet.consumer.options import filter_of_brokers

        chosen = wanted.partitions or tuple(range(len(topic.partitions)))
        if len(chosen) > 1 and any(isinstance(at, AtOffset) for at in (wanted.start, wanted.end)):
            raise InvalidArgument(
                f"an offset is valid in one partition, and {topic.name} has {len(topic.partitions)}",
                details={"hint": "give one with --partition, or a time such as -1h or 2026-01-31T12:00:00Z"},
            )
        self.limit = limit
        self.matched = 0
        self.unreadable = 0  # offsets in corrupt batches
        self._records_max = records_max
        self._skip_corrupt = skip_corrupt
        few = STEP_RECORDS if filters or limit is None else max(limit, STEP_RECORDS_LEAST)
        step_records = min(STEP_RECORDS, few, records_max or STEP_RECORDS)
        step_bytes = max(STEP_BYTES // max(len(chosen), 1), 1)
        hint = filter_of_brokers(filters.filter) if filters else ""
        self._merged = comet.MergedReader(
            [
                reader.read(
                    topic.name, partition, wanted.start, wanted.end, backward=backward, topic_id=topic.id,
                    step_records=step_records, step_bytes=step_bytes, filter_hint=hint,
                )
                for partition in chosen
            ],
            select=filters.found if filters else None,
        )  # fmt: skip

    @property
    def records(self) -> int:
        """Records that were looked at."""
        return self._merged.records

    @property
    def bytes(self) -> int:
        """Bytes of their keys and values."""
        return self._merged.bytes

    @property
    def done(self) -> bool:
        """Whether nothing of the range is left."""
        return self._merged.done

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.limit is not None and self.matched >= self.limit

    async def hits(self) -> AsyncIterator[list[MergedRecord]]:
        """The matches, in order. Raises CometError."""
        while not self.full:
            found = self._readable(None if self.limit is None else self.limit - self.matched)
            if found:
                self.matched += len(found)
                yield found
                continue
            if self.done or (self._records_max is not None and self.records >= self._records_max):
                return
            await self._merged.fill()

    def _readable(self, limit: int | None) -> list[MergedRecord]:
        """The next matches in order; none if more has to be read first."""
        while items := self._merged.ready(limit):
            for gap in items:
                if isinstance(gap, Gap):
                    self._pass_over(gap)
            if found := [item for item in items if not isinstance(item, Gap)]:
                return found
        return []

    def _pass_over(self, gap: Gap) -> None:
        """Goes on behind deleted records, and behind corrupt batches if they are to be skipped. Raises for others."""
        assert gap.error is not None
        if isinstance(gap.error, CorruptRecords) and self._skip_corrupt:
            self.unreadable += gap.end - gap.first
        elif gap.reason != "deleted":
            raise gap.error
