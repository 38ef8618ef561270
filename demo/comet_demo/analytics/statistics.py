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
from comet_demo.analytics.frames import POSITION, bounds, duration, micros, without_outliers


def stats(
    trades: DataFrame,
    window_s: float = 60,
    slide_s: float = 5,
    *,
    watermark_s: float = 2,
    half_life_s: float = 15,
) -> DataFrame:
    """Statistics of each window with a trade. A trade of age `half_life_s` counts half in the exponential average."""
    if micros(window_s) % micros(slide_s):
        raise InvalidArgument(f"the window of {window_s:g} s must be a multiple of whole slides of {slide_s:g} s")
    decay = math.log(2) / micros(half_life_s)  # per microsecond
    buckets = _buckets(trades.withWatermark("ts", duration(watermark_s)), slide_s, decay)
    over = sql.window(sql.window_time("window"), duration(window_s), duration(slide_s))
    windows = buckets.groupBy(over.alias("over"), "symbol").agg(
        sql.sort_array(sql.collect_list(sql.struct("end_us", "first", "last", "squares", "weighted", "weight"))).alias(
            "buckets"
        ),
        (sql.sum("total") / sql.sum("trades")).alias("mean"),
        sql.sum("volume").try_cast("bigint").alias("volume"),
        sql.sum("trades").alias("trades"),
        sql.max("high").alias("high"),
        sql.min("low").alias("low"),
    )
    whole = windows.withColumn("whole", _together(decay))
    return whole.select(
        "symbol",
        *bounds("over"),
        "mean",
        sql.try_divide("whole.weighted", "whole.weight").alias("ema"),
        (sql.try_divide(sql.col("whole.last"), sql.element_at("buckets", 1)["first"]) - 1).alias("return"),
        sql.sqrt("whole.squares").alias("volatility"),
        "volume",
        "trades",
        "high",
        "low",
    )


def _buckets(trades: DataFrame, slide_s: float, decay: float) -> DataFrame:
    """The sums of the trades within one slide."""
    length = micros(slide_s)
    age = sql.lit(length) - sql.pmod(sql.unix_micros("ts"), sql.lit(length))  # at the bucket's end
    weight = sql.exp(age * sql.lit(-decay))
    rows = without_outliers(trades.where("price IS NOT NULL")).withColumn("weight", weight)
    found = rows.groupBy(sql.window("ts", duration(slide_s)), "symbol").agg(
        sql.sort_array(sql.collect_list(sql.struct(*POSITION, "price"))).alias("ticks"),
        sql.sum(sql.col("price") * sql.col("weight")).alias("weighted"),
        sql.sum("weight").alias("weight"),
        sql.sum("price").alias("total"),
        sql.sum(sql.col("size").cast("double")).alias("volume"),  # exact up to 2^53, and cannot overflow
        sql.count("price").alias("trades"),
        sql.max("price").alias("high"),
        sql.min("price").alias("low"),
    )
    of_ticks = {
        "end_us": sql.unix_micros("window.end"),
        "first": sql.element_at("ticks", 1)["price"],
        "last": sql.element_at("ticks", -1)["price"],
        "squares": _squares(),
    }
    return found.withColumns(of_ticks).drop("ticks")


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
