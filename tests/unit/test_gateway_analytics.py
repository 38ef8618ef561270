"""Results of a job, as the gateway reads and keeps them: whatever somebody wrote into its topics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from comet_gateway.dashboard import analytics_cache
from comet_gateway.dashboard.analytics_cache import (
    ALERTS_MAX,
    BARS_MAX,
    HOLD_S,
    QUERIES_MAX,
    STATS_MAX,
    AnalyticsCache,
)
from comet_gateway.dashboard.analytics_records import AHEAD_US, ERROR_CHARACTERS_MAX, KINDS, ResultRecord, read
from comet_web.facts_analytics import Alert, Bar, Job, Stat
from tests import results

NOW = 1_795_298_400_000_000
END_S = NOW // 1_000_000


def came(value: Any, heard_us: int = NOW) -> ResultRecord:
    return ResultRecord(value if isinstance(value, bytes | None) else json.dumps(value).encode(), heard_us)


def bar(**more: Any) -> dict[str, Any]:
    return results.bar("A", 10.0, end_us=NOW) | more


def stat(end_us: int = NOW, **more: Any) -> dict[str, Any]:
    return results.stat("A", 10.0, end_us=end_us) | more


def kept(kind: str, *values: dict[str, Any], symbols_max: int = 10) -> AnalyticsCache:
    found = AnalyticsCache(symbols_max)
    for value in values:
        found.take(kind, came(value), live=True)
    return found


def test_what_is_agreed_on_is_read() -> None:
    assert read("bars.1s", came(bar(more="unknown"))) == Bar(
        "A", NOW - 1_000_000, NOW, 9.9, 10.2, 9.8, 10.0, 300.0, 10.05, 3, 12, 0.02, 0.04
    )
    assert read("stats", came(stat())) == Stat(
        "A", NOW - 60_000_000, NOW, 10.0, 10.1, 0.0042, 0.0123, 12_000.0, 90, 11.0, 9.0
    )
    told = results.alert("gap", "A", "nothing for 3 s", time_us=NOW)
    assert read("alerts", came(told), 7) == Alert(7, "gap", "A", NOW, 1.5, 1.0, "nothing for 3 s")
    said = results.job("bars.1s", event_us=NOW - 1, doing="Java") | {"watermark_us": NOW - 2, "at_us": NOW}
    assert read("job", came(said)) == Job(
        "bars.1s", "running", NOW, NOW, 41, 120, 118.5, 240.0, NOW - 1, NOW - 2, 1, "update", "", "Java"
    )


def test_a_number_that_is_none_is_not_known() -> None:
    found = read("bars.1s", came(bar(vwap="NaN", volume=None, close=1e300, trades=-1, spread_mean="Infinity")))
    assert isinstance(found, Bar)
    assert (found.vwap, found.volume, found.close, found.trades, found.spread_mean) == (None,) * 5
    told = read("job", came(results.job("stats") | {"watermark_us": 0, "event_us": None, "at_us": NOW + 10**9}))
    assert isinstance(told, Job)
    assert (told.watermark_us, told.event_us, told.at_us) == (None, None, None)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("bars.1s", None, "no value"),
        *((kind, b"\xff\xfe", "not JSON") for kind in KINDS),
        *((kind, b"[" * 10_000, "not JSON") for kind in KINDS),
        *((kind, b'"<b>bold</b>"', "not JSON") for kind in KINDS),
        ("bars.1s", bar(symbol=""), "no symbol"),
        ("bars.1s", bar(symbol=None), "not JSON"),
        ("bars.1s", bar(end_us=NOW + 59_000_000), "one step of 1 s"),
        ("bars.1s", bar(start_us=NOW - 1_500_000, end_us=NOW - 500_000), "one step of 1 s"),
        ("bars.1m", bar(), "one step of 60 s"),
        ("bars.1s", bar(start_us=2**70, end_us=2**70 + 10**6), "in the future"),
        ("bars.1s", bar(start_us=NOW + 10**9, end_us=NOW + 10**9 + 10**6), "in the future"),
        ("bars.1s", bar(start_us=-(10**6), end_us=0), "before 1970"),
        ("stats", stat(start_us=NOW), "ends before it begins"),
        ("stats", stat(start_us=NOW - 10**12), "longer than a day"),
        ("stats", stat(NOW + AHEAD_US + 10**9), "in the future"),
        ("alerts", results.alert("gap", "A", "x", time_us=NOW + 10**8), "in the future"),
        ("job", results.job("x", state="<img>"), "an unknown state"),
        ("job", results.job(""), "without a name"),
    ],
)
def test_what_is_no_result_is_said_to_be_none(kind: str, value: Any, why: str) -> None:
    found = read(kind, came(value))
    assert isinstance(found, str)
    assert why in found


def test_texts_are_kept_no_longer_than_they_may_be() -> None:
    job = read("job", came(results.job("q" * 999, error="e" * 9_999, mode="m" * 999)))
    assert isinstance(job, Job)
    assert (len(job.query), len(job.error), len(job.mode)) == (40, ERROR_CHARACTERS_MAX, 40)
    alert = read("alerts", came(results.alert("k" * 99, "S" * 999, "t" * 9_999, time_us=NOW)))
    assert isinstance(alert, Alert)
    assert (len(alert.kind), len(alert.symbol), len(alert.text)) == (40, 64, 300)


def test_a_bar_that_comes_again_takes_the_place_of_the_one_before() -> None:
    found = kept("bars.1s", bar(vwap=9.0), bar(vwap=11.0))
    symbol = found.symbols["A"]
    assert [one.vwap for one in symbol.bars[1].values()] == [11.0]
    assert symbol.lines(1, END_S, 2).vwap == [None, 11.0]


def test_a_line_goes_on_for_a_while_and_no_longer() -> None:
    """Or it would look alive when the job is not."""
    lines = kept("stats", stat(mean=10.0, ema=11.0)).symbols["A"].lines(1, END_S + 30, 32)
    assert lines.mean == [None, *[10.0] * (HOLD_S + 1), *[None] * 20]
    assert lines.ema[1:3] == [11.0, 11.0]
    assert lines.forming == (None, None, None)
    earlier = kept("stats", stat()).symbols["A"].lines(1, END_S + 5, 2)
    assert (earlier.mean, earlier.forming[1]) == ([10.0, 10.0], 10.0), "also where it begins before what is shown"


def test_lines_of_longer_steps() -> None:
    """VWAP of a quarter of an hour is that of its bars of five minutes, by their volume; averages are the last ones."""
    quarter_us = NOW // 900_000_000 * 900_000_000
    ends = [quarter_us - 900_000_000 + 300_000_000 * number for number in (1, 2, 3)]
    found = AnalyticsCache(10)
    for end_us, volume, vwap in zip(ends, (1, 3, 0), (10.0, 20.0, 99.0), strict=True):
        value = results.bar("A", 10.0, end_us=end_us, step_s=300, volume=volume, vwap=vwap)
        found.take("bars.5m", came(value), live=True)
    for end_us, mean in ((quarter_us - 70_000_000, 1.0), (quarter_us - 2_000_000, 2.0), (quarter_us - 9_000_000, 3.0)):
        found.take("stats", came(stat(end_us, mean=mean)), live=True)
    lines = found.symbols["A"].lines(900, quarter_us // 1_000_000, 2)
    assert lines.vwap == [None, 17.5]
    assert lines.mean == [None, 2.0]


@pytest.mark.parametrize(
    ("kind", "step_s", "shown_s"), [("1s", 1, 1), ("1m", 60, 60), ("5m", 300, 300), ("5m", 300, 900)]
)
def test_the_beginning_of_a_line_is_as_whole_as_the_rest_of_it(kind: str, step_s: int, shown_s: int) -> None:
    """Whatever forms in front of it, and though windows are told of a minute before they are over."""
    end_s = END_S // 900 * 900 + 899
    count = 900 if shown_s == 1 else 86_400 // shown_s
    first_s = (end_s // shown_s - count) * shown_s
    found = AnalyticsCache(10)
    for at_s in range(first_s, end_s + 6, step_s):
        value = results.bar("A", 1.0, end_us=(at_s + step_s) * 1_000_000, step_s=step_s, volume=1, vwap=at_s)
        found.take(f"bars.{kind}", came(value, end_s * 1_000_000), live=True)
    for at_s in range(first_s + 1, end_s + 61, min(step_s, 60)):
        found.take("stats", came(stat(at_s * 1_000_000, mean=at_s), end_s * 1_000_000), live=True)
    lines = found.symbols["A"].lines(shown_s, end_s, count)
    starts = range(first_s, first_s + count * shown_s, shown_s)
    assert lines.vwap == [at_s + (shown_s - step_s) / 2 for at_s in starts]
    assert lines.mean == [at_s + 1 + (shown_s - min(step_s, 60)) for at_s in starts]


def test_a_window_that_is_not_over_is_not_shown_yet() -> None:
    found = kept("stats", stat(NOW - 5_000_000, mean=1.0), stat(NOW + 5_000_000, mean=2.0))
    assert [one.mean for one in found.stats(NOW).values()] == [1.0]
    assert [one.mean for one in found.stats(NOW + 5_000_000).values()] == [2.0]


def test_windows_that_do_not_overlap_the_newest_are_left_out() -> None:
    """A symbol that is not traded any more has no rank, and no share in what the others trade now."""
    values = [stat(NOW - ago_us, symbol=symbol) for symbol, ago_us in (("A", 0), ("B", 59_000_000), ("C", 60_000_000))]
    found = kept("stats", *values)
    assert set(found.stats(NOW)) == {"A", "B"}
    assert set(found.stats(NOW - 1)) == {"B", "C"}, "a window that is not over makes nothing old"
    assert not AnalyticsCache(1).stats(NOW)


def test_how_late_bars_come_is_taken_of_those_that_just_came() -> None:
    found = AnalyticsCache(10)
    for late_us in (100_000, 300_000, 900_000, -500_000, 10**9):
        found.take("bars.1s", came(bar(), NOW + late_us), live=True)
    found.take("bars.1s", came(bar(), NOW + 5_000_000), live=False)
    assert found.bar_delay_ms == 300.0


def test_alerts_are_in_the_order_in_which_it_was() -> None:
    found = AnalyticsCache(2)
    for text, ago_us in (("third", 20), ("oldest", 90), ("last", 5), ("second", 20)):
        found.take("alerts", came(results.alert("gap", "A", text, time_us=NOW - ago_us)), live=True)
    assert [alert.text for alert in found.alerts] == ["last", "second", "third", "oldest"]


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics_cache, "LEFT_OUT_MAX", 2)
    found = AnalyticsCache(2)
    for number in range(6):
        found.take("stats", came(stat(symbol=f"S{number}")), live=True)
    assert (sorted(found.symbols), found.symbols_left_out) == (["S0", "S1"], 2)
    for number in range(BARS_MAX + STATS_MAX + ALERTS_MAX):
        ago_us = number * 1_000_000
        value = bar(symbol="S0", start_us=NOW - ago_us - 1_000_000, end_us=NOW - ago_us)
        found.take("bars.1s", came(value), live=True)
        found.take("stats", came(stat(NOW - ago_us, symbol="S0")), live=True)
        found.take("alerts", came(results.alert("gap", "A", str(number), time_us=NOW)), live=True)
        found.take("job", came(results.job(f"q{number}")), live=True)
    kept = found.symbols["S0"]
    assert (len(kept.bars[1]), max(kept.bars[1]), len(kept.stats)) == (BARS_MAX, NOW - 1_000_000, STATS_MAX)
    assert (len(found.alerts), found.alerts[0].text) == (ALERTS_MAX, str(BARS_MAX + STATS_MAX + ALERTS_MAX - 1))
    assert len(found.jobs) == QUERIES_MAX
    found.take("job", came(b"{}"), live=True)
    assert (found.unread, found.unread_reason) == (1, "not JSON with the fields of job")
