"""Alerts about the data: crossed or locked quotes, silent symbols, outliers among trades. Each can run alone.

    alert   kind, symbol, time_us, value, limit, text

Each alert comes once, so their streams use append mode: a silence is known when its window closes. With `closures`
silences that overlap a closure of the market are left out; a silence that reached the limit before the close is kept.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.functions import arrow_udf

from comet.errors import InvalidArgument
from comet_demo.analytics.frames import MIDDLE, OUTLIER, OUTLIER_LIMIT, duration, micros
from comet_demo.analytics.market_closures import MarketClosures


def alerts(
    quotes: DataFrame,
    trades: DataFrame,
    *,
    silence_s: float = 5,
    reach_s: float = 60,
    watermark_s: float = 2,
    closures: MarketClosures | None = None,
) -> DataFrame:
    """All alerts. Silences are found in one pass, so quotes are read twice and trades once."""
    found = crossed(quotes).unionByName(_silences(quotes, silence_s, reach_s, watermark_s, closures))
    return found.unionByName(outliers(trades))


def crossed(quotes: DataFrame) -> DataFrame:
    """A bid above the ask (crossed), or equal to it (locked); the value is ask - bid. Row by row."""
    wrong = quotes.where("bid >= ask AND ask > 0")
    kind = sql.when(sql.col("bid") > sql.col("ask"), "crossed").otherwise("locked")
    return _alerts(
        wrong,
        kind=kind,
        at=sql.unix_micros("ts"),
        value=sql.col("ask") - sql.col("bid"),
        limit=sql.lit(0.0),
        text=sql.format_string("bid %s, ask %s", "bid", "ask"),
    )


def stale(
    quotes: DataFrame, *, limit_s: float = 5, watermark_s: float = 2, closures: MarketClosures | None = None
) -> DataFrame:
    """Symbols without a quote for `limit_s` after the last one. The alert's time is the last quote's plus the limit."""
    return _silences(quotes, limit_s, 2 * limit_s, watermark_s, closures).where("kind = 'stale'")


def gaps(
    quotes: DataFrame,
    *,
    limit_s: float = 5,
    reach_s: float = 60,
    watermark_s: float = 2,
    closures: MarketClosures | None = None,
) -> DataFrame:
    """Quotes that came `limit_s` or more after the previous one; the value is the pause, the time that of the quote.

    Pauses longer than `reach_s` less the limit may be missed: the previous quote is no longer in the state.
    """
    return _silences(quotes, limit_s, reach_s, watermark_s, closures).where("kind = 'gap'")


def outliers(trades: DataFrame) -> DataFrame:
    """Trades that bars and statistics leave out: the price is far from the quote before it. Row by row.

    The value is the distance from the middle of bid and ask in percent, the limit the one allowed.
    """
    far = trades.where(OUTLIER).withColumn("middle", sql.expr(MIDDLE))
    value = sql.expr("100 * abs(price - middle) / middle")
    return _alerts(
        far.withColumn("value", value),
        kind=sql.lit("outlier"),
        at=sql.unix_micros("ts"),
        value=sql.col("value"),
        limit=sql.expr(f"100 * {OUTLIER_LIMIT} / middle"),
        text=sql.format_string("trade at %s, %.1f %% off %s / %s", "price", "value", "bid", "ask"),
    )


def _silences(
    quotes: DataFrame, limit_s: float, reach_s: float, watermark_s: float, closures: MarketClosures | None
) -> DataFrame:
    """Stale symbols and gaps, by two stateful operators with little work per quote.

    Time is cut into slots as long as the limit: a silence of that length is never within one, so only the first and the
    last quote of a slot matter. Windows of slots then compare the start of their last slot with the quotes before it.
    Each slot is the last, and the one before the last, of one window: each alert comes once.
    """
    length, whole = micros(limit_s), micros(reach_s)
    if whole % length or whole < 2 * length:
        raise InvalidArgument(f"the reach of {reach_s:g} s must be a multiple of the limit of {limit_s:g} s, 2 or more")
    slots = (
        quotes.withWatermark("ts", duration(watermark_s))
        .groupBy(sql.window("ts", duration(limit_s)).alias("slot"), "symbol")
        .agg(sql.min("ts").alias("first"), sql.max("ts").alias("last"))
    )
    window = sql.window(sql.window_time("slot"), duration(reach_s), duration(limit_s))
    windowed = slots.withColumn("window", window)
    in_last = sql.col("slot.end") == sql.col("window.end")
    windows = windowed.groupBy("window", "symbol").agg(
        sql.unix_micros(sql.max(sql.when(~in_last, sql.col("last")))).alias("before"),
        sql.unix_micros(sql.min(sql.when(in_last, sql.col("first")))).alias("next"),
    )
    pause, end = sql.col("next") - sql.col("before"), sql.unix_micros("window.end")
    silent = sql.col("next").isNull() | (pause >= length)
    stale = silent & (sql.col("before") >= end - 2 * length)
    kinds = sql.array(
        _silence("stale", sql.col("before") + length, stale),
        _silence("gap", sql.col("next"), pause >= length),
    )
    over = _over(windows, quotes, end, watermark_s).select("symbol", "before", sql.explode(kinds).alias("silence"))
    found = over.where("silence IS NOT NULL").selectExpr(
        "symbol", "silence.kind AS kind", "before AS begin_us", "silence.end_us AS end_us"
    )
    if closures is not None:
        # Not mapInArrow, which demands pandas and does not use it. The stubs demand a type that Spark warns of.
        in_open_market = arrow_udf(closures.in_open_market, "boolean")  # type: ignore[call-overload]
        found = found.where(in_open_market("begin_us", "end_us"))
    seconds = (sql.col("end_us") - sql.col("begin_us")) / 1e6
    return _alerts(
        found,
        kind=sql.col("kind"),
        at=sql.col("end_us"),
        value=seconds,
        limit=sql.lit(length / 1e6),
        text=sql.format_string("no quote for %.1f s", seconds),
    )


def _silence(kind: str, end_us: Column, holds: Column) -> Column:
    return sql.when(holds, sql.struct(sql.lit(kind).alias("kind"), end_us.alias("end_us")))


def _over(windows: DataFrame, quotes: DataFrame, end: Column, watermark_s: float) -> DataFrame:
    """Closed windows. A stream emits no others; a batch is filtered to those that a stream would emit."""
    if quotes.isStreaming:
        return windows
    clock = quotes.agg((sql.unix_micros(sql.max("ts")) - micros(watermark_s)).alias("clock"))
    return windows.crossJoin(sql.broadcast(clock)).where(end <= sql.col("clock"))


def _alerts(frame: DataFrame, *, kind: Column, at: Column, value: Column, limit: Column, text: Column) -> DataFrame:
    columns = {"kind": kind, "symbol": sql.col("symbol"), "time_us": at, "value": value, "limit": limit, "text": text}
    return frame.select(*(column.alias(name) for name, column in columns.items()))
