"""Runs a stream over what is there."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, Row

WITHIN_S = 200


def batches_of(frame: DataFrame, checkpoint: Path, *, mode: str = "append") -> list[list[Row]]:
    """The rows of each batch, of a stream that ends once it has read what is there."""
    batches: list[list[Row]] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WITHIN_S)
    return batches
