"""Joins the rows of a frame with the latest row of another one, at or before each: for batches, and for streams, which
Spark's own joins cannot do.

    left   ─┬─► in the total order (ts, right before left, partition, offset) ─► left with columns of the latest right
    right  ─┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from comet.errors import InvalidArgument

POSITION: Final = ("ts", "partition", "offset")


def as_of(
    left: DataFrame,
    right: DataFrame,
    columns: Sequence[str],
    *,
    by: str,
    within_s: float | None = None,
    watermark_s: float = 1,
) -> DataFrame:
    """The rows of `left`, each with columns of the latest row of `right` that has the same `by`; null without one.

    Both frames have the columns `by`, `ts` (a timestamp), `partition` and `offset`. A row of the right with the same
    time counts; of several, the last in (ts, partition, offset). With `within_s`, older rows do not count; streams need
    it, because it limits how long rows of the right are retained.
    """
    streaming = left.isStreaming or right.isStreaming
    if within_s is None and streaming:
        raise InvalidArgument("a join of streams needs a limit for the age of rows: within_s=5")
    watermark, within_us = f"{round(watermark_s * 1e6)} microseconds", round((within_s or 0) * 1e6)
    rows = _rows(left.withWatermark("ts", watermark), right.withWatermark("ts", watermark), columns, by)
    found = _of_stream(rows, within_us) if streaming else _of_batch(rows)
    age = sql.unix_micros("left.ts") - sql.unix_micros("right._ts")
    young = sql.lit(True) if within_s is None else age <= within_us
    return found.select("left.*", *(sql.when(young, sql.col(f"right.`{name}`")).alias(name) for name in columns))


def _rows(left: DataFrame, right: DataFrame, columns: Sequence[str], by: str) -> DataFrame:
    """Both in one frame: `is_left` orders rows of the right before those of the left with the same time."""
    of_right = sql.struct(*columns, sql.col("ts").alias("_ts")).alias("right")
    rights = right.select(sql.col(by).alias("by"), *POSITION, sql.lit(False).alias("is_left"), of_right)
    of_left = sql.struct(*left.columns).alias("left")
    lefts = left.select(sql.col(by).alias("by"), *POSITION, sql.lit(True).alias("is_left"), of_left)
    return rights.unionByName(lefts, allowMissingColumns=True)


def _of_batch(rows: DataFrame) -> DataFrame:
    so_far = Window.partitionBy("by").orderBy("ts", "is_left", "partition", "offset")
    latest = sql.last("right", ignorenulls=True).over(so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return rows.select("is_left", "left", latest.alias("right")).where("is_left").drop("is_left")


def _of_stream(rows: DataFrame, length_us: int) -> DataFrame:
    """Windows of twice the length that overlap by half: a left row is in the second half of one, and all right rows
    that may count for it are in the same window. Of the first half, only the last right row is stored.
    """
    whole = sql.window("ts", f"{2 * length_us} microseconds", f"{length_us} microseconds")
    second = sql.unix_micros("ts") - sql.unix_micros("window.start") >= length_us
    halves = rows.withColumn("window", whole).withColumn("second", second).where("second OR NOT is_left")
    ordered = halves.withColumns(
        {
            "at": sql.struct(*POSITION),
            "row": sql.struct("ts", "is_left", "partition", "offset", "left", "right"),
        }
    )
    windows = ordered.groupBy("window", "by").agg(
        sql.expr("max_by(`right`, at) FILTER (WHERE NOT second)").alias("before"),
        sql.sort_array(sql.expr("collect_list(`row`) FILTER (WHERE second)")).alias("rows"),
    )
    return windows.select(sql.explode(_met(rows)).alias("met")).select("met.*")


def _met(rows: DataFrame) -> Column:
    """Folds the rows in order; the state is the latest right row, and the left rows with theirs."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    nothing = sql.array().cast(f"array<struct<`left`:{types['left']},`right`:{types['right']}>>")

    def walk(so_far: Column, row: Column) -> Column:
        met = sql.struct(row["left"].alias("left"), so_far["right"].alias("right"))
        return sql.struct(
            sql.coalesce(row["right"], so_far["right"]).alias("right"),
            sql.when(row["is_left"], sql.concat(so_far["met"], sql.array(met))).otherwise(so_far["met"]).alias("met"),
        )

    start = sql.struct(sql.col("before").alias("right"), nothing.alias("met"))
    return sql.aggregate("rows", start, walk, lambda found: found["met"])
