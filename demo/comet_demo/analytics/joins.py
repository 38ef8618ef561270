"""Joins trades with the latest quote of the symbol, at or before the trade."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from comet.errors import InvalidArgument
from comet_demo.analytics.frames import POSITION, micros

_QUOTED: Final = ("bid", "ask", "bid_size", "ask_size")


def as_of(trades: DataFrame, quotes: DataFrame, *, within: str | None = None, watermark: str = "1 second") -> DataFrame:
    """Trades with bid, ask, bid_size, ask_size and quote_ts; these are null without a quote.

    A quote of the same microsecond comes before the trade; of several, the last in (ts, partition, offset) counts.
    With `within`, older quotes do not count; streams need it, because it limits how long quotes are retained.
    """
    if within is None and (trades.isStreaming or quotes.isStreaming):
        raise InvalidArgument("a join of streams needs a limit for the age of quotes: within='5 seconds'")
    rows = _rows(trades.withWatermark("ts", watermark), quotes.withWatermark("ts", watermark))
    if trades.isStreaming or quotes.isStreaming:
        assert within is not None
        found = _of_stream(rows, within)
    else:
        found = _of_batch(rows)
    young = sql.lit(True) if within is None else _age(sql.col("trade.ts")) <= micros(within)
    return found.select(
        "trade.*", *(sql.when(young, sql.col(f"quote.{name}")).alias(name) for name in (*_QUOTED, "quote_ts"))
    )


def _age(at: Column) -> Column:
    return sql.unix_micros(at) - sql.unix_micros("quote.quote_ts")


def _rows(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Both in one frame: `traded` orders quotes before trades of the same time."""
    quote = sql.struct(*_QUOTED, sql.col("ts").alias("quote_ts"))
    trade = sql.struct(*trades.columns)
    quoted = quotes.select("symbol", *POSITION, sql.lit(False).alias("traded"), quote.alias("quote"))
    traded = trades.select("symbol", *POSITION, sql.lit(True).alias("traded"), trade.alias("trade"))
    return quoted.unionByName(traded, allowMissingColumns=True)


def _of_batch(rows: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("symbol").orderBy("ts", "traded", "partition", "offset")
    latest = sql.last("quote", ignorenulls=True).over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return rows.select("traded", "trade", latest.alias("quote")).where("traded").drop("traded")


def _of_stream(rows: DataFrame, within: str) -> DataFrame:
    """Windows of twice `within` that overlap by half: a trade is in the second half of one, and all quotes that may
    count for it are in the same window. Of the first half, only the last quote is stored.
    """
    length = micros(within)
    whole = sql.window("ts", f"{2 * length} microseconds", f"{length} microseconds")
    windowed = rows.withColumn("window", whole)
    second = sql.unix_micros("ts") - sql.unix_micros("window.start") >= length
    at = sql.struct("ts", "partition", "offset")
    tick = sql.struct("ts", "traded", "partition", "offset", "trade", "quote")
    halves = windowed.withColumn("second", second).where("second OR NOT traded")
    windows = (
        halves.withColumn("at", at)
        .withColumn("tick", tick)
        .groupBy("window", "symbol")
        .agg(
            sql.expr("max_by(quote, at) FILTER (WHERE NOT second)").alias("before"),
            sql.sort_array(sql.expr("collect_list(tick) FILTER (WHERE second)")).alias("ticks"),
        )
    )
    return windows.select(sql.explode(_met(rows)).alias("met")).select("met.*")


def _met(rows: DataFrame) -> Column:
    """Folds the ticks in order; the state is the latest quote, and the trades with theirs."""
    types = {field.name: field.dataType for field in rows.schema}
    trade, quote = types["trade"].simpleString(), types["quote"].simpleString()
    nothing = sql.array().cast(f"array<struct<trade:{trade},quote:{quote}>>")

    def walk(so_far: Column, tick: Column) -> Column:
        met = sql.struct(tick["trade"].alias("trade"), so_far["quote"].alias("quote"))
        return sql.struct(
            sql.coalesce(tick["quote"], so_far["quote"]).alias("quote"),
            sql.when(tick["traded"], sql.concat(so_far["met"], sql.array(met))).otherwise(so_far["met"]).alias("met"),
        )

    start = sql.struct(sql.col("before").alias("quote"), nothing.alias("met"))
    return sql.aggregate("ticks", start, walk, lambda found: found["met"])
