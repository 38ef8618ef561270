"""Documents of the SDK's types and the models that describe them agree."""

from __future__ import annotations

from typing import Any

import pytest

import comet
from comet.admin.documents import document
from comet.types import TopicPartition
from comet_gateway.schemas.derived import model_of

TPS = (TopicPartition("quotes", 0), TopicPartition("quotes", 2))
LARGE = 2**53 + 1
CONFIG = comet.TopicConfig(flush=comet.Flush.OS)
SOURCES = {"flush": comet.SettingSource.TOPIC}
SILENT = comet.PartitionInfo(0, None, 4, (1, 2), (2,), (comet.ReplicaConflict(1, 2, 8, 600, LARGE, LARGE),))
LED = comet.PartitionInfo(
    1, 1, 4, (1, 2), (1, 2), log_start=0, log_end=LARGE, high_watermark=LARGE, last_stable_offset=LARGE, bytes=99,
    segments=1, failed=False, lost=(comet.OffsetRange(4, LARGE),), in_rate=1.5, last_us=LARGE
)  # fmt: skip
COPY = comet.ReplicaInfo(2, leader=False, in_sync=True, log_start=4, log_end=LARGE)
BROKER = comet.BrokerInfo(1, "localhost", 9092, "0.1.0", "a", controller=True)
FAILURE = comet.BrokerFailure(1, "group", "engine", "writing", "KeyError(3)", LARGE, 1)
VALUES = [
    comet.GroupSummary("engine", "share", "stable", 2, 1, 7, ("quotes",)),
    comet.GroupMember("m1", "", "engine-1", TPS, (), silent_ms=12, session_timeout_ms=10_000),
    comet.PartitionLag("quotes", 0, None, committed=None, log_start=0, end=LARGE, lag=LARGE, age_s=1.5),
    comet.LagPoint(LARGE, "quotes", lag=60, age_s=1.5, committed=40, end=100),
    comet.CommittedOffset("quotes", 0, offset=LARGE, epoch=None),
    comet.ResetPartition("quotes", 0, before=None, after=LARGE, skipped=-60, note=""),
    comet.PartitionsAdded(False, "quotes", before=3, after=6),
    comet.PartitionMove(True, "quotes", 0, before=(1, 2), after=(2, 3), bytes=None, in_sync=(1, 2)),
    comet.LeaderElection(
        True,
        "quotes",
        0,
        2,
        5,
        LARGE,
        (comet.ReplicaInfo(1, True, False), comet.ReplicaInfo(2, False, True, log_end=LARGE)),
    ),
    comet.BrokerDrain(True, 1, True, 2, 1, (comet.Handover("quotes", 0, None), comet.Handover("quotes", 1, 2))),
    comet.Resumed(False, 1, (FAILURE,)),
    comet.GroupDeletion(True, "engine", offsets=3, lag=LARGE),
    comet.TopicDeletion(
        True, "quotes", 1, LARGE, 99, False, (comet.GroupSummary("g", "consumer", "empty", 0, 1, 7, ()),)
    ),
    comet.TopicInfo("quotes", bytes(16), (SILENT, LED), CONFIG, LARGE, SOURCES),
    comet.TopicDetails("quotes", bytes(16), (SILENT, LED), CONFIG, LARGE, SOURCES),
    comet.PartitionDetails(0, 1, 4, (1, 2), (2,), topic="quotes", copies=(COPY,)),
    BROKER,
    comet.BrokerDetails(
        1, "localhost", 9092, "0.1.0", started_us=LARGE, now_us=LARGE, sessions=3, partitions=5, leading=2, bytes=LARGE,
        free_bytes=LARGE, tail_bytes=LARGE, problems=("quotes: disk full",), failures=1, failed=(FAILURE,)
    ),
    comet.ClusterInfo("c0ffee", None, (BROKER,), topics=2, partitions=5),
    comet.GroupLag("engine", (), (comet.LagPoint(LARGE, "quotes", lag=60, age_s=1.5, committed=40, end=100),)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_document_is_what_its_model_says(value: Any) -> None:
    found = document(value)
    kind: Any = type(value)
    model = model_of(kind)
    assert model.model_validate(found).model_dump(mode="json") == found
    described = model.model_json_schema()
    assert set(described["properties"]) == set(found)
    assert described["description"] and ">>>" not in described["description"]


def test_numbers_that_lose_digits_in_a_browser_are_strings() -> None:
    found = document(VALUES[2])
    assert (found["end"], found["committed"], found["partition"], found["age_s"]) == (str(LARGE), None, 0, 1.5)


def test_partitions_are_grouped_by_topic() -> None:
    assert document(VALUES[1])["owned"] == [{"topic": "quotes", "partitions": [0, 2]}]


def test_properties_are_a_part_of_the_document() -> None:
    assert document(VALUES[7])["added"] == [3]
    assert document(VALUES[6])["keys_moved"] == 0.5


def test_a_list_has_topics_without_their_partitions() -> None:
    found = document(comet.TopicDetails("quotes", bytes(16), (SILENT, LED), CONFIG, LARGE, SOURCES))
    listed = document(comet.TopicInfo("quotes", bytes(16), (SILENT, LED), CONFIG, LARGE, SOURCES))
    assert found.keys() - listed.keys() == {"partitions", "defaults", "totals"}
    assert {name: found[name] for name in listed} == listed
    assert [listed[name] for name in ("partition_count", "in_sync", "under_replicated", "leaderless")] == [2, 1, 1, 1]


def test_figures_of_a_silent_leader_are_null() -> None:
    found = document(comet.TopicDetails("quotes", bytes(16), (SILENT, LED), CONFIG, LARGE, SOURCES))
    silent, led = found["partitions"]
    assert (silent["leader"], silent["log_end"], silent["records"], silent["lost"]) == (None, None, None, None)
    assert (led["leader"], led["log_end"], led["lost"]) == (1, str(LARGE), [{"first": "4", "end": str(LARGE)}])
    assert found["totals"] == {"records": str(LARGE), "bytes": "99", "complete": False}


def test_settings_are_as_their_table_has_them() -> None:
    found = document(CONFIG)
    assert (found["retention_ms"], found["flush"], found["min_insync"]) == ("604800000", "os", 1)
    described = model_of(comet.TopicConfig).model_json_schema(mode="serialization")["properties"]
    assert described["flush"]["enum"] == ["always", "interval", "os"]
    assert described["retention_ms"]["examples"] == ["604800000"]
    assert described["retention_ms"]["description"] == "How long records are kept. -1: no limit."
