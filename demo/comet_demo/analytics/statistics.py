"""Averages, return and realised volatility of sliding windows of trades.

Trades are first summed up in buckets as long as the slide; then each window is merged from its buckets. So a trade is
processed once, however many windows it is in. Spark runs these two stateful operators in append mode: a window is
written once, when it closes.
"""

from __future__ import annotations

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from comet.errors import InvalidArgument
from comet_demo.analytics.frames import POSITION, micros


def stats(
    trades: DataFrame,
    window: str = "1 minute",
    slide: str = "5 seconds",
    *,
    watermark: str = "2 seconds",
    half_life: str = "15 seconds",
) -> DataFrame:
    """Statistics of each window with a trade. A trade as old as `half_life` counts half in the exponential average."""
    if micros(window) % micros(slide):
        raise InvalidArgument(f"the window {window} must be a multiple of whole slides of {slide}")
    decay = math.log(2) / micros(half_life)  # per microsecond
    buckets = _buckets(trades.withWatermark("ts", watermark), slide, decay)
    windows = buckets.groupBy(sql.window(sql.window_time("window"), window, slide).alias("over"), "symbol").agg(
        sql.sort_array(sql.collect_list(sql.struct("end_us", "first", "last", "squares", "weighted", "weight"))).alias(
            "buckets"
        ),
        (sql.sum("total") / sql.sum("trades")).alias("mean"),
        sql.sum("volume").alias("volume"),
        sql.sum("trades").alias("trades"),
        sql.max("high").alias("high"),
        sql.min("low").alias("low"),
    )
    whole = windows.withColumn("whole", _together(decay))
    return whole.select(
        "symbol",
        sql.unix_micros("over.start").alias("start_us"),
        sql.unix_micros("over.end").alias("end_us"),
        "mean",
        sql.try_divide("whole.weighted", "whole.weight").alias("ema"),
        (sql.try_divide(sql.col("whole.last"), sql.element_at("buckets", 1)["first"]) - 1).alias("return"),
        sql.sqrt("whole.squares").alias("volatility"),
        sql.col("volume").try_cast("bigint").alias("volume"),
        "trades",
        "high",
        "low",
    )


def _buckets(trades: DataFrame, slide: str, decay: float) -> DataFrame:
    """The sums of the trades within one slide."""
    length = micros(slide)
    age = sql.lit(length) - sql.pmod(sql.unix_micros("ts"), sql.lit(length))  # at the bucket's end
    weight = sql.exp(age * sql.lit(-decay))
    rows = trades.where("price IS NOT NULL").withColumn("weight", weight)
    found = rows.groupBy(sql.window("ts", slide), "symbol").agg(
        sql.sort_array(sql.collect_list(sql.struct(*POSITION, "price"))).alias("ticks"),
        sql.sum(sql.col("price") * sql.col("weight")).alias("weighted"),
        sql.sum("weight").alias("weight"),
        sql.sum("price").alias("total"),
        sql.sum(sql.col("size").cast("double")).alias("volume"),  # exact up to 2^53, and cannot overflow
        sql.count("price").alias("trades"),
        sql.max("price").alias("high"),
        sql.min("price").alias("low"),
    )
    return found.select(
        "window",
        "symbol",
        sql.unix_micros("window.end").alias("end_us"),
        sql.element_at("ticks", 1)["price"].alias("first"),
        sql.element_at("ticks", -1)["price"].alias("last"),
        _squares().alias("squares"),
        "weighted",
        "weight",
        "total",
        "volume",
        "trades",
        "high",
        "low",
    )


def _squares() -> Column:
    """The sum of the squared logarithmic returns from each tick to the next."""
    none = sql.struct(sql.lit(0.0).alias("sum"), sql.lit(None).cast("double").alias("before"))

    def add(so_far: Column, tick: Column) -> Column:
        return sql.struct(
            (so_far["sum"] + _square(so_far["before"], tick["price"])).alias("sum"), tick["price"].alias("before")
        )

    return sql.aggregate("ticks", none, add, lambda found: found["sum"])


def _together(decay: float) -> Column:
    """Merges the buckets of a window: weights fade with age, and the return between two buckets is added."""
    none = sql.struct(
        sql.lit(None).cast("bigint").alias("end_us"),
        sql.lit(None).cast("double").alias("last"),
        sql.lit(0.0).alias("squares"),
        sql.lit(0.0).alias("weighted"),
        sql.lit(0.0).alias("weight"),
    )

    def add(so_far: Column, bucket: Column) -> Column:
        faded = sql.coalesce(sql.exp((bucket["end_us"] - so_far["end_us"]) * sql.lit(-decay)), sql.lit(0.0))
        return sql.struct(
            bucket["end_us"].alias("end_us"),
            bucket["last"].alias("last"),
            (so_far["squares"] + _square(so_far["last"], bucket["first"]) + bucket["squares"]).alias("squares"),
            (so_far["weighted"] * faded + bucket["weighted"]).alias("weighted"),
            (so_far["weight"] * faded + bucket["weight"]).alias("weight"),
        )

    return sql.aggregate("buckets", none, add)


def _square(before: Column, price: Column) -> Column:
    """The squared logarithmic return; 0 without a price before, or for a price without a logarithm."""
    change = sql.ln(sql.try_divide(price, before))
    return sql.coalesce(change * change, sql.lit(0.0))
