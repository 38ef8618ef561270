"""Data sources of `comet bench spark` beside Comet's own; Spark's workers import them from this module.

comet_rows     the source, with each record as a tuple: the cost of handling records one by one
comet_memory   batches as the source makes them, repeated from memory: the upper bound for a source
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from comet.spark.source import BatchReader, CometSource

BATCH_ROWS: Final = 10_000


class RowsSource(CometSource):
    """`format("comet_rows")`, with the options of the source."""

    @classmethod
    def name(cls) -> str:
        return "comet_rows"

    def reader(self, schema: StructType) -> BatchReader:
        return RowReader(schema, self._options())


class RowReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class Memory(DataSource):
    """`format("comet_memory")`: `rows` in `partitions`, with values of the kind `values`, and columns by the schema."""

    @classmethod
    def name(cls) -> str:
        return "comet_memory"

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(schema, dict(self.options))


class MemoryReader(DataSourceReader):
    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(int(self._options["partitions"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - they are all alike
        left = int(self._options["rows"]) // int(self._options["partitions"])
        batch = _batch(self._schema, self._options["values"])
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


def _batch(schema: StructType, values: str) -> Any:
    """A batch as the log has it, through the same columns."""
    from comet import RecordBatch, records
    from comet.spark.columns import SparkColumns
    from comet.spark.options import SourceOptions
    from comet_bench.spark.stream import VALUES

    encoded = b"".join(records.encode(VALUES[values](BATCH_ROWS), timestamps=1_700_000_000_000_000))
    batch: RecordBatch[bytes] = RecordBatch("memory", 0, records.decode(encoded), high_watermark=0, leader_epoch=0)
    return SparkColumns(schema, SourceOptions()).of(batch)
