"""What is said of a write while it is planned, and what is not. Without Spark, against a broker that may be away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructType

import comet
from comet.errors import InvalidArgument, TopicNotFound
from comet.settings.topic import Consistency
from comet.spark.sink import BatchWriter, CommitMessage, StreamWriter
from comet.spark.sink_options import SinkOptions
from tests.robustness.process import free_port

ROWS = StructType().add("value", StringType())
PLACED = StructType().add("value", StringType()).add("topic", StringType())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By the sink: brokers in this process have their own words, about a machine that stood still."""
    return [record.getMessage() for record in caplog.records if record.name == "comet.spark.sink"]


@pytest.mark.slow
def test_a_topic_that_cannot_be_written_is_told_while_planning_and_a_broker_that_is_away_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with comet.testing.broker(["bars"], consistency=Consistency.AVAILABLE) as broker:
        with pytest.raises(TopicNotFound, match="nothing"):
            StreamWriter(ROWS, SinkOptions(bootstrap=broker.address, topic="nothing"))
        with pytest.raises(InvalidArgument, match="exactlyOnce=false"):
            StreamWriter(ROWS, SinkOptions(bootstrap=broker.address, topic="bars"))
        StreamWriter(ROWS, SinkOptions(bootstrap=broker.address, topic="bars", exactly_once=False))
    assert not said(caplog)
    nowhere = f"127.0.0.1:{free_port()}"
    StreamWriter(ROWS, SinkOptions(bootstrap=nowhere, topic="bars", timeout_ms=100))
    assert f"no broker answers at bootstrap={nowhere}; each task waits 100 ms" in said(caplog)[0]


BEFORE, NOW = CommitMessage(4, before=True), CommitMessage(3)


@pytest.mark.parametrize(
    ("name", "messages", "starts"),
    [
        (
            "load-1",
            [BEFORE, BEFORE],
            ["nothing written: transactionalId 'load-1' has written all partitions before"],
        ),
        ("load-1", [BEFORE, NOW], []),
        ("load-1", [NOW], []),
        ("load-1", [], []),
        ("load-1", [replace(BEFORE, batch=17)], []),  # of a query that was started again
        ("", [BEFORE], []),  # a task that was tried again
    ],
)
def test_a_load_that_was_there_before_is_told_of(
    name: str, messages: list[WriterCommitMessage | None], starts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    BatchWriter(PLACED, SinkOptions(name=name)).commit(messages)
    assert len(said(caplog)) == len(starts)
    assert all(text.startswith(start) for text, start in zip(said(caplog), starts, strict=True))
