"""What the page of quotes says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comet_web.document import DASH
from comet_web.facts import Candles, Market, Opening, Quote, Quotes, Schedule, TapeTrade
from comet_web.page_request import PageRequest
from comet_web.views.quotes import view

NOW = 1_795_298_240_000_000
APPLE = Quote("AAPL", 228.5, 228.49, 228.52, 12_300.0, 227.0, NOW - 300_000, NOW - 290_000, 1_000, (1.0, None, 2.0))
EURO = replace(APPLE, symbol="EURUSD", last=1.0834, bid=1.0833, ask=1.0835, first=1.09)
CANDLES = Candles(
    1, NOW, [None, 1.0], [None, 2.0], [None, 0.5], [None, 1.5], [None, 10.0], [None, 0.01],
    forming=(1.5, 1.75, 1.5, 1.625, 3.0, None),
)  # fmt: skip
QUOTES = Quotes(
    NOW, "quotes", "live", quotes={"EURUSD": EURO, "AAPL": APPLE}, symbol="AAPL", candles=CANDLES, partition=2,
    offset=41, since_us=NOW - 900_000_000, records=2_000, rate=998.0, delay_ms=12.0, last_us=NOW - 290_000,
)  # fmt: skip
ASKED = PageRequest("/quotes")


def cells(quotes: Quotes, symbol: str, asked: PageRequest = ASKED) -> dict[str, str]:
    table = view(quotes, asked).tables["watchlist"]
    row = next(one for one in table.rows if one.key == symbol)
    return {column.key: cell.text for column, cell in zip(table.columns, row.cells, strict=True)}


def test_prices_have_the_digits_that_they_were_written_with() -> None:
    apple, euro = cells(QUOTES, "AAPL"), cells(QUOTES, "EURUSD")
    assert (apple["last"], apple["bid"], apple["spread"], apple["change"], apple["percent"]) == (
        "228.50", "228.49", "0.03", "+1.50", "+0.66",
    )  # fmt: skip
    assert (euro["last"], euro["spread"], euro["change"], euro["percent"]) == ("1.0834", "0.0002", "-0.0066", "-0.61")
    assert apple["volume"] == "12.3 k"
    assert apple["age"] == "now"


def test_a_change_is_told_by_more_than_its_colour() -> None:
    document = view(QUOTES, ASKED)
    assert document.fields["change"].text == "▲ +1.50 (+0.66 %)"
    assert document.fields["change"].tone == "good"


def test_a_feed_that_stopped_shows_when_and_no_candle_that_is_forming() -> None:
    later = replace(QUOTES, time_us=NOW + 60_000_000)
    document = view(later, ASKED)
    assert document.fields["state"].text == "feed stopped; last quote at 21:57:19"
    assert document.fields["forming"].text == ""
    assert document.fields["delay"].text == DASH
    assert document.fields["last"].tone == "muted"
    assert cells(later, "AAPL")["age"] == "1 min"


def test_a_quote_that_has_expired_is_shown_as_no_current_quote() -> None:
    gone = replace(APPLE, expires_us=NOW)
    document = view(replace(QUOTES, quotes={"AAPL": gone, "EURUSD": EURO}, others=[("AAPL", CANDLES)]), ASKED)
    names = (
        "current",
        "last",
        "change",
        "bid",
        "ask",
        "spread",
        "forming",
        "current-2",
        "last-2",
        "change-2",
        "forming-2",
    )
    no, last = "no current quote", "last 228.50 at 21:57:19"
    assert [document.fields[name].text for name in names] == ["no", no, last, DASH, DASH, DASH, "", "no", no, last, ""]
    apple, euro = document.tables["watchlist"].rows
    assert [cell.text for cell in apple.cells[1:7]] == ["no quote", *[DASH] * 5]
    assert apple.cells[1].title == "no current quote; last 228.50 at 21:57:19"
    assert [cell.value for cell in apple.cells[1:7]] == [None] * 6, "no price to sort, to alert or to flash by"
    assert euro.cells[1].text == "1.0834"
    soon = view(replace(QUOTES, quotes={"AAPL": replace(gone, expires_us=NOW + 1)}), ASKED).fields
    assert (soon["current"].text, soon["last"].text) == ("yes", "228.50")


CLOSED = Market(False, NOW - 3_600_000_000)
LATER = replace(QUOTES, time_us=NOW + 60_000_000, market=CLOSED)  # the last quote is a minute old


def test_a_closed_market_is_shown_in_place_of_a_feed_that_stopped() -> None:
    state = view(LATER, ASKED).fields["state"]
    assert (state.text, state.tone) == ("market closed since 20:57", "muted")
    assert state.title == "2026-11-21 20:57:20.000 UTC"
    nothing = replace(LATER, quotes={}, last_us=None)
    assert view(nothing, ASKED).fields["state"] == state, "there are no quotes yet"
    days = view(replace(LATER, market=Market(False, NOW - 86_400_000_000)), ASKED).fields["state"]
    assert days.text == "market closed since 2026-11-20 21:57"


OPENS_US = 1_763_994_600_000_000
OPENS = Schedule(
    "quotes.market", "open", "calendar:XNYS open", 1, "America/New_York",
    next_us=OPENS_US, next_local="2025-11-24T09:30:00-05:00",
)  # fmt: skip
FRIDAY = 1_763_769_600_000_000  # in New York; a Saturday in UTC


@pytest.mark.parametrize(
    ("opening", "time_us", "text"),
    [
        (Opening(OPENS), FRIDAY, "opens Mon 09:30 New York"),
        (Opening(OPENS), OPENS_US - 1, "opens 09:30 New York"),
        (Opening(OPENS), OPENS_US - 7 * 86_400_000_000, "opens 2025-11-24 09:30 New York"),
        (Opening(OPENS), OPENS_US, "the opening is due"),
        (Opening(replace(OPENS, zone="UTC")), FRIDAY, "opens Mon 09:30 UTC"),
        (Opening(replace(OPENS, paused=True)), FRIDAY, "the opening is paused"),
        (Opening(replace(OPENS, paused=True, waits_for="XNYS")), FRIDAY, "the opening waits for calendar XNYS"),
        (Opening(replace(OPENS, next_us=None, next_local="")), FRIDAY, "no opening is scheduled"),
        (Opening(), FRIDAY, "no opening is scheduled"),
        (Opening(problem="no leader answers"), FRIDAY, "opening unknown"),
    ],
)
def test_a_closed_market_says_when_it_opens(opening: Opening, time_us: int, text: str) -> None:
    since = Market(False, time_us - 3_600_000_000)
    state = view(replace(LATER, time_us=time_us, last_us=1, market=since, opening=opening), ASKED).fields["state"]
    assert state.text.partition(", ")[2] == text
    assert opening.problem in state.title


def test_a_market_that_is_open_or_unknown_changes_nothing() -> None:
    for market in (None, Market(True, NOW)):
        assert view(replace(LATER, market=market), ASKED) == view(replace(LATER, market=None), ASKED)
    assert view(replace(LATER, market=None), ASKED).fields["state"].text.startswith("feed stopped")


def test_what_comes_while_the_market_is_closed_is_live() -> None:
    assert view(replace(QUOTES, market=CLOSED), ASKED).fields["state"].text == "live"


def test_a_topic_that_cannot_be_read_is_no_closed_market() -> None:
    for state in ("absent", "failed", "filling"):
        found = view(replace(LATER, state=state, quotes={}), ASKED).fields["state"]
        assert found == view(replace(LATER, state=state, quotes={}, market=None), ASKED).fields["state"]
    unknown = view(replace(QUOTES, market_failed="no leader answers"), ASKED).fields["left_out"]
    assert unknown.text == "the state of the market cannot be read: no leader answers"


def test_without_a_current_quote_a_closed_market_is_the_reason() -> None:
    gone = replace(APPLE, expires_us=NOW)
    since = "market closed since 20:57"
    expired = replace(LATER, quotes={"AAPL": gone}, others=[("AAPL", CANDLES)])
    document = view(expired, ASKED)
    for name in ("last", "last-2"):
        cell = document.fields[name]
        assert (cell.text, cell.tone, cell.title) == ("no current quote", "muted", since)
    listed = document.tables["watchlist"].rows[0].cells[1]
    assert (listed.text, listed.tone, listed.title) == ("no quote", "muted", f"{since}; last 228.50 at 21:57:19")
    document = view(replace(expired, market=None), ASKED)
    assert [document.fields[name].tone for name in ("last", "last-2")] == ["warn", "warn"]
    assert document.tables["watchlist"].rows[0].cells[1].tone == "warn"


def test_a_latest_quote_is_a_link_to_its_key() -> None:
    latest = replace(QUOTES, partition=None, latest_topic="quotes.latest", latest_failed="no leader answers")
    fields = view(latest, ASKED).fields
    assert (fields["place"].text, fields["place"].href) == (
        "quotes.latest, revision 41", "/topics/quotes.latest/keys?key=AAPL",
    )  # fmt: skip
    assert fields["left_out"].text == "the latest quotes cannot be read: no leader answers"


def test_the_candle_that_is_forming_is_told_apart() -> None:
    document = view(QUOTES, ASKED)
    assert document.fields["forming"].text == "1.5,1.75,1.5,1.625,3"
    assert document.charts["price"].values[3] == [None, 1.5]
    assert document.charts["price"].summary == "AAPL, 1 candles of 1s: from 1.5 to 1.5, between 0.5 and 2"


def test_where_a_quote_is_written_is_a_link() -> None:
    assert view(QUOTES, ASKED).fields["place"].href == "/topics/quotes/records?start=offset&partition=2&offset=41"


def test_what_is_missing_is_said() -> None:
    some = replace(QUOTES, unread=3, unread_reason="no value", symbols_left_out=7, lost=1)
    assert view(some, ASKED).fields["left_out"].text == (
        "3 records skipped, not quotes: no value; 7 symbols beyond the limit not shown; "
        "1 record skipped: the gateway could not keep up"
    )
    assert view(QUOTES, ASKED).fields["left_out"].text == ""


def test_a_symbol_is_chosen_by_its_row_and_the_rest_of_the_address_stays() -> None:
    table = view(QUOTES, PageRequest("/quotes", query={"step": "1m", "topic": "quotes"})).tables["watchlist"]
    assert [row.key for row in table.rows] == ["AAPL", "EURUSD"]
    assert table.rows[1].href == "/quotes?step=1m&topic=quotes&symbol=EURUSD"


def test_why_there_is_nothing() -> None:
    nothing = Quotes(NOW, "quotes", "absent", "topic 'quotes' does not exist")
    document = view(nothing, ASKED)
    assert (document.fields["kind"].text, document.fields["state"].text) == ("absent", "no such topic")
    assert not document.charts
    assert view(replace(nothing, state="live", reason=""), ASKED).fields["kind"].text == "none"
    assert view(replace(nothing, state="filling", reason=""), ASKED).fields["state"].text == "loading history"
    failed = view(replace(nothing, state="failed", reason="no leader"), ASKED)
    assert (failed.fields["kind"].text, failed.fields["reason"].text) == ("failed", "no leader")


def test_the_analytics_that_are_there_are_links() -> None:
    assert view(QUOTES, ASKED).fields["analytics"].text == "no"
    there = replace(QUOTES, topics=("quotes.alerts", "quotes.bars.1m", "quotes.mine"))
    document = view(there, ASKED)
    assert document.fields["analytics"].text == "yes"
    assert {row.key: (row.cells[2].text, row.href) for row in document.tables["outputs"].rows} == {
        "quotes.bars.1s": ("missing", ""),
        "quotes.bars.1m": ("exists", "/topics/quotes.bars.1m"),
        "quotes.bars.5m": ("missing", ""),
        "quotes.stats": ("missing", ""),
        "quotes.alerts": ("exists", "/topics/quotes.alerts"),
        "quotes.job": ("missing", ""),
    }


def test_a_quote_without_a_price_or_a_first_one_has_dashes() -> None:
    bare = replace(APPLE, bid=None, ask=None, first=None, volume=None)
    found = cells(replace(QUOTES, quotes={"AAPL": bare}), "AAPL")
    assert (found["bid"], found["spread"], found["change"], found["percent"], found["volume"]) == (DASH,) * 5


def test_a_watchlist_has_the_symbols_of_the_address() -> None:
    asked = PageRequest("/quotes", query={"symbols": "EURUSD,GONE,EURUSD"})
    document = view(QUOTES, asked)
    assert [row.key for row in document.tables["watchlist"].rows] == ["EURUSD"]
    assert (document.fields["watched"].text, document.fields["watching"].text) == ("EURUSD", "1 of 2 symbols")
    assert document.fields["symbols"].text == "AAPL,EURUSD"
    assert view(QUOTES, ASKED).fields["watching"].text == ""


def test_charts_beside_the_first_have_a_symbol_a_price_and_a_forming_candle() -> None:
    document = view(replace(QUOTES, others=[("EURUSD", CANDLES)]), ASKED)
    assert list(document.charts) == ["price", "price-2", "spread"]
    names = ("panes", "symbol-2", "last-2", "forming-2")
    assert [document.fields[name].text for name in names] == ["2", "EURUSD", "1.0834", "1.5,1.75,1.5,1.625,3"]
    assert document.charts["price-2"].summary.startswith("EURUSD, 1 candles of 1s")


def test_trades_have_a_side_and_outliers_a_mark() -> None:
    tape = [
        TapeTrade(NOW, 228.52, 1_500.0, "buy", 2, 41, False),
        TapeTrade(NOW - 1_500, 263.8, 100.0, "sell", 2, 40, True),
    ]
    document = view(replace(QUOTES, tape=tape * 20, outliers=1), ASKED)
    first, second = document.tables["tape"].rows[:2]
    assert [cell.text for cell in first.cells] == ["21:57:20.000", "228.52", "1.50 k", "buy"]
    assert (second.cells[1].text, second.cells[1].tone, second.key) == ("◇ 263.80", "muted", "2-40")
    assert len(document.tables["tape"].rows) == 30
    assert document.fields["left_out"].text == "1 price left out, far from bid and ask"
    assert document.fields["spread"].text == "0.03 (1.3 bp)"
