"""Files as a source of quotes and trades: what their columns mean, at what pace, and what is no use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import comet
from comet_demo.model import Quote, Trade
from comet_demo.providers import Event
from comet_demo.providers.replay import ReplayProvider, find_columns

DAY_US = 1_709_285_400_000_000  # 2024-03-01, 09:30
NOW_US = 1_767_366_245_000_000


class Clock:
    """Goes on by a millisecond each time it is looked at."""

    def __init__(self) -> None:
        self.now_us = NOW_US

    def __call__(self) -> int:
        self.now_us += 1_000
        return self.now_us


async def replayed(path: Path, now_us: Callable[[], int] | None = None, **options: Any) -> list[list[Event]]:
    provider = ReplayProvider(path, now_us=now_us or (lambda: NOW_US), **options)
    async with aclosing(provider.stream()) as stream:
        return [list(events) async for events in stream]


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


async def test_quotes_and_trades_of_a_csv(tmp_path: Path) -> None:
    path = written(
        tmp_path / "ticks.csv",
        "Time,Symbol,Bid,Ask,Bid_Size,Ask_Size,Price,Size,Side",
        "2024-03-01T09:30:00Z,A,9.99,10.01,100,200,,,",
        "2024-03-01T09:30:00.5Z,A,,,,,10.01,50,B",
        "2024-03-01T09:30:01Z,B,19,20,1,1,20,7,sell",
        "2024-03-01T09:30:02Z,A,10,10.02,,,,,",
    )
    assert await replayed(path, pace=0) == [
        [
            Quote("A", 9.99, 10.01, 100, 200, 10.0, 0, DAY_US),
            Trade("A", 10.01, 50, "buy", DAY_US + 500_000, 9.99, 10.01),
            Quote("B", 19.0, 20.0, 1, 1, 20.0, 7, DAY_US + 1_000_000),
            Trade("B", 20.0, 7, "sell", DAY_US + 1_000_000, 19.0, 20.0),
            Quote("A", 10.0, 10.02, 0, 0, 10.01, 50, DAY_US + 2_000_000),
        ]
    ]


async def test_a_quote_says_what_was_traded_since_the_one_before(tmp_path: Path) -> None:
    path = written(
        tmp_path / "sizes.csv",
        "time,symbol,bid,ask,price,size",
        "1709285400,A,,,10,50",
        "1709285401,A,-1,10,10,1000",  # makes no sense, and leaves nothing behind
        "1709285402,A,9,10,9.5,7",
        "1709285403,A,9,10,,",
    )
    (events,) = await replayed(path, pace=0)
    assert [(one.last, one.last_size) for one in events if isinstance(one, Quote)] == [(9.5, 57), (9.5, 0)]
    assert [one.size for one in events if isinstance(one, Trade)] == [50, 7]


async def test_columns_that_are_called_otherwise_and_a_file_of_one_symbol(tmp_path: Path) -> None:
    path = written(tmp_path / "one.csv", "when,paid,n,note", "1709285400,10.5,3,x", "1709285401.25,10.6,4,y")
    (events,) = await replayed(path, pace=0, columns={"time": "when", "price": "paid", "size": "n"}, symbols=["A"])
    assert events == [Trade("A", 10.5, 3, "", DAY_US), Trade("A", 10.6, 4, "", DAY_US + 1_250_000)]


async def test_only_the_symbols_that_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "two.csv", "ts,sym,price", "1709285400,A,1", "1709285400,B,2", "1709285400,C,3")
    (events,) = await replayed(path, pace=0, symbols=["A", "C"])
    assert [event.symbol for event in events] == ["A", "C"]


async def test_parquet(tmp_path: Path) -> None:
    times = pa.array([DAY_US * 1000 + 1, (DAY_US + 1) * 1000], pa.timestamp("ns", "UTC"))
    table = pa.table(
        {"timestamp": times, "ticker": ["A", "A"], "price": [1.5, None], "bid": [None, 1.0], "ask": [None, 2.0]}
    )
    parquet.write_table(table, tmp_path / "ticks.parquet")
    (events,) = await replayed(tmp_path / "ticks.parquet", pace=0)
    assert events == [Trade("A", 1.5, 0, "", DAY_US), Quote("A", 1.0, 2.0, 0, 0, 1.5, 0, DAY_US + 1)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"price": pa.array([Decimal("1.25")], pa.decimal128(18, 8))}, Trade("A", 1.25, 7, "", DAY_US)),
        ({"size": pa.array([Decimal(3)], pa.decimal128(38, 18))}, Trade("A", 1.5, 3, "", DAY_US)),
        ({"time": pa.array([Decimal(DAY_US)], pa.decimal128(20, 0))}, Trade("A", 1.5, 7, "", DAY_US)),
        ({"time": pa.array([Decimal(DAY_US) / 10**6], pa.decimal128(20, 3))}, Trade("A", 1.5, 7, "", DAY_US)),
        ({"time": pa.array([DAY_US], pa.timestamp("us", "America/New_York"))}, Trade("A", 1.5, 7, "", DAY_US)),
        ({"time": pa.array([DAY_US // 1000], pa.timestamp("ms"))}, Trade("A", 1.5, 7, "", DAY_US)),
        ({"time": pa.array([date(2024, 3, 1)])}, Trade("A", 1.5, 7, "", DAY_US - 34_200_000_000)),
        ({"symbol": pa.array([b"A"]), "side": pa.array([b"B"])}, Trade("A", 1.5, 7, "buy", DAY_US)),
        ({"size": pa.array([float("nan")])}, Trade("A", 1.5, 0, "", DAY_US)),
        ({"other": pa.array([1 << 62], pa.timestamp("us"))}, Trade("A", 1.5, 7, "", DAY_US)),
        ({"time": pa.array([1 << 62], pa.timestamp("us"))}, None),
        ({"time": pa.array([-1 << 62], pa.timestamp("us", "UTC"))}, None),
        ({"symbol": pa.array([None], pa.string())}, None),
    ],
)
async def test_columns_of_parquet_have_many_types(
    tmp_path: Path, columns: dict[str, pa.Array], expected: Trade | None
) -> None:
    table: dict[str, Any] = {"time": [DAY_US], "symbol": ["A"], "price": [1.5], "size": [7]}
    parquet.write_table(pa.table(table | columns), tmp_path / "typed.parquet")
    assert await replayed(tmp_path / "typed.parquet", pace=0) == ([] if expected is None else [[expected]])


async def test_what_makes_no_sense_is_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    good = b"1709285400,A,1,2\n"
    bad = [
        b"never,A,1,2", b"1709285400,,1,2", b"1709285400,A,x,2", b"1709285400,A,-1,2", b"1709285400,A,1,",
        b"99999999999999999999999,A,1,2", b"1709285400,A,nan,2", b"1709285400", b"\xff\xfe\x00,\x00,,",
        b'1709285400,"A,1,2',
    ]  # fmt: skip
    path.write_bytes(b"time,symbol,bid,ask\n" + b"\n".join(bad[:-1]) + b"\n" + good * 3 + bad[-1] + b"\n")
    provider = ReplayProvider(path, pace=0, now_us=lambda: NOW_US)
    async with aclosing(provider.stream()) as stream:
        assert [len(events) async for events in stream] == [3]
    assert provider.statistics() == {"rows": 3 + len(bad), "malformed rows": len(bad)}


async def test_a_pace_moves_times_to_now_and_keeps_what_lies_between(tmp_path: Path) -> None:
    rows = [f"{DAY_US + after_us},A,{number + 1}" for number, after_us in enumerate((0, 5_000, 30_000, 50_000))]
    path = written(tmp_path / "paced.csv", "time,symbol,price", *rows)
    moments = await replayed(path, Clock(), pace=2)
    assert [len(events) for events in moments] == [2, 1, 1]  # what is nearly at once is together
    times = [event.timestamp_us for events in moments for event in events]
    assert [time - times[0] for time in times] == [0, 2_500, 15_000, 25_000]
    assert NOW_US < times[0] < NOW_US + 100_000
    kept = await replayed(path, Clock(), pace=1000, keep_times=True)
    assert kept[0][0].timestamp_us == DAY_US


@pytest.mark.parametrize(
    ("there", "given", "says"),
    [
        (["time", "price"], {}, "one for the symbol; it has time, price"),
        (["symbol", "price"], {}, "a column for the time"),
        (["symbol", "time", "bid"], {}, "bid and ask, or a price"),
        (["symbol", "time", "price"], {"cost": "price"}, "unknown columns cost"),
        (["symbol", "time", "price"], {"size": "n"}, "no column 'n' for size"),
    ],
)
def test_columns_that_are_not_enough_are_refused(there: list[str], given: dict[str, str], says: str) -> None:
    with pytest.raises(comet.InvalidArgument, match=says):
        find_columns(there, given, one_symbol=False)


async def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(comet.InvalidArgument, match="empty"):
        await replayed(written(tmp_path / "empty.csv"), pace=0)
    with pytest.raises(comet.InvalidArgument, match="not a Parquet file"):
        await replayed(written(tmp_path / "text.parquet", "text"), pace=0)
    with pytest.raises(comet.InvalidArgument, match="does not exist"):
        ReplayProvider(tmp_path / "nothing.csv")
