"""Records, to read or to write, and batches of them as columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from comet.encryption.encrypted_values import EncryptedValues, Rows, picked
from comet.encryption.keyring import Keyring
from comet.errors import SerdeError
from comet.records import Batch
from comet.records.expiry import unexpired_rows

if TYPE_CHECKING:
    import pyarrow

    from comet.serde import Serde

T = TypeVar("T")

Key = bytes | str | None
Headers = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]
HeaderList = list[tuple[str, bytes]]


def text_of_key(key: bytes | None) -> str | None:
    """A key that was written as text. Raises SerdeError for one that is not UTF-8."""
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise SerdeError(f"the key is not text: {key[:40]!r}; use `key`, its bytes") from None


class NewRecord(NamedTuple):
    """A record to write. `value` is what Producer.send takes: bytes, str, None, or a model; without a timestamp, the
    broker sets it. `ttl_ms` is that of Producer.send.

    >>> async def example(address: str) -> None:
    ...     records = [comet.NewRecord("EURUSD 1.08", key="EURUSD", headers={"source": "demo"})]
    ...     async with comet.Producer(address, acks="all") as producer:
    ...         for _ in range(2):
    ...             receipts = await producer.publish_once("quotes", records, idempotency_key="quote 4711")
    ...             print(receipts[0].offset, receipts[0].duplicate)
    >>> run(example)
    0 False
    0 True
    """

    value: Any
    key: Key = None
    headers: Headers = ()
    timestamp_us: int | None = None
    partition: int | None = None
    ttl_ms: int | None = None


class Record(NamedTuple, Generic[T]):
    """A record that was read. `value` is bytes, or of the consumer's `type` if it has one.

    The value of a tombstone is None, for every type. `key` is bytes, also of a key that was written as text: a log does
    not keep the difference. `key_text` is the key as text.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await producer.publish("quotes", "EURUSD 1.08", key="EURUSD", timestamp_us=1_700_000_000_000_000)
    ...     async with comet.Consumer(address, "quotes", start="earliest") as consumer:
    ...         record = await consumer.get()
    ...     print(record.topic, record.partition, record.offset, record.key, record.value, record.timestamp_us)
    ...     print(record.key_text)
    >>> run(example)
    quotes 0 0 b'EURUSD' b'EURUSD 1.08' 1700000000000000
    EURUSD
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: T
    timestamp_us: int
    headers: HeaderList

    @property
    def key_text(self) -> str | None:
        """The key as text. Raises SerdeError if it is not UTF-8."""
        return text_of_key(self.key)


_new_record: Any = tuple.__new__


class RecordBatch(Generic[T]):
    """Records of one partition as columns: no object is made per record until it is used.

    Keeps its buffer in memory for as long as it lives. Do not change its lists.

    >>> async def example(address: str) -> None:
    ...     async with comet.Producer(address) as producer:
    ...         await (await producer.send_many("quotes", [b"1", b"2", b"3"]))
    ...     async with comet.Consumer(address, "quotes", type=int, start="earliest") as consumer:
    ...         async for batch in consumer.batches():
    ...             print(batch.values, list(batch.offsets), batch.models(), batch.high_watermark)
    ...             break
    >>> run(example)
    [b'1', b'2', b'3'] [0, 1, 2] [1, 2, 3] 3
    """

    __slots__ = (
        "_batch",
        "_end",
        "_part",
        "_serde",
        "encrypted",
        "high_watermark",
        "leader_epoch",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        batch: Batch,
        *,
        skip: int = 0,
        end: int | None = None,
        high_watermark: int = -1,
        leader_epoch: int = 0,
        serde: Serde[T] | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.high_watermark = high_watermark
        self.leader_epoch = leader_epoch
        self._batch = batch
        # The requested records; None: all.
        self._part: Rows | None = range(skip, len(batch) if end is None else end) if skip or end is not None else None
        self._end: int | None = None  # of a part that a filter has made: the offset behind the last record it saw
        self._serde = serde
        # Its values, if it was read with `encryption`; decrypted before the batch is handed out.
        self.encrypted = None if keyring is None else EncryptedValues(keyring, topic, batch, self._part)

    def __len__(self) -> int:
        part = self._part
        return len(self._batch) if part is None else len(part)

    def __repr__(self) -> str:
        return f"<RecordBatch of {len(self)} from {self.topic}/{self.partition} at {self.first_offset}>"

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.offsets[0]

    @property
    def next_offset(self) -> int:
        """The offset after this batch, or after this part of it."""
        part = self._part
        if self._end is not None:
            return self._end
        if part is None or part[-1] == len(self._batch) - 1:
            return self._batch.header.next_offset
        return self._batch.offsets[part[-1]] + 1

    @property
    def epoch(self) -> int:
        """The leader epoch of these records: with `next_offset`, it detects a later truncation."""
        return self._batch.header.leader_epoch

    @property
    def append_time_us(self) -> int:
        """When the leader of the partition appended the batch, by its clock: the same for all its records."""
        return self._batch.header.append_time_us

    def after(self, offset: int) -> RecordBatch[T] | None:
        """The part of the batch from `offset` on; None if there is none."""
        before = bisect_left(self.offsets, offset)
        return None if before >= len(self) else _cut(self, before, len(self))

    def before(self, offset: int) -> RecordBatch[T] | None:
        """The part of the batch up to, not including, `offset`; None if there is none."""
        upto = bisect_left(self.offsets, offset)
        return None if upto == 0 else _cut(self, 0, upto)

    def pick(self, rows: Sequence[int]) -> RecordBatch[T] | None:
        """The records of these indexes, which rise; None for none. `next_offset` stays: the others count as read."""
        if len(rows) == len(self):
            return self
        if not rows:
            return None
        given = self._part
        part = _part_of(self, list(rows) if given is None else [given[row] for row in rows])
        part._end = self.next_offset
        if self.encrypted is not None:
            part.encrypted = self.encrypted.pick(rows)
        return part

    @property
    def stored(self) -> tuple[Batch, int | None]:
        """The batch that the records lie in, and the index of the first, if all behind it are in a row and their values
        as they are: not decrypted."""
        part = self._part
        as_it_is = self.encrypted is None and not isinstance(part, list)
        return self._batch, None if not as_it_is else 0 if part is None else part[0]

    @property
    def size(self) -> int:
        """Bytes of all keys and values, computed without reading them."""
        part = self._part
        if isinstance(part, list):
            return sum(map(self.size_of, range(len(part))))
        return self._batch.size_of(0, len(self._batch)) if part is None else self._batch.size_of(part.start, part.stop)

    def size_of(self, index: int) -> int:
        """Bytes of the key and value of one record, computed without reading them."""
        at = index if self._part is None else self._part[index]
        return self._batch.size_of(at, at + 1)

    def record(self, index: int) -> Record[bytes]:
        """One record, its value as bytes (a tombstone's is None): for a few of a batch. For all, use `records`."""
        batch, at = self._batch, index if self._part is None else self._part[index]
        value: Any = batch.values[at] if self.encrypted is None else self._decrypted(index)
        return Record(
            self.topic, self.partition, batch.offsets[at], batch.keys[at], value,
            batch.timestamps[at], [] if batch.header_columns is None else batch.headers[at],
        )  # fmt: skip

    @property
    def values(self) -> Sequence[bytes | None]:
        """The values as bytes; None is a tombstone. With the consumer's `encryption` they are decrypted: raises
        DecryptionError, with the offset of the first that cannot be."""
        if self.encrypted is not None:
            errors, values = self.encrypted.errors, self.encrypted.values
            if errors:
                self._decrypted(min(errors))
            return values
        stored = self._batch.values
        return stored if self._part is None else picked(stored, self._part)

    def _decrypted(self, index: int) -> bytes | None:
        """A decrypted value. Raises DecryptionError, with its offset."""
        assert self.encrypted is not None
        if index in self.encrypted.errors:
            raise self.at(self.encrypted.errors[index], self.offsets[index])
        return self.encrypted.values[index]

    @property
    def keys(self) -> Sequence[bytes | None]:
        keys = self._batch.keys
        return keys if self._part is None else picked(keys, self._part)

    @property
    def offsets(self) -> Sequence[int]:
        offsets = self._batch.offsets
        return offsets if self._part is None else picked(offsets, self._part)

    @property
    def timestamps(self) -> Sequence[int]:
        """Microseconds since 1970, as the producers gave them."""
        timestamps = self._batch.timestamps
        return timestamps if self._part is None else picked(timestamps, self._part)

    @property
    def expiry(self) -> Sequence[int] | None:
        """When each record expires, in microseconds since 1970; 0: never. None: none of them does."""
        expiry = self._batch.expiry
        return expiry if expiry is None or self._part is None else picked(expiry, self._part)

    @property
    def headers(self) -> Sequence[HeaderList]:
        headers = self._batch.headers
        return headers if self._part is None else picked(headers, self._part)

    def models(self) -> list[T]:
        """The values as models of the consumer's type; without one, as `values`. A tombstone stays None.

        Raises SerdeError, with the offset of the first value that cannot be decoded.
        """
        values = self.values
        if self._serde is None:
            return cast("list[T]", list(values))
        try:
            if None in values:
                decode = self._serde.decode
                return [cast("T", None) if value is None else decode(value) for value in values]
            return self._serde.decode_many(cast("Sequence[bytes]", values))
        except SerdeError as error:
            raise _located(self, error) from error.__cause__

    def at(self, error: SerdeError, offset: int) -> SerdeError:
        """The error with the record's topic, partition and offset added."""
        record_id = {"topic": self.topic, "partition": str(self.partition), "offset": str(offset)}
        return type(error)(
            f"record {offset} of {self.topic}/{self.partition}: {error.message}", details=error.details | record_id
        )

    def records(self) -> Iterator[Record[T]]:
        """The batch record by record. Raises SerdeError at the first record that cannot be decoded, and ends there."""
        serde, batch = self._serde, self._batch
        if serde is None and self.encrypted is None and self._part is None and batch.header_columns is None:
            plain = zip(
                repeat(self.topic), repeat(self.partition), batch.offsets, batch.keys, batch.values, batch.timestamps,
                iter(list, None),
            )  # fmt: skip
            return map(_new_record, repeat(Record), plain)
        if self.encrypted is not None and self.encrypted.errors:
            values: Any = _one_by_one(self)
        else:
            values = self.values
        if serde is not None and not isinstance(values, Iterator):
            try:
                values = self.models()
            except SerdeError:
                values = _one_by_one(self)
        headers: Any = self.headers if batch.header_columns is not None else iter(list, None)
        columns = zip(
            repeat(self.topic), repeat(self.partition), self.offsets, self.keys, values, self.timestamps, headers
        )  # fmt: skip
        return map(_new_record, repeat(Record), columns)  # Record._make, written in Python, costs 50 ns more each

    def to_arrow(self, columns: Iterable[str] | None = None) -> pyarrow.RecordBatch:
        """The batch as Arrow, over the same memory: offset, timestamp, key, value, headers, or some of these columns.

        Needs pyarrow: the extra `arrow`.
        """
        table = self._batch.to_arrow(columns)
        if isinstance(self._part, list):
            table = table.take(self._part)
        elif self._part is not None:
            table = table.slice(self._part.start, len(self))
        if self.encrypted is not None and "value" in table.schema.names:
            import pyarrow as pa

            at = table.schema.get_field_index("value")
            table = table.set_column(at, table.schema.field(at), pa.array(self.values, pa.binary()))
        return table


def _one_by_one(batch: RecordBatch[Any]) -> Iterator[Any]:
    """Its values, decrypted and decoded at their turn."""
    serde = batch._serde
    stored = batch.values if batch.encrypted is None else map(batch._decrypted, range(len(batch)))
    for offset, value in zip(batch.offsets, stored, strict=True):
        try:
            event = value if value is None or serde is None else serde.decode(value)
        except SerdeError as error:
            raise batch.at(error, offset) from error.__cause__
        yield event


def has_headers(batch: RecordBatch[Any]) -> bool:
    """Whether any record of the stored batch has headers, known without reading them."""
    return batch._batch.header_columns is not None


def unexpired(batch: RecordBatch[T], now_us: int) -> RecordBatch[T] | None:
    """The records that have not expired; None for none. `next_offset` stays: the others count as read."""
    expiry = batch.expiry
    if expiry is None:
        return batch
    return batch.pick(unexpired_rows(range(len(expiry)), expiry, now_us))


def _part_of(batch: RecordBatch[T], rows: Rows) -> RecordBatch[T]:
    """Other records of the stored batch, not decrypted."""
    part = RecordBatch(
        batch.topic, batch.partition, batch._batch,
        high_watermark=batch.high_watermark, leader_epoch=batch.leader_epoch, serde=batch._serde,
    )  # fmt: skip
    part._part = rows
    return part


def _cut(batch: RecordBatch[T], first: int, end: int) -> RecordBatch[T]:
    part = _part_of(batch, (range(len(batch._batch)) if batch._part is None else batch._part)[first:end])
    if end == len(batch):
        part._end = batch._end
    if batch.encrypted is not None:
        part.encrypted = batch.encrypted.cut(first, end)
    return part


def _located(batch: RecordBatch[T], error: SerdeError) -> SerdeError:
    """The error with the place of the first value that cannot be decoded."""
    assert batch._serde is not None
    for offset, value in zip(batch.offsets, batch.values, strict=True):
        try:
            if value is not None:
                batch._serde.decode(value)
        except SerdeError as first:
            return batch.at(first, offset)
    return error
