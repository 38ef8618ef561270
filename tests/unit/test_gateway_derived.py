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
VALUES = [
    comet.GroupSummary("engine", "share", "stable", 2, 1, 7, ("quotes",)),
    comet.GroupMember("m1", "", "engine-1", TPS, (), silent_ms=12, session_timeout_ms=10_000),
    comet.PartitionLag("quotes", 0, None, committed=None, log_start=0, end=LARGE, lag=LARGE, age_s=1.5),
    comet.LagPoint(LARGE, "quotes", lag=60, age_s=1.5, committed=40, end=100),
    comet.CommittedOffset("quotes", 0, offset=LARGE, epoch=None),
    comet.ResetPartition("quotes", 0, before=None, after=LARGE, skipped=-60, note=""),
    comet.PartitionsAdded(False, "quotes", before=3, after=6),
    comet.PartitionMove(True, "quotes", 0, before=(1, 2), after=(2, 3), bytes=None),
    comet.BrokerDrain(True, 1, True, 2, 1, (comet.Handover("quotes", 0, None), comet.Handover("quotes", 1, 2))),
    comet.Resumed(False, 1, (comet.BrokerFailure(1, "group", "engine", "writing", "KeyError(3)", LARGE, 1),)),
    comet.GroupDeletion(True, "engine", offsets=3, lag=LARGE),
    comet.TopicDeletion(
        True, "quotes", 1, LARGE, 99, False, (comet.GroupSummary("g", "consumer", "empty", 0, 1, 7, ()),)
    ),
]


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
