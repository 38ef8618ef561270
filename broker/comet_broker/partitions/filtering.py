"""Filters that a broker evaluates for its readers, so that what does not match is not sent.

    batches of the log ─► rows that match ─┬─ all: the batch as it is
                                           ├─ some: these rows alone
                                           └─ none: its offsets, covered together with those of its neighbours

This saves work, and readers do not rely on it: they apply their filter to every record. So a broker whose processor
time for filters is used up sends whole batches, and so does one that cannot read a batch. Only share groups rely on it:
their reads wait for that time. Progress is sent as well: offsets without a match are covered, so that a reader does not
ask for them again. Where a batch is opened for its filter, records that have expired are left out, too.

Slices of SLICE_S take turns with everything else on the loop, one at a time for all readers. Large batches go to a
worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final, Protocol

from comet import records
from comet.errors import CorruptBatch
from comet.records import Batch, BatchHeader
from comet.records.expiry import unexpired_rows
from comet_broker.core.filter_time import FilterTime
from comet_broker.ports import Worker

SLICE_S: Final = 0.0005  # at least one batch
READ_BYTES: Final = 1 << 20  # of the log at a time: a batch in bulk at least, or it is read twice
EXAMINED_BYTES_MAX: Final = 4 << 20  # before the reader is told of progress
LOOP_RECORDS_MAX: Final = 10_000  # of a batch that is looked at on the loop
LOOP_BYTES_MAX: Final = 1 << 20


class RowFilter(Protocol):
    """A comet.filters.Filter, which is imported when a reader has one."""

    def rows(self, batch: Any) -> Sequence[int]: ...


@lru_cache(maxsize=64)
def parsed(text: str) -> RowFilter | None:
    """A reader's filter; None for none. Raises MalformedFilter. Times ago were fixed by the reader."""
    if not text:
        return None
    from comet.filters import parse  # here: most brokers never need it

    return parse(text, now_us=0)


class FilteredDelivery:
    """What is left of batches, in order. Owned by one delivery, or one answer. `exact`: it waits for processor time
    instead of sending all, as nothing behind it applies the filter."""

    def __init__(
        self,
        chosen: RowFilter,
        partition: int,
        time: FilterTime,
        turn: asyncio.Lock,
        worker: Worker,
        *,
        exact: bool = False,
    ) -> None:
        self.examined_bytes = 0
        self.size = 0
        self.times: tuple[int, int] | None = None  # the bounds of the timestamps of what was looked at
        self._chosen = chosen
        self._partition = partition
        self._time = time
        self._turn = turn
        self._worker = worker
        self._exact = exact
        self._parts: list[bytes | memoryview] = []
        self._gap: tuple[int, int, int, int] | None = None  # first and end, append time and epoch of the last batch

    def finish(self) -> int:
        """Ends it. Returns the size of what is left."""
        self._close_gap()
        return self.size

    def batches(self, prefix: bytes = b"") -> bytes:
        """What is left, behind the prefix."""
        self.finish()
        return b"".join((prefix, *self._parts))

    async def take(self, data: memoryview) -> None:
        """Adds whole batches, in memory that does not change any more."""
        at, time = 0, self._time
        while at < len(data):
            while self._exact and not time.allows():
                pause_s = time.pause_s()
                await asyncio.sleep(pause_s)
            async with self._turn:
                began, first, size = time.now(), at, self.size
                while at < len(data):
                    header = records.read_header(data, at)
                    stored = data[at : at + header.length]
                    if header.record_count > LOOP_RECORDS_MAX or header.body_size > LOOP_BYTES_MAX:
                        await self._worker.run(partial(self._take_one, header, stored))
                    else:
                        self._take_one(header, stored)
                    at += header.length
                    if time.now() - began >= SLICE_S:
                        break
                time.spend(time.now() - began, at - first - (self.size - size))
                await asyncio.sleep(0)

    def _take_one(self, header: BatchHeader, stored: memoryview) -> None:
        self.examined_bytes += header.length
        if header.control:
            self._pass_over(header)
            return
        if header.record_count:
            self._note_times(header.min_timestamp_us, header.max_timestamp_us)
        if not self._exact and not self._time.allows():
            self._time.unfiltered_batches += 1
            self._add(stored)
            return
        self._time.examined_bytes += header.length
        try:
            batch = records.decode(stored)
            batch.check(times=False)
            rows = self._chosen.rows(_Rows(batch, self._partition))
            expiry = batch.expiry
            if expiry is not None:
                now_us = self._time.wall_us()
                rows = unexpired_rows(rows, expiry, now_us)
        except CorruptBatch:  # the reader reports it
            self._add(stored)
            return
        self._time.examined_records += len(batch)
        self._time.skipped_records += len(batch) - len(rows)
        if len(rows) == len(batch) and rows:
            self._add(stored)
        elif rows:
            self._add(records.take(batch, rows))
        else:
            self._pass_over(header)

    def _note_times(self, least: int, most: int) -> None:
        known = self.times
        self.times = (least, most) if known is None else (min(known[0], least), max(known[1], most))

    def _add(self, data: bytes | memoryview) -> None:
        self._close_gap()
        self._parts.append(data)
        self.size += len(data)

    def _pass_over(self, header: BatchHeader) -> None:
        gap = self._gap
        if gap is not None and gap[3] != header.leader_epoch:
            self._close_gap()
            gap = None
        first = header.base_offset if gap is None else gap[0]
        self._gap = (first, header.next_offset, header.append_time_us, header.leader_epoch)

    def _close_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            first, end, append_time_us, epoch = gap
            covered = records.cover(first, end, append_time_us=append_time_us, leader_epoch=epoch)
            self._parts.append(covered)
            self.size += len(covered)


class _Rows:
    """A stored batch, as a filter reads it. Implements comet.filters.columns.Filterable."""

    encrypted = None

    def __init__(self, batch: Batch, partition: int) -> None:
        self._batch = batch
        self.partition = partition

    @property
    def headers(self) -> Sequence[Sequence[tuple[str, bytes]]]:
        return self._batch.headers

    @property
    def keys(self) -> Sequence[bytes | None]:
        return self._batch.keys

    @property
    def offsets(self) -> Sequence[int]:
        return self._batch.offsets

    @property
    def stored(self) -> tuple[Batch, int | None]:
        return self._batch, 0

    @property
    def timestamps(self) -> Sequence[int]:
        return self._batch.timestamps

    @property
    def values(self) -> Sequence[bytes | None]:
        return self._batch.values

    def size_of(self, index: int) -> int:
        return self._batch.size_of(index, index + 1)

    def __len__(self) -> int:
        return len(self._batch)
