"""Apps: how handlers are read, called, stopped, and watched. On the virtual time of comet_testing.simulation.loop."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

import comet
from comet.app import App
from comet.errors import InvalidArgument, SerdeError, TopicNotFound
from comet.handlers.handler import HandlerShape, signature_of, watched
from comet.handlers.options import handler_options
from tests.unit.sdk_fake import ADDRESS, FakeBroker
from tests.unit.test_sdk_consumer import fill
from tests.unit.test_sdk_producer import scenario


@comet.model
class Quote:
    symbol: str
    bid: float = 0.0


QUOTES = [b'{"symbol":"EURUSD","bid":1.5}', b'{"symbol":"USDJPY"}']


def app(broker: FakeBroker, **settings: Any) -> App:
    return App(ADDRESS, connect=broker.connect, random=Random(4), **settings)


async def takes_event(quote: Quote) -> None: ...
async def takes_record(record: comet.Record[Quote]) -> None: ...
async def takes_list(quotes: list[Quote]) -> None: ...
async def takes_batch(batch: comet.RecordBatch[Quote]) -> None: ...
async def takes_bytes(value: bytes) -> None: ...
async def takes_bare_record(record: comet.Record) -> None: ...  # type: ignore[type-arg]
async def takes_anything(value) -> None: ...  # type: ignore[no-untyped-def]
def takes_sync(quote: Quote) -> None: ...


class Handlers:
    async def __call__(self, quote: Quote) -> None: ...
    async def method(self, quotes: list[bytes]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "shape", "kind"),
    [
        (takes_event, HandlerShape.MODEL, Quote),
        (takes_record, HandlerShape.RECORD, Quote),
        (takes_list, HandlerShape.MODELS, Quote),
        (takes_batch, HandlerShape.BATCH, Quote),
        (takes_bytes, HandlerShape.MODEL, None),
        (takes_bare_record, HandlerShape.RECORD, None),
        (takes_anything, HandlerShape.MODEL, None),
        (takes_sync, HandlerShape.MODEL, Quote),
        (Handlers(), HandlerShape.MODEL, Quote),
        (Handlers().method, HandlerShape.MODELS, None),
    ],
)
def test_the_annotation_says_what_a_handler_gets(handler: Any, shape: HandlerShape, kind: Any) -> None:
    signature = signature_of(handler, {})
    assert (signature.shape, signature.type) == (shape, kind)


@pytest.mark.parametrize(
    ("shared", "options"),
    [
        (False, {"lock_ms": 5_000}),
        (False, {"in_flight": 5}),
        (False, {"by_key": True}),
        (True, {"instance": "one"}),
        (True, {"isolation": "uncommitted"}),
        (True, {"on_out_of_range": "earliest"}),
        (True, {"on_gap": print}),
        (True, {"read_from": "nearest"}),
        (True, {"rack": "a"}),
        (True, {"buffer_bytes": 1 << 20}),
    ],
)
def test_what_a_handler_would_not_heed_is_refused(shared: bool, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(options))} is (not used with|only for) shared=True"):
        App(ADDRESS).on("quotes", group="g", shared=shared, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retries": 1}, "retries only for handlers of a group: give group="),
        ({"instance": "a"}, "instance is only for members of a group: give group="),
        ({"group": "g", "partitions": [0]}, "leave partitions out"),
        ({"group": "g", "auto_commit": True, "pattern": "q.*"}, "pattern is set by the app: leave it out"),
        ({"group": "g", "retries": -1}, "retries must be from 0 to"),
        ({"group": "g", "shared": True, "retries": 250}, "retries must be from 0 to 245"),
        ({"group": "g", "consumer": comet.ConsumerOptions()}, "reads with GroupOptions, not with ConsumerOptions"),
        ({"group": "g", "read_from": "nearest"}, 'give rack="..."'),
        ({"start": "tomorrow"}, "invalid position 'tomorrow'"),
    ],
)
def test_an_error_of_options_names_the_option_and_the_remedy(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        App(ADDRESS).on("quotes", **options)


def test_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown option 'retry'; ConsumerOptions has start, buffer_bytes"):
        App(ADDRESS).on("quotes", retry=3)  # type: ignore[call-arg]


def test_options_given_by_name_come_before_those_of_an_object() -> None:
    careful = comet.HandlerOptions(retries=5, dead_letter="failed")
    near = comet.GroupOptions(rack="a", start="earliest")
    assert handler_options("g", careful, near, {"retries": 1, "rack": "b"}) == (
        comet.HandlerOptions(retries=1, dead_letter="failed"), comet.GroupOptions(rack="b", start="earliest"),
    )  # fmt: skip
    assert handler_options("", None, None, {}) == (comet.HandlerOptions(), comet.ConsumerOptions(start="latest"))
    _, shared = handler_options("g", None, None, {"shared": True, "concurrency": 8})
    assert shared == comet.ShareOptions(in_flight=40)


def test_partitions_from_an_iterator_serve_each_consumer() -> None:
    options = comet.ConsumerOptions(partitions=iter([2, 0, 2]))
    assert [comet.ConsumerOptions(partitions=options.partitions).partitions, options.partitions] == [(0, 2), (0, 2)]


def test_handlers_that_cannot_be_called_are_refused() -> None:
    async def none() -> None: ...
    async def two(a: Quote, b: Quote) -> None: ...
    async def bare(quotes: list) -> None: ...  # type: ignore[type-arg]
    async def unknown(quote: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for wrong in (none, two, bare, unknown, 5):
        with pytest.raises(InvalidArgument):
            signature_of(wrong, {})  # type: ignore[arg-type]


@scenario()
async def test_every_shape_gets_its_events(broker: FakeBroker) -> None:
    fill(broker, QUOTES, per_batch=2)
    got: list[Any] = []
    a = app(broker)

    @comet.model
    class Local:
        symbol: str

    def note(item: Any) -> None:
        got.append(item)
        if len(got) == 6:
            a.stop()

    @a.on("quotes", start="earliest")
    async def event(quote: Local) -> None:
        note(quote)

    @a.on("quotes", start="earliest")
    async def events(quotes: list[Quote]) -> None:
        note(quotes)

    @a.on("quotes", start="earliest")
    def record(record: comet.Record[Quote]) -> None:
        note(record)

    @a.on("quotes", start="earliest")
    async def batch(batch: comet.RecordBatch[Quote]) -> None:
        note(batch.models())

    await a.serve()
    assert [item for item in got if isinstance(item, Local)] == [Local("EURUSD"), Local("USDJPY")]
    assert [item for item in got if isinstance(item, list)] == [[Quote("EURUSD", 1.5), Quote("USDJPY")]] * 2
    assert [item.offset for item in got if isinstance(item, comet.Record)] == [0, 1]
    assert sorted(one["handled"] for one in a.statistics()) == [1, 1, 2, 2]
    assert not broker.streams, "everything is closed"


@scenario()
async def test_a_handler_that_fails_stops_the_app_with_its_error(broker: FakeBroker) -> None:
    fill(broker, QUOTES)
    a = app(broker)
    other: list[str] = []

    @a.on("quotes", start="earliest")
    async def fails(quote: Quote) -> None:
        await asyncio.sleep(0.1)
        raise ZeroDivisionError("a bug")

    @a.on("quotes", start="earliest")
    async def works(quote: Quote) -> None:
        await asyncio.sleep(0.2)
        other.append(quote.symbol)

    with pytest.raises(ZeroDivisionError):
        await a.serve()
    assert other == ["EURUSD"], "what was under way is finished, nothing new is begun"


@scenario()
async def test_with_skip_a_handler_that_fails_is_logged_and_goes_on(broker: FakeBroker) -> None:
    fill(broker, [QUOTES[0], b"{broken", QUOTES[1]], per_batch=3)
    a = app(broker)
    seen: list[str] = []
    lists: list[int] = []

    @a.on("quotes", start="earliest", on_error="skip")
    async def one(quote: Quote) -> None:
        seen.append(quote.symbol)
        if quote.symbol == "EURUSD":
            raise ZeroDivisionError("a bug")
        finish()

    @a.on("quotes", start="earliest", on_error="skip")
    async def many(quotes: list[Quote]) -> None:
        lists.append(len(quotes))
        finish()

    def finish() -> None:
        if len(seen) == 2 and lists:
            a.stop()

    await a.serve()
    assert seen == ["EURUSD", "USDJPY"]
    assert lists == [2]
    found = a.statistics()[0]
    assert (found["failed"], found["skipped"]) == (1, 1)


@scenario()
async def test_a_malformed_record_stops_the_app_only_where_it_is_to(broker: FakeBroker) -> None:
    fill(broker, [b"{broken", QUOTES[0]], per_batch=2)
    a = app(broker)

    @a.on("quotes", start="earliest")
    async def handle(quote: Quote) -> None:
        a.stop()

    await a.serve()
    found = a.statistics()[0]
    assert (found["handled"], found["skipped"], found["failed"]) == (1, 1, 0)
    a = app(broker)
    a.on("quotes", start="earliest", on_malformed="stop")(takes_event)
    with pytest.raises(SerdeError):
        await a.serve()


@scenario()
async def test_an_app_without_its_topic_says_so(broker: FakeBroker) -> None:
    a = app(broker)
    a.on("nothing")(takes_event)
    with pytest.raises(TopicNotFound):
        await a.serve()


def test_a_handler_that_blocks_the_loop_is_named_with_how_long(caplog: pytest.LogCaptureFixture) -> None:
    ticks = iter(range(1000))

    @scenario()
    async def check(broker: FakeBroker) -> None:
        fill(broker, QUOTES)
        # A stopwatch on which everything takes a second.
        a = app(broker, stopwatch=lambda: float(next(ticks)), block_warning_ms=500)

        @a.on("quotes", start="earliest")
        async def slow(quote: Quote) -> None:
            a.stop()

        await a.serve()
        assert a.statistics()[0]["blocked_ms"] == 1000

    with caplog.at_level(logging.WARNING, "comet"):
        check()
    assert "slow" in caplog.text
    assert "1000 ms" in caplog.text


@scenario()
async def test_the_watch_passes_results_errors_and_cancellation_on(broker: FakeBroker) -> None:
    reports: list[float] = []
    clock = iter(range(0, 1000, 7))

    async def watch(work: Any) -> Any:
        return await watched(work, lambda: float(next(clock)), 5.0, reports.append)

    async def result() -> int:
        await asyncio.sleep(0.01)
        return 5

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise KeyError("x")

    async def cleans_up(done: list[int]) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            done.append(1)
            raise

    assert await watch(result()) == 5
    with pytest.raises(KeyError):
        await watch(fails())
    done: list[int] = []
    task = asyncio.create_task(watch(cleans_up(done)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
    assert reports
    assert set(reports) == {7.0}


def test_handlers_are_registered_with_sense_or_not_at_all() -> None:
    a = App("localhost")
    with pytest.raises(InvalidArgument):
        a.on("no topic!")
    with pytest.raises(InvalidArgument):
        a.on("quotes", on_error="retry")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no handlers"):
        asyncio.run(a.serve())
