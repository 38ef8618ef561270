"""Overview: what is said of a cluster's health, and of what is busy or behind; charts of tracks, sparklines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet.entities import BrokerFailure
from comet.wire.expiry import DAY_US
from comet_web import render
from comet_web.components import line_chart, sparkline
from comet_web.components.navigation import NAV
from comet_web.document import DASH
from comet_web.facts import Broker, Cluster, Event, Group, Topic, Track
from comet_web.health import judged
from comet_web.page_request import VIEWER, PageRequest
from comet_web.pages import PAGES
from comet_web.views import overview

NOW = 1_700_000_000_000_000
ASKED = PageRequest(now_us=NOW)


def topic(name: str, **known: object) -> Topic:
    base = Topic(name, name.startswith("__"), 3, 3, 3, 0, 0, {"ms": 604_800_000}, records=10, bytes=1_000, in_rate=1.0)
    return replace(base, **known)  # type: ignore[arg-type] # as given


def group(name: str, lag: int | None, **known: object) -> Group:
    lags = {} if lag is None else {"orders": lag}
    base = Group(name, "consumer", "stable", 2, ("orders",), 1, lag=lag, lags=lags, growing=False)
    return replace(base, **known)  # type: ignore[arg-type] # as given


def broker(id_: int, **known: object) -> Broker:
    base = Broker(id_, f"b{id_}:9092", up=True, in_rate=10.0, out_rate=20.0, in_bytes_rate=1e6, out_bytes_rate=2e6)
    return replace(base, **known)  # type: ignore[arg-type] # as given


def cluster(**known: object) -> Cluster:
    base = Cluster(
        NOW,
        "c",
        controller=1,
        brokers=(broker(1), broker(2)),
        topics={name: topic(name) for name in ("orders", "__groups")},
        tracks={"records_in": Track(1, NOW, [1.0, None, 3.0])},
    )
    return replace(base, **known)  # type: ignore[arg-type] # as given


def texts(found: Cluster) -> list[str]:
    return [reason.text for reason in judged(found).reasons]


# ---- health


def test_a_cluster_that_is_well_gives_no_reason() -> None:
    assert judged(cluster()) == judged(replace(cluster(), groups={"g": group("g", 5)}))
    assert (judged(cluster()).word, judged(cluster()).tone, judged(cluster()).reasons) == ("Healthy", "good", ())


def test_less_to_spare_is_a_risk_and_what_does_not_work_is_broken() -> None:
    behind = cluster(topics={"a": topic("a", under_replicated=2), "b": topic("b", under_replicated=1)})
    assert judged(behind).word == "At risk"
    assert texts(behind) == ["3 partitions under-replicated, of 2 topics, most of a"]
    broken = replace(behind, topics={**behind.topics, "c": topic("c", offline=1)})
    assert judged(broken).tone == "bad"
    assert texts(broken)[0] == "1 partition without a leader, of c", "what is worst comes first"


def test_brokers_say_what_is_wrong_with_them() -> None:
    found = cluster(
        brokers=(broker(1, problems=("disk: full",)), broker(2, up=False), broker(3, draining=True, leading=2)),
        controller=None,
    )
    assert texts(found) == [
        "Broker 1: disk: full",
        "No controller: leaders cannot be elected",
        "Broker 2 does not answer",
        "Broker 3 is draining: 2 partitions left",
    ]
    assert judged(found).reasons[0].href == "/brokers/1"


def test_what_stands_still_is_named_with_its_reason_and_what_goes_on_is_not() -> None:
    one = BrokerFailure(1, "group", "engine", "a look at the clock", "AssertionError('two owners')", 1, 1, stopped=True)
    many = tuple(replace(one, name=f"g{number}") for number in range(7))
    found = cluster(brokers=(broker(1, failed=(one, replace(one, kind="task", stopped=False))), broker(2, failed=many)))
    assert texts(found)[0] == "Broker 1: group engine has failed and stopped: AssertionError('two owners')"
    assert texts(found)[-1] == "Broker 2: 2 more have failed and stopped" and len(texts(found)) == 7
    assert judged(found).tone == "bad" and judged(found).reasons[0].href == "/brokers/1"


def test_groups_that_fall_behind_are_named_and_the_rest_counted() -> None:
    behind = {f"g{number}": group(f"g{number}", 1_000 + number, growing=True) for number in range(5)}
    quiet = {"small": group("small", 10, growing=True), "shrinking": group("shrinking", 9_999)}
    found = texts(cluster(groups={**behind, **quiet}))
    assert [text.split(" is falling")[0] for text in found[:3]] == ["Group g4", "Group g3", "Group g2"]
    assert found[3] == "2 more groups falling behind" and len(found) == 4


def test_a_group_that_warms_up_is_no_reason() -> None:
    """As a Spark job that compiles its first batches while records wait for it."""

    def since(steps: int) -> str:
        trend = Track(30, 0, [None] * (30 - steps) + [1.0 * at for at in range(steps)])
        new = replace(group("spark.alerts", 128_833, growing=True), trend=trend)
        return " ".join(texts(cluster(groups={"spark.alerts": new})))

    assert [since(steps) for steps in (0, 1, 3)] == ["", "", ""]
    assert since(4).startswith("Group spark.alerts is falling behind")
    assert since(30).startswith("Group spark.alerts is falling behind")


def test_what_cannot_be_reached_is_said_to_be_of_before() -> None:
    found = cluster(reachable=False, reason="connection refused", brokers=(broker(1, up=False),), controller=None)
    assert judged(found).word == "Unreachable"
    assert texts(found) == [
        "No broker answers: connection refused; showing data as of 2023-11-14 22:13:20.000 UTC",
    ], "that no broker answers is said once, and not of each"


# ---- the page


def test_what_is_not_known_is_a_dash_and_what_is_zero_is_zero() -> None:
    unknown = cluster(brokers=(broker(1, in_rate=None, out_rate=None),), groups={"g": group("g", None)})
    fields = overview.view(unknown, ASKED).fields
    assert [fields[name].text for name in ("in", "out", "lag")] == [DASH, DASH, DASH]
    assert [fields[name].text for name in ("bytes_in", "offline")] == ["1.00 MB", "0"]
    assert overview.view(cluster(), ASKED).fields["lag"].text == "0", "nobody is behind where there are no groups"
    assert overview.view(Cluster(0), ASKED).fields["brokers"].text == DASH


def test_tiles_add_up_over_brokers_that_answer() -> None:
    found = overview.view(cluster(brokers=(broker(1), broker(2), broker(3, up=False, in_rate=None))), ASKED).fields
    assert (found["in"].text, found["brokers"].text, found["brokers"].tone) == ("20", "2 / 3", "warn")
    assert found["in"].spark == [1.0, None, 3.0]
    assert found["topics"].text == "1", "internal ones are not counted"


def test_the_furthest_behind_come_first_and_five_are_shown() -> None:
    groups = {name: group(name, lag) for name, lag in zip("abcdefg", (5, 0, 70, None, 3, 9, 1), strict=True)}
    table = overview.view(cluster(groups=groups), ASKED).tables["lagging"]
    assert [row.key for row in table.rows] == ["c", "f", "a", "e", "g"]
    assert table.rows[0].href == "/groups/c" and table.filter is None


def test_the_busiest_topics_and_those_that_hold_most() -> None:
    topics = {name: topic(name, in_rate=rate) for name, rate in (("a", 1.0), ("b", None), ("c", 9.0), ("__d", 99.0))}
    topics["e"] = topic("e", in_rate=0.0, bytes=5_000)
    table = overview.view(cluster(topics=topics), ASKED).tables["busiest"]
    assert [row.key for row in table.rows] == ["c", "a", "e", "b"]


def test_events_are_shown_and_those_that_explain_a_dent_are_marked() -> None:
    events = (
        Event(NOW - 1_000_000, "broker", "broker 2 is gone", broker=2),
        Event(NOW - 2_000_000, "topic", "topic a was created", topic="a"),
        Event(NOW - 900_000_000, "broker", "long ago", broker=1),
    )
    found = overview.view(cluster(events=events), ASKED)
    assert [row.cells[2].text for row in found.tables["events"].rows] == [event.text for event in events]
    assert [row.href for row in found.tables["events"].rows] == ["/brokers/2", "/topics/a", "/brokers/1"]
    assert found.charts["records"].marks == ((NOW - 1_000_000, "broker 2 is gone"),), (
        "what a chart does not reach is not"
    )


def test_names_that_are_markup_stay_text() -> None:
    hostile = "<b>&\"'</b>"
    found = overview.view(cluster(topics={hostile: topic(hostile)}, groups={hostile: group(hostile, 7)}), ASKED)
    page = next(page for page in PAGES if page.name == "overview")
    html = render.page(
        page.template, doc=found, page=page, request=ASKED, root="/mounted", static="/mounted/static/v",
        cluster_name=hostile, nav=NAV, csrf="", csv="", acts="{}",
    )  # fmt: skip
    assert "<b>&" not in html and "&lt;b&gt;" in html
    assert 'href="/mounted/topics/%3Cb%3E%26%22%27%3C%2Fb%3E"' in html
    assert " style=" not in html and " onclick" not in html


def test_who_may_not_create_is_told_why() -> None:
    page = next(page for page in PAGES if page.name == "overview")
    asked = replace(ASKED, role=VIEWER, open=False)
    html = render.page(
        page.template, doc=overview.view(cluster(), asked), page=page, request=asked, root="", static="/s",
        cluster_name="", nav=NAV, csrf="c", csv="", acts="{}",
    )  # fmt: skip
    assert 'data-refusal="needs the role operator; you are viewer"' in html


# ---- charts of tracks


def test_lines_end_together_and_a_missing_one_is_a_gap() -> None:
    tracks = {
        "a": Track(1, 5_000_000, [1.0, 2.0, 3.0]),
        "b": Track(1, 4_000_000, [7.0, 8.0, 9.0, 10.0]),
    }
    made = line_chart.chart("x", (("a", "a"), ("b", "b"), ("c", "none")), tracks, 9, unit="B/s", marks=((1, "x"),))
    assert made.end_us == 5_000_000 and made.step_s == 1
    assert made.values == ([None, 1.0, 2.0, 3.0], [8.0, 9.0, 10.0, None], [None] * 4)
    assert made.summary == "a 3 B, max 3 B; b 10 B, max 10 B"
    assert made.marks == (), "before its beginning"


def test_values_are_scaled_and_gaps_are_not() -> None:
    made = line_chart.chart("x", (("CPU", "cpu"),), {"cpu": Track(1, 9, [None, 0.5])}, 9, unit="%", scale=100)
    assert (made.values, made.summary) == (([None, 50.0],), "CPU 50, max 50")


def test_a_chart_of_nothing_says_so() -> None:
    made = line_chart.chart("x", (("a", "a"),), {}, 9, unit="ms")
    assert (made.values, made.summary, made.end_us) == (([],), "no data yet", 9)


# ---- sparklines


@given(st.lists(st.none() | st.floats(-1e9, 1e12), max_size=300))
def test_a_sparkline_stays_within_its_box(values: list[float | None]) -> None:
    path = sparkline.path(values)
    numbers = path.replace("M", " ").replace("L", " ").split()
    assert all(0 <= float(x) <= sparkline.WIDTH for x in numbers[::2])
    assert all(0 <= float(y) <= sparkline.HEIGHT for y in numbers[1::2])
    known = sum(value is not None for value in values)
    assert len(numbers) == (2 * known if len(values) > 1 else 0)


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=2_000), st.integers(1, 100))
def test_thinning_keeps_what_lies_between(values: list[float | None], points: int) -> None:
    found = sparkline.thinned(values, points)
    assert len(found) == min(points, len(values))
    known = [value for value in values if value is not None]
    assert all(min(known) - 0.001 <= value <= max(known) + 0.001 for value in found if value is not None)
    assert any(value is not None for value in found) == bool(known)


def test_a_gap_is_where_nothing_is_known() -> None:
    assert sparkline.path([1, 2, None, 4, 5]).count("M") == 2
    assert sparkline.path([None, None]) == sparkline.path([1]) == ""
    assert sparkline.path([None, 1, 2]).startswith("M60 "), "a young line shows the same time as others"


def test_a_broker_that_answers_strangers_is_red() -> None:
    open_one = cluster(brokers=(broker(1, insecure=True),))
    found = judged(open_one)
    assert (found.word, found.tone) == ("Insecure", "bad")
    assert found.reasons[0].href == "/brokers/1" and found.reasons[0].tone == "bad"
    assert found.reasons[0].text.startswith("Broker 1 answers strangers beyond loopback: insecure = true.")
    assert "comet security init" in found.reasons[0].text
    offline = replace(open_one, topics={"c": topic("c", offline=1)})
    assert judged(offline).word == "Broken", "what does not work comes first"


@pytest.mark.parametrize(
    ("days", "word", "tone", "says"),
    [
        (31, "Healthy", "good", ""),
        (30, "At risk", "warn", "expires in 30 days, on "),
        (7, "At risk", "bad", "expires in 7 days, on "),
        (1, "At risk", "bad", "expires in 1 day, on "),
        (-2, "Broken", "bad", "expired on "),
    ],
)
def test_a_certificate_is_noticed_before_it_expires(days: int, word: str, tone: str, says: str) -> None:
    found = judged(cluster(brokers=(broker(1, certificates={"clients": NOW + days * DAY_US}),)))
    assert (found.word, found.tone) == (word, tone)
    assert [says in reason.text for reason in found.reasons] == ([True] if says else [])
    assert all("comet security broker 1" in reason.text for reason in found.reasons)
