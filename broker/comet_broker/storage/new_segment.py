"""A segment while a compaction writes it, in the place of others: rows are gathered until they make a batch.

It covers exactly the offsets of the segments that it replaces. A batch holds rows of one leader epoch and one schema,
and covers what was removed between and behind them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from struct import pack
from typing import Any, Final

from crc32c import crc32c

from comet.records import RECORDS_MAX, Batch, BatchHeader, Codec, chooser, cover, encode, read_header, stamped
from comet_broker.storage.index import Index
from comet_broker.storage.layout import pack_segment_header
from comet_broker.storage.segment import Segment
from comet_broker.storage.state import LogFolder

BATCH_BYTES: Final = 256 << 10  # keys and values of a new batch, about


class NewSegment:
    def __init__(self, folder: LogFolder, sources: Sequence[Segment], digest: int) -> None:
        first, self._end = sources[0], sources[-1].next_offset
        self.segment = segment = Segment(folder.files, folder.path, first.base_offset, first.created_us)
        self.segment.path += ".tmp"
        self.digest = digest
        self.records = 0
        self.tombstones = 0
        self._files = folder.files
        self._gathered: _Gathered | None = None
        segment.index = Index()
        segment.file = self._file = folder.files.open(segment.path, create=True)
        self._file.truncate(0)
        header = pack_segment_header(folder.identity, first.base_offset, first.created_us, compacted_end=self._end)
        self._file.append((header,))

    def add(self, batch: Batch, rows: Sequence[int], *, alone: bool) -> None:
        """Adds rows of a batch; `alone`: as a batch of their own, with the producer of that one."""
        header = batch.header
        self._gather(header, header.schema_id, alone).add(batch, rows)
        if alone:
            self._flush(header)

    def skip(self, header: BatchHeader, *, alone: bool) -> None:
        """Covers the offsets of a batch of which nothing stays."""
        self._gather(header, None, alone).pass_over(header)
        if alone:
            self._flush(header)

    def copy(self, header: BatchHeader, stored: memoryview) -> None:
        """Adds a batch as it is."""
        self._flush()
        self._write(bytes(stored), header)

    def finish(self) -> None:
        """Completes and syncs the file."""
        self._flush()
        assert self.segment.next_offset == self._end, "a new segment covers what the old ones did"
        self.segment.seal()
        self.segment.sync_sealed()

    def discard(self) -> None:
        """Removes the file, unless it has its final name."""
        if self.segment.path.endswith(".tmp"):
            self._file.close()
            with contextlib.suppress(FileNotFoundError):  # a rename that failed may have been done
                self._files.remove(self.segment.path)

    def _gather(self, header: BatchHeader, schema_id: int | None, alone: bool) -> _Gathered:
        gathered = self._gathered
        if gathered is not None and (alone or not gathered.takes(header, schema_id)):
            self._flush()
            gathered = None
        if gathered is None:
            gathered = self._gathered = _Gathered(header)
        return gathered

    def _flush(self, producer: BatchHeader | None = None) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered is None:
            return
        data = gathered.encode(producer)
        self._write(data, read_header(data))
        offsets = gathered.offsets
        self.digest = crc32c(pack(f"<{len(offsets)}q", *offsets), self.digest)
        self.records += len(offsets)
        self.tombstones += gathered.values.count(None)

    def _write(self, data: bytes, header: BatchHeader) -> None:
        self.segment.append((data,), header, header.base_offset, header.append_time_us, header.leader_epoch)


class _Gathered:
    """Rows for one batch, and the offsets that it covers."""

    def __init__(self, first: BatchHeader) -> None:
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self._keys: list[bytes | None] = []
        self._timestamps: list[int] = []
        self._headers: list[Any] = []
        self._due: list[int] = []  # 0: none
        self._expiry: list[int] = []
        self._first = first.base_offset
        self._end = first.base_offset
        self._epoch = first.leader_epoch
        self._append_time_us = first.append_time_us
        self._codec = Codec(first.codec)
        self._schema_id: int | None = None  # of the rows
        self._bytes = 0

    def takes(self, header: BatchHeader, schema_id: int | None) -> bool:
        """Whether a batch's rows, or without a schema its offsets, fit as well."""
        return (
            header.leader_epoch == self._epoch
            and header.next_offset - self._first <= RECORDS_MAX
            and (schema_id is None or self._schema_id in (None, schema_id))
            and self._bytes < BATCH_BYTES
        )

    def add(self, batch: Batch, rows: Sequence[int]) -> None:
        choose = chooser(rows)
        count = len(rows)
        if not self.values:
            self._codec = Codec(batch.header.codec)
        values, keys = choose(batch.values), choose(batch.keys)
        self.values += values
        self._keys += keys
        self._bytes += sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
        self.offsets += choose(batch.offsets)
        self._timestamps += choose(batch.timestamps)
        self._headers += [()] * count if batch.header_columns is None else choose(batch.headers)
        self._due += [0] * count if batch.due is None else choose(batch.due)
        self._expiry += [0] * count if batch.expiry is None else choose(batch.expiry)
        self._schema_id = batch.header.schema_id
        self.pass_over(batch.header)

    def pass_over(self, header: BatchHeader) -> None:
        assert header.base_offset == self._end
        self._end = header.next_offset
        self._append_time_us = header.append_time_us

    def encode(self, producer: BatchHeader | None) -> bytes:
        """The batch, stamped; with the identity of a producer's batch if one is given."""
        span = self._end - self._first
        stamp = {"append_time_us": self._append_time_us, "leader_epoch": self._epoch}
        if not self.offsets and producer is None:
            return cover(self._first, self._end, **stamp)
        identity: dict[str, Any] = {}
        if producer is not None:
            identity = {
                "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch,
                "base_sequence": producer.base_sequence, "keyed": producer.keyed,
            }  # fmt: skip
        parts = encode(
            self.values,
            keys=self._keys,
            timestamps=self._timestamps or 0,
            headers=self._headers,
            codec=self._codec,
            schema_id=self._schema_id or 0,
            offset_deltas=[offset - self._first for offset in self.offsets],
            span=span,
            due=self._due if any(self._due) else None,
            expiry=self._expiry if any(self._expiry) else None,
            **identity,
        )
        return stamped(parts, self._first, **stamp)
