"""The classes that Spark calls to read. Planning runs in one process of the driver, for the lifetime of its query;
`read` runs in workers of the executors. They exchange small objects only: options, ranges, a schema."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from comet import sync
from comet.errors import DataLoss, InvalidArgument
from comet.spark import value_types
from comet.spark.group_progress import ProgressReporter
from comet.spark.options import SourceOptions
from comet.spark.planning import (
    FilterBounds,
    Loss,
    Marks,
    OffsetAndEpoch,
    Range,
    between,
    capped,
    document,
    marks,
    packed,
    readable,
    split,
    there,
)
from comet.spark.sink_options import SinkOptions
from comet.types import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_S: Final = 5.0  # between checks for new topics and partitions, which cost more than a batch


class CometSource(DataSource):
    """`format("comet")`. Spark makes one for each `load()`, and pickles it for the planning of each action."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._snapshot: list[Range] | None = None  # as it is now, for all actions on the frame
        try:
            wanted = self._options()
        except InvalidArgument:
            return  # raised again by what Spark calls next, unless these are options of a sink
        if wanted.snapshot:
            self._snapshot = sync.call(planned(wanted))

    @classmethod
    def name(cls) -> str:
        return "comet"

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options))

    def schema(self) -> str:
        from comet.spark.columns import ddl

        return ddl(self._options())

    def reader(self, schema: StructType) -> BatchReader:
        options = self._options()
        if options.offsets_per_trigger is not None or options.group or options.settle_ms:
            raise InvalidArgument("maxOffsetsPerTrigger, group and settleMs are for spark.readStream")
        if options.pushdown:
            return FilteredReader(schema, options)
        return BatchReader(schema, options, self._snapshot)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        options = self._options()
        if options.ending != "latest" or options.ending_ms is not None:
            raise InvalidArgument("endingOffsets and endingTimestamp are for spark.read: a stream has no end")
        if options.pushdown:
            raise InvalidArgument("pushdown is for spark.read: Spark gives no filters to a stream")
        if options.snapshot:
            raise InvalidArgument(
                "snapshot is for spark.read: a stream has every change of a key. For the last one, use "
                "groupBy('key').agg(max_by(struct('*'), 'offset')) on the stream"
            )
        return StreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from comet.spark.sink import BatchWriter

        return BatchWriter(schema, self._wanted(overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from comet.spark.sink import StreamWriter

        return StreamWriter(schema, self._wanted(overwrite))

    def _wanted(self, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise InvalidArgument(
                "a topic cannot be overwritten: use mode('append'), or outputMode('append') for a stream"
            )
        return SinkOptions.parse(dict(self.options))


class Split(InputPartition):
    """The ranges of one task."""

    def __init__(self, parts: tuple[Range, ...]) -> None:
        super().__init__(parts)
        self.parts = parts


async def planned(options: SourceOptions) -> list[Range]:
    """The ranges of a batch, or of a snapshot, as they are now."""
    from comet.spark.cluster import Cluster

    cluster = Cluster.of(options)
    tps = await cluster.partitions(options)
    if options.snapshot:
        await cluster.check_compacted(tps, options)
    end = await cluster.ends(tps, options)
    start = await cluster.starts(tps, options, "earliest")
    await cluster.check_reached(start, end, options)
    return between(start, end)


class _Reader:
    """The executor side of both kinds of readers."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        from comet.spark.columns import check

        check(schema)
        self.schema = schema
        self.options = options
        self.names = value_types.names(options.event)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from comet.spark import ranges, snapshots
        from comet.spark.columns import SparkColumns

        assert isinstance(partition, Split)
        read = snapshots.read if self.options.snapshot else ranges.read
        return read(partition.parts, SparkColumns(self.schema, self.options, self.names), self.options)

    def splits(self, ranges: list[Range]) -> list[Split]:
        return [
            Split(parts) for parts in packed(split(ranges, self.options.partitions_min), self.options.partitions_max)
        ]


class BatchReader(_Reader, DataSourceReader):
    """A read of the current records, or between given offsets; or of a snapshot, whose ranges are given."""

    def __init__(self, schema: StructType, options: SourceOptions, snapshot: list[Range] | None = None) -> None:
        super().__init__(schema, options)
        self._snapshot = snapshot

    def partitions(self) -> Sequence[InputPartition]:
        """At least one: for none Spark would add a partition of another class."""
        ranges = sync.call(self._plan()) if self._snapshot is None else self._snapshot
        return self.splits(ranges) or [Split(())]

    async def _plan(self) -> list[Range]:
        return await planned(self.options)


class FilteredReader(BatchReader):
    """A reader that skips ranges which filters exclude. A class of its own: Spark fails for a class with `pushFilters`
    if pushdown is not enabled."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._bounds = FilterBounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Cuts the ranges by the filters; Spark applies them to each row again."""
        for one in filters:
            self._bounds.add(type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None))
        return filters

    async def _plan(self) -> list[Range]:
        return self._bounds.cut(await super()._plan())


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets are documents of `planning`. Its progress is in Spark's checkpoint, and is committed to a
    group for dashboards. Spark pickles a new one, without state, for the executors."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._initial: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None  # for Spark's own progress reports
        self._target: dict[TopicPartition, OffsetAndEpoch] | None = None  # end offsets of trigger(availableNow)
        self._reporter: ProgressReporter | None = None
        self._tps: Mapping[TopicPartition, str] = {}
        self._refresh_at = 0.0
        self._losses: set[tuple[TopicPartition, str]] = set()  # that were logged

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Spark calls it twice: `latest` must give the same result."""
        if self._initial is None:
            self._initial = document(sync.call(self._begin()))
        return self._initial

    async def _begin(self) -> dict[TopicPartition, OffsetAndEpoch]:
        from comet.spark.cluster import Cluster

        cluster = Cluster.of(self.options)
        tps = await cluster.partitions(self.options)
        return await cluster.completed(await cluster.starts(tps, self.options, "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = sync.call(self._latest())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch. `start` is the end of the last completed one."""
        return document(sync.call(self._next(marks(start), limit)))

    async def _next(self, start: Marks, limit: ReadLimit) -> dict[TopicPartition, OffsetAndEpoch]:
        from comet.spark.cluster import Cluster

        cluster = Cluster.of(self.options)
        self._report(cluster, start)
        if self._target is not None:
            newest = self._target
            if self._reporter is not None and not between(start, newest):
                await self._reporter.reported()  # the stream is about to end
        else:
            await asyncio.sleep(self.options.settle_ms / 1000)
            newest = await self._latest()
            if not between(start, newest):
                await cluster.wait(newest, self.options)
                newest = await self._latest()
        self._newest = document(newest)
        end, losses = readable(start, newest)
        self._bear(losses)
        self._losses = {(loss.tp, loss.kind) for loss in losses}
        if not isinstance(limit, ReadMaxRows):
            return end
        end = capped(start, end, limit.max_rows)
        return end | await cluster.completed({tp: mark for tp, mark in end.items() if mark != start.get(tp)})

    async def _latest(self) -> dict[TopicPartition, OffsetAndEpoch]:
        from comet.spark.cluster import Cluster

        cluster, all_there = Cluster.of(self.options), self.options.fail_on_loss
        await self._refresh()
        found = await cluster.marks(self._tps, self.options, "latest", all_there=False)
        if len(found) < len(self._tps):  # deleted, or recreated
            await self._refresh(again=True)
            found = await cluster.marks(self._tps, self.options, "latest", all_there=all_there)
        return found

    async def _refresh(self, *, again: bool = False) -> None:
        """Updates the list of partitions every few seconds."""
        from comet.spark.cluster import Cluster

        if again or time.monotonic() >= self._refresh_at:
            cluster = Cluster.of(self.options)
            self._tps = await cluster.partitions(self.options, all_there=self.options.fail_on_loss)
            self._refresh_at = time.monotonic() + PARTITIONS_S

    def _bear(self, losses: Sequence[Loss]) -> None:
        """Raises DataLoss, or logs each loss once."""
        if losses and self.options.fail_on_loss:
            raise DataLoss(
                f"{losses[0].problem}. With the option failOnDataLoss=false the query continues.",
                details={"topic": losses[0].tp.topic, "partition": str(losses[0].tp.partition)},
            )
        for loss in losses:
            if (loss.tp, loss.kind) not in self._losses:
                log.warning("%s; the query continues", loss.problem)

    def _report(self, cluster: Any, start: Marks) -> None:
        if not self.options.group:
            return
        if self._reporter is None:
            self._reporter = ProgressReporter(self.options.group, partial(cluster.report, self.options.group))
        self._reporter.newest(start)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch; always the same for the same offsets of existing topics."""
        ranges = between(marks(start), marks(end))
        if not self._tps:  # the batch was planned before a restart of the query
            sync.call(self._refresh())
        found, losses = there(ranges, self._tps)
        self._bear(losses)
        return self.splits(found)
