"""What anybody may do to the topics of the demo, from the dashboard or with curl: its programs leave out what is none
of theirs, and go on where records are gone."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import comet
import comet.testing
from comet_demo import sample_workload
from comet_demo.model import DEAD_ORDERS, FILLS, JOB, ORDERS, TOPIC, Fill, Order, Quote
from comet_demo.paper_trading import Paper, last_fills
from comet_demo.terminal.consumer import draw, follow, follow_job
from comet_demo.terminal.quote_table import QuoteTable
from tests.waiting import until

WITHIN_S = 60.0


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def quote(symbol: str, last: float = 10.0, **more: Any) -> Quote:
    return Quote(**{"symbol": symbol, "bid": last, "ask": last, "bid_size": 1, "ask_size": 1, "last": last,
                    "last_size": 1, "timestamp_us": 1, **more})  # fmt: skip


def order(number: int, quantity: int = 10) -> Order:
    return Order(number, "AAPL", "buy", quantity, 1.0, "ada", 1)


NO_QUOTES = [
    b"not JSON",
    b'{"symbol": "ACME", "bid": 9.5, "ask": 9.7}',
    b'["a list"]',
    None,
    quote("ZERO", 0.0),
    quote("ONE SIDE", ask=0.0),
    quote("BELOW", last=-1.0),
    quote(""),
    quote("a\x1b[2Jb"),
    quote("A" * 10_000),
    quote("SIZE", last_size=10**400),
    quote("TIME", timestamp_us=10**400),
]


async def test_the_board_leaves_out_what_is_no_quote_and_shows_the_others() -> None:
    quote_table = QuoteTable()
    async with (
        comet.testing.broker(topics={TOPIC: 1}) as broker,
        running(follow(quote_table, broker.address)) as following,
        comet.Producer(broker.address, acks="all") as producer,
    ):
        while not quote_table.events and not following.done():  # it follows from when it is there
            await producer.publish(TOPIC, quote("FIRST"))
        await (await producer.send_many(TOPIC, [*NO_QUOTES, quote("[/x]"), quote("[red]A")]))
        await producer.publish(TOPIC, quote("LAST"))
        assert await until(lambda: "LAST" in quote_table.lines or following.done(), within_s=WITHIN_S)
    assert list(quote_table.lines) == ["FIRST", "[/x]", "[red]A", "LAST"]
    assert quote_table.left_out == len(NO_QUOTES)
    quote_table.measure(1.0)
    quote_table.notes["paper"] = "[/paper] has ended"
    shown = io.StringIO()
    Console(file=shown, width=200).print(draw(quote_table, "quotes of [/x]"))
    text = " ".join(shown.getvalue().split())
    assert "quotes of [/x]" in text and "[red]A" in text and "[/paper] has ended" in text
    assert f"{len(NO_QUOTES)} records skipped: not quotes" in text


async def test_paper_trading_takes_the_quotes_beside_what_is_none() -> None:
    async with comet.testing.broker(topics={TOPIC: 1, FILLS: 1}) as broker:
        async with comet.Producer(broker.address, acks="all") as producer:
            await (await producer.send_many(TOPIC, [quote("A", bid=9.0), *NO_QUOTES, quote("B", bid=9.0)]))
        async with comet.Consumer(broker.address, TOPIC, start="earliest", type=Quote) as consumer:
            batch = await consumer.get_batch(WITHIN_S)
        assert batch is not None
        paper = Paper(broker.address)
        await paper.take(batch)
    assert set(paper.book.holdings) == {"A", "B"}


async def test_paper_trading_leaves_out_what_is_from_the_future_and_fills_that_cannot_be_its_own() -> None:
    """What comes after it would be of the past, for good; and what nobody can hold, nobody can sell."""
    far_us = 4_102_444_800_000_000  # the year 2100
    fill = Fill("A", "buy", 100, 10.0, -1_000.0, 100, far_us)
    async with comet.testing.broker(topics={TOPIC: 1, FILLS: 1}) as broker:
        async with comet.Producer(broker.address, acks="all") as producer:
            quotes = [quote("A", bid=9.0, timestamp_us=at_us) for at_us in (1, far_us, 2)]
            await (await producer.send_many(TOPIC, quotes))
            await (await producer.send_many(FILLS, [fill, replace(fill, position=10**400, timestamp_us=1)]))
        async with comet.Consumer(broker.address, TOPIC, start="earliest", type=Quote) as consumer:
            batch = await consumer.get_batch(WITHIN_S)
        assert batch is not None
        paper = Paper(broker.address)
        await paper.take(batch)
    assert paper.book.holdings["A"].seen_us == 2
    assert (paper.book.holdings["A"].filled_us, paper.book.holdings["A"].position) == (-1, 0)


async def test_paper_trading_goes_on_when_its_fills_are_deleted() -> None:
    """It begins anew, with nothing."""
    async with (
        comet.testing.broker(topics={TOPIC: 1, FILLS: 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address, acks="all") as producer,
    ):
        await admin.reset_group("paper", "earliest", topics=[TOPIC])
        paper = Paper(broker.address)

        async def rise(since_s: int) -> None:
            """What leads to a fill."""
            quotes = [
                quote("A", price, bid=price - 0.01, timestamp_us=(since_s + at_s) * 1_000_000)
                for at_s, price in enumerate([100.0] * 10 + [101.0, 102.0])
            ]
            await (await producer.send_many(TOPIC, quotes))

        async with running(paper.app.serve()):
            await rise(100)
            assert await until(lambda: paper.fills == 1, within_s=WITHIN_S)
            await admin.delete_topic(FILLS)
            await rise(200)
            assert await until(lambda: paper.fills > 1, within_s=WITHIN_S)
            fills = await last_fills(broker.address)
    assert fills["A"].position == 100


NO_JOBS = [b"not JSON", b"1", b'["bars.1s"]', None, b"{}", b'{"query": {}}']
ODD_JOBS: list[Mapping[str, Any]] = [
    {"query": "one", "state": ["running"], "at_us": "now", "event_us": "now", "error": 1, "doing": {}},
    {"query": "bars.1s", "state": "running", "at_us": -(10**400), "event_us": 10**400},
    {"query": "[/x]", "state": "failed", "error": "[/red] a\x1b[2Jb"},
]


async def test_what_is_no_word_of_a_query_does_not_keep_the_others_from_being_heard() -> None:
    quote_table = QuoteTable()
    async with (
        comet.testing.broker(topics={JOB: 1}) as broker,
        running(follow_job(quote_table, broker.address)) as following,
        comet.Producer(broker.address, acks="all") as producer,
    ):
        while not quote_table.analytics.queries and not following.done():
            await producer.publish(JOB, {"query": "first", "state": "running"})
        await (await producer.send_many(JOB, [*NO_JOBS, *ODD_JOBS]))
        await producer.publish(JOB, {"query": "last", "state": "running", "at_us": 1})
        assert await until(lambda: "last" in quote_table.analytics.queries or following.done(), within_s=WITHIN_S)
    assert list(quote_table.analytics.queries) == ["first", "one", "bars.1s", "[/x]", "last"]
    quote_table.apply(quote("A"), now_us=5)
    line = quote_table.summary(now_us=5)
    assert "[/x] failed: [/red] a [2Jb" in line
    Console(file=io.StringIO()).print(draw(quote_table, "quotes"))


async def test_orders_that_are_none_become_dead_letters_and_the_others_are_settled() -> None:
    async with (
        comet.testing.broker(topics={ORDERS: 1, DEAD_ORDERS: 1}) as broker,
        running(sample_workload.settle(broker.address)) as settling,
        comet.Producer(broker.address, acks="all") as producer,
    ):
        strangers = [b'{"a": "JSON of somebody else"}', b"not JSON", None]
        await (await producer.send_many(ORDERS, [order(1), *strangers, order(2), order(0, quantity=0)]))
        async with comet.Consumer(broker.address, DEAD_ORDERS, start="earliest") as dead:
            letters = [await dead.get(WITHIN_S) for _ in range(4)]
        assert not settling.done()
    values = {letter.value for letter in letters if letter is not None}
    assert values >= set(strangers) and len(values) == 4


@pytest.mark.parametrize(("work", "topic", "group"), [
    (sample_workload.audit, ORDERS, "audit"),
    (lambda address: sample_workload.match(address, 1), ORDERS, "matching"),
    (sample_workload.report, TOPIC, "reports"),
])  # fmt: skip
async def test_a_group_goes_on_when_what_it_had_not_read_is_purged(work: Any, topic: str, group: str) -> None:
    async with (
        comet.testing.broker(topics={topic: 1}) as broker,
        comet.Admin(broker.address) as admin,
        comet.Producer(broker.address, acks="all") as producer,
    ):
        await (await producer.send_many(topic, [order(number) for number in range(10)]))
        await admin.reset_group(group, 2, topics=[topic])
        await admin.delete_records(topic, 0, before_offset=8)
        async with running(work(broker.address)) as going_on:
            done = 0
            while done <= 8 and not going_on.done():
                await producer.publish(topic, order(10))
                done = (await admin.group_offsets(group))[0].offset


async def test_life_without_its_topic_ends_with_one_line_that_says_why() -> None:
    async with comet.testing.broker() as broker, comet.Admin(broker.address) as admin:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "comet_demo.sample_workload",
            "--bootstrap",
            broker.address,
            stderr=asyncio.subprocess.PIPE,
        )
        while not any(group.name == "settlement" for group in await admin.list_groups()):
            assert process.returncode is None
        await admin.delete_topic(ORDERS)
        _, said = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode == 1
    assert said.decode().splitlines()[-1].startswith("comet_demo.sample_workload: ")
    assert "Traceback" not in said.decode()
