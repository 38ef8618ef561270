"""Records of a topic to columns and back; and helpers of all computations: durations and a total order."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import DecimalType

from comet_demo.model import EARLY_US, PRICE_MAX, SIZE_MAX

# The fields of quotes and of trades that bars need, for one source that reads both topics.
TICK: Final = "symbol string, bid double, ask double, price double, size bigint, timestamp_us bigint"
QUOTE: Final = ("symbol", "bid", "ask", "bid_size", "ask_size", "last", "last_size")
TRADE: Final = ("symbol", "price", "size", "side", "bid", "ask")
POSITION: Final = ("ts", "partition", "offset")

# Any client may write any values to the topics. A value that overflows a sum, a window or the record of a result
# fails a query, and again after each restart from the batch that has it.
SYMBOL_BYTES_MAX: Final = 256
_MEANT: Final = (
    f"octet_length(value.symbol) BETWEEN 1 AND {SYMBOL_BYTES_MAX} AND value.timestamp_us BETWEEN 0 AND {SIZE_MAX}"
)
_PAID: Final = (
    f"(value.price IS NULL OR (value.price > 0 AND value.price <= {PRICE_MAX:.0f}"
    f" AND ifnull(value.size, 0) BETWEEN 0 AND {SIZE_MAX}))"
)

# A trade has the bid and the ask of the quote before it. A price further from their middle than a share of it and some
# spreads is an outlier. Row by row, since bars in update mode have room for one stateful operator: a median of the
# window would be another one.
OUTLIER_SHARE: Final = 0.01
OUTLIER_SPREADS: Final = 5
MIDDLE: Final = "(bid + ask) / 2"
OUTLIER_LIMIT: Final = f"({OUTLIER_SHARE} * {MIDDLE} + {OUTLIER_SPREADS} * abs(ask - bid))"
OUTLIER: Final = f"(bid > 0 AND ask > 0 AND abs(price - {MIDDLE}) > {OUTLIER_LIMIT})"

_OFFSETS: Final = 10**14  # a partition has fewer offsets, and the partition's number fits into the rest of a long
_POSITIONS: Final = Decimal(10**19)


def quotes_of(raw: DataFrame) -> DataFrame:
    """The columns of quotes, of a frame that was read with the option schema=comet_demo.model:Quote."""
    return events_of(raw, QUOTE)


def trades_of(raw: DataFrame) -> DataFrame:
    """The columns of trades, of a frame that was read with the option schema=comet_demo.model:Trade."""
    return events_of(raw, TRADE)


def timely(raw: DataFrame) -> DataFrame:
    """Drops records with a timestamp after their append time: one would advance the watermark for good, and all others
    would be late. `raw` has the column append_time.

    The result does not depend on the time of reading. A limit by the batch's own time would be a constant in the
    generated code, which Spark would compile again for each batch.
    """
    return raw.where(f"value.timestamp_us BETWEEN 0 AND unix_micros(append_time) + {EARLY_US}")


def events_of(raw: DataFrame, fields: tuple[str, ...]) -> DataFrame:
    """The fields and the position in the total order; without tombstones and implausible values."""
    found = raw.where(f"{_MEANT} AND {_PAID}" if "price" in fields else _MEANT)
    at = sql.timestamp_micros("value.timestamp_us").alias("ts")
    return found.select(*(sql.col(f"value.{name}") for name in fields), at, "partition", "offset")


def without_outliers(rows: DataFrame) -> DataFrame:
    """Without trades whose price is an outlier. Quotes, and trades without a quote before them, stay."""
    return rows.where(f"price IS NULL OR NOT coalesce({OUTLIER}, false)")


def as_records(frame: DataFrame) -> DataFrame:
    """A record for each row: the key is its symbol, the value the row as JSON, with nulls."""
    value = sql.to_json(sql.struct(*frame.columns), {"ignoreNullFields": "false"})
    return frame.select(sql.col("symbol").alias("key"), value.alias("value"))


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


def duration(seconds: float) -> str:
    """A duration as Spark reads it."""
    return f"{micros(seconds)} microseconds"


def bounds(window: str) -> tuple[Column, Column]:
    """The columns of a window's start and end."""
    return sql.unix_micros(f"{window}.start").alias("start_us"), sql.unix_micros(f"{window}.end").alias("end_us")


def order() -> Column:
    """One number that orders ticks by time, and those of one microsecond by partition and offset.

    Not a struct of the three: Spark cannot hash an aggregate with a struct, and sorts all rows first, which costs about
    twice as much as the rest of a bar.
    """
    position = sql.col("partition").cast("long") * sql.lit(_OFFSETS) + sql.col("offset")
    time = sql.unix_micros("ts").cast(DecimalType(18, 0)) * sql.lit(_POSITIONS)
    return (time + position.cast(DecimalType(19, 0))).cast(DecimalType(38, 0))
