"""What is said of a write while it is planned, and what is not. Without Spark, against a broker that may be away."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructType

import comet
from comet.errors import InvalidArgument, TopicNotFound
from comet.spark.sink import StreamWriter
from comet.spark.sink_options import SinkOptions
from comet.types import Consistency
from tests.robustness.process import free_port

ROWS = StructType().add("value", StringType())


@pytest.mark.slow
def test_a_topic_that_cannot_be_written_is_told_while_planning_and_a_broker_that_is_away_is_not() -> None:
    with comet.testing.broker(["bars"], consistency=Consistency.AVAILABLE) as broker:
        with pytest.raises(TopicNotFound, match="nothing"):
            StreamWriter(ROWS, SinkOptions(broker.address, "nothing"))
        with pytest.raises(InvalidArgument, match="exactlyOnce=false"):
            StreamWriter(ROWS, SinkOptions(broker.address, "bars"))
        StreamWriter(ROWS, SinkOptions(broker.address, "bars", exactly_once=False))
    StreamWriter(ROWS, SinkOptions(f"127.0.0.1:{free_port()}", "bars", timeout_ms=100))
