"""Records that expire: the time to live as producers take it, and what each part leaves out from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import comet
from comet import limits, records
from comet.errors import InvalidArgument
from comet.filters import parse
from comet.handlers.app_test import AppTest
from comet.producer.column_extras import Extras
from comet.producer.idempotent_publish import request_of
from comet.records import Batch, decode, stamped
from comet.records.expiry import has_expired
from comet.settings.topic import TTL_MS_MAX, TopicConfig
from comet.types import Acks
from comet.values.record import NewRecord, RecordBatch, unexpired
from comet.wire.contents import contents_of
from comet.wire.record_ttl import BY_TOPIC, check_ttl, expiry_column, expiry_of
from comet_broker.core.filter_time import FilterTime
from comet_broker.key_values.table import KeyRecord, KeyTable
from comet_broker.partitions.filtering import FilteredDelivery
from comet_broker.partitions.record_messages import record_messages
from comet_broker.sharing.chunk import Chunk
from comet_gateway.http.problems import Problem
from comet_gateway.push.chunk import Slice, Source
from comet_gateway.push.latest_table import Encoding, LatestTable
from comet_gateway.push.ring import Ring
from comet_gateway.records.cursor import CursorPosition
from comet_gateway.records.record_json import Values
from comet_gateway.schemas.records import decode_body
from tests.unit.replica_world import HeldWorker
from tests.unit.sdk_fake import FakeBroker
from tests.unit.storage_world import HandClock
from tests.unit.test_sdk_consumer import consumer, take
from tests.unit.test_sdk_producer import producer, scenario

HOUR_MS = 3_600_000


def batch(expiry: Sequence[int] | None, base: int = 0, **more: Any) -> bytes:
    values = [b"%d" % at for at in range(3 if expiry is None else len(expiry))]
    return stamped(records.encode(values, timestamps=1, expiry=expiry, **more), base, append_time_us=7, leader_epoch=1)


def read(expiry: Sequence[int] | None, base: int = 0, **more: Any) -> RecordBatch[bytes]:
    return RecordBatch("quotes", 0, decode(batch(expiry, base, **more)))


def written(broker: FakeBroker, partition: int = 0) -> list[Batch]:
    return [decode(data) for _, data in broker.topics["quotes"][partition].batches]


# ---- what a producer takes


@pytest.mark.parametrize("ttl_ms", [0, -2, 1.5, "1", True, TTL_MS_MAX + 1])
def test_a_time_to_live_is_a_number_of_milliseconds_within_bounds(ttl_ms: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"ttl_ms must be a whole number .* or -1 for no expiry, not"):
        check_ttl(ttl_ms)


def test_an_expiry_time_is_counted_from_the_timestamp_and_stays_within_63_bits() -> None:
    assert expiry_of(1_000_000, check_ttl(5)) == 1_005_000
    assert expiry_of((1 << 63) - 1, TTL_MS_MAX) == (1 << 63) - 1
    assert expiry_of(1_000_000, check_ttl(-1)) == 0


def test_the_column_has_own_times_then_those_of_the_topic_and_none_for_tombstones() -> None:
    own = [9_000, BY_TOPIC, 0, BY_TOPIC]
    values = [b"a", b"b", b"c", None]
    assert expiry_column(own, [1, 2, 3, 4], values, 5) == [9_000, 5_002, 0, 0]
    assert expiry_column(own, 1, values, 5) == [9_000, 5_001, 0, 0]
    assert expiry_column(own, [1, 2, 3, 4], values, -1) == [9_000, 0, 0, 0]
    assert expiry_column(None, 1, values, 5) == [5_001, 5_001, 5_001, 0]


@pytest.mark.parametrize("topic_ttl_ms", [-1, 0])
def test_a_batch_without_expiry_has_no_column(topic_ttl_ms: int) -> None:
    assert expiry_column(None, 1, [b"a"], topic_ttl_ms) is None
    assert expiry_column([0, BY_TOPIC], 1, [b"a", b"b"], topic_ttl_ms) is None
    assert expiry_column([BY_TOPIC], 1, [None], 5) is None


@scenario()
async def test_send_gives_one_record_of_a_batch_a_time_to_live(broker: FakeBroker) -> None:
    async with producer(broker, linger_ms=1000) as p:
        for ttl_ms in (None, 2, -1):
            await p.send("quotes", b"1", timestamp_us=5_000, ttl_ms=ttl_ms)
        await p.flush()
        await p.publish("quotes", b"1", timestamp_us=5_000)
    first, second = written(broker)
    assert (first.expiry, second.expiry) == ([0, 7_000, 0], None)


@scenario()
async def test_the_setting_of_the_topic_counts_for_records_without_their_own(broker: FakeBroker) -> None:
    broker.config = TopicConfig(record_ttl_ms=3)
    async with producer(broker, linger_ms=1000) as p:
        for value, ttl_ms in ((b"1", None), (b"1", 2), (b"1", -1), (None, None)):
            await p.send("quotes", value, timestamp_us=5_000, ttl_ms=ttl_ms)
        await p.flush()
        await (await p.send_many("quotes", [b"1", b"2"], timestamp_us=6_000))
    assert [one.expiry for one in written(broker)] == [[8_000, 7_000, 0, 0], [9_000, 9_000]]


@scenario()
async def test_a_producer_learns_of_a_change_with_its_metadata(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"1", timestamp_us=5_000)
        broker.config = TopicConfig(record_ttl_ms=3)
        await asyncio.sleep(2 * limits.METADATA_REFRESH_MS / 1000)
        await p.publish("quotes", b"1", timestamp_us=5_000)
        broker.config = TopicConfig(record_ttl_ms=0)
        await asyncio.sleep(2 * limits.METADATA_REFRESH_MS / 1000)
        await p.publish("quotes", b"1", timestamp_us=5_000)
    assert [one.expiry for one in written(broker)] == [None, [8_000], None]


@scenario()
async def test_send_many_takes_one_time_to_live_or_one_for_each(broker: FakeBroker) -> None:
    async with producer(broker) as p:
        await (await p.send_many("quotes", [b"1", b"2"], timestamp_us=5_000, ttl_ms=2))
        await (await p.send_many("quotes", [b"1", b"2", b"3"], timestamps_us=[1_000, 2_000, 3_000], ttl_ms=2))
        await (await p.send_many("quotes", [b"1", b"2", b"3"], timestamp_us=5_000, ttls_ms=[None, 4, -1], ttl_ms=2))
        await (await p.send_many("quotes", [b"1", b"2"], timestamp_us=5_000, ttls_ms=[None, 4], keys=["a", "b"]))
        with pytest.raises(InvalidArgument, match="1 ttls_ms for 2 values"):
            await p.send_many("quotes", [b"1", b"2"], ttls_ms=[1])
        for wrong in ({"ttl_ms": 0}, {"ttls_ms": [0]}):
            with pytest.raises(InvalidArgument, match="ttl_ms must be"):
                await p.send_many("quotes", [b"1"], **wrong)
        with pytest.raises(InvalidArgument, match="ttl_ms must be"):
            await p.send("quotes", b"1", ttl_ms=0)
    assert [one.expiry for one in written(broker)] == [
        [7_000, 7_000],
        [3_000, 4_000, 5_000],
        [7_000, 9_000, 0],
        [0, 9_000],
    ]


def test_columns_of_a_bulk_are_chosen_with_their_records() -> None:
    extras = Extras.of(None, None, 5_000, [1, 2, 3], None, 3).chosen([2, 0])
    assert extras._expiry == [8_000, 6_000]


def test_a_request_with_another_time_to_live_is_another_request() -> None:
    def content(ttl_ms: int | None) -> bytes:
        one = NewRecord(b"1", "k", ttl_ms=ttl_ms)
        return records.content_bytes(contents_of(request_of("quotes", [one], "key", Acks.LEADER, lambda value: value)))

    assert len({content(None), content(1), content(2), content(-1)}) == 4
    assert content(1) == content(1)
    with pytest.raises(InvalidArgument, match="ttl_ms must be"):
        content(0)


def test_a_gateway_takes_it_as_number_and_as_text() -> None:
    given = b'{"records":[{"value":1,"ttl_ms":5},{"value":1,"ttl_ms":"5"},{"value":1,"ttl_ms":-1},{"value":1}]}'
    assert decode_body(given, 10).ttls_ms == [5, 5, -1, None]
    for wrong in (b"0", b"-2", b'"x"', b'""', b'"99999999999999999999"', b"1.5"):
        with pytest.raises(Problem) as raised:
            decode_body(b'{"value":1,"ttl_ms":%b}' % wrong, 10)
        assert raised.value.code == "VALIDATION", wrong


async def test_an_app_under_test_leaves_out_what_has_expired() -> None:
    app, seen = comet.App(), list[str]()

    @app.on("quotes", group="g")
    async def handle(quote: str) -> None:
        seen.append(quote)

    async with app.test() as test:
        await test.publish("quotes", "old", timestamp_us=1, ttl_ms=1)
        await test.publish("quotes", "new", ttl_ms=HOUR_MS)
        await test.publish("quotes", "kept", timestamp_us=1)
    assert seen == ["new", "kept"]


async def test_an_app_calls_no_handler_with_what_has_expired_since_its_batch_was_taken() -> None:
    app, seen, lists, clock = comet.App(), list[str](), list[list[str]](), Handed()
    clock.now_us = 1_000

    @app.on("quotes", group="one")
    async def handle(quote: str) -> None:
        seen.append(quote)
        clock.now_us += 1_000

    @app.on("quotes", group="many")
    async def handle_many(quotes: list[str]) -> None:
        lists.append(quotes)

    async with AppTest(app, clock, raise_errors=True, dependencies={}) as test:
        await test.producer.send_many("quotes", ["a", "b", "c", "d"], timestamp_us=1_000, ttls_ms=[1, 1, 3, -1])
        await test.settle()
        clock.now_us = 9_000
        await test.producer.send_many("quotes", ["e", "f"], timestamp_us=1_000, ttls_ms=[1, None])
        await test.settle()
        assert test.values("quotes") == [b"d", b"f"]
    assert seen == ["a", "c", "d", "f"]
    assert lists[-1] == ["f"]


# ---- what a consumer leaves out


def test_a_batch_has_the_records_that_have_not_expired_and_covers_all() -> None:
    whole = read([5, 0, 6, 7], base=10)
    assert unexpired(whole, 4) is whole
    assert [list(part.offsets) for now in (5, 6) if (part := unexpired(whole, now)) is not None] == [
        [11, 12, 13],
        [11, 13],
    ]
    left = unexpired(whole, 6)
    assert left is not None and left.next_offset == 14 and left.expiry == [0, 7]
    assert unexpired(read([5, 6]), 6) is None
    plain = read(None)
    assert unexpired(plain, 1 << 62) is plain and plain.expiry is None


class Handed:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


def fill(broker: FakeBroker, *batches: Sequence[int] | None) -> None:
    for expiry in batches:
        data = b"".join(records.encode([b"x"] * (3 if expiry is None else len(expiry)), timestamps=1, expiry=expiry))
        broker.topics["quotes"][0].append(records.read_header(data), data)
    broker.push()


@scenario()
async def test_a_consumer_leaves_out_what_has_expired_and_moves_past_it(broker: FakeBroker) -> None:
    clock = Handed()
    clock.now_us = 10
    fill(broker, [5, 20], [1, 2], None, [20, 9])
    async with consumer(broker, clock_us=clock) as c:
        assert [one.offset for one in await take(c, 5)] == [1, 4, 5, 6, 7]
        assert await c.get(timeout_s=0.1) is None
        assert (c.positions(), c.lag()) == ({0: 9}, {0: 0})


@scenario()
async def test_a_record_that_expires_before_its_turn_is_left_out(broker: FakeBroker) -> None:
    clock = Handed()
    fill(broker, [5, 6, 0, 7], [5, 0])
    async with consumer(broker, clock_us=clock) as c:
        assert [one.offset for one in await take(c, 1)] == [0]
        clock.now_us = 6
        assert [one.offset for one in await take(c, 1)] == [2]
        clock.now_us = 7
        assert [one.offset for one in await take(c, 1)] == [5]
        assert c.positions() == {0: 6}


@scenario()
async def test_the_rest_of_a_batch_is_looked_at_again(broker: FakeBroker) -> None:
    clock = Handed()
    fill(broker, [9, 6, 9], [6, 6, 6], None)
    async with consumer(broker, clock_us=clock) as c:
        await take(c, 1)
        clock.now_us = 6
        rest = await c.get_batch(timeout_s=1)
        assert rest is not None and (list(rest.offsets), c.positions()) == ([2], {0: 3})
        following = await c.get_batch(timeout_s=1)
        assert following is not None and (list(following.offsets), c.positions()) == ([6, 7, 8], {0: 9})


@scenario()
async def test_a_consumer_that_left_all_of_the_rest_out_moves_past_it(broker: FakeBroker) -> None:
    clock = Handed()
    fill(broker, [9, 6, 6], None)
    async with consumer(broker, clock_us=clock) as c:
        await take(c, 1)
        clock.now_us = 6
        following = await c.get_batch(timeout_s=1)
        assert following is not None and list(following.offsets) == [3, 4, 5]


# ---- what a broker leaves out


def test_records_of_messages_tell_when_they_expire() -> None:
    messages = list(record_messages(decode(batch([5, 0]))))
    assert [one.expires_us for one in messages] == [5, 0]
    assert [has_expired(one.expires_us, 5) for one in messages] == [True, False]
    assert not has_expired(messages[0].expires_us, 4)
    assert [one.expires_us for one in record_messages(decode(batch(None)))] == [0, 0, 0]


def test_a_key_whose_last_record_has_expired_has_no_value() -> None:
    table = KeyTable()
    try:
        table.put(KeyRecord(b"k", 1, True, b"first", 0))
        table.put(KeyRecord(b"k", 2, True, b"second", 5))
        table.put_open(7, 1, [KeyRecord(b"t", 3, True, b"third", 6)])
        table.decide(7, 1, commit=True)
        for found in (table.last(b"k"), *table.range(b"k", None, 1)):
            assert found is not None and found.record == b"second"
            assert (found.counts(4), found.counts(5), found.expired(5)) == (True, False, True)
        committed = table.last(b"t")
        assert committed is not None and committed.expires_us == 6
    finally:
        table.close()


def runs(chunk: Chunk) -> list[int]:
    return [offset for first, end in chunk.readable.runs for offset in range(first, end)]


def test_a_share_group_is_given_what_has_not_expired() -> None:
    data = memoryview(batch([5, 0, 7]) + batch(None, base=3) + batch([8, 9], base=6))
    chunk = Chunk(data, [], by_key=False, now_us=4)
    assert (runs(chunk), chunk.expires_us) == ([0, 1, 2, 3, 4, 5, 6, 7], 5)
    assert chunk.unexpired(4) is chunk
    later = chunk.unexpired(7)
    assert (runs(later), later.expires_us) == ([1, 3, 4, 5, 6, 7], 8)
    assert (runs(later.unexpired(9)), later.unexpired(9).expires_us) == ([1, 3, 4, 5], 0)
    assert (later.first, later.end) == (0, 8)


@pytest.mark.parametrize("base", [0, 7])
async def test_a_broker_that_opens_a_batch_for_its_filter_leaves_out_what_has_expired(base: int) -> None:
    clock = HandClock()
    data = batch([5, 0, 7], base) + batch([5, 6], base + 3) + batch(None, base + 5)
    for now_us, left in ((4, [0, 1, 2, 3, 4, 5, 6, 7]), (5, [1, 2, 4, 5, 6, 7]), (9, [1, 5, 6, 7])):
        clock.now_us = now_us
        delivery = FilteredDelivery(
            parse("@offset >= 0", now_us=0), 0, FilterTime(clock, 20), asyncio.Lock(), HeldWorker()
        )
        await delivery.take(memoryview(data))
        found = list(records.iterate(delivery.batches()))
        assert [offset - base for one in found for offset in one.offsets] == left
        assert [one.header.next_offset - base for one in found] == [3, 5, 8], "all offsets are covered"


# ---- what a gateway leaves out


def test_a_slice_of_a_batch_leaves_out_what_has_expired_and_keeps_its_cursor() -> None:
    source = Source(read([5, 0, 7, 5]))
    whole = Slice(source, 0, 4, Values.AUTO, "c.")
    assert whole.expires and whole.matching(None, 4) is whole
    left = whole.matching(None, 5)
    assert (left.count, list(left.offsets), left.cursor) == (2, [1, 2], whole.cursor)
    found, begin, end = left.columns
    assert [list(found.offsets)[begin:end], found.next_offset] == [[1, 2], 4]
    part = Slice(source, 2, 4, Values.AUTO, "c.").matching(None, 5)
    assert list(part.offsets) == [2]
    nothing = Slice(source, 3, 4, Values.AUTO, "c.").matching(None, 5)
    assert nothing.count == 0 and nothing.columns[1:] == (0, 0)
    assert not Slice(Source(read(None)), 0, 3, Values.AUTO, "c.").expires


def test_a_table_of_latest_values_leaves_out_what_has_expired() -> None:
    clock = Handed()
    clock.now_us = 4
    table = LatestTable(
        Ring("quotes", b"\0" * 16, {0: CursorPosition(0)}, 1 << 16), Encoding(Values.AUTO), 10, 1 << 20, clock
    )
    table.apply(Source(read([5, 0, 7], keys=[b"a", b"b", b"c"])))
    table.apply(Source(read(None, base=3, keys=[b"c", b"d", b"e"])))
    assert [one.offset for one in table.all()] == [0, 1, 3, 4, 5]
    clock.now_us = 7
    assert [one.offset for one in table.all()] == [1, 3, 4, 5]
    assert [one.offset for one in table.since(0, None)] == [1, 3, 4, 5]
