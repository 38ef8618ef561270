"""What the pages of groups say."""

from __future__ import annotations

from typing import Any

import pytest

from comet_web.document import DASH
from comet_web.facts import Cluster, Group, GroupDetail, Lag, Member, Track
from comet_web.page_request import VIEWER, PageRequest
from comet_web.views import group, groups

NOW_US = 1_800_000_000_000_000


def one(name: str, **more: Any) -> Group:
    return Group(**{
        "name": name, "kind": "consumer", "state": "stable", "members": 1, "topics": ("quotes",), "coordinator": 1,
        **more,
    })  # fmt: skip


def cluster(*found: Group) -> Cluster:
    return Cluster(NOW_US, groups={each.name: each for each in found})


def detail(found: Group, **more: Any) -> GroupDetail:
    return GroupDetail(**{"cluster": cluster(found), "group": found, "members": (), "lags": (), **more})


def lag(partition: int, **more: Any) -> Lag:
    return Lag(**{
        "topic": "quotes", "partition": partition, "member": "m1", "committed": 10, "log_start": 0, "end": 30,
        "lag": 20, "age_s": 1.0, "drain_s": 4.0, **more,
    })  # fmt: skip


def test_the_furthest_behind_come_first_and_what_is_not_known_last() -> None:
    found = cluster(one("near", lag=3), one("unknown"), one("far", lag=900), one("done", lag=0))
    document = groups.view(found, PageRequest("/groups"))
    assert [row.key for row in document.tables["groups"].rows] == ["far", "near", "done", "unknown"]
    assert document.fields["lag"].text == "903"
    assert document.tables["groups"].rows[-1].cells[4].text == DASH


def test_nothing_known_of_any_lag_is_a_dash_and_no_group_at_all_is_none() -> None:
    assert groups.view(cluster(one("a")), PageRequest()).fields["lag"].text == DASH
    assert groups.view(cluster(), PageRequest()).fields["lag"].text == "0"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"lag": None}, DASH),
        ({"lag": 0, "growing": False}, "caught up"),
        ({"lag": 9, "growing": True, "drain_s": None}, "growing"),
        ({"lag": 9, "growing": True, "drain_s": None, "age_s": 60.0}, "growing"),
        ({"lag": 9, "growing": True, "drain_s": None, "age_s": 0.2}, "keeping up"),
        ({"lag": 9, "growing": False, "drain_s": 75.0}, "1 min 15 s"),
        ({"lag": 9, "members": 0, "state": "empty"}, "stopped"),
        ({"lag": 9, "members": 0, "state": "empty", "last_commit_us": NOW_US - 61_000_000}, "stopped"),
        ({"lag": 9, "members": 0, "state": "empty", "last_commit_us": NOW_US - 59_000_000}, "not shrinking"),
        ({"lag": 9}, "not shrinking"),
    ],
)
def test_time_to_drain_says_why_there_is_none(more: dict[str, Any], text: str) -> None:
    assert groups.drain(one("g", **more), NOW_US).text == text


def test_a_group_whose_program_commits_without_a_member_is_not_stopped() -> None:
    spark = one("spark.bars", members=0, state="empty", lag=9, last_commit_us=NOW_US - 1_000_000)
    gone = one("gone", members=0, state="empty", lag=9, last_commit_us=NOW_US - 3_600_000_000)
    document = groups.view(cluster(spark, gone), PageRequest("/groups"))
    assert {row.key: row.cells[1].text for row in document.tables["groups"].rows} == {
        "spark.bars": "no members",
        "gone": "empty",
    }
    assert document.fields["stopped"].text == "1"


def test_groups_are_found_by_their_topics_and_states() -> None:
    found = cluster(one("a", topics=("orders",)), one("b", state="empty"))
    for wanted, key in (("orders", "a"), ("empty", "b")):
        asked = PageRequest("/groups", query={"filter": wanted}, matches=lambda text, wanted=wanted: wanted in text)  # type: ignore[misc]
        assert [row.key for row in groups.view(found, asked).tables["groups"].rows] == [key]


def test_a_name_is_one_part_of_its_address_whatever_it_holds() -> None:
    row = groups.view(cluster(one("a/b?c")), PageRequest()).tables["groups"].rows[0]
    assert row.href == "/groups/a%2Fb%3Fc"


def test_partitions_of_a_group_with_whom_has_them() -> None:
    members = (Member("m1", "", "engine-1", {"quotes": (0, 1, 2, 7)}, 100, 10_000),)
    lags = (lag(0), lag(1, lag=40, drain_s=None), lag(2, member="", committed=None, lag=0))
    document = group.view(detail(one("g", lag=60), members=members, lags=lags), PageRequest())
    table = document.tables["partitions"]
    assert [row.key for row in table.rows] == ["quotes/1", "quotes/0", "quotes/2"]
    first, second, third = (dict(zip((c.key for c in table.columns), row.cells, strict=True)) for row in table.rows)
    assert (first["lag"].bar, second["lag"].bar) == (1.0, 0.5)
    assert (first["drain"].text, second["drain"].text, third["drain"].text) == ("not shrinking", "4.0 s", "caught up")
    assert (first["member"].text, third["member"].text, third["committed"].text) == ("engine-1", "unassigned", "never")
    assert document.tables["members"].rows[0].cells[3].text == "quotes 0-2, 7"


def test_the_assignment_strategy_is_shown_and_members_that_ask_for_another_one() -> None:
    alike = Member("m1", "", "engine-1", {}, 0, 10_000, assignment="rack", rack="eu-1")
    found = group.view(detail(one("g"), members=(alike,), assignment="rack"), PageRequest())
    assert (found.fields["assignment"].text, found.fields["assignment"].tone) == ("rack", "")
    assert [cell.text for cell in found.tables["members"].rows[0].cells][4] == "eu-1"
    other = Member("m2", "", "engine-2", {}, 0, 10_000, assignment="sticky")
    found = group.view(detail(one("g"), members=(alike, other), assignment="rack"), PageRequest())
    assert found.fields["assignment"].title == "1 member of 2 ask for another strategy; most decide"
    assert "assignment" not in group.view(detail(one("g", kind="share")), PageRequest()).fields


def test_a_shared_group_says_what_is_in_flight_and_dead() -> None:
    lags = (lag(0, in_flight=3, redelivered=2, dead_lettered=1), lag(1, in_flight=4))
    document = group.view(detail(one("g", kind="share", lag=40), lags=lags), PageRequest())
    assert [column.key for column in document.tables["partitions"].columns][-3:] == ["in_flight", "redelivered", "dead"]
    assert (document.fields["in_flight"].text, document.fields["dead_lettered"].text) == ("7", "1")
    assert "no committed offsets" in document.fields["held"].text
    assert document.fields["waiting"].text == ""


def test_a_shared_group_says_why_dead_letters_are_not_written() -> None:
    why = "topic 'orders.dead' does not exist"
    lags = [lag(n, dead_lettered=1, dead_waiting=n, dead_problem=why if n else "") for n in range(3)]
    document = group.view(detail(one("g", kind="share", lag=40), lags=tuple(lags)), PageRequest())
    assert document.fields["waiting"].text == f"3 dead letters not written yet: {why}"
    cells = {row.cells[1].text: row.cells[-1] for row in document.tables["partitions"].rows}
    assert (cells["0"].text, cells["2"].text, cells["2"].title) == ("1", "1 + 2 waiting", why)


def test_who_holds_a_group_is_why_its_positions_stay() -> None:
    members = tuple(Member(f"m{n}", "", f"engine-{n}", {}, 0, 10_000) for n in range(5))
    found = detail(one("g"), members=members)
    assert (
        group.held(found, PageRequest()) == "active members: engine-0, engine-1, engine-2 and 2 more; stop them first"
    )
    assert "viewer" in group.held(found, PageRequest(role=VIEWER))
    assert group.delete_held(found, PageRequest()) == group.held(found, PageRequest())
    assert "admin" in group.delete_held(found, PageRequest(role=VIEWER))
    shared = detail(one("g", kind="share"), members=members[:1])
    assert group.delete_held(shared, PageRequest()) == "active members: engine-0; stop them first"
    assert group.delete_held(detail(one("g", kind="share")), PageRequest()) == ""
    assert group.held(detail(one("g"), reset_allowed=True), PageRequest()) == ""


def test_lag_over_time_is_stacked_by_topic_and_rebalances_are_marked() -> None:
    step = 1_000_000
    tracks = {
        "quotes": Track(1, NOW_US, [1, 2, 3]),
        "orders": Track(1, NOW_US - step, [None, 5]),
    }
    found = detail(one("g", lag=6), tracks=tracks, rebalances_us=(NOW_US - 9 * step, NOW_US - step))
    chart = group.view(found, PageRequest()).charts["lag"]
    assert (chart.names, chart.kind) == (("orders", "quotes"), "area")
    assert [list(line) for line in chart.values] == [[None, 5, None], [1, 2, 3]]
    assert chart.marks == ((NOW_US - step, "rebalance"),)
    assert chart.summary == "6 records behind, max 7, 1 rebalance"


def test_many_topics_share_one_line() -> None:
    tracks = {f"t{n:02}": Track(1, NOW_US, [float(n)]) for n in range(12)}
    chart = group.view(detail(one("g"), tracks=tracks), PageRequest()).charts["lag"]
    assert (len(chart.names), chart.names[0], chart.names[-1]) == (9, "t11", "others")
    assert chart.values[-1] == [0 + 1 + 2 + 3]


def test_a_group_of_which_nothing_is_known_has_a_chart_that_says_so() -> None:
    assert group.view(detail(one("g")), PageRequest()).charts["lag"].summary.startswith("0 records behind, no history")
