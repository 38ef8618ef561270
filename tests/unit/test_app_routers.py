"""Routers, middleware, dependencies, lifespan, health and metrics of an App."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

import comet
from comet.errors import InvalidArgument
from tests.unit.sdk_fake import FakeBroker
from tests.unit.test_app_in_memory import in_loop
from tests.unit.test_sdk_app import QUOTES, Quote, app
from tests.unit.test_sdk_consumer import fill
from tests.unit.test_sdk_producer import scenario
from tests.waiting import until


def noting(steps: list[str], name: str) -> Any:
    async def middleware(message: comet.Message, call_next: comet.CallNext) -> None:
        steps.append(f"{name} before {message.topic}")
        try:
            await call_next(message)
        finally:
            steps.append(f"{name} after")

    return middleware


@in_loop
async def test_a_router_adds_its_prefix_and_its_middleware() -> None:
    steps = list[str]()
    inner = comet.Router(prefix="orders.", middleware=[noting(steps, "inner")])
    outer = comet.Router(prefix="eu.", middleware=[noting(steps, "outer")])

    @inner.on("placed", group="billing")
    async def bill(order: dict[str, Any], message: comet.Message) -> None:
        steps.append(message.topic)
        await message.app.publish("invoices", order, key=message.key)

    outer.include(inner)
    application = comet.App(middleware=[noting(steps, "app")])
    application.include(outer, prefix="v1.")
    topic = "v1.eu.orders.placed"
    async with application.test() as test:
        await test.publish(topic, {"id": 1}, key="one")
        assert [record.key_text for record in test.records("invoices")] == ["one"]
    before = [f"{name} before {topic}" for name in ("app", "outer", "inner")]
    assert steps == [*before, topic, "inner after", "outer after", "app after"]
    assert [one["topic"] for one in application.statistics()] == [topic]


def test_a_router_that_was_included_takes_no_more_handlers() -> None:
    router = comet.Router()
    comet.App().include(router)
    with pytest.raises(InvalidArgument, match="before the router is included"):
        router.on("a")(lambda value: None)


def test_a_topic_that_a_prefix_spoils_is_refused() -> None:
    router = comet.Router()
    router.on("a")(lambda value: None)
    with pytest.raises(InvalidArgument, match="topic name"):
        comet.App().include(router, prefix="no spaces ")


def test_a_middleware_that_cannot_be_called_is_refused() -> None:
    for kind in (comet.App, comet.Router):
        with pytest.raises(InvalidArgument, match="a middleware is a function"):
            kind(middleware=["no"])  # type: ignore[list-item]


@in_loop
async def test_a_middleware_may_change_or_leave_out_a_record_and_sees_errors() -> None:
    seen, errors = list[Any](), list[str]()

    async def louder(message: comet.Message, call_next: comet.CallNext) -> None:
        if message.value == "quiet":
            return
        try:
            await call_next(message.replaced(message.value.upper()))
        except ZeroDivisionError:
            errors.append(message.handler.rpartition(".")[2])
            raise

    application = comet.App(middleware=[louder])

    @application.on("words", group="g", retries=1, dead_letter="failed")
    def handle(word: str) -> None:
        seen.append(word)
        if word == "BAD":
            raise ZeroDivisionError

    async with application.test(raise_errors=False) as test:
        for word in ("loud", "quiet", "bad"):
            await test.publish("words", word)
        assert [letter.record.value for letter in test.dead_letters()] == [b"bad"]
    assert seen == ["LOUD", "BAD", "BAD"]
    assert errors == ["handle", "handle"], "one for each attempt"
    assert application.statistics()[0]["handled"] == 2


@in_loop
async def test_dependencies_are_made_once_for_a_message_and_cleaned_up_in_order() -> None:
    steps = list[str]()

    def settings() -> dict[str, int]:
        steps.append("settings")
        return {"limit": 3}

    async def connection(given: Annotated[dict[str, int], comet.Depends(settings)]) -> AsyncIterator[str]:
        steps.append(f"open {given['limit']}")
        yield "connection"
        steps.append("close")

    def session(
        opened: Annotated[str, comet.Depends(connection)],
        message: comet.Message,
        given: Annotated[Any, comet.Depends(settings)],
    ) -> Iterator[str]:
        steps.append(f"begin on {opened} for {message.key_text}, limit {given['limit']}")
        try:
            yield "session"
        except ZeroDivisionError:
            steps.append("roll back")
            raise
        steps.append("commit")

    async def fresh() -> int:
        return len(steps)

    application = comet.App()

    @application.on("a")
    async def handle(
        value: int,
        one: Annotated[str, comet.Depends(session)],
        two: Annotated[str, comet.Depends(session)],
        number: Annotated[int, comet.Depends(fresh)],
    ) -> None:
        assert (one, two) == ("session", "session")
        steps.append(f"handle at {number}")
        1 / value

    async with application.test() as test:
        await test.publish("a", 1, key="k")
        begun = ["settings", "open 3", "begin on connection for k, limit 3", "handle at 3"]
        assert steps == [*begun, "commit", "close"]
        steps.clear()
        with pytest.raises(ZeroDivisionError):
            await test.publish("a", 0, key="k")
        assert steps[4:] == ["roll back"], "the connection's generator got the error, too"


@in_loop
async def test_one_that_is_not_cached_is_made_for_each_parameter() -> None:
    made, got = list[int](), list[tuple[int, int]]()

    def next_number() -> int:
        made.append(len(made))
        return made[-1]

    application = comet.App()
    Number = Annotated[int, comet.Depends(next_number, cached=False)]  # noqa: N806 - a type

    def handle(value: bytes, one: Number, two: Number) -> None:
        got.append((one, two))

    application.on("a")(handle)
    async with application.test() as test:
        await test.publish("a", b"")
    assert got == [(0, 1)]


@in_loop
async def test_a_test_replaces_dependencies() -> None:
    def rate() -> float:
        raise AssertionError("it asks the world")

    def fixed(message: comet.Message) -> float:
        return float(message.offset)

    application, got = comet.App(), list[float]()

    @application.on("a")
    async def handle(value: bytes, found: Annotated[float, comet.Depends(rate)]) -> None:
        got.append(found)

    async with application.test(dependencies={rate: fixed}) as test:
        await test.publish("a", b"")
        await test.publish("a", b"")
    assert got == [0.0, 1.0]
    async with application.test() as test:
        with pytest.raises(AssertionError, match="asks the world"):
            await test.publish("a", b"")


@in_loop
async def test_a_handler_takes_a_transaction_a_message_and_dependencies() -> None:
    application = comet.App()

    @application.on("a", group="g", delivery="exactly_once")
    async def handle(
        value: str, tx: comet.Transaction, message: comet.Message, to: Annotated[str, comet.Depends(lambda: "out")]
    ) -> None:
        await tx.send(to, value, key=message.key)

    async with application.test() as test:
        await test.publish("a", "x", key="k")
        assert [(record.key, record.value) for record in test.records("out", str)] == [(b"k", "x")]


def needs_itself(again: Annotated[int, comet.Depends(lambda: needs_itself)]) -> int:
    return again


def loops(again: Annotated[int, comet.Depends(lambda: 1)]) -> int:
    return again


loops.__annotations__["again"] = Annotated[int, comet.Depends(loops)]


def test_dependencies_that_cannot_be_met_are_refused_with_the_parameter() -> None:
    application = comet.App()

    def unmarked(value: bytes, session: str) -> None: ...
    def default(value: bytes, session: Any = comet.Depends(loops)) -> None: ...  # noqa: B008 - it is wrong
    def cycle(value: bytes, session: Annotated[int, comet.Depends(loops)]) -> None: ...
    def no_function(value: bytes, session: Annotated[int, comet.Depends(3)]) -> None: ...

    for handler, problem in (
        (unmarked, "parameter 'session' is neither a comet.Message nor"),
        (default, "write session: Annotated"),
        (cycle, "needs itself: loops → loops"),
        (no_function, "takes a function, not 3"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            application.on("a")(handler)
    assert application.statistics() == []


# ---- an app that runs


@scenario()
async def test_lifespan_surrounds_an_app_and_may_publish_at_its_end(broker: FakeBroker) -> None:
    fill(broker, QUOTES)
    steps = list[str]()

    @asynccontextmanager
    async def lifespan(running: comet.App) -> AsyncIterator[None]:
        steps.append("up")
        yield
        steps.append("down")
        await running.publish("quotes", b'{"symbol":"END"}')

    one = app(broker, lifespan=lifespan)

    @one.on("quotes", start="earliest")
    async def handle(quote: Quote, message: comet.Message) -> None:
        steps.append(f"{quote.symbol} at {message.offset}")
        if message.offset == 1:
            message.app.stop()

    await one.serve()
    assert steps == ["up", "EURUSD at 0", "USDJPY at 1", "down"]
    assert broker.topics["quotes"][0].values()[-1] == b'{"symbol":"END"}'
    assert not broker.streams, "everything is closed"


@scenario()
async def test_an_error_of_lifespan_ends_the_app_before_it_reads(broker: FakeBroker) -> None:
    fill(broker, QUOTES)
    steps = list[str]()

    @asynccontextmanager
    async def lifespan(running: comet.App) -> AsyncIterator[None]:
        if steps:
            yield
        raise ZeroDivisionError

    one = app(broker, lifespan=lifespan)

    @one.on("quotes", start="earliest")
    async def handle(quote: Quote) -> None:
        raise AssertionError

    with pytest.raises(ZeroDivisionError):
        await one.serve()
    assert not one.healthy()


@scenario()
async def test_an_app_is_healthy_while_all_its_handlers_read(broker: FakeBroker) -> None:
    one = app(broker)

    @one.on("quotes")
    async def handle(quote: Quote) -> None: ...

    assert not one.healthy()
    assert "comet_app_up 0" in one.metrics()
    serving = asyncio.create_task(one.serve())
    assert await until(one.healthy, within_s=30)
    assert [counters["ready"] for counters in one.statistics()] == [True]
    assert "comet_app_up 1" in one.metrics()
    one.stop()
    assert not one.healthy()
    await serving


@scenario()
async def test_metrics_are_the_counters(broker: FakeBroker) -> None:
    fill(broker, [*QUOTES, b"no quote"])
    one = app(broker)

    @one.on("quotes", start="earliest")
    async def handle(quote: Quote) -> None: ...

    serving = asyncio.create_task(one.serve())
    assert await until(lambda: one.statistics()[0]["skipped"] == 1, within_s=30)
    one.stop()
    await serving
    name = one.statistics()[0]["handler"]
    lines = one.metrics().splitlines()
    assert f'comet_app_handled_total{{handler="{name}",topic="quotes"}} 2' in lines
    assert f'comet_app_skipped_total{{handler="{name}",topic="quotes"}} 1' in lines
    assert "# TYPE comet_app_handled_total counter" in lines
