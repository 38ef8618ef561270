"""The line about a Spark job, from the reports of its queries; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from comet.spark.query_reports import QueryReports

S = 1_000_000


def running(query: str = "bars.1s", **more: Any) -> dict[str, Any]:
    return {"query": query, "state": "running", "event_us": 90 * S, "at_us": 100 * S, "error": "", **more}


def test_the_line_says_what_is_being_waited_for() -> None:
    analytics = QueryReports("analytics", first="bars.1s")
    assert not analytics.summary(0, 100 * S)
    analytics.apply(running(state="starting", event_us=None, doing="Java and Spark"))
    assert analytics.summary(95 * S, 100 * S) == "Spark: starting bars.1s, Java and Spark"
    analytics.apply(running())
    analytics.apply(running("stats", state="starting"))
    assert analytics.summary(91 * S, 100 * S) == "analytics 1.0 s behind (1 query)"


def test_the_line_says_what_failed_and_that_nothing_is_heard() -> None:
    analytics = QueryReports("analytics", first="bars.1s")
    analytics.apply(running())
    analytics.apply(running("stats", state="failed", error="no luck"))
    assert analytics.summary(90 * S, 100 * S) == "analytics 0.0 s behind (1 query); stats failed: no luck"
    assert analytics.summary(90 * S, 111 * S) == "the Spark job has been silent for 11 s"


@pytest.mark.parametrize("record", [None, 3, [], {}, {"query": 3}, {"query": "x", "at_us": None, "state": 4}])
def test_a_record_that_is_none_does_no_harm(record: Any) -> None:
    analytics = QueryReports("analytics", first="bars.1s")
    analytics.apply(record)
    assert isinstance(analytics.summary(1, 2), str)
