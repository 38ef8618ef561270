"""Bars: prices, volume and spread per symbol and window, in one stateful operator.

Quotes and trades become rows of one kind; the columns of the other kind are null. Spark keeps every aggregate in a
hash table of fixed-size rows, so that hundreds of thousands of quotes per second only need additions.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from comet_demo.analytics.frames import POSITION, bounds, duration, events_of, order, without_outliers

_FIELDS: Final = ("symbol", "bid", "ask", "price", "size")


def bars(quotes: DataFrame, trades: DataFrame, window_s: float = 1, *, watermark_s: float = 1) -> DataFrame:
    """Bars of two frames. Of two streams, the slower one decides which records are late."""
    number, count = sql.lit(None).cast("double"), sql.lit(None).cast("bigint")
    watermark = duration(watermark_s)
    quoted = quotes.withWatermark("ts", watermark).select(
        "symbol", *POSITION, "bid", "ask", number.alias("price"), count.alias("size")
    )
    traded = trades.withWatermark("ts", watermark).select("symbol", *POSITION, "bid", "ask", "price", "size")
    return _bars(quoted.unionByName(traded), window_s)


def bars_of(raw: DataFrame, window_s: float = 1, *, watermark_s: float = 1) -> DataFrame:
    """Bars of one source that reads both topics, with the option schema=TICK: both advance together."""
    return _bars(events_of(raw, _FIELDS).withWatermark("ts", duration(watermark_s)), window_s)


def _bars(ticks: DataFrame, window_s: float) -> DataFrame:
    """Bars of ticks: a row with a price is a trade, another one with a bid is a quote. Outliers are left out."""
    quoted = sql.col("price").isNull()
    rows = without_outliers(ticks).select(
        sql.window("ts", duration(window_s)).alias("window"),
        "symbol",
        sql.when(quoted, sql.col("bid")).alias("bid"),
        "price",
        "size",
        sql.when(quoted, sql.col("ask") - sql.col("bid")).alias("spread"),
        sql.when(sql.col("price").isNotNull(), order()).alias("at"),
    )
    found = rows.groupBy("window", "symbol").agg(
        _of_trades("min_by(price, at)", "open"),
        _of_trades("max(price)", "high"),
        _of_trades("min(price)", "low"),
        _of_trades("max_by(price, at)", "close"),
        _of_trades("sum(double(size))", "volume"),  # exact up to 2^53, and cannot overflow
        _of_trades("sum(price * size)", "turnover"),
        _of_trades("count(1)", "trades"),
        sql.count("bid").alias("quotes"),
        sql.avg("spread").alias("spread_mean"),
        sql.max("spread").alias("spread_max"),
    )
    return found.select(
        "symbol",
        *bounds("window"),
        "open",
        "high",
        "low",
        "close",
        sql.coalesce("volume", sql.lit(0.0)).try_cast("bigint").alias("volume"),
        sql.try_divide("turnover", "volume").alias("vwap"),
        "trades",
        "quotes",
        "spread_mean",
        "spread_max",
    )


def _of_trades(aggregate: str, name: str) -> Column:
    """An aggregate over the trades only: the filter skips the quotes, which are many more."""
    return sql.expr(f"{aggregate} FILTER (WHERE price IS NOT NULL)").alias(name)
