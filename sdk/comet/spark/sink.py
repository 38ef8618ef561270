"""The classes that Spark calls to write. `write` runs in workers of the executors and commits before it returns: each
partition of a batch becomes visible by itself. So the driver has nothing to commit or undo."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import comet
from comet import sync
from comet.errors import CometError, InvalidArgument, TopicNotFound
from comet.spark import rows
from comet.spark.sink_options import SinkOptions
from comet.spark.write_unit import Unit

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Properties that Spark sets for tasks of a stream, also of a write in foreachBatch.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"

LOOKED_AT_MAX: Final = 1_000
CHECK_TIMEOUT_MS_MAX: Final = 2_000
_looked_at: set[SinkOptions] = set()


@dataclass
class CommitMessage(WriterCommitMessage):
    """A task's report to the driver: its rows in the topic, and whether an earlier attempt had written them."""

    rows: int
    before: bool = False
    batch: int | None = None  # of a query


class _Writer:
    """The executor side of both kinds of writers."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        rows.check(schema, options.topic)
        if options.topic:
            _check(options)
        self.options = options

    def _write(self, unit: Unit, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        from comet.spark import task_end, writing

        if self.options.exactly_once:
            wrote = writing.write_unit(unit, task_end.whole(batches), self.options)
        else:
            wrote = writing.write_rows(batches, self.options)
        return CommitMessage(wrote.rows, wrote.before, unit.batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:  # noqa: N803
        """Nothing to do: the transactions of the tasks are committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:  # noqa: N803
        """Nothing to do: failed tasks have written nothing, and rows of other tasks stay valid when Spark repeats the
        batch."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of a query: writes each partition of a batch once, despite failures."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options)
        if options.name:
            raise InvalidArgument("transactionalId is for df.write: a stream uses the id of its query")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        assert query and batch, "Spark gives each task of a stream its query and batch"
        return self._write(Unit(query, task.partitionId(), int(batch)), iterator)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of one df.write: writes each partition once, despite repeated attempts. With a transactionalId also
    over runs; in foreachBatch each batch of the query once, as a stream does."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options)
        self.name = options.name or f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if self.options.name and query and batch:  # inside foreachBatch
            unit = Unit(f"{self.name}.{query}", task.partitionId(), int(batch))
        else:
            unit = Unit(self.name, task.partitionId(), None)
        return self._write(unit, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:  # noqa: ARG002, N803
        """Nothing to commit; logs a warning if all partitions were written before under this id."""
        written = [message for message in messages if isinstance(message, CommitMessage)]
        if self.options.name and written and all(one.before and one.batch is None for one in written):
            log.warning(
                "nothing written: transactionalId %r has written all partitions before, %d rows. "
                "Give another load its own transactionalId",
                self.options.name,
                sum(one.rows for one in written),
            )


def _check(options: SinkOptions) -> None:
    """Checks the topic before Spark computes anything, once for each process and set of options. If no broker answers,
    it only logs: tasks wait for brokers, planning does not."""
    if options in _looked_at:
        return
    try:
        sync.call(_query(options))
    except CometError as error:
        if isinstance(error, TopicNotFound | InvalidArgument):
            raise
        log.warning(
            "topic %r was not checked: no broker answers at bootstrap=%s; each task waits %d ms for one: %s",
            options.topic,
            options.bootstrap,
            options.timeout_ms,
            error,
        )
        return
    if len(_looked_at) >= LOOKED_AT_MAX:
        _looked_at.clear()
    _looked_at.add(options)


async def _query(options: SinkOptions) -> None:
    async with comet.Admin(
        options.addresses(), timeout_ms=min(options.timeout_ms, CHECK_TIMEOUT_MS_MAX), name="spark"
    ) as admin:
        topic = await admin.describe_topic(options.topic)
    if options.exactly_once and topic.config.available:
        raise InvalidArgument(
            f"topic {topic.name!r} has consistency=available and takes no transactions: set the option "
            "exactlyOnce=false"
        )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark gives each task a context"
    return task
