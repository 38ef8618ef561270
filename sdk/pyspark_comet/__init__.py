"""Registers `spark.read.format("comet")`: Spark searches packages whose name starts with `pyspark_` for a class
`DefaultSource`. The source is in `comet.spark`."""

from comet.spark.source import CometSource as DefaultSource

__all__ = ["DefaultSource"]
