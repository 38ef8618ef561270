"""Topics as tables, and tables as topics: the same rows as record by record, with Arrow, Polars and pandas."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comet
from comet.errors import InvalidArgument, OffsetOutOfRange, PartitionNotFound, SerdeError, TopicNotFound
from comet.producer.producer import Compression
from comet.tables.scan_ranges import shared_out

numbers = count()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@comet.model
class Quote:
    symbol: str
    bid: float
    note: str | None = None
    size: int = 1


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with comet.testing.broker() as broker:
        yield broker.address


@pytest.fixture
def topic(address: str) -> str:
    return made(address, partitions=3)


def made(address: str, partitions: int = 1) -> str:
    name = f"t{next(numbers)}"
    with comet.sync.Admin(address) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def write(address: str, topic: str) -> None:
    """What a topic may hold: several batches in each partition, tombstones, keys, headers, compression."""
    compressions: tuple[Compression, ...] = ("none", "lz4", "zstd")
    for at, compression in enumerate(compressions):
        with comet.sync.Producer(address, compression=compression) as producer:
            for partition in range(3):
                producer.send_many(
                    topic,
                    [
                        None if n % 7 == 3 else f'{{"symbol":"s{n}","bid":{n}.5}}'.encode()
                        for n in range(10 * partition)
                    ],
                    keys=[None if n % 5 == 2 else f"k{n}" for n in range(10 * partition)],
                    headers=[{"n": str(n)} if n % 2 else None for n in range(10 * partition)],
                    timestamp_us=1_000_000 * (at + 1),
                    partition=partition,
                )


def one_by_one(address: str, topic: str) -> list[comet.Record[bytes]]:
    with comet.sync.Reader(address) as reader:
        found = [reader.fetch(topic, partition, records_max=1000).batches for partition in range(3)]
    return [record for batches in found for batch in batches for record in batch.records()]


async def test_every_way_to_read_gives_the_same_rows(address: str, topic: str) -> None:
    write(address, topic)
    records = one_by_one(address, topic)
    assert len(records) == 90
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    scan = comet.read(topic, columns=columns, bootstrap=address)
    table = scan.to_arrow()
    assert table.to_pylist() == [
        {
            "key": one.key, "value": one.value, "topic": topic, "partition": one.partition, "offset": one.offset,
            "timestamp": datetime.fromtimestamp(one.timestamp_us / 1e6, UTC),
            "headers": [{"name": name, "value": value} for name, value in one.headers],
        }
        for one in records
    ]  # fmt: skip
    assert table.schema == scan.schema
    assert scan.to_polars().equals(pl.DataFrame(table))
    assert scan.to_pandas()["offset"].tolist() == [one.offset for one in records]
    assert pa.table(scan).equals(table)
    assert pa.Table.from_batches(list(scan)).equals(table)
    assert (await scan).equals(table)
    assert pa.Table.from_batches([batch async for batch in scan]).equals(table)


def test_values_become_columns_as_they_become_events(address: str, topic: str) -> None:
    write(address, topic)
    with comet.sync.Consumer(address, topic, type=Quote, start="earliest") as consumer:
        events = {(one.partition, one.offset): one.value for one in (consumer.get() for _ in range(90)) if one}
    frame = comet.read(topic, type=Quote, bootstrap=address).to_polars()
    assert frame.columns == ["key", "symbol", "bid", "note", "size", "topic", "partition", "offset", "timestamp"]
    for row in frame.iter_rows(named=True):
        event: Quote | None = events[row["partition"], row["offset"]]
        fields = None if event is None else (event.symbol, event.bid, event.note, event.size)
        assert (row["symbol"], row["bid"], row["note"], row["size"]) == (fields or (None,) * 4)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {0: [], 1: range(30), 2: range(60)}),
        ({"partitions": [1]}, {1: range(30)}),
        ({"start": {1: 5, 2: "latest"}, "partitions": [2, 1]}, {1: range(5, 30)}),
        ({"start": {1: 5, 2: 59}}, {1: range(5, 30), 2: [59]}),
        ({"start": {1: 3, 2: 0}, "end": {1: 13, 2: 1}}, {1: range(3, 13), 2: [0]}),
        ({"partitions": [2], "end": 1_000}, {2: range(60)}),
        ({"partitions": [2], "start": 20, "end": 10}, {}),
        ({"start": "1970-01-01T00:00:02Z"}, {1: range(10, 30), 2: range(20, 60)}),
        (
            {"start": datetime.fromtimestamp(2, UTC), "end": datetime.fromtimestamp(3, UTC)},
            {1: range(10, 20), 2: range(20, 40)},
        ),
        ({"start": "-1h"}, {}),
        ({"end": "-1h"}, {1: range(30), 2: range(60)}),
        ({"end": "earliest"}, {}),
        ({"records_max": 10}, {1: range(5), 2: range(5)}),
        ({"records_max": 70}, {1: range(30), 2: range(40)}),
    ],
)
def test_what_is_read_is_what_was_asked_for(address: str, asked: dict[str, Any], expected: dict[int, Any]) -> None:
    topic = "ranges"
    with comet.sync.Admin(address) as admin:
        if topic not in {one.name for one in admin.list_topics()}:
            admin.create_topic(topic, partitions=3)
            write(address, topic)
    rows = comet.read(topic, columns=["partition", "offset"], bootstrap=address, **asked).to_polars().rows()
    assert rows == [(partition, offset) for partition, offsets in expected.items() for offset in offsets]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 200))
def test_shares_are_even_and_give_all_there_is_to_give(sizes: list[int], most: int) -> None:
    shares = shared_out(sizes, most)
    assert sum(shares) == min(most, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    assert not cut or max(shares) - min(cut) <= 1


async def test_a_scan_ends_where_the_topic_ended_when_it_began(address: str) -> None:
    topic = made(address)
    async with comet.Producer(address) as producer:
        await (await producer.send_many(topic, [b"x" * 100] * 70_000))
        batches = comet.read(topic, columns=["offset", "value"], bootstrap=address).batches()
        rows = next(batches).num_rows
        assert rows < 70_000
        await producer.publish(topic, b"late")
        assert rows + sum(batch.num_rows for batch in batches) == 70_000
        rows = 0
        async for batch in comet.read(topic, columns=["offset"], bootstrap=address):
            rows += batch.num_rows
            if rows < 70_000:
                await producer.publish(topic, b"later")
        assert rows == 70_001


def test_a_scan_does_not_go_on_in_another_topic_of_the_name(address: str) -> None:
    topic, rows = made(address), [b"x" * 1000] * 20_000
    with comet.sync.Producer(address) as producer:
        producer.send_many(topic, rows).result()
    batches = comet.read(topic, columns=["value"], bootstrap=address).batches()
    next(batches)
    with comet.sync.Admin(address) as admin, comet.sync.Producer(address) as producer:
        admin.delete_topic(topic)
        admin.create_topic(topic)
        producer.send_many(topic, rows).result()
    with pytest.raises(TopicNotFound, match="deleted and recreated"):
        list(batches)


async def test_scans_see_what_is_committed(address: str) -> None:
    topic = made(address)
    async with comet.TransactionalProducer(address, f"writer-of-{topic}") as producer:
        for number in range(3):
            with pytest.raises(ZeroDivisionError) if number == 1 else nothing():
                async with producer.transaction() as tx:
                    await (await tx.send_many(topic, [b"%d" % number] * 4))
                    assert number != 1 or 1 // 0
    values = (await comet.read(topic, columns=["value"], bootstrap=address, records_max=6))["value"].to_pylist()
    assert values == [b"0"] * 4 + [b"2"] * 2
    everything = comet.read(topic, columns=["value"], bootstrap=address, isolation="uncommitted").to_arrow()
    assert everything["value"].to_pylist() == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4


class nothing:  # noqa: N801 - as contextlib names it
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_what_cannot_be_read_is_said(address: str, topic: str) -> None:
    write(address, topic)
    with comet.sync.Admin(address) as admin:
        admin.delete_records(topic, 2, 20)
    assert (
        comet.read(topic, partitions=[2], columns=["offset"], bootstrap=address).to_arrow()["offset"][0].as_py() == 20
    )
    for error, asked in (
        (OffsetOutOfRange, {"partitions": [2], "start": 3}),
        (PartitionNotFound, {"partitions": [3]}),
        (InvalidArgument, {"partitions": [1, 2], "start": {1: 0}}),
        (InvalidArgument, {"start": {1: 0}, "end": {2: 0}}),
    ):
        with pytest.raises(error):
            comet.read(topic, bootstrap=address, **asked).to_arrow()
    with pytest.raises(TopicNotFound):
        comet.read("nowhere", bootstrap=address).to_arrow()
    with pytest.raises(SerdeError, match=f"record 0 of {topic}/1"):
        comet.read(topic, type=pa.schema([("symbol", pa.int64())]), bootstrap=address).to_arrow()
    wrongs: list[dict[str, Any]] = [{"records_max": 0}, {"isolation": "x"}, {"columns": ["price"]}, {"type": dict}]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            comet.read(topic, bootstrap=address, **wrong)


KEPT = """
def records():
    with comet.sync.Consumer(address, topic, start="earliest") as consumer:
        yield from consumer
"""


@pytest.mark.parametrize(("made", "said"), [("iter(comet.read(topic, bootstrap=address))", False), ("records()", True)])
def test_what_is_kept_open_lets_the_program_end(address: str, topic: str, made: str, said: bool) -> None:
    write(address, topic)
    program = f"import comet\n{address=}\n{topic=}\n{KEPT}\nkept = {made}\nnext(kept)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert (b"comet.errors.Closed: the program is ending" in done.stderr) == said == bool(done.stderr)


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_a_library_that_is_not_there_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"pip install '\.\[arrow\]' {library}"):
        getattr(comet.read("quotes"), f"to_{library}")()


# ---- writing

letters = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\')
names = st.text(letters, max_size=5) | st.sampled_from(["key", "offset", "value", "_key", "a b"])
objects = st.fixed_dictionaries({"x": st.none() | st.floats(0, 1), "y": st.text(max_size=2)})
maps = st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2).map(lambda one: list(one.items()))
times = st.integers(-(1 << 52), 1 << 52).map(lambda us: NOW + timedelta(microseconds=us))
floats = st.floats(allow_nan=False, allow_infinity=False)
kinds: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]] = st.sampled_from(
    [
        (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
        (pa.float64(), floats),
        (pa.string(), st.text(max_size=6)),
        (pa.bool_(), st.booleans()),
        (pa.timestamp("us", tz="UTC"), times),
        (pa.date32(), st.dates(date(1000, 1, 1))),
        (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
        (pa.struct([("x", pa.float64()), ("y", pa.string())]), objects),
        (pa.map_(pa.string(), pa.int64()), maps),
        (pa.binary(), st.binary(max_size=5)),
        (pa.duration("us"), st.timedeltas(timedelta(-99), timedelta(99))),
        (pa.time64("us"), st.times()),
        (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
    ]
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 6))
    columns = {}
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        kind, values = draw(kinds)
        columns[name] = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


@settings(max_examples=15, deadline=None)
@given(tables())
def test_what_is_written_is_what_is_read(address: str, table: pa.Table) -> None:
    topic = "round-trip"
    with comet.sync.Admin(address) as admin:
        if topic not in {one.name for one in admin.list_topics()}:
            admin.create_topic(topic)
        start = admin.offsets(topic)[0]
    assert comet.write_frame(table, topic, bootstrap=address) == table.num_rows
    found = comet.read(topic, start=start, type=table.schema, columns=table.column_names, bootstrap=address).to_arrow()
    assert found.equals(table)


def frame_of(rows: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "symbol": [f"s{n % 4}" for n in range(rows)],
            "bid": [n / 4 for n in range(rows)],
            "note": [None if n % 3 else f"n{n}" for n in range(rows)],
            "size": list(range(rows)),
            "at": [NOW + timedelta(milliseconds=n) for n in range(rows)],
        }
    )


@pytest.mark.parametrize("as_what", ["polars", "pandas", "arrow", "batch", "reader", "scan"])
def test_any_kind_of_table_is_taken(address: str, topic: str, as_what: str) -> None:
    frame = frame_of(9_000 if as_what == "polars" else 50)  # several chunks, and one
    makers: dict[str, Callable[[], Any]] = {
        "polars": lambda: frame,
        "pandas": lambda: frame.to_pandas().set_index("size", drop=False),
        "arrow": frame.to_arrow,
        "batch": lambda: frame.to_arrow().combine_chunks().to_batches()[0],
        "reader": lambda: frame.to_arrow().to_reader(),
        "scan": lambda: scan_of(address, frame),
    }
    assert comet.write_frame(makers[as_what](), topic, key="symbol", timestamp="at", bootstrap=address) == len(frame)
    found = comet.read(topic, type=frame.to_arrow().schema.remove(4), bootstrap=address).to_polars()
    assert (
        found.select(pl.col("key").cast(pl.String).alias("symbol"), "bid", "note", "size", at="timestamp")
        .sort("size")
        .equals(frame)
    )
    for _, rows in found.group_by("symbol"):
        assert rows["partition"].n_unique() == 1
        assert rows["size"].is_sorted()


def scan_of(address: str, frame: pl.DataFrame) -> comet.Scan:
    first = made(address)
    comet.write_frame(frame, first, bootstrap=address)
    schema = pa.schema([(name, kind) for name, kind in zip(frame.columns, frame.to_arrow().schema.types, strict=True)])
    schema = schema.set(0, pa.field("symbol", pa.string())).set(2, pa.field("note", pa.string()))
    return comet.read(first, type=schema, columns=frame.columns, bootstrap=address)


class Checked(pydantic.BaseModel):
    symbol: str
    size: pydantic.PositiveInt
    side: str = "buy"


def test_values_are_what_was_asked_for(address: str) -> None:
    table = pa.table(
        {
            "symbol": pa.array(["a", "b", None]).dictionary_encode(),
            "size": pa.array([1, 2, 3], pa.int16()),
            "bid": [1.0, float("nan"), float("-inf")],
            "raw": [b"\xff", None, b""],
            "at": pa.array([NOW, None, NOW], pa.timestamp("ns")),
            "at_us": [1_000, None, 0],
        }
    )
    simple = table.slice(0, 2)

    def written(given: Any = table, **options: Any) -> list[tuple[Any, ...]]:
        topic = made(address)
        comet.write_frame(given, topic, bootstrap=address, **options)
        with comet.sync.Reader(address) as reader:
            batch = reader.fetch(topic, 0).batches[0]
        return list(zip(batch.keys, batch.values, batch.timestamps, strict=True))

    assert [row[1] for row in written(value=["size", "bid"])] == [
        b'{"size":1,"bid":1.0}', b'{"size":2,"bid":null}', b'{"size":3,"bid":null}',
    ]  # fmt: skip
    assert [row[:2] for row in written(key="symbol", value="raw")] == [(b"a", b"\xff"), (b"b", None), (None, b"")]
    assert [row[:2] for row in written(key="raw", value="symbol")] == [(b"\xff", b"a"), (None, b"b"), (b"", None)]
    times = [row[2] for row in written(value=["at"], timestamp="at")]
    assert times[0] == times[2] == NOW.timestamp() * 1e6 != times[1]
    assert [row[2] for row in written(value=["size"], timestamp="at_us")][::2] == [1_000, 0]
    assert [row[1] for row in written(simple, type=Checked)] == [
        b'{"symbol":"a","size":1,"side":"buy"}', b'{"symbol":"b","size":2,"side":"buy"}',
    ]  # fmt: skip
    assert written(simple.slice(0, 1), type=Quote)[0][1] == b'{"symbol":"a","bid":1.0,"note":null,"size":1}'
    pandas = pd.DataFrame({"bid": [1.5, float("nan")], "at": pd.to_datetime(["2026-01-01", None], utc=True)})
    assert [row[1] for row in written(pandas)] == [
        b'{"bid":1.5,"at":"2026-01-01T00:00:00Z"}',
        b'{"bid":null,"at":null}',
    ]


def test_times_are_cut_to_the_microsecond_wherever_they_are(address: str) -> None:
    topic, at = made(address), NOW.isoformat().replace("+00:00", "Z")
    ns = pa.timestamp("ns", tz="UTC")
    finer = round(NOW.timestamp()) * 1_000_000_000 + 1
    columns = {
        "plain": pa.array([finer], ns),
        "list": pa.array([[finer]], pa.list_(ns)),
        "pair": pa.array([[finer] * 2], pa.list_(ns, 2)),
        "map": pa.array([[("a", finer)]], pa.map_(pa.large_string(), ns)),
        "maps": pa.array([[[("a", finer)]]], pa.list_(pa.map_(pa.string(), ns), 1)),
        "dictionary": pa.array([finer], ns).dictionary_encode(),
    }
    comet.write_frame(pa.table(columns), topic, bootstrap=address)
    with comet.sync.Reader(address) as reader:
        (value,) = reader.fetch(topic, 0).batches[0].values
    assert json.loads(value or b"") == {
        "plain": at, "list": [at], "pair": [at] * 2, "map": {"a": at}, "maps": [{"a": at}], "dictionary": at,
    }  # fmt: skip
    endless = pa.table({"at": pa.array([1 << 60], pa.timestamp("us"))})
    with pytest.raises(SerdeError, match="column 'at', in rows 0 to 0: "):
        comet.write_frame(endless, topic, bootstrap=address)


BARS = pa.table(
    {"symbol": ["a"], "n": [1], "bid": [1.0], "when": [NOW], "odd": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))}
)


@pytest.mark.parametrize(
    ("frame", "options", "said"),
    [
        (BARS, {"key": "name"}, "key: unknown column 'name'; use one of symbol, n, bid"),
        (BARS, {"key": "n"}, "key: column 'n' must be text or bytes, not int64; cast it"),
        (BARS, {"value": "bid"}, r"value: column 'bid' must be text .* use value=\['bid'\]"),
        (BARS, {"value": ["bid", "ask"]}, "value: unknown column 'ask'"),
        (BARS, {"value": []}, "at least one column"),
        (BARS, {"timestamp": "bid"}, "timestamp: column 'bid' must be times"),
        (BARS, {}, "keys in JSON are text"),
        (BARS, {"value": "symbol", "type": Quote}, "leave out value or type"),
        (BARS, {"value": ["symbol"], "type": Quote}, "Quote needs a field 'bid'"),
        (BARS, {"value": ["symbol", "bid", "n"], "type": Quote}, "Quote has no field 'n'"),
        (BARS, {"value": ["n"], "type": int}, "int has no fields"),
        (BARS.append_column("n", [[1]]), {}, "two columns are named 'n'"),
        (BARS.to_pandas().rename(columns={"n": 3}), {}, "must be text, not 3"),
        (pd.DataFrame({"a": [1, "b"]}), {}, "a column has several types"),
        (pl.DataFrame({"a": [1]}).lazy(), {}, "LazyFrame; collect"),
        ([{"a": 1}], {}, "frame must be a pyarrow.Table"),
        (pa.table({"a": [1], "at": pa.array([-1], pa.int64())}), {"timestamp": "at"}, "before 1970"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(
    address: str, frame: Any, options: dict[str, Any], said: str
) -> None:
    topic = "untouched"
    with comet.sync.Admin(address) as admin:
        if topic not in {one.name for one in admin.list_topics()}:
            admin.create_topic(topic)
        with pytest.raises(InvalidArgument, match=said):
            comet.write_frame(frame, topic, bootstrap=address, **options)
        assert admin.offsets(topic) == {0: 0}


def test_a_row_that_is_no_event_is_said(address: str) -> None:
    topic = made(address)
    table = pa.table({"symbol": ["a"] * 9_000, "size": [1] * 8_500 + [0] * 500})
    with pytest.raises(SerdeError, match="row 8500: ") as caught:
        comet.write_frame(table, topic, type=Checked, bootstrap=address)
    assert caught.value.details == {"row": "8500"}
    with pytest.raises(SerdeError, match="row 1: "):
        comet.write_frame(
            pa.table({"symbol": ["a", "b"], "bid": [1.0, float("nan")]}), topic, type=Quote, bootstrap=address
        )
    with pytest.raises(TopicNotFound):
        comet.write_frame(table, "nowhere", bootstrap=address)
    assert comet.write_frame(table.slice(0, 0), topic, bootstrap=address) == 0
