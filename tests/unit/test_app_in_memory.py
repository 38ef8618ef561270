"""app.test(): handlers without a broker, with the decoding, the checks and the rules that they have in production."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import comet
from comet.errors import InvalidArgument, LimitExceeded, SerdeError, TransactionNotOpen


@comet.model
class Quote:
    symbol: str
    bid: float
    ask: float


ACME = Quote("ACME", 9.5, 9.75)


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test on an event loop in which nothing waits: time does not pass."""

    def run() -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()

            def late(*_: Any, **__: Any) -> Any:
                raise AssertionError("a test waited")

            loop.call_later = loop.call_at = late  # type: ignore[method-assign,assignment]
            await test()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_records_reach_all_handlers_and_what_they_publish_goes_on() -> None:
    app, seen = comet.App(), list[Any]()

    @app.on("quotes")
    async def spread(quote: Quote) -> None:
        await app.publish("spreads", {"symbol": quote.symbol, "spread": quote.ask - quote.bid}, key=quote.symbol)

    @app.on("quotes", group="audit")
    def audit(record: comet.Record[Quote]) -> None:
        seen.append((record.offset, record.key_text, record.value, record.headers))

    @app.on("spreads", group="wide")
    async def wide(record: comet.Record[dict[str, Any]]) -> None:
        seen.append((record.key, record.value["spread"]))

    async with app.test() as test:
        receipt = await test.publish("quotes", ACME, key="ACME", headers={"source": "test"})
        assert (receipt.topic, receipt.partition, receipt.offset) == ("quotes", 0, 0)
        await test.publish("quotes", ACME, key="ACME")
        assert test.values("spreads", dict) == [{"symbol": "ACME", "spread": 0.25}] * 2
        assert [record.offset for record in test.records("quotes")] == [0, 1]
        assert test.values("nothing") == []
    assert seen == [
        (0, "ACME", ACME, [("source", b"test")]), (b"ACME", 0.25), (1, "ACME", ACME, []), (b"ACME", 0.25),
    ]  # fmt: skip
    assert [one["handled"] for one in app.statistics()] == [2, 2, 2]


@in_loop
async def test_lists_and_batches_get_a_batch_as_a_whole() -> None:
    app, seen = comet.App(), list[Any]()

    @app.on("quotes")
    async def many(quotes: list[Quote]) -> None:
        seen.append(quotes)

    @app.on("quotes", group="g")
    async def columns(batch: comet.RecordBatch[Quote]) -> None:
        seen.append((len(batch), list(batch.keys), batch.models()))

    async with app.test() as test:
        await test.publish_many("quotes", [ACME, ACME], keys=["a", None])
    assert seen == [[ACME, ACME], (2, [b"a", None], [ACME, ACME])]


@in_loop
async def test_a_handler_gets_the_records_that_its_filter_matches() -> None:
    app, seen = comet.App(), list[Any]()

    @app.on("quotes", filter="bid > 10 && @key = a")
    async def one(quote: Quote) -> None:
        seen.append(quote.bid)

    @app.on("quotes", group="g", filter="bid <= 10")
    async def many(batch: comet.RecordBatch[Quote]) -> None:
        seen.append([quote.bid for quote in batch.models()])

    shared = list[float]()

    @app.on("quotes", group="s", shared=True, filter="bid > 11")
    async def any_member(quote: Quote) -> None:
        shared.append(quote.bid)

    with pytest.raises(comet.MalformedFilter):
        app.on("quotes", filter="bid >")(one)
    quotes = [Quote("ACME", bid, 1) for bid in (9, 11, 12, 10)]
    async with app.test() as test:
        await test.publish_many("quotes", quotes, keys=["a", "a", "b", "a"])
        await test.publish("quotes", Quote("ACME", 13, 1), key="b")
    assert seen == [11, [9, 10]]
    assert sorted(shared) == [12, 13]


@in_loop
async def test_values_are_checked_when_they_are_written() -> None:
    app = comet.App()

    @app.on("orders")
    async def quote(order: dict[str, Any]) -> None:
        await app.publish("quotes", Quote("ACME", "nan?", 1.0))  # type: ignore[arg-type]

    async with app.test() as test:
        with pytest.raises(SerdeError, match="bid"):
            await test.publish("quotes", Quote("ACME", "nan?", 1.0))  # type: ignore[arg-type]
        with pytest.raises(SerdeError, match="bid"):
            await test.publish("orders", {})
        assert test.values("quotes") == []


@in_loop
async def test_an_error_of_a_handler_is_raised_after_its_rules_were_applied() -> None:
    app, calls = comet.App(), list[str]()

    @app.on("quotes", group="g", retries=2, backoff_ms=60_000, dead_letter="quotes-failed")
    async def fails(quote: Quote) -> None:
        calls.append(quote.symbol)
        raise ZeroDivisionError("a bug")

    async with app.test() as test:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await test.publish("quotes", ACME, key="ACME")
        assert calls == ["ACME"] * 3
        (letter,) = test.dead_letters()
        assert letter.record.key_text == "ACME"
        assert (letter.origin, letter.reason, letter.attempts) == ("quotes", "ZeroDivisionError: a bug", 3)
        assert test.values("quotes-failed", Quote) == [ACME]
    (counters,) = app.statistics()
    assert (counters["retried"], counters["failed"], counters["dead_lettered"], counters["handled"]) == (2, 1, 1, 0)


@in_loop
async def test_errors_are_left_to_the_rules_on_request() -> None:
    app = comet.App()

    @app.on("quotes", group="g", dead_letter="quotes-failed")
    async def fails(quote: Quote) -> None:
        raise ZeroDivisionError

    @app.on("quotes", on_error="skip")
    async def skips(quote: Quote) -> None:
        raise KeyError(quote.symbol)

    async with app.test(raise_errors=False) as test:
        await test.publish("quotes", ACME)
        assert [type(error) for error in test.errors] == [ZeroDivisionError, KeyError]
        assert len(test.dead_letters()) == 1


@in_loop
async def test_an_error_that_ends_the_app_is_always_raised() -> None:
    app = comet.App()

    @app.on("quotes")
    async def fails(quote: Quote) -> None:
        raise ZeroDivisionError

    async with app.test(raise_errors=False) as test:
        with pytest.raises(ZeroDivisionError):
            await test.publish("quotes", ACME)


@in_loop
async def test_a_malformed_record_is_skipped_or_dead_lettered_and_raised() -> None:
    app, seen = comet.App(), list[str]()

    @app.on("quotes")
    async def skips(quote: Quote) -> None:
        seen.append(quote.symbol)

    @app.on("quotes", group="g", dead_letter="quotes-failed")
    async def sets_aside(quote: Quote) -> None:
        seen.append(quote.symbol)

    async with app.test() as test:
        with pytest.raises(SerdeError, match="record 0 of quotes/0"):
            await test.publish("quotes", b'{"symbol": 1}')
        assert [letter.record.value for letter in test.dead_letters()] == [b'{"symbol": 1}']
        assert "SerdeError" in test.dead_letters()[0].reason
        assert len(test.errors) == 2, "one for each handler"
        await test.publish("quotes", ACME)
    assert seen == ["ACME", "ACME"]
    assert [(one["skipped"], one["dead_lettered"]) for one in app.statistics()] == [(1, 0), (0, 1)]


@in_loop
async def test_a_transaction_is_seen_as_a_whole_or_not_at_all() -> None:
    app, tries = comet.App(), list[int]()

    @app.on("orders", group="g", delivery="exactly_once", retries=1)
    async def both(order: dict[str, Any], tx: comet.Transaction) -> None:
        tries.append(len(tries))
        await tx.send("first", order)
        await app.publish("second", order)
        if len(tries) == 1:
            raise ZeroDivisionError

    async with app.test() as test:
        await test.publish("orders", {"id": 1})
        assert test.values("first", dict) == test.values("second", dict) == [{"id": 1}]
        assert [record.offset for record in test.records("first")] == [1], "an aborted transaction leaves a gap"
    assert tries == [0, 1]


@in_loop
async def test_a_transaction_of_one_record() -> None:
    app, kept = comet.App(), list[Any]()

    @app.on("orders", group="g")
    async def handle(order: comet.Record[dict[str, Any]]) -> None:
        async with app.transaction(order) as tx:
            await tx.send_many("rows", [b"1", b"2"])
            assert test.values("rows") == []
        kept.append(tx)

    async with app.test() as test:
        await test.publish("orders", {})
        assert test.values("rows") == [b"1", b"2"]
    with pytest.raises(TransactionNotOpen):
        await kept[0].send("rows", b"3")


@in_loop
async def test_a_record_of_a_share_group_counts_its_deliveries() -> None:
    app, counts = comet.App(), list[int]()

    @app.on("jobs", group="work", shared=True, retries=3)
    async def work(record: comet.ShareRecord[str]) -> None:
        counts.append(record.delivery_count)
        await record.extend()
        if record.delivery_count < 3:
            raise TimeoutError(record.value)

    async with app.test() as test:
        await test.publish("jobs", "one")
    assert counts == [1, 2, 3]


@in_loop
async def test_of_two_members_of_a_group_one_gets_the_record() -> None:
    app, got = comet.App(), list[str]()

    @app.on("quotes", group="g")
    async def one(quote: Quote) -> None:
        got.append("one")

    @app.on("quotes", group="g")
    async def two(quote: Quote) -> None:
        got.append("two")

    async with app.test() as test:
        await test.publish("quotes", ACME)
    assert got == ["one"]


@in_loop
async def test_the_producer_of_the_app_writes_to_the_topics_of_the_test() -> None:
    app = comet.App()

    @app.on("orders")
    async def handle(order: dict[str, Any]) -> None:
        delivery = await app.send("out", b"1", key="k")
        assert delivery.done()
        assert (await delivery).offset == delivery.result().offset == 0
        assert delivery.exception() is None
        bulk = await app.producer.send_many("out", [b"2", b"3"])
        assert [list(part.offsets) for part in await bulk] == [[1, 2]]
        for duplicate in (False, True):
            once = await app.producer.publish_once("out", [comet.NewRecord(b"4")], idempotency_key="4")
            assert [receipt.duplicate for receipt in once] == [duplicate]
        with pytest.raises(InvalidArgument, match="have one partition"):
            await app.send("out", b"5", partition=3)

    async with app.test() as test:
        await test.publish("orders", {})
        assert test.values("out") == [b"1", b"2", b"3", b"4"]


@in_loop
async def test_handlers_that_feed_each_other_end_the_test() -> None:
    app = comet.App()

    @app.on("a")
    async def again(value: bytes) -> None:
        await app.publish("a", value)

    async with app.test() as test:
        with pytest.raises(LimitExceeded, match="do handlers feed each other"):
            await test.publish("a", b"")


@in_loop
async def test_stop_leaves_later_records() -> None:
    app, seen = comet.App(), list[bytes]()

    @app.on("a")
    async def handle(value: bytes) -> None:
        seen.append(value)
        await app.publish("a", b"2")
        app.stop()

    async with app.test() as test:
        await test.publish("a", b"1")
        assert test.values("a") == [b"1", b"2"]
    assert seen == [b"1"]
    async with app.test() as test:  # it starts afresh
        await test.publish("a", b"3")
        assert test.values("a")[0] == b"3"
    assert seen == [b"1", b"3"]


@in_loop
async def test_lifespan_surrounds_a_test() -> None:
    steps = list[str]()

    @asynccontextmanager
    async def lifespan(app: comet.App) -> AsyncIterator[None]:
        app.state.limit = 3
        await app.publish("log", b"up")
        steps.append("up")
        yield
        await app.publish("log", b"down")
        steps.append("down")

    app = comet.App(lifespan=lifespan)

    @app.on("a")
    async def handle(value: bytes) -> None:
        steps.append(f"handled, limit {app.state.limit}")

    async with app.test() as test:
        await test.publish("a", b"1")
        assert steps == ["up", "handled, limit 3"]
        assert test.values("log") == [b"up"]
    assert steps == ["up", "handled, limit 3", "down"]


@in_loop
async def test_an_app_runs_in_one_test_at_a_time() -> None:
    app = comet.App()
    async with app.test():
        with pytest.raises(InvalidArgument, match="running already"):
            async with app.test():
                pass
        with pytest.raises(InvalidArgument, match="before the app runs"):
            app.on("a")(lambda value: None)
    app.on("a")(lambda value: None)


def test_the_example_in_the_document_runs() -> None:
    text = (Path(__file__).parents[2] / "docs/sdk.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def test_spread" in block]
    names: dict[str, Any] = {"comet": comet, "pytest": pytest, "Quote": Quote}
    exec(compile(block, "docs/sdk.md", "exec"), names)
    asyncio.run(names["test_spread"]())
