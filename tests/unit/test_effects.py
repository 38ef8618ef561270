"""The effects of admin acts that are computed from what brokers answer, and their lines for people."""

from __future__ import annotations

import pytest

import comet
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


HANDOVERS = (comet.Handover("q", 0, 3), comet.Handover("q", 1, 3), comet.Handover("q", 2, None))
READERS = (comet.GroupSummary("engine", "consumer", "empty", 0, 1, 7, ("q",)),)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (
            comet.TopicDeletion(True, "q", 3, 1200, 2048, False, READERS),
            "at least 1,200 records (2.0 KiB) in 3 partitions; groups that read it: engine",
        ),
        (comet.TopicDeletion(False, "q", 1, 0, 0, True, ()), "deleted q: 0 records (0 B) in 1 partition"),
        (comet.PartitionsAdded(False, "q", 3, 6), "q has 6 partitions; 50% of its keys move"),
        (comet.RecordDeletion(True, "q", 0, 2, 5), "3 records of q/0, which then starts at offset 5"),
        (comet.RecordDeletion(False, "q", 0, 5, 5), "deleted 0 records: q/0 starts at offset 5"),
        (
            comet.PartitionMove(True, "q", 0, (1,), (2, 3), 99, (1,)),
            "q/0 would move from 1 to 2,3; that copies 99 B",
        ),
        (
            comet.PartitionMove(False, "q", 0, (1,), (2,), None, ()),
            "q/0 moves from 1 to 2; that copies an unknown size",
        ),
        (comet.PartitionMove(False, "q", 0, (2, 3), (2, 3), 0, (3, 2)), "q/0 is on 2,3"),
        (
            comet.PartitionMove(False, "q", 0, (2, 3), (2, 3), 0, (2,)),
            "q/0 is on 2,3; in sync: 2",
        ),
        (
            comet.LeaderElection(True, "q", 0, 2, 4, None, ()),
            "q/0 would be led by broker 2, and lose an unknown number of records",
        ),
        (comet.LeaderElection(False, "q", 0, 2, 5, 3, ()), "q/0 is now led by broker 2, in epoch 5; it lost 3 records"),
        (
            comet.BrokerDrain(True, 1, False, 3, 1, HANDOVERS),
            "broker 1 leads 3 partitions; 2 to broker 3; 1 without another replica in sync",
        ),
        (comet.BrokerDrain(False, 1, True, 3, 0, ()), "broker 1 drains: it still leads 3 partitions"),
        (comet.BrokerDrain(False, 1, True, 0, 0, ()), "broker 1 is drained"),
        (comet.BrokerDrain(False, 1, False, 0, 0, ()), "broker 1 may lead again"),
        (comet.GroupDeletion(True, "g", 1, 40), "committed offsets in 1 partition, 40 records not processed"),
    ],
)
def test_a_result_is_one_line_for_people(result: object, line: str) -> None:
    assert str(result) == line


@pytest.mark.parametrize(
    ("result", "finished"),
    [
        (comet.BrokerDrain(False, 1, True, 3, 0, ()), False),
        (comet.BrokerDrain(False, 1, True, 0, 0, ()), True),
        (comet.BrokerDrain(False, 1, False, 3, 0, ()), True),
        (comet.BrokerDrain(True, 1, False, 3, 0, ()), False),
        (comet.PartitionMove(False, "q", 0, (1,), (2, 3), 99, (1,)), False),
        (comet.PartitionMove(False, "q", 0, (2, 3), (2, 3), 0, (2,)), False),
        (comet.PartitionMove(False, "q", 0, (2, 3), (2, 3), 0, (3, 2)), True),
    ],
)
def test_a_command_waits_until_the_act_is_finished(
    result: comet.BrokerDrain | comet.PartitionMove, finished: bool
) -> None:
    assert result.is_finished() is finished
