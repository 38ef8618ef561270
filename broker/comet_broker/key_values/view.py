"""The last record of each key of one partition, kept up with its log when it is asked.

    log ─► taken in, in order ─┬─► below the high watermark ─► table
                               ├─► above it ─► pending, for conditions ─► table, once the watermark has passed
                               └─► of a transaction ─► open, until its marker is below the watermark

    read        ─► all records below the high watermark are in the table ─► answered without an await
    condition   ─► all records of the log are taken in ─► compared in the turn in which the batch is appended

Nothing is kept up for a partition whose keys are not read. What is in memory is taken in on the loop, the rest by a
worker, in slices; calls wait meanwhile. The view depends on the log alone, so that it may lead or follow; a truncation
below what it has taken in ends it, and the next call makes another one.

Implements partitions.context.Reader. Owned by KeyViews.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from comet import records
from comet.errors import CometError, CorruptRecords, Internal, InvalidArgument, Unavailable
from comet.records import Batch, BatchHeader, Flag, Marker, control_of
from comet.v1 import records_pb2 as pb
from comet.wire.corrupt import headers, opened
from comet_broker import limits
from comet_broker.key_values.compaction_watch import CompactionWatch
from comet_broker.key_values.table import KeyRecord, KeyTable
from comet_broker.partitions.log_reader import LogReader, read_waiting
from comet_broker.partitions.partition import Partition
from comet_broker.partitions.record_messages import record_messages, requested_message
from comet_broker.storage.extent import Extent

log = logging.getLogger(__name__)

_CONTROL: Final = int(Flag.CONTROL)
_TRANSACTIONAL: Final = int(Flag.TRANSACTIONAL)
_KEYS: Final = int(Flag.KEYS)
_OVERHEAD_BYTES: Final = 256  # of a pending record


class TransactionEnd(NamedTuple):
    """The end of a transaction, by its marker's offset."""

    revision: int
    producer_id: int
    epoch: int
    commit: bool


class KeyView:
    def __init__(self, partition: Partition, reader: LogReader, used_at: float) -> None:
        self.partition = partition
        self.table = KeyTable()
        self.read_end = partition.log.log_start  # the offset up to which the log is taken in
        self.used_at = used_at
        self.closed: CometError | None = None
        self._reader = reader
        self._pending: deque[KeyRecord | TransactionEnd] = deque()  # at or above the high watermark, in order
        self._pending_bytes = 0
        self._newest: dict[bytes, KeyRecord] = {}  # of `pending`, by key
        self._reading: asyncio.Task[None] | None = None  # a worker takes in the log: nothing else touches the view
        self._reading_to = 0  # the end of the log as that task has it
        self._compactions = CompactionWatch(partition.log)
        partition.readers.add(self, self, leader_only=False)

    # ---- Reader

    def next_offset(self, _: KeyView) -> int:
        return self.read_end if self._reading is None else self._reading_to

    def partition_closed(self, _: KeyView, error: CometError) -> None:
        self.close(error)

    def close(self, error: CometError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        self.partition.readers.remove(self)
        if self._reading is None:
            self._free()

    def _free(self) -> None:
        context = self.partition.context
        self._pending.clear()
        self._newest.clear()
        context.tasks.spawn(context.worker.run(self.table.close), f"free the keys of {self.partition}")

    # ---- taking in the log

    def keep_up(self) -> bool:
        """Takes in the log as far as it is in memory. False: a worker has to; see `take_in`."""
        if self.closed is not None:
            raise self.closed
        if self._reading is not None:
            return False
        partition = self.partition
        try:
            high_watermark = partition.high_watermark
            if self._pending:
                self._settle(high_watermark)
            if self.read_end == partition.log.log_end:
                return True
            self._notice_compaction()
            if self._compactions.removed(self.read_end, high_watermark) is not None:
                self._begin_to_read(self.read_end)
                return False
            self._skip_deleted()
            self._take_from_tail(high_watermark)
            return self.read_end == partition.log.log_end
        except sqlite3.Error as error:
            raise self._ended(f"its table failed: {error}") from error

    def _take_from_tail(self, high_watermark: int) -> None:
        taken = 0
        for entry in self.partition.readers.tail.entries_from(self.read_end):
            if taken >= limits.KEY_SLICE_BYTES or self._full:
                break
            taken += entry.size
            batch = memoryview(b"".join((entry.stamp, entry.rest)))
            header = records.read_header(batch)
            self._take(header, lambda: records.opened(header, batch), high_watermark)  # noqa: B023 - called at once

    def appended(self, base_offset: int, chosen: Sequence[pb.Record], now_us: int) -> None:
        """Takes in a batch in the turn in which it is appended, from its request, so that it is not decoded. Leaves it
        to `keep_up` where the request alone does not tell what is in the table after it."""
        partition = self.partition
        if self.closed is not None or self._reading is not None or self._full or self.read_end != base_offset:
            return
        if partition.log.state.config.record_ttl_ms > 0 or any(record.ttl_ms for record in chosen):
            return
        high_watermark = partition.high_watermark
        try:
            self._notice_compaction()
            if self._compactions.removed(base_offset, high_watermark) is not None:
                return
            rows = [
                KeyRecord(record.key, offset, record.HasField("value"), requested_message(record, offset, now_us))
                for offset, record in enumerate(chosen, base_offset)
                if record.HasField("key")
            ]
            self._add(rows, high_watermark)
        except sqlite3.Error as error:
            self._ended(f"its table failed: {error}")
        except Unavailable:  # it was compacted: the batch is in the log, and the next call makes another view
            return
        self.read_end = base_offset + len(chosen)

    async def take_in(self) -> None:
        """Takes in the log up to its present end. All callers share the work. Raises Unavailable while too many records
        are above the high watermark."""
        if self.closed is not None:
            raise self.closed
        if self._full:
            raise Unavailable(f"too many records of {self.partition} are not on all replicas yet", retry_after_ms=50)
        if self._reading is None:
            self._begin_to_read(self.partition.log.log_end)
        assert self._reading is not None
        await asyncio.shield(self._reading)

    def _begin_to_read(self, end: int) -> None:
        self._reading_to = end
        work = self._read_on(end)
        self._reading = asyncio.get_running_loop().create_task(work, name=f"read the keys of {self.partition}")
        self._reading.add_done_callback(_retrieve)

    async def _read_on(self, end: int) -> None:
        try:
            removed = self._compactions.removed(self.read_end, self.partition.high_watermark)
            if removed is not None:
                self._compactions.forget(removed)
                await self.partition.context.worker.run(lambda: self.table.forget(removed))
            while self.read_end < end and not self._full and self.closed is None:
                self._skip_deleted()
                if self.read_end >= end:
                    break
                self._notice_compaction()
                await self._read_slice(end)
        except sqlite3.Error as error:
            raise self._ended(f"its table failed: {error}") from error
        except CometError:
            raise
        except Exception as error:
            found = Internal(f"reading the keys of {self.partition} failed: {error!r}")
            self.close(found)
            self.partition.context.tasks.report(f"the keys of {self.partition}", error)
            raise found from error
        finally:
            self._reading = None
            if self.closed is not None:
                self._free()

    async def _read_slice(self, end: int) -> None:
        partition, worker = self.partition, self.partition.context.worker
        try:
            extent = partition.log.extent(self.read_end, end)
        except CometError as error:
            raise partition.explain(error) from error
        high_watermark = partition.high_watermark
        try:
            await worker.run(lambda: self._take_slice(extent, high_watermark))
        except CorruptRecords:
            raise
        except CometError as error:
            raise partition.explain(error) from error
        except OSError as error:
            raise self._reader.unreadable(partition, error) from error
        finally:
            extent.release()

    def _take_slice(self, extent: Extent, high_watermark: int) -> None:
        """On a worker."""
        data, size, _ = read_waiting(extent, limits.KEY_SLICE_BYTES)
        data = data[:size]
        self._settle(high_watermark)
        for at, header in headers(data):
            if header.next_offset > self.read_end and self.closed is None:
                opened_here = partial(opened, header, data, at, self.partition.topic, self.partition.index)
                self._take(header, opened_here, high_watermark)

    def _skip_deleted(self) -> None:
        """Continues at the log start if the records before it were deleted meanwhile."""
        self.read_end = max(self.read_end, self.partition.log.log_start)

    def _notice_compaction(self) -> None:
        """Begins again if a compaction may have removed what the table needs."""
        undecided = self.table.any_open or any(isinstance(row, TransactionEnd) for row in self._pending)
        if self._compactions.overtook(self.read_end) or (self._compactions.replaced() and undecided):
            raise self._ended("it was compacted")

    def _ended(self, why: str) -> CometError:
        """Ends the view, so that the next call makes another one."""
        found = Unavailable(f"the keys of {self.partition} are being read again: {why}", retry_after_ms=50)
        log.warning("%s", found)
        self.close(found)
        return found

    @property
    def _full(self) -> bool:
        return len(self._pending) >= limits.KEY_PENDING_MAX or self._pending_bytes >= limits.KEY_PENDING_BYTES_MAX

    def _take(self, header: BatchHeader, batch: Callable[[], Batch], high_watermark: int) -> None:
        """Takes in one batch, which is opened if it matters."""
        flags = header.flags
        if flags & _CONTROL:
            control = control_of(batch())
            if isinstance(control, Marker):
                end = TransactionEnd(header.base_offset, header.producer_id, header.producer_epoch, control.commit)
                self._add([end], high_watermark)
        elif flags & _KEYS:
            rows = _keyed(batch(), self.read_end)
            if flags & _TRANSACTIONAL:
                self.table.put_open(header.producer_id, header.producer_epoch, rows)
            elif header.next_offset <= high_watermark and not self._pending:
                self.table.put(rows[0]) if len(rows) == 1 else self.table.put_many(rows)
            else:
                self._add(rows, high_watermark)
        self.read_end = header.next_offset

    def _add(self, rows: Sequence[KeyRecord | TransactionEnd], high_watermark: int) -> None:
        for row in rows:
            self._pending.append(row)
            if isinstance(row, KeyRecord):
                self._pending_bytes += len(row.record) + _OVERHEAD_BYTES
                self._newest[row.key] = row
        self._settle(high_watermark)

    def _settle(self, high_watermark: int) -> None:
        """Puts the records that are below the high watermark now into the table."""
        pending, newest = self._pending, self._newest
        while pending and pending[0].revision < high_watermark:
            row = pending.popleft()
            if isinstance(row, KeyRecord):
                self.table.put(row)
                self._pending_bytes -= len(row.record) + _OVERHEAD_BYTES
                if newest[row.key] is row:
                    del newest[row.key]
            else:
                self.table.decide(row.producer_id, row.epoch, commit=row.commit)

    # ---- conditions

    def newest(self, key: bytes) -> KeyRecord | None:
        """The key's last record in the log, committed or not. Raises Unavailable while a transaction has written it.
        After a `keep_up` in the same turn."""
        if self.table.is_open(key):
            raise Unavailable(
                f"a transaction that is not decided yet has written the key {key[:100]!r} of {self.partition}",
                retry_after_ms=20,
                details={"undecided": key[:100].decode("utf-8", "replace")},
            )
        found = self._newest.get(key) or self.table.last(key)
        return found if found is not None and found.revision >= self.partition.log.log_start else None

    # ---- reads of the table, after a `keep_up` in the same turn

    def behind(self) -> bool:
        """Whether the table lacks records below the high watermark."""
        return self._reading is not None or self.read_end < self.partition.high_watermark

    def last(self, keys: Iterable[bytes], now_us: int) -> list[bytes]:
        """The encoded last records of these keys, as far as they have one that has not expired. Raises InvalidArgument
        if they are too large for one answer."""
        found: list[bytes] = []
        size = 0
        for key in keys:
            row = self.table.last(key)
            if row is not None and not row.expired(now_us) and row.revision >= self.partition.log.log_start:
                if size >= limits.READ_KEYS_BYTES_MAX:
                    raise InvalidArgument(
                        f"these records have more than {limits.READ_KEYS_BYTES_MAX} bytes: read fewer keys at once"
                    )
                found.append(row.record)
                size += len(row.record)
        return found

    def range(self, prefix: bytes, after: bytes | None, limit: int, now_us: int) -> tuple[list[bytes], bytes | None]:
        """The encoded last records, with a value, of the next keys, and the key after which the range goes on."""
        found: list[bytes] = []
        size = 0
        rows = self.table.range(prefix, after, limit)
        for row in rows:
            if size >= limits.READ_KEYS_BYTES_MAX:
                break
            after = row.key
            if row.counts(now_us) and row.revision >= self.partition.log.log_start:
                found.append(row.record)
                size += len(row.record)
        else:
            if len(rows) < limit:
                after = None
        return found, after

    def revisions(self, key: bytes, limit: int) -> list[int]:
        start = self.partition.log.log_start
        return [one for one in self.table.revisions(key)[:limit] if one >= start]


def _retrieve(task: asyncio.Task[None]) -> None:
    """Takes note of its error, which the calls raise that still wait for it."""
    if not task.cancelled():
        task.exception()


def _keyed(batch: Batch, since: int) -> list[KeyRecord]:
    """The records of a batch with a key, from an offset on."""
    return [
        KeyRecord(record.key, record.offset, record.HasField("value"), record.SerializeToString(), record.expires_us)
        for record in record_messages(batch, since)
        if record.HasField("key")
    ]
