"""Expiry against a list of records: all parts that open a batch deliver the same records at the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from comet import records
from comet.filters import parse
from comet.records import Codec, decode, iterate, stamped
from comet.records.expiry import has_expired
from comet.values.record import RecordBatch, unexpired
from comet.wire.record_ttl import expiry_column, expiry_of
from comet_broker.core.filter_time import FilterTime
from comet_broker.key_values.table import KeyRecord, KeyTable
from comet_broker.partitions.filtering import FilteredDelivery
from comet_broker.partitions.record_messages import record_messages
from comet_broker.sharing.chunk import Chunk
from comet_gateway.push.chunk import Slice, Source
from comet_gateway.push.latest_table import Encoding, LatestTable
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.record_json import Values
from tests.unit.replica_world import HeldWorker
from tests.unit.storage_world import HandClock

KEYS = [b"a", b"b", b"c"]


@dataclass(frozen=True)
class Row:
    """A record as its producer sent it."""

    key: bytes
    value: bytes | None
    timestamp_us: int
    ttl_ms: int | None


ROWS = st.builds(
    Row,
    st.sampled_from(KEYS),
    st.sampled_from([b"1", b"2", None]),
    st.integers(0, 5).map(lambda at: 1000 * at),
    st.sampled_from([None, None, -1, 1, 2, 3, 1000]),
)
LOGS = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4)


def alive(row: Row, topic_ttl_ms: int, now_us: int) -> bool:
    """The rule, in plain words: its own time to live, or that of the topic unless it is a tombstone, from its timestamp
    on."""
    ttl_ms = row.ttl_ms
    if ttl_ms is None:
        ttl_ms = topic_ttl_ms if row.value is not None and topic_ttl_ms > 0 else -1
    return ttl_ms == -1 or now_us < row.timestamp_us + 1000 * ttl_ms


def encoded(rows: list[Row], base: int, topic_ttl_ms: int, codec: Codec) -> bytes:
    times, values = [row.timestamp_us for row in rows], [row.value for row in rows]
    own = [expiry_of(row.timestamp_us, row.ttl_ms) for row in rows]
    given_none = all(row.ttl_ms is None for row in rows)
    parts = records.encode(
        values, keys=[row.key for row in rows], timestamps=times, codec=codec,
        expiry=expiry_column(None if given_none else own, times, values, topic_ttl_ms),
    )  # fmt: skip
    return stamped(parts, base, append_time_us=7, leader_epoch=1)


async def filtered(data: bytes, clock: HandClock) -> list[int]:
    delivery = FilteredDelivery(parse("@offset >= 0", now_us=0), 0, FilterTime(clock, 20), asyncio.Lock(), HeldWorker())
    await delivery.take(memoryview(data))
    left = list(iterate(delivery.batches()))
    covered = [(one.header.base_offset, one.header.next_offset) for one in left]
    assert [end for _, end in covered[:-1]] == [base for base, _ in covered[1:]], "no gap"
    return [offset for one in left for offset in one.offsets]


@given(LOGS, st.sampled_from([-1, 0, 1, 2]), st.integers(0, 9).map(lambda at: 1000 * at), st.sampled_from(Codec))
def test_all_that_open_batches_leave_out_the_same(log: list[list[Row]], ttl_ms: int, now_us: int, codec: Codec) -> None:
    rows = [row for batch in log for row in batch]
    expected = [at for at, row in enumerate(rows) if alive(row, ttl_ms, now_us)]
    clock = HandClock()
    clock.now_us = now_us
    stored, base = list[bytes](), 0
    for batch in log:
        stored.append(encoded(batch, base, ttl_ms, codec))
        base += len(batch)
    data = b"".join(stored)
    batches = [RecordBatch[bytes]("quotes", 0, decode(one)) for one in stored]

    read = [part for one in batches if (part := unexpired(one, clock.wall_us())) is not None]
    assert [offset for part in read for offset in part.offsets] == expected
    whole = {one.first_offset: one.next_offset for one in batches}
    assert all(part.next_offset in whole.values() for part in read)

    halves = [half for one in batches for half in (one.before(one.first_offset + 1), one.after(one.first_offset + 1))]
    cut = [part for half in halves if half is not None and (part := unexpired(half, clock.wall_us())) is not None]
    assert [offset for part in cut for offset in part.offsets] == expected

    assert asyncio.run(filtered(data, clock)) == expected

    chunk = Chunk(memoryview(data), [], by_key=False, now_us=0).unexpired(clock.wall_us())
    assert [offset for first, end in chunk.readable.runs for offset in range(first, end)] == expected

    messages = [message for one in stored for message in record_messages(decode(one))]
    assert [one.offset for one in messages if not has_expired(one.expires_us, clock.wall_us())] == expected

    slices = [Slice(Source(one), 0, len(one), Values.AUTO, "c.").matching(None, clock.wall_us()) for one in batches]
    assert [offset for one in slices for offset in one.offsets] == expected

    last = {row.key: at for at, row in enumerate(rows)}
    table = KeyTable()
    try:
        table.put_many(
            KeyRecord(one.key, one.offset, one.HasField("value"), b"", one.expires_us)
            for one in messages
        )  # fmt: skip
        valued = {key for key in KEYS if (found := table.last(key)) is not None and found.counts(clock.wall_us())}
    finally:
        table.close()
    assert valued == {key for key, at in last.items() if at in expected and rows[at].value is not None}

    latest = LatestTable(
        Ring("quotes", bytes(16), {0: CursorPosition(0)}, 1 << 16), Encoding(Values.AUTO), 10, 1 << 20, clock.wall_us
    )
    for one in batches:
        latest.apply(Source(one))
    assert {one.offset for one in latest.all()} == {at for at in last.values() if at in expected}
