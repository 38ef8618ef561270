"""What the page of quotes says of a job that computes on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from comet_web.delta import delta
from comet_web.document import DASH, Document
from comet_web.facts import Candles, Market, Quote, Quotes
from comet_web.facts_analytics import Alert, Analytics, Bar, Job, Lines, Stat
from comet_web.page_request import PageRequest
from comet_web.views.quotes import view

NOW = 1_795_298_240_000_000
SECOND = 1_000_000
ASKED = PageRequest("/quotes")
QUOTE = Quote("AAPL", 228.5, 228.49, 228.52, 12_300.0, 227.0, NOW - 300_000, NOW - 290_000, 1_000)
CANDLES = Candles(
    1, NOW, [None, 1.0], [None, 2.0], [None, 0.5], [None, 1.5], [None, 10.0], [None, 0.01],
    forming=(1.5, 1.75, 1.5, 1.625, 3.0, None),
)  # fmt: skip
LEADING = Job(
    "bars.1s",
    "running",
    NOW - SECOND,
    NOW - SECOND,
    41,
    120,
    118.5,
    240.0,
    NOW - 800_000,
    NOW - 2 * SECOND,
    1,
    "update",
)
STATS = Job("stats", "running", NOW - 3 * SECOND, event_us=NOW - 4 * SECOND, window_s=60)
APPLE = Stat("AAPL", NOW - 61 * SECOND, NOW - SECOND, 228.1, 228.2, -0.0042, 0.0123, 9_000.0, 80, 229.0, 227.0)
FORD = replace(APPLE, symbol="F", change=None, volatility=0.5, volume=1_000.0)
BAR = Bar("AAPL", NOW - SECOND, NOW, 228.1, 228.2, 228.0, 228.15, 300.0, 228.12, 3, 12, 0.02, 0.04)
ALERTS = (
    Alert(8, "crossed", "AAPL", NOW - SECOND, 0.5, None, "bid over ask"),
    Alert(7, "odd", "<b>", NOW - 2 * SECOND, text="<img src=x onerror=alert(1)>"),
)
ANALYTICS = Analytics(
    followed=("quotes.bars.1s", "quotes.job"), jobs={"bars.1s": LEADING, "stats": STATS}, heard_us=NOW - SECOND,
    quoted_us=NOW - 300_000, stats={"F": FORD, "AAPL": APPLE}, bars=(BAR, replace(BAR, start_us=BAR.start_us - SECOND)),
    alerts=ALERTS, lines=Lines([1.0, 2.0], [None, 1.75], [None, None], (2.5, 1.75, None)), bar_delay_ms=1_234.0,
)  # fmt: skip
QUOTES = Quotes(
    NOW, "quotes", "live", quotes={"AAPL": QUOTE}, symbol="AAPL", candles=CANDLES, last_us=NOW - 290_000,
    topics=("quotes.bars.1s", "quotes.job"), analytics=ANALYTICS,
)  # fmt: skip


def told(**changed: Any) -> Document:
    return view(replace(QUOTES, analytics=replace(ANALYTICS, **changed)), ASKED)


def health(document: Document) -> tuple[str, str, str]:
    found = document.fields
    return found["analytics-state"].text, found["analytics-late"].text, found["analytics-why"].text


def rows(document: Document, table: str) -> dict[str, dict[str, str]]:
    found = document.tables[table]
    return {
        row.key: {column.key: cell.text for column, cell in zip(found.columns, row.cells, strict=True)}
        for row in found.rows
    }


def test_a_job_that_is_well() -> None:
    document = view(QUOTES, ASKED)
    assert health(document) == ("running", "no", "")
    assert document.fields["analytics-delay"].text == "500 ms"
    assert document.fields["bar-delay"].text == "1.2 s"
    assert rows(document, "job") == {
        "bars.1s": {
            "query": "bars.1s", "state": "running", "window": "1 s", "mode": "update",
            "watermark": "21:57:18, 1 s behind", "behind": "under 1 s", "took": "240", "rate": "118",
            "heard": "just now", "error": "",
        },
        "stats": {
            "query": "stats", "state": "running", "window": "1 min", "mode": DASH, "watermark": DASH, "behind": "3 s",
            "took": DASH, "rate": DASH, "heard": "3 s ago", "error": "",
        },
    }  # fmt: skip


FAILED = replace(LEADING, state="failed", error="no leader")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"quoted_us": NOW + 5 * SECOND}, ("late", "yes", "The job is slower than the feed")),
        ({"heard_us": NOW - 10 * SECOND}, ("running", "no", "")),
        ({"heard_us": NOW - 11 * SECOND}, ("silent", "yes", "No report from the job since 21:57:09 UTC.")),
        ({"heard_us": None, "jobs": {}}, ("unknown", "yes", "No query has reported yet.")),
        ({"jobs": {"bars.1s": replace(LEADING, event_us=None)}}, ("running", "yes", "not processed a quote yet")),
        ({"jobs": {"bars.1s": replace(LEADING, event_us=None, state="starting")}}, ("starting", "yes", "has not")),
        ({"jobs": {"stats": STATS}}, ("starting", "yes", "bars.1s has not processed")),
        ({"jobs": {"stats": replace(STATS, state="starting", doing="Java")}}, ("starting", "yes", "waits for Java.")),
        ({"jobs": {"bars.1s": replace(LEADING, state="stopped")}}, ("stopped", "yes", "report at 21:57:19 UTC.")),
        ({"jobs": {"bars.1s": FAILED, "stats": STATS}}, ("failed", "yes", "bars.1s: no leader")),
        ({"jobs": {"stats": replace(STATS, state="failed")}}, ("failed", "yes", "stats: no reason given")),
        ({"jobs": {"bars.1s": LEADING, "stats": replace(STATS, state="failed")}}, ("partly failed", "no", "no reason")),
    ],
)  # fmt: skip
def test_what_is_no_picture_of_now_is_said_to_be_late_and_why(
    changed: dict[str, Any], said: tuple[str, str, str]
) -> None:
    word, late, why = health(told(**changed))
    assert (word, late) == said[:2]
    assert said[2] in why
    assert bool(why) == (word != "running" or late == "yes")


def late_of(**changed: Any) -> str:
    return told(**changed).fields["late-results"].text


def test_of_one_query_that_is_late_only_its_results_are_grey() -> None:
    jobs = {"bars.1s": LEADING, "stats": STATS, "alerts": replace(STATS, query="alerts")}
    assert late_of(jobs=jobs) == ""
    assert late_of(jobs={**jobs, "stats": replace(STATS, state="failed")}) == "stats volumes"
    assert late_of(jobs={**jobs, "stats": replace(STATS, heard_us=NOW - 11 * SECOND)}) == "stats volumes"
    assert late_of(jobs={**jobs, "alerts": replace(STATS, event_us=NOW - 16 * SECOND)}) == "alerts"
    assert late_of(jobs=jobs, bars_step_s=60) == "bars lines"
    assert late_of(jobs=jobs, heard_us=NOW - 11 * SECOND) == "bars lines alerts stats volumes"


def test_a_job_that_is_silent_because_the_feed_is() -> None:
    later = view(replace(QUOTES, time_us=NOW + 60 * SECOND), ASKED)
    assert health(later)[2].endswith("since 21:57:19 UTC; the feed has stopped too.")
    closed = view(replace(QUOTES, time_us=NOW + 60 * SECOND, market=Market(False, NOW)), ASKED)
    assert health(closed)[2].endswith("since 21:57:19 UTC; the market is closed.")
    assert later.fields["analytics-delay"].tone == "muted"
    table = later.tables["job"]
    states = [row.cells[1].tone for row in table.rows]
    assert states == ["muted", "muted"], "a query that says nothing is not shown as running well"


def test_nothing_is_said_of_a_job_that_was_never_there() -> None:
    document = view(replace(QUOTES, topics=(), analytics=Analytics()), ASKED)
    assert (document.fields["analytics"].text, document.fields["analytics-delay"].text) == ("no", DASH)
    assert document.charts["price"].names == ("open", "high", "low", "close", "volume")


def test_symbols_are_ranked_by_how_much_they_move_and_by_how_much_is_traded() -> None:
    document = view(QUOTES, ASKED)
    ranked = rows(document, "stats")
    assert list(ranked) == ["F", "AAPL"]
    assert (ranked["AAPL"]["volatility"], ranked["AAPL"]["return"], ranked["AAPL"]["mean"]) == (
        "1.230",
        "-0.420",
        "228.10",
    )
    assert ranked["F"]["return"] == DASH
    traded = rows(document, "volumes")
    assert {symbol: row["share"] for symbol, row in traded.items()} == {"AAPL": "90.0", "F": "10.0"}
    assert list(traded) == ["AAPL", "F"]
    links = {row.key: row.href for row in document.tables["stats"].rows}
    assert links == {"AAPL": "/quotes?symbol=AAPL", "F": ""}, "only to what the page can show"


def test_bars_and_alerts_are_newest_first() -> None:
    document = view(QUOTES, ASKED)
    assert [row["start"] for row in rows(document, "bars").values()] == ["21:57:19", "21:57:18"]
    assert document.fields["bars-of"].text == "AAPL, 1s, from quotes.bars.1s"
    alerts = rows(document, "alerts")
    assert list(alerts) == ["8", "7"]
    assert (alerts["8"]["kind"], alerts["8"]["limit"], alerts["7"]["kind"]) == ("✕ crossed", DASH, "• odd")
    assert alerts["7"]["text"] == "<img src=x onerror=alert(1)>"


def test_lines_are_drawn_over_the_candles_as_far_as_they_are_known_and_asked_for() -> None:
    document = view(QUOTES, ASKED)
    chart = document.charts["price"]
    assert chart.names[5:] == ("VWAP", "mean 1 min"), "nothing is known of the third"
    assert chart.values[5:] == ([1.0, 2.0], [None, 1.75])
    assert chart.summary.endswith("; VWAP 2.5; mean 1 min 1.75")
    assert document.fields["forming"].text == "1.5,1.75,1.5,1.625,3,2.5,1.75"
    for asked, names in (
        ("vwap", ("VWAP",)),
        ("averages", ("mean 1 min",)),
        ("none", ()),
        ("what", ("VWAP", "mean 1 min")),
    ):
        document = view(QUOTES, PageRequest("/quotes", query={"lines": asked}))
        assert document.charts["price"].names[5:] == names
        assert document.fields["forming"].text.count(",") == 4 + len(names)


def test_what_is_missing_is_said() -> None:
    document = told(unread=3, unread_reason="no value", lost=1, symbols_left_out=2, failed={"quotes.job": "no leader"})
    assert document.fields["analytics-left-out"].text == (
        "quotes.job cannot be read: no leader; 3 records skipped, not results: no value; "
        "results of 2 symbols beyond the limit are not shown; 1 result deleted before being read"
    )


def test_a_batch_of_the_job_changes_little_of_what_a_tab_is_told() -> None:
    """Four times a second: only what is new, and of the chart the points that are."""
    count = 240
    history = [float(at) for at in range(count)]
    candles = Candles(1, NOW, history, history, history, history, history, history)
    lines = Lines([*history[:-2], None, None], history, history, (None, None, None))
    before = replace(QUOTES, candles=candles, analytics=replace(ANALYTICS, lines=lines))
    moved = [*history[1:], 240.0]
    after = replace(
        before,
        time_us=NOW + SECOND,
        candles=Candles(1, NOW + SECOND, moved, moved, moved, moved, moved, moved),
        analytics=replace(
            ANALYTICS,
            lines=Lines([*moved[:-1], None], moved, moved, (None, None, None)),
            jobs={**ANALYTICS.jobs, "bars.1s": replace(LEADING, batch=42, heard_us=NOW)},
            alerts=(replace(ALERTS[0], number=9), *ALERTS),
        ),
    )
    found = delta(view(before, ASKED).wire(), view(after, ASKED).wire())
    price = found["charts"]["price"]
    assert price["late"] == {"5": {"237": 238.0, "238": 239.0}}
    assert "values" not in price
    assert set(found["tables"]) == {"job", "alerts"}
    assert set(found["tables"]["alerts"]["rows"]) == {"9"}
    assert len(str(found)) < 2_500
