"""The effects of admin acts that are computed from what brokers answer."""

from __future__ import annotations

import pytest

from comet.settings.topic import TopicConfig
from comet.v1 import types_pb2 as types
from comet_broker.admin.effects import held, lost_by
from comet_broker.core.retention import shortens


def test_an_election_loses_what_others_have_more() -> None:
    known = [types.PartitionStatus(broker=1, log_end=10), types.PartitionStatus(broker=2, log_end=7)]
    assert [lost_by(known, broker) for broker in (1, 2, 3)] == [0, 3, None]


def test_only_partitions_of_leaders_that_answered_are_counted() -> None:
    answered = types.PartitionStatus(index=0, broker=1, log_start=3, log_end=10, bytes=100)
    found = held([answered, types.PartitionStatus(index=1)])
    assert (found.records, found.bytes, found.partitions) == (7, 100, 1)


@pytest.mark.parametrize(
    ("before", "after", "shorter"),
    [
        ({}, {"retention_ms": 1000}, True),
        ({"retention_ms": 1000}, {"retention_ms": -1}, False),
        ({"retention_ms": -1}, {"retention_ms": 1000}, True),
        ({}, {"retention_bytes": 1}, True),
        ({"retention_records": 5}, {"retention_records": 6}, False),
        ({}, {"segment_ms": 100}, True),
        ({}, {"flush_interval_ms": 7}, False),
    ],
)
def test_leaders_are_asked_only_where_more_records_may_go(
    before: dict[str, int], after: dict[str, int], shorter: bool
) -> None:
    assert shortens(TopicConfig(**before), TopicConfig(**before | after)) is shorter  # type: ignore[arg-type]
