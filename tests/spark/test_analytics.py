"""Analytics of a market, against what Python counts out tick by tick and pandas joins, and streams against batches.

Open, high, low, close, volume and counts are exact; sums of floating-point numbers depend on the order in which they
are added, and are compared to 1e-12 of their size (volatility, a sum of squared small differences, to 1e-9).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

import comet
from comet.errors import InvalidArgument
from comet.spark import joins
from comet_demo import analytics
from tests.spark import market as made
from tests.spark.streams import batches_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Batches = list[list[dict[str, Any]]]
SECOND = made.SECOND


class Topics:
    """A broker with a market in it, read in any way."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark, self.address = spark, address

    def raw(self, topics: str, schema: str, per_batch: int = 0) -> DataFrame:
        reader = self.spark.readStream if per_batch else self.spark.read
        options = {"bootstrap": self.address, "subscribe": topics, "schema": schema, "startingOffsets": "earliest"}
        options |= {"mode": "permissive", "includeAppendTime": "true"}
        if per_batch:
            options["maxOffsetsPerTrigger"] = str(per_batch)
        return reader.format("comet").options(**options).load()

    def quotes(self, per_batch: int = 0) -> DataFrame:
        return analytics.quotes_of(self.raw("quotes", "comet_demo.model:Quote", per_batch))

    def trades(self, per_batch: int = 0) -> DataFrame:
        return analytics.trades_of(self.raw("trades", "comet_demo.model:Trade", per_batch))

    def both(self, per_batch: int = 0) -> DataFrame:
        return self.raw("quotes,trades", analytics.TICK, per_batch)


@pytest.fixture(scope="module")
def market() -> made.Market:
    return made.Market(seed=7)


@pytest.fixture(scope="module")
def topics(spark: SparkSession, market: made.Market) -> Iterator[Topics]:
    with comet.testing.broker({"quotes": made.PARTITIONS, "trades": made.PARTITIONS}) as broker:
        market.write(broker.address)
        yield Topics(spark, broker.address)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return _known(frame.collect())


def _known(found: Iterable[Row]) -> list[dict[str, Any]]:
    return [row.asDict() for row in found if row.symbol not in made.ODD]


def _stream(frame: DataFrame, folder: Path, mode: str) -> Batches:
    """What each batch gives, of a stream that ends with what there is."""
    return [_known(batch) for batch in batches_of(frame, folder, mode=mode)]


def _latest(batches: Iterable[list[dict[str, Any]]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["symbol"], row["start_us"]): row for batch in batches for row in batch}


def _same(found: dict[Any, dict[str, Any]], expected: dict[Any, dict[str, Any]]) -> None:
    near = {"vwap": 1e-12, "spread_mean": 1e-12, "mean": 1e-12, "ema": 1e-12, "volatility": 1e-9}
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        for name, value in row.items():
            close = value if value is None or name not in near else pytest.approx(value, rel=near[name], abs=0)
            assert found[key][name] == close, (key, name)
        assert list(found[key]) == list(row)


def _closed(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """All but those of the clock, whose own windows are never over."""
    return {key: row for key, row in rows.items() if row["symbol"] != "CLOCK"}


@pytest.mark.parametrize(("window", "length"), [(1, SECOND), (300, 300 * SECOND)])
def test_bars_are_what_is_counted_out(topics: Topics, market: made.Market, window: int, length: int) -> None:
    expected = made.bars(market, length)
    _same(_latest([_rows(analytics.bars(topics.quotes(), topics.trades(), window))]), expected)
    _same(_latest([_rows(analytics.bars_of(topics.both(), window))]), expected)
    kinds = {(row["trades"] > 0, row["quotes"] > 0) for row in expected.values()}
    assert kinds == {(True, True), (False, True)} | ({(True, False)} if length == SECOND else set())


def test_a_stream_of_bars_comes_to_the_same(topics: Topics, market: made.Market, tmp_path: Path) -> None:
    batches = _stream(analytics.bars_of(topics.both(6_000)), tmp_path, "update")
    assert len([batch for batch in batches if batch]) >= 3
    _same(_latest(batches), made.bars(market, SECOND))
    assert sum(map(len, batches)) > len(_latest(batches))  # some came more than once


@pytest.mark.usefixtures("ends")
def test_bars_that_are_over_come_once(topics: Topics, market: made.Market, tmp_path: Path) -> None:
    """Quotes and trades from two sources, of which one is ahead of the other."""
    bars = analytics.bars(topics.quotes(6_000), topics.trades(4_000), 10)
    batches = _stream(bars, tmp_path, "append")
    _same(_latest(batches), _closed(made.bars(market, 10 * SECOND)))
    assert sum(map(len, batches)) == len(_latest(batches))


@pytest.mark.usefixtures("ends")
def test_statistics_are_what_is_counted_out(topics: Topics, market: made.Market, tmp_path: Path) -> None:
    expected = made.stats(market, 60 * SECOND, 5 * SECOND, 15 * SECOND)
    _same(_latest([_rows(analytics.stats(topics.trades()))]), expected)
    batches = _stream(analytics.stats(topics.trades(2_500)), tmp_path, "append")
    _same(_latest(batches), _closed(expected))
    assert sum(map(len, batches)) == len(_latest(batches))


@pytest.mark.usefixtures("ends")
def test_alerts_name_what_is_wrong_once(topics: Topics, market: made.Market, tmp_path: Path) -> None:
    expected = made.alerts(market, 5 * SECOND)
    assert {kind for kind, *_ in expected} == {"crossed", "locked", "stale", "gap", "outlier"}

    def told(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
        found = sorted((row["kind"], row["symbol"], row["time_us"], row["value"]) for row in rows)
        return [(*names, pytest.approx(value)) for *names, value in found]

    assert told(_rows(analytics.alerts(topics.quotes(), topics.trades()))) == sorted(expected)
    stream = analytics.alerts(topics.quotes(6_000), topics.trades(2_000))
    assert told(row for batch in _stream(stream, tmp_path, "append") for row in batch) == sorted(expected)


def test_a_bad_print_is_an_alert_and_nothing_else(spark: SparkSession) -> None:
    """One of three trades of a second is far from the quote before it; of another symbol no quote is known."""

    def trade(symbol: str, second: float, price: float, bid: float | None, ask: float | None) -> bytes:
        at = made.START_US + int(second * SECOND)
        row = {"symbol": symbol, "price": price, "size": 7, "side": "", "timestamp_us": at, "bid": bid, "ask": ask}
        return json.dumps(row).encode()

    written = [
        trade("A", 0.1, 100.0, 99.99, 100.01),
        trade("A", 0.2, 131.0, 99.99, 100.01),
        trade("A", 0.3, 100.2, 99.9, 100.3),
        trade("B", 0.1, 100.0, None, None), trade("B", 0.2, 131.0, None, None),
        trade("C", 0.1, 106.0, 99.0, 101.0),  # within its wide spread
    ]  # fmt: skip
    with comet.testing.broker({"quotes": 1, "trades": 1}) as broker:
        with comet.sync.Producer(broker.address) as producer:
            producer.send_many("trades", written, partition=0).result()
        topics = Topics(spark, broker.address)
        bars = {row["symbol"]: row for row in _rows(analytics.bars_of(topics.both(), 60))}
        stats = {row["symbol"]: row for row in _rows(analytics.stats(topics.trades(), 5, 5))}
        alerts = _rows(analytics.outliers(topics.trades()))
    assert {symbol: (row["high"], row["volume"], row["trades"]) for symbol, row in bars.items()} == {
        "A": (100.2, 14, 2), "B": (131.0, 14, 2), "C": (106.0, 7, 1),
    }  # fmt: skip
    assert [bars["A"][name] for name in ("open", "low", "close", "quotes")] == [100.0, 100.0, 100.2, 0]
    assert bars["A"]["spread_mean"] is None  # a trade's bid and ask are not a quote
    assert stats["A"]["high"] == 100.2 and stats["A"]["volatility"] == pytest.approx(math.log(1.002))
    assert [(row["kind"], row["symbol"], row["value"]) for row in alerts] == [("outlier", "A", pytest.approx(31.0))]
    assert alerts[0]["text"] == "trade at 131.0, 31.0 % off 99.99 / 100.01"
    assert alerts[0]["limit"] == pytest.approx(1.1)


def _joined(market: made.Market, within: int | None) -> list[tuple[Any, ...]]:
    """By pandas."""
    frames = [
        pd.DataFrame([{**tick.values, "ts": tick.ts, "position": (tick.partition, tick.offset)} for tick in written])
        for written in (market.trades, market.quotes)
    ]
    frames[0] = frames[0].drop(columns=["bid", "ask"])
    trades, quotes = (frame.sort_values(["ts", "position"]) for frame in frames)
    quotes["quote_ts"] = quotes["ts"]
    found = pd.merge_asof(
        trades, quotes[["symbol", "ts", "quote_ts", "bid", "ask"]], on="ts", by="symbol", tolerance=within
    )
    columns = found[["symbol", "ts", "price", "size", "quote_ts", "bid", "ask"]]
    return sorted(columns.astype(object).where(columns.notna(), None).itertuples(index=False, name=None), key=str)


def _met(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "symbol", "unix_micros(ts) ts", "price", "size", "unix_micros(quote_ts) quote_ts", "bid", "ask"
    )


def _as_of(trades: DataFrame, quotes: DataFrame, within_s: float | None = None) -> DataFrame:
    quotes = quotes.withColumn("quote_ts", sql.col("ts"))
    return joins.as_of(trades.drop("bid", "ask"), quotes, ("bid", "ask", "quote_ts"), by="symbol", within_s=within_s)


@pytest.mark.usefixtures("ends")
def test_trades_meet_the_latest_quote(topics: Topics, market: made.Market, tmp_path: Path) -> None:
    whole = _as_of(topics.trades(), topics.quotes())
    assert sorted((tuple(row.values()) for row in _rows(_met(whole))), key=str) == _joined(market, None)
    young = _as_of(topics.trades(2_000), topics.quotes(6_000), within_s=0.05)
    found = [tuple(row.values()) for batch in _stream(_met(young), tmp_path, "append") for row in batch]
    expected = [row for row in _joined(market, 50_000) if row[0] != "CLOCK"]
    assert sorted(found, key=str) == expected
    assert any(row[4] is None for row in expected)
    with pytest.raises(InvalidArgument, match="within_s="):
        _as_of(topics.trades(1), topics.quotes())


def test_what_is_late_is_left_out_and_what_is_out_of_order_is_not(spark: SparkSession, tmp_path: Path) -> None:
    def trade(second: float, price: float) -> bytes:
        at = made.START_US + int(second * SECOND)
        return json.dumps({"symbol": "A", "price": price, "size": 1, "side": "", "timestamp_us": at}).encode()

    batches_of_two = [(0.1, 1), (0.2, 2), (10.5, 3), (10.9, 4), (10.7, 5), (10.8, 6), (1.0, 7), (10.4, 8)]
    written = [trade(second, price) for second, price in batches_of_two]
    with comet.testing.broker({"quotes": 1, "trades": 1}) as broker:
        with comet.sync.Producer(broker.address) as producer:
            producer.send_many("trades", written, partition=0).result()
        batches = _stream(analytics.bars_of(Topics(spark, broker.address).both(2)), tmp_path, "update")
    # The second batch moves the watermark to 9.9 seconds, the third lets go of what was before, and what comes for that
    # in the fourth is late: the trade of the first second, not that of 10.4.
    found = {(row["start_us"] - made.START_US) // SECOND: row for row in _latest(batches).values()}
    assert {second: (row["open"], row["close"], row["trades"]) for second, row in found.items()} == {
        0: (1.0, 2.0, 2),
        10: (8.0, 4.0, 5),
    }


def test_what_is_from_the_future_makes_nothing_late(spark: SparkSession, tmp_path: Path) -> None:
    now = time.time_ns() // 1_000

    def trade(symbol: str, at: int) -> bytes:
        return json.dumps({"symbol": symbol, "price": 1.0, "size": 1, "side": "", "timestamp_us": at}).encode()

    good = [trade("A", made.START_US + second * SECOND) for second in range(6)]
    wrong = [trade("X", at) for at in (4_102_444_800 * SECOND, now * 1_000, now + 3_600 * SECOND, 2**63 - 1, -1)]
    with comet.testing.broker({"quotes": 1, "trades": 1}) as broker, comet.sync.Producer(broker.address) as producer:
        bars = analytics.bars_of(analytics.timely(Topics(spark, broker.address).both(2)))
        producer.send_many("trades", [*good[:2], *wrong, *good[2:4]], partition=0).result()
        batches = _stream(bars, tmp_path, "update")
        producer.send_many("trades", good[4:], partition=0).result()
        batches += _stream(bars, tmp_path, "update")  # goes on from its checkpoint
    found = {(symbol, start - made.START_US): row["trades"] for (symbol, start), row in _latest(batches).items()}
    assert found == {("A", second * SECOND): 1 for second in range(6)}


def test_how_far_ahead_a_time_may_be_is_counted_from_when_it_was_written(spark: SparkSession) -> None:
    written = made.START_US
    times = [-1, 0, written, written + 5 * SECOND, written + 5 * SECOND + 1, None]
    raw = spark.createDataFrame([(time, written) for time in times], "time bigint, written bigint")
    raw = raw.selectExpr("struct(time AS timestamp_us) value", "timestamp_micros(written) append_time")
    assert [row.value.timestamp_us for row in analytics.timely(raw).collect()] == times[1:4]


def test_sizes_add_up_to_more_than_there_is_room_for(spark: SparkSession) -> None:
    many = [("A", 2.0, 2**62, "", second * SECOND, 0, second) for second in (1, 1, 1, 20)]
    few = [("B", 2.0, 2**53 - 1, "", SECOND, 0, 9), ("B", 2.0, 1, "", SECOND, 0, 8)]
    trades = spark.createDataFrame(
        many + few, "symbol string, price double, size bigint, side string, us bigint, partition int, offset bigint"
    ).selectExpr("*", "timestamp_micros(us) ts", "price bid", "price ask")
    quotes = trades.where("false")
    found = {(row["symbol"], row["start_us"]): row for row in _rows(analytics.bars(quotes, trades))}
    assert {key: (row["volume"], row["trades"], row["vwap"]) for key, row in found.items()} == {
        ("A", SECOND): (None, 3, 2.0),
        ("A", 20 * SECOND): (2**62, 1, 2.0),
        ("B", SECOND): (2**53, 2, 2.0),
    }
    minute = {row["symbol"]: row for row in _rows(analytics.stats(trades)) if row["start_us"] == 0}
    assert {symbol: (row["volume"], row["trades"]) for symbol, row in minute.items()} == {
        "A": (None, 4),
        "B": (2**53, 2),
    }


def test_ties_are_broken_by_partition_and_offset(spark: SparkSession) -> None:
    def frame(rows: list[tuple[Any, ...]], columns: str) -> DataFrame:
        return spark.createDataFrame(rows, f"{columns}, us bigint, partition int, offset bigint").selectExpr(
            "*", "timestamp_micros(us) ts"
        )

    trades = frame(
        [
            ("A", 3.0, 1, "", None, None, 5, 1, 0),
            ("A", 2.0, 2, "", None, None, 5, 0, 9),
            ("A", 4.0, 3, "", None, None, 5, 1, 1),
            ("A", 1.0, 4, "", None, None, 5, 0, 8),
            ("A", 9.0, 0, "", None, None, SECOND, 0, 0),
        ],
        "symbol string, price double, size bigint, side string, bid double, ask double",
    )
    quotes = frame(
        [
            ("A", 1.0, 1.5, 0, 0, 0.0, 0, 5, 0, 2),
            ("A", 1.0, 2.5, 0, 0, 0.0, 0, 5, 0, 3),
            ("B", 5.0, 4.0, 0, 0, 0.0, 0, 7, 0, 0),
        ],
        "symbol string, bid double, ask double, bid_size bigint, ask_size bigint, last double, last_size bigint",
    )
    found = analytics.bars(quotes, trades)
    values = [json.loads(row.value) for row in analytics.as_records(found).orderBy("value").collect()]
    names = ("symbol", "start_us", "open", "high", "low", "close", "volume", "vwap", "trades", "quotes", "spread_mean")
    assert [tuple(value[name] for name in names) for value in values] == [
        ("A", 0, 1.0, 4.0, 1.0, 4.0, 10, 2.3, 4, 2, 1.0),
        ("A", SECOND, 9.0, 9.0, 9.0, 9.0, 0, None, 1, 0, None),
        ("B", 0, None, None, None, None, 0, None, 0, 1, -1.0),
    ]
    assert {row.ask for row in _as_of(trades, quotes).collect()} == {2.5}
    with pytest.raises(InvalidArgument, match="whole slides"):
        analytics.stats(trades, 60, 7)
    with pytest.raises(InvalidArgument, match="a multiple of the limit"):
        analytics.gaps(quotes, limit_s=5, reach_s=7)
