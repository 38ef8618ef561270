"""What a member is told of its partitions."""

from __future__ import annotations

from typing import Any

from comet_broker.coordination.group import LiveGroup
from comet_broker.core.group_members import CONSUMER, View
from comet_broker.core.groups import Group

QUOTES, TRADES = "aa" * 16, "bb" * 16


def group(names: dict[str, str]) -> LiveGroup:
    unused: Any = None
    return LiveGroup(
        "g", Group(CONSUMER), prefix="", journal=unused, clock=lambda: 0.0,
        name_of=lambda topic_id: names.get(topic_id, ""), racks=unused, evicted=unused, halt=unused,
    )  # fmt: skip


def test_a_topic_that_was_deleted_while_the_plan_was_stored_is_not_assigned() -> None:
    view = View({(QUOTES, 0): 1, (QUOTES, 1): 1, (TRADES, 0): 1}, frozenset({(QUOTES, 1), (TRADES, 0)}))
    told = group({QUOTES: "quotes"})._assignment("m", view, {})
    assert [(topic.topic, [one.partition for one in topic.partitions]) for topic in told.owned] == [("quotes", [0, 1])]
    assert [(topic.topic, list(topic.partitions)) for topic in told.release] == [("quotes", [1])]
