"""Records for subscribers: encoded once for each form, and shared.

    Source    one batch as read; its records as JSON, encoded at the first use
    Slice     some of its records in one form, with the cursor behind them: given to a subscriber
    Chunk     a part of a batch of at most `delivery_bytes`, an item of the ring; a complete one shares its slices

A cursor's text ends with the partition that moved, so the text before it, the prefix, is the same for all records of a
chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import comet
from comet.filters import Filter
from comet.records.expiry import unexpired_rows
from comet_gateway.push.events import Missing
from comet_gateway.records.cursor import CursorPosition, position_text
from comet_gateway.records.record_json import Values, fragments

RECORD_OVERHEAD: Final = 100  # bytes of JSON around a record's key and value
FRAGMENT_OVERHEAD: Final = 48  # bytes of memory that a record takes as an object
FILTERS_MAX: Final = 8  # of which a batch keeps the matches
CHUNK_OVERHEAD: Final = 3300  # bytes of memory that a chunk takes beside its records, measured


class Source:
    """A batch, and its records as JSON. Lives as long as a chunk or a subscriber references it."""

    __slots__ = ("_fragments", "_rows", "batch", "epoch", "expiry", "next_offset", "offsets", "partition", "topic")

    def __init__(self, batch: comet.RecordBatch[bytes]) -> None:
        self.batch = batch
        self.topic = batch.topic
        self.partition = batch.partition
        self.offsets: Sequence[int] = batch.offsets
        self.next_offset = batch.next_offset
        self.epoch = batch.epoch
        self.expiry: Sequence[int] | None = batch.expiry
        self._fragments: dict[Values, list[bytes]] = {}
        self._rows: dict[Filter, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def fragments(self, values: Values) -> list[bytes]:
        found = self._fragments.get(values)
        if found is None:
            found = self._fragments[values] = fragments(self.batch, values)
        return found

    def encoded(self, values: Values, rows: Sequence[int]) -> list[bytes]:
        """Some of its records as JSON; the others are not encoded for it."""
        made = self._fragments.get(values)
        if made is not None:
            return [made[row] for row in rows]
        picked = self.batch.pick(rows)
        return [] if picked is None else fragments(picked, values)

    def rows(self, chosen: Filter, begin: int, end: int) -> Sequence[int]:
        """The records of [begin, end) that match: found once for all subscribers with the same filter."""
        found = self._rows.get(chosen)
        if found is None:
            if len(self._rows) == FILTERS_MAX:
                self._rows.clear()
            found = self._rows[chosen] = chosen.rows(self.batch)
        return found[bisect_left(found, begin) : bisect_left(found, end)]

    def index(self, offset: int) -> int:
        """The index of the first record at or behind an offset."""
        return bisect_left(self.offsets, offset)

    def position(self, end: int) -> CursorPosition:
        """The position behind the first `end` records."""
        return CursorPosition(self.next_offset if end == len(self.offsets) else self.offsets[end - 1] + 1, self.epoch)

    def sizes(self) -> list[int]:
        """Approximate bytes of each record as JSON."""
        keys, values = self.batch.keys, self.batch.values
        return [RECORD_OVERHEAD + len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]

    def cuts(self, bytes_max: int) -> Iterator[tuple[int, int, int]]:
        """Splits the batch into parts of at most `bytes_max`, but at least one record: (begin, end, bytes) of each."""
        begin = size = 0
        for index, one in enumerate(self.sizes()):
            if size + one > bytes_max and index > begin:
                yield begin, index, size
                begin, size = index, 0
            size += one
        if begin < len(self):
            yield begin, len(self), size


class Slice:
    """Some records of one batch in one form: `events.Records`. Its bytes are encoded once."""

    __slots__ = ("_begin", "_cursor", "_end", "_grew", "_members", "_prefix", "_rows", "_source", "_sse", "_values")

    def __init__(
        self,
        source: Source,
        begin: int,
        end: int,
        values: Values,
        prefix: str,
        grew: Callable[[int], None] | None = None,
    ) -> None:
        assert 0 <= begin < end <= len(source)
        self._source = source
        self._begin = begin
        self._end = end
        self._values = values
        self._rows: Sequence[int] | None = None  # those that a filter matches, which may be none
        self._prefix = prefix
        self._grew = grew  # called with the bytes encoded, which live as long as the chunk
        self._cursor: str | None = None
        self._members: bytes | None = None
        self._sse: bytes | None = None

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def partition(self) -> int:
        return self._source.partition

    @property
    def count(self) -> int:
        return self._end - self._begin if self._rows is None else len(self._rows)

    @property
    def offsets(self) -> Sequence[int]:
        if self._rows is not None:
            return [self._source.offsets[row] for row in self._rows]
        return self._source.offsets[self._begin : self._end]

    @property
    def expires(self) -> bool:
        """Whether some of its records may expire."""
        return self._source.expiry is not None

    def matching(self, chosen: Filter | None, now_us: int) -> Slice:
        """Those of its records that match and have not expired, with the same cursor."""
        source, expiry = self._source, self._source.expiry
        rows: Sequence[int] = range(self._begin, self._end)
        if chosen is not None:
            rows = source.rows(chosen, self._begin, self._end)
        if expiry is not None:
            rows = unexpired_rows(rows, expiry, now_us)
        if len(rows) == self._end - self._begin:
            return self
        found = Slice(self._source, self._begin, self._end, self._values, self._prefix)
        found._rows = rows
        return found

    @property
    def columns(self) -> tuple[comet.RecordBatch[bytes], int, int]:
        """The batch of the records, and their range in it: [begin, end)."""
        if self._rows is None:
            return self._source.batch, self._begin, self._end
        picked = self._source.batch.pick(self._rows)
        return (self._source.batch, 0, 0) if picked is None else (picked, 0, len(picked))

    @property
    def cursor(self) -> str:
        if self._cursor is None:
            self._cursor = self._prefix + position_text(self.partition, *self._source.position(self._end))
        return self._cursor

    def members(self) -> bytes:
        if self._members is None:
            self._members = b'"topic":"%b","partition":%d,"records":[%b],"cursor":"%b"' % (
                self.topic.encode(), self.partition, b",".join(self._fragments()), self.cursor.encode(),
            )  # fmt: skip
            self._made(self._members)
        return self._members

    def sse(self) -> bytes:
        if self._sse is None:
            source, end = self._source, self._end
            # Offsets behind the last record of a batch may belong to no record, or to some that a filter passes over.
            behind = [offset + 1 for offset in self.offsets[:-1]]
            behind.append(source.position(end).offset)
            head = f"id: {self._prefix}{self.partition}-".encode()
            tail = b"-%d\ndata: " % source.epoch
            records = self._fragments()
            if not records:  # only the id is news to the client
                self._sse = b"%b%d-%d\n\n" % (head, behind[-1], source.epoch)
                return self._sse
            self._sse = b"".join(
                [b"%b%d%b%b\n\n" % (head, offset, tail, one) for offset, one in zip(behind, records, strict=True)]
            )
            self._made(self._sse)
        return self._sse

    def _fragments(self) -> list[bytes]:
        if self._rows is not None:
            return self._source.encoded(self._values, self._rows)
        made = self._source.fragments(self._values)
        return made if self.count == len(made) else made[self._begin : self._end]

    def _made(self, made: bytes) -> None:
        if self._grew is not None:
            self._grew(2 * len(made) + FRAGMENT_OVERHEAD * self.count)  # twice: as a frame and as fragments


class Chunk:
    """A part of a batch in the ring, which owns it and counts its memory, later encodings included."""

    __slots__ = (
        "_forms",
        "_grew",
        "_made",
        "before",
        "begin",
        "end",
        "next",
        "partition",
        "prefix",
        "size",
        "source",
        "start",
    )

    def __init__(
        self, source: Source, begin: int, end: int, size: int, *, start: CursorPosition, prefix: str, before: int,
        grew: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.source = source
        self.begin = begin
        self.end = end
        self.partition = source.partition
        self.start = start  # position of the partition before it
        self.next = source.position(end)
        self.prefix = prefix
        self.before = before  # records before it, of all partitions
        # The batch, its records as JSON, and those as one frame, which will be needed soon.
        self.size = 3 * size + FRAGMENT_OVERHEAD * (end - begin) + CHUNK_OVERHEAD + len(prefix)
        self._made = False
        self._forms: dict[Values, Slice] = {}
        self._grew: Callable[[int], None] | None = grew

    @property
    def count(self) -> int:
        return self.end - self.begin

    def whole(self, values: Values) -> Slice:
        found = self._forms.get(values)
        if found is None:
            found = Slice(self.source, self.begin, self.end, values, self.prefix, self._grow)
            self._forms[values] = found
        return found

    def part(self, skip: int, count: int, values: Values, prefix: str | None = None) -> Slice:
        """Some of its records, from index `skip` on; with its own cursor if `prefix` is given."""
        if prefix is None and skip == 0 and count == self.count:
            return self.whole(values)
        begin = self.begin + skip
        return Slice(self.source, begin, begin + count, values, self.prefix if prefix is None else prefix)

    def skip_to(self, offset: int) -> int:
        """The index of its first record at or behind an offset."""
        return max(self.source.index(offset), self.begin) - self.begin

    def position(self, skip: int) -> CursorPosition:
        """The position before the record of that index."""
        return self.start if skip == 0 else self.source.position(self.begin + skip)

    def _grow(self, size: int) -> None:
        """Counts the bytes of another form."""
        if self._made and self._grew is not None:
            self.size += size
            self._grew(size)
        self._made = True

    def leave(self) -> None:
        """Removes it from the ring. Breaks references, so that it is freed at once and not by the collector."""
        self._grew = None
        self._forms.clear()


class Hole:
    """A gap as an item of the ring."""

    __slots__ = ("before", "missing", "next", "partition", "prefix", "size", "start")

    def __init__(
        self,
        missing: Missing,
        *,
        start: CursorPosition,
        next: CursorPosition,  # noqa: A002
        prefix: str,
        before: int,
    ) -> None:
        self.missing = missing
        self.partition = missing.partition
        self.start = start
        self.next = next
        self.prefix = prefix
        self.before = before
        self.size = CHUNK_OVERHEAD
