"""The classes that Spark calls. What plans lives in one process of the driver for as long as its query; `read` runs in
workers of the executors. Between the two travels what is small: options, ranges, a schema."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
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
from comet.errors import DataLoss, InvalidArgument, PartitionNotFound, TopicNotFound
from comet.spark.options import SourceOptions
from comet.spark.planning import Bounds, Mark, Marks, Range, between, capped, document, marks, split
from comet.spark.sink_options import SinkOptions
from comet.types import TopicPartition

log = logging.getLogger(__name__)

PLACES_S: Final = 5.0  # between looks for new topics and partitions: there may be many, and batches every moment


class CometSource(DataSource):
    """`format("comet")`."""

    @classmethod
    def name(cls) -> str:
        return "comet"

    def _asked(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options))

    def schema(self) -> str:
        from comet.spark.columns import ddl

        return ddl(self._asked())

    def reader(self, schema: StructType) -> BatchReader:
        options = self._asked()
        if options.offsets_per_trigger is not None or options.group:
            raise InvalidArgument("maxOffsetsPerTrigger and group are for spark.readStream")
        return FilteredReader(schema, options) if options.pushdown else BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        options = self._asked()
        if options.ending != "latest" or options.ending_ms is not None:
            raise InvalidArgument("a stream has no end: endingOffsets and endingTimestamp are for spark.read")
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
                "a topic is not overwritten: df.write takes mode('append'), a stream outputMode('append')"
            )
        return SinkOptions.parse(dict(self.options))


class Split(InputPartition):
    """What one task reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class _Reading:
    """What both kinds of reader do in executors."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self.schema = schema
        self.options = options

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from comet.spark.columns import Columns
        from comet.spark.ranges import read

        assert isinstance(partition, Split)
        return read(partition.part, Columns(self.schema, self.options), self.options)

    def splits(self, ranges: list[Range]) -> list[Split]:
        return [Split(part) for part in split(ranges, self.options.partitions_min)]


class BatchReader(_Reading, DataSourceReader):
    """A read of what there is now, or between the offsets that were given."""

    def partitions(self) -> Sequence[InputPartition]:
        return self.splits(sync.call(self._plan()))

    async def _plan(self) -> list[Range]:
        from comet.spark.cluster import Cluster

        options = self.options
        cluster = Cluster.of(options)
        places = await cluster.places(options)
        end = await cluster.ends(places, options, options.ending, options.ending_ms)
        start = await cluster.ends(places, options, options.starting or "earliest", options.starting_ms)
        return between(start, end)


class FilteredReader(BatchReader):
    """One that leaves out what filters cannot let through: Spark asks only a class that has the method, and fails where
    that is not enabled."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Ranges are cut by them; Spark looks at each row again."""
        for one in filters:
            self._bounds.add(type(one).__name__, getattr(one, "attribute", ()), getattr(one, "value", None))
        return filters

    async def _plan(self) -> list[Range]:
        return self._bounds.cut(await super()._plan())


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets are documents of `planning`; how far it came is in Spark's checkpoint, and told to a group
    for others to see."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._initial: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None  # for Spark's own progress reports
        self._target: dict[TopicPartition, Mark] | None = None  # of a stream that ends with what there was
        self._told: dict[str, Any] | None = None
        self._places: list[TopicPartition] = []
        self._looked_at = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Asked for twice: `latest` must be the same both times."""
        if self._initial is None:
            self._initial = document(sync.call(self._begin()))
        return self._initial

    async def _begin(self) -> dict[TopicPartition, Mark]:
        from comet.spark.cluster import Cluster

        options = self.options
        cluster = Cluster.of(options)
        places = await cluster.places(options)
        return await cluster.ends(places, options, options.starting or "latest", options.starting_ms)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = sync.call(self._latest())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """`start` is the end of the last batch that is done."""
        return document(sync.call(self._next(marks(start), limit)))

    async def _next(self, start: Marks, limit: ReadLimit) -> dict[TopicPartition, Mark]:
        from comet.spark.cluster import Cluster

        cluster = Cluster.of(self.options)
        await self._report(cluster, start)
        if self._target is not None:
            newest = self._target
        else:
            newest = await self._latest()
            if not between(start, newest):
                await cluster.wait(newest, self.options)
                newest = await self._latest()
        self._newest = document(newest)
        end = self._kept(start, newest)
        return capped(start, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    async def _latest(self) -> dict[TopicPartition, Mark]:
        from comet.spark.cluster import Cluster

        cluster = Cluster.of(self.options)
        if not self._places or time.monotonic() - self._looked_at > PLACES_S:
            self._places, self._looked_at = await cluster.places(self.options), time.monotonic()
        try:
            return await cluster.marks(self._places, self.options, "latest")
        except (TopicNotFound, PartitionNotFound):  # deleted, or made again with fewer
            self._places = await cluster.places(self.options)
            return await cluster.marks(self._places, self.options, "latest")

    def _kept(self, start: Marks, newest: Marks) -> dict[TopicPartition, Mark]:
        """An offset never goes back. What is gone, or shorter than it was, is a loss."""
        found = dict(newest)
        for place, mark in start.items():
            now = found.get(place)
            if now is not None and now.offset >= mark.offset:
                continue
            is_ = "is gone" if now is None else f"ends at {now.offset}, before {mark.offset}, which was read"
            told = f"{place.topic}/{place.partition} {is_}: was the topic deleted, or made again?"
            if self.options.fail_on_loss:
                raise DataLoss(
                    f"{told} With the option failOnDataLoss=false the query goes on.", details={"topic": place.topic}
                )
            log.warning("%s", told)
            found[place] = mark
        return found

    async def _report(self, cluster: Any, start: Marks) -> None:
        told = document(start)
        if not self.options.group or told == self._told:
            return
        problem = await cluster.report(self.options.group, start)
        if problem is None:
            self._told = told
        else:
            log.warning("the group %r was not told how far the stream has come: %s", self.options.group, problem)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The same for the same offsets, whenever it is asked."""
        return self.splits(between(marks(start), marks(end)))
