"""Makes `spark.read.format("comet")` work without a call: Spark looks into packages whose name starts with `pyspark_`
for a class of this name. All there is to it is in `comet.spark`."""

from comet.spark.source import CometSource as DefaultSource

__all__ = ["DefaultSource"]
