"""The quote table of the demo: what it counts and measures."""

from __future__ import annotations

from comet_demo.model import Quote
from comet_demo.terminal.quote_table import SILENT_US, SYMBOLS_MAX, QuoteTable


def quote(symbol: str, last: float, *, size: int = 0, timestamp_us: int = 0) -> Quote:
    return Quote(symbol, last - 1, last + 1, 100, 100, last, size, timestamp_us)


def test_the_board_counts_and_measures() -> None:
    quote_table = QuoteTable()
    for at in range(10):
        quote_table.apply(quote("A", 100.0 + at, size=100 * (at % 2)), now_us=at * 1000)
    quote_table.apply(quote("B", 50.0, timestamp_us=5), now_us=5)
    quote_table.measure(2.0)
    line = quote_table.lines["A"]
    assert (line.events, line.trades, line.volume) == (10, 5, 500)
    assert (line.events_per_s, line.trades_per_s, quote_table.events_per_s) == (5.0, 2.5, 5.5)
    assert (line.direction, round(line.change, 6)) == (1, 0.09)
    assert (quote_table.delay_p50_us, quote_table.delay_p99_us) == (4000, 9000)
    quote_table.measure(1.0)
    assert quote_table.events_per_s == 0.0
    assert "11 events, 0/s, 2 symbols" in quote_table.summary(now_us=0)


def test_of_a_second_in_which_nothing_came_there_is_no_delay() -> None:
    quote_table = QuoteTable()
    quote_table.apply(quote("A", 100.0), now_us=2000)
    quote_table.measure(1.0)
    assert "delay p50 2.0 ms, p99 2.0 ms" in quote_table.summary(now_us=2000)
    quote_table.measure(1.0)
    assert "delay p50 -, p99 -" in quote_table.summary(now_us=2000)


def test_while_no_quotes_come_it_says_so_and_what_the_feed_said_last() -> None:
    quote_table = QuoteTable()
    assert "no quotes" not in quote_table.summary(now_us=10 * SILENT_US), "nobody waits for any"
    quote_table.heard_us = 1_000_000
    assert "no quotes" not in quote_table.summary(now_us=999_999 + SILENT_US)
    assert quote_table.summary(now_us=1_000_000 + SILENT_US).endswith("; no quotes for 5 s")
    quote_table.feed_line = "coinbase: there is no connection"
    line = quote_table.summary(now_us=3_000_000 + SILENT_US)
    assert line.endswith("; no quotes for 7 s; last line of the feed: coinbase: there is no connection")
    quote_table.apply(quote("A", 100.0), now_us=3_000_000 + SILENT_US)
    assert "no quotes" not in quote_table.summary(now_us=3_000_000 + SILENT_US)


def test_until_spark_has_results_its_seconds_are_counted() -> None:
    quote_table = QuoteTable()
    assert "Spark" not in quote_table.summary(now_us=1_000_000)
    quote_table.spark_began_us = 1_000_000
    assert quote_table.summary(now_us=4_000_000).endswith("; Spark: starting (3 s; the first bars take 30 to 60 s)")
    report = {"query": "bars.1s", "state": "starting", "doing": "Java and Spark", "at_us": 5_000_000}
    quote_table.analytics.apply(report)
    line = quote_table.summary(now_us=9_000_000)
    assert line.endswith("; Spark: starting bars.1s, Java and Spark (8 s; the first bars take 30 to 60 s)")
    quote_table.apply(quote("A", 100.0, timestamp_us=9_000_000), now_us=9_000_000)
    quote_table.analytics.apply(report | {"state": "running", "event_us": 8_500_000, "at_us": 9_000_000})
    assert quote_table.summary(now_us=9_000_000).endswith("; analytics 0.5 s behind (1 query)")


def test_a_quote_of_the_future_does_not_make_all_analytics_late() -> None:
    quote_table = QuoteTable()
    quote_table.apply(quote("A", 100.0, timestamp_us=10**15), now_us=1000)
    assert quote_table.newest_us == 1000


def test_there_is_room_for_so_many_symbols_and_no_more() -> None:
    quote_table = QuoteTable()
    for number in range(SYMBOLS_MAX + 2):
        quote_table.apply(quote(f"S{number}", 100.0), now_us=1)
    quote_table.apply(quote("S0", 101.0), now_us=1)
    assert (len(quote_table.lines), quote_table.left_out, quote_table.lines["S0"].events) == (SYMBOLS_MAX, 2, 2)
