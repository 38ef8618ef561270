"""Silences of a closed market are no alerts; those of an open one are. In real Spark, with a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

import comet
from comet_demo import analytics
from comet_demo.analytics.market_closures import MarketClosures
from comet_demo.model import LAYOUT, MARKET_STATE
from tests.spark.market import SECOND, START_US
from tests.spark.streams import batches_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Seconds of quotes. The market is closed from 20 to 40.
QUOTES: Final = {
    "OVER": [*range(20), 40, 41, 42],  # from the last quote before the close to the first after the opening
    "BEFORE": [*range(14), 41, 42],  # silent from 13 on, and for five seconds at 18, before the close
    "ACROSS": [*range(18), 40, 41, 42],  # silent for three seconds at the close
    "AFTER": [*range(20), 41, 42, 49, 50],  # silent in the open market
    "CLOCK": [*range(20), *range(40, 56), 200],
}
STATES: Final = [(-60, True), (20, False), (40, True)]
OPEN_MARKET: Final = {
    ("stale", "BEFORE", 18, 5.0), ("stale", "OVER", 47, 5.0), ("stale", "BEFORE", 47, 5.0),
    ("stale", "ACROSS", 47, 5.0), ("stale", "AFTER", 47, 5.0), ("gap", "AFTER", 49, 7.0),
    ("stale", "AFTER", 55, 5.0), ("stale", "CLOCK", 60, 5.0),
}  # fmt: skip
CLOSED_MARKET: Final = {
    ("stale", "OVER", 24, 5.0), ("gap", "OVER", 40, 21.0), ("gap", "BEFORE", 41, 28.0), ("stale", "ACROSS", 22, 5.0),
    ("gap", "ACROSS", 40, 23.0), ("stale", "AFTER", 24, 5.0), ("gap", "AFTER", 41, 22.0), ("stale", "CLOCK", 24, 5.0),
    ("gap", "CLOCK", 40, 21.0),
}  # fmt: skip


@pytest.fixture
def market() -> Iterator[comet.testing.TestBroker]:
    """A broker with the topics of quotes and trades, and without the state of the market."""
    with comet.testing.broker({"quotes": 1, "trades": 1}) as broker:
        yield broker


def write_quotes(address: str, begin: int, end: int) -> None:
    rows = sorted((second, symbol) for symbol, seconds in QUOTES.items() for second in seconds if begin <= second < end)
    quote = {"bid": 1.0, "ask": 2.0, "bid_size": 1, "ask_size": 1, "last": 1.0, "last_size": 1}
    values = [
        json.dumps({**quote, "symbol": symbol, "timestamp_us": START_US + second * SECOND}) for second, symbol in rows
    ]
    with comet.sync.Producer(address) as producer:
        producer.send_many("quotes", [value.encode() for value in values], partition=0).result()


def write_states(address: str, states: Iterable[tuple[int, bool]]) -> None:
    with comet.sync.Admin(address) as admin:
        if MARKET_STATE not in {topic.name for topic in admin.list_topics()}:
            admin.create_topic(MARKET_STATE, **LAYOUT[MARKET_STATE])
    with comet.sync.Producer(address) as producer:
        for second, is_open in states:
            value = json.dumps({"market": "DEMO", "open": is_open}).encode()
            producer.publish(MARKET_STATE, value, key=b"DEMO", timestamp_us=START_US + second * SECOND)


def frame_of(spark: SparkSession, address: str, *, streams: bool, closures: str = "") -> DataFrame:
    reader = spark.readStream if streams else spark.read
    options = {"bootstrap": address, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    if not streams:
        del options["maxOffsetsPerTrigger"]
    frames = (
        reader.format("comet").options(**options, subscribe=topic, schema=f"comet_demo.model:{model}").load()
        for topic, model in (("quotes", "Quote"), ("trades", "Trade"))
    )
    quotes, trades = next(frames), next(frames)
    hours = MarketClosures(closures or address)
    return analytics.alerts(analytics.quotes_of(quotes), analytics.trades_of(trades), closures=hours)


def told(rows: Iterable[Any]) -> list[tuple[str, str, int, float]]:
    return sorted((row.kind, row.symbol, (row.time_us - START_US) // SECOND, row.value) for row in rows)


def test_a_silence_that_overlaps_a_closure_is_no_alert(spark: SparkSession, market: comet.testing.TestBroker) -> None:
    write_quotes(market.address, 0, 999)
    write_states(market.address, STATES)
    assert told(frame_of(spark, market.address, streams=False).collect()) == sorted(OPEN_MARKET)


@pytest.mark.usefixtures("ends")
def test_a_stream_that_restarts_while_the_market_is_closed_gives_the_same(
    spark: SparkSession, market: comet.testing.TestBroker, tmp_path: Path
) -> None:
    """Three runs from one checkpoint; the market opens between the first two."""
    rows: list[Any] = []
    for states, begin, end in ((STATES[:2], 0, 20), (STATES[2:], 20, 46), ([], 46, 999)):
        write_states(market.address, states)
        write_quotes(market.address, begin, end)
        for batch in batches_of(frame_of(spark, market.address, streams=True), tmp_path):
            rows += batch
    assert told(rows) == sorted(OPEN_MARKET)


@pytest.mark.parametrize("states", [None, [], [(-60, True)], [(-60, True), (300, False)]])
def test_without_a_closure_every_silence_is_an_alert(
    spark: SparkSession, market: comet.testing.TestBroker, states: Sequence[tuple[int, bool]] | None
) -> None:
    """The topic is missing, is empty, says that the market is open, or that it closed later."""
    write_quotes(market.address, 0, 999)
    if states is not None:
        write_states(market.address, states)
    assert told(frame_of(spark, market.address, streams=False).collect()) == sorted(OPEN_MARKET | CLOSED_MARKET)


def test_alerts_work_while_the_state_of_the_market_cannot_be_read(
    spark: SparkSession, market: comet.testing.TestBroker
) -> None:
    write_quotes(market.address, 0, 999)
    write_states(market.address, STATES)
    frame = frame_of(spark, market.address, streams=False, closures="127.0.0.1:1")
    assert told(frame.collect()) == sorted(OPEN_MARKET | CLOSED_MARKET)


def test_malformed_states_are_left_out(spark: SparkSession, market: comet.testing.TestBroker) -> None:
    write_quotes(market.address, 0, 999)
    write_states(market.address, STATES)
    with comet.sync.Producer(market.address) as producer:
        for value in (b"", b"[" * 10_000, b"null", b'{"open": 1}', b'{"market": "DEMO"}', b"\xff"):
            producer.publish(MARKET_STATE, value, key=b"DEMO", timestamp_us=START_US + 30 * SECOND)
    assert told(frame_of(spark, market.address, streams=False).collect()) == sorted(OPEN_MARKET)


def test_alerts_need_no_pandas() -> None:
    """Neither the extra `spark` nor the environment of `make demo` has it."""
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from comet.spark import local\n"
        "from comet_demo import analytics\n"
        "from comet_demo.analytics.market_closures import MarketClosures\n"
        "columns = 'symbol string, ts timestamp, bid double, ask double, price double, volume long'\n"
        "with local.session('alerts') as spark:\n"
        "    frame = spark.createDataFrame([], columns)\n"
        "    analytics.stale(frame, closures=MarketClosures('127.0.0.1:1')).collect()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
