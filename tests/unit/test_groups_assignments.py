"""What a member is told of its partitions."""

from __future__ import annotations

from comet_broker.coordination.committed_offsets import CommittedOffsets
from comet_broker.coordination.group_messages import assignment
from comet_broker.core.group_members import View

QUOTES, TRADES = "aa" * 16, "bb" * 16


def test_a_topic_that_was_deleted_while_the_plan_was_stored_is_not_assigned() -> None:
    view = View({(QUOTES, 0): 1, (QUOTES, 1): 1, (TRADES, 0): 1}, frozenset({(QUOTES, 1), (TRADES, 0)}))
    names = {QUOTES: "quotes"}
    told = assignment("g", "m", 2, view, CommittedOffsets(), lambda topic_id: names.get(topic_id, ""))
    assert [(topic.topic, [one.partition for one in topic.partitions]) for topic in told.owned] == [("quotes", [0, 1])]
    assert [(topic.topic, list(topic.partitions)) for topic in told.release] == [("quotes", [1])]
