"""Delayed retries of handlers: what is written to the retry topic, and when a record is given up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import comet
from comet.errors import InvalidArgument, RecordTooLarge

DELAYS = ("1m", timedelta(hours=1))


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now_us


def failing_app(
    seen: list[Any], *, succeeds_in_round: int = 99, clock: Clock | None = None, **options: Any
) -> comet.App:
    """An app whose handler notes the topic and the round of each call."""
    app = comet.App(clock_us=clock or Clock())

    @app.on("orders", group="g", retry_topic="orders-retry", retry_delays=DELAYS, **options)
    async def handle(record: comet.Record[bytes]) -> None:
        about = dict(record.headers)
        turn = int(about.get("comet-retry-round", b"0"))
        seen.append((record.topic, turn))
        if turn < succeeds_in_round:
            raise ZeroDivisionError(f"a bug in round {turn}")

    return app


def headers_of(record: comet.Record[Any], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value.decode() for name, value in record.headers if name.startswith(prefix)}


def test_each_delay_gives_a_round_of_calls_and_then_it_is_a_dead_letter() -> None:
    async def main() -> None:
        seen = list[Any]()
        clock = Clock()
        app = failing_app(seen, clock=clock, retries=1, dead_letter="orders-failed")
        async with app.test() as test:
            await test.publish("orders", b"7", key="ann", headers={"source": "test"}, timestamp_us=5)
            assert seen == [("orders", 0)] * 2
            assert test.records("orders-retry") == []
            await test.fire_delayed()
            assert seen[2:] == [("orders-retry", 1)] * 2
            (first,) = test.records("orders-retry")
            assert (first.key_text, first.value, first.timestamp_us) == ("ann", b"7", clock.now_us + 60_000_000)
            assert first.headers[0] == ("source", b"test")
            assert headers_of(first, "comet-retry-") == {
                "topic": "orders", "partition": "0", "offset": "0", "group": "g", "attempts": "2",
                "reason": "ZeroDivisionError: a bug in round 0", "timestamp-us": "5", "round": "1",
            }  # fmt: skip
            with pytest.raises(ZeroDivisionError, match="round 2"):
                await test.fire_delayed()
            assert seen[4:] == [("orders-retry", 2)] * 2
            _, second = test.records("orders-retry")
            assert second.timestamp_us == clock.now_us + 3_600_000_000
            assert [name for name, _ in second.headers if name == "comet-schedule-id"] == ["comet-schedule-id"]
            about = headers_of(second, "comet-retry-")
            assert (about["topic"], about["offset"], about["attempts"], about["round"]) == ("orders", "0", "4", "2")
            (letter,) = test.dead_letters()
            assert (letter.origin, letter.attempts, letter.record.timestamp_us) == ("orders", 6, 5)
            assert letter.reason == "ZeroDivisionError: a bug in round 2"
            assert [name for name, _ in letter.record.headers if not name.startswith("comet-dead-letter-")] == [
                "source"
            ]
            await test.fire_delayed()
        assert len(seen) == 6
        main, retries = app.statistics()
        assert (main["topic"], main["delayed"], main["failed"], main["retried"]) == ("orders", 1, 0, 1)
        assert (retries["topic"], retries["delayed"], retries["failed"], retries["dead_lettered"]) == (
            "orders-retry", 1, 1, 1,
        )  # fmt: skip
        assert 'comet_app_delayed_total{handler="' in app.metrics()

    asyncio.run(main())


def test_a_record_that_succeeds_in_a_later_round_is_done() -> None:
    async def main() -> None:
        seen = list[Any]()
        app = failing_app(seen, succeeds_in_round=1, dead_letter="orders-failed")
        async with app.test() as test:
            await test.publish("orders", b"7")
            await test.fire_delayed()
            await test.fire_delayed()
            assert test.dead_letters() == []
        assert seen == [("orders", 0), ("orders-retry", 1)]

    asyncio.run(main())


def test_without_a_dead_letter_topic_on_error_decides_after_the_last_round() -> None:
    async def main() -> None:
        seen = list[Any]()
        app = failing_app(seen, on_error="skip")
        async with app.test(raise_errors=False) as test:
            await test.publish("orders", b"7")
            for _ in DELAYS:
                await test.fire_delayed()
        assert [turn for _, turn in seen] == [0, 1, 2]
        assert app.statistics()[1]["failed"] == 1

    asyncio.run(main())


def test_the_rest_of_its_time_to_live_is_kept_and_what_would_expire_is_given_up() -> None:
    async def main() -> None:
        seen, clock = list[Any](), Clock()
        app = failing_app(seen, clock=clock, dead_letter="orders-failed")
        async with app.test(raise_errors=False) as test:
            await test.publish("orders", b"long", ttl_ms=3_600_000)
            (delayed,) = test.log.delayed
            assert delayed.ttl_ms == 3_540_000, "an hour less the minute of the delay"
            await test.fire_delayed()
            assert test.log.delayed == [], "after another hour it has expired"
            await test.publish("orders", b"short", ttl_ms=60_000)
            assert test.log.delayed == []
            assert [letter.record.value for letter in test.dead_letters()] == [b"long", b"short"]

    asyncio.run(main())


def test_a_record_that_is_read_again_is_stored_once() -> None:
    async def main() -> None:
        app = failing_app([])
        async with app.test() as test:
            await test.publish("orders", b"7")
            await test.publish("orders", b"8")
            for topic, batch in [("orders", batch) for batch in test.log.topics["orders"]]:
                test.log.arrived.append((topic, batch))  # as after a crash before the commit
            await test.settle()
            assert [one.value for one in test.log.delayed] == [b"7", b"8"]
            assert len({one.id for one in test.log.delayed}) == 2

    asyncio.run(main())


def test_groups_may_share_a_retry_topic() -> None:
    async def main() -> None:
        app, seen = comet.App(), list[str]()

        def handler(group: str) -> Any:
            @app.on("orders", group=group, retry_topic="retry", retry_delays=["1m"], on_error="skip")
            async def handle(record: comet.Record[bytes]) -> None:
                seen.append(f"{group} {record.topic}")
                if group == "b" and record.topic == "orders":
                    raise ZeroDivisionError

            return handle

        for group in "ab":
            handler(group)
        async with app.test() as test:
            await test.publish("orders", b"7")
            await test.fire_delayed()
            assert seen == ["a orders", "b orders", "b retry"]
            await test.publish("retry", b"by hand", headers={"comet-retry-round": "many"})
            assert seen[3:] == ["a retry", "b retry"], "a record without a group is one as any"
            assert [one["failed"] for one in app.statistics()] == [0] * 4

    asyncio.run(main())


def test_a_record_of_another_group_that_cannot_be_decoded_is_left_to_it() -> None:
    async def main() -> None:
        app = comet.App()

        @app.on("orders", group="g", retry_topic="retry", retry_delays=[5], dead_letter="failed")
        async def handle(order: dict[str, Any]) -> None: ...

        async with app.test() as test:
            await test.publish("retry", b"?", headers={"comet-retry-group": "other"})
            assert test.dead_letters() == []

    asyncio.run(main())


@pytest.mark.parametrize("stamp", ["-1", "9" * 30, "soon"])
def test_headers_that_a_retry_cannot_have_name_no_origin(stamp: str) -> None:
    async def main() -> None:
        app = failing_app([], dead_letter="orders-failed")
        about = {"topic": "else", "partition": "0", "offset": "1", "attempts": "1", "round": "9", "timestamp-us": stamp}
        async with app.test(raise_errors=False) as test:
            await test.publish(
                "orders-retry", b"7", headers={f"comet-retry-{name}": text for name, text in about.items()}
            )
            for _ in DELAYS:
                await test.fire_delayed()
            (letter,) = test.dead_letters()
            assert letter.origin == "orders-retry"

    asyncio.run(main())


def test_a_record_that_cannot_be_decoded_is_not_retried() -> None:
    async def main() -> None:
        app = comet.App()

        @app.on("orders", group="g", retry_topic="retry", retry_delays=[5], dead_letter="failed")
        async def handle(order: dict[str, Any]) -> None: ...

        async with app.test(raise_errors=False) as test:
            await test.publish("orders", b"?")
            assert test.log.delayed == []
            assert len(test.dead_letters()) == 1

    asyncio.run(main())


def test_filters_and_starts_are_for_the_topic_alone() -> None:
    app = comet.App()

    @app.on("orders", group="g", retry_topic="retry", retry_delays=[5], filter="pieces > 3", instance="one")
    async def handle(order: dict[str, Any]) -> None: ...

    main, retries = app._bindings
    assert (main.reading.filter, main.reading.start, main.reading.instance) == ("pieces > 3", "latest", "one")  # type: ignore[union-attr]
    assert (retries.reading.filter, retries.reading.start) == ("", "earliest")
    assert retries.reading.instance == "one-retries"  # type: ignore[union-attr]


def test_a_record_that_cannot_be_delayed_is_given_up_and_other_errors_end_the_app() -> None:
    async def main() -> None:
        for error, expected in (
            (RecordTooLarge("too large"), ZeroDivisionError),
            (comet.Timeout("away"), comet.Timeout),
        ):
            app = failing_app([])
            async with app.test(raise_errors=False) as test:

                async def refused(*_: Any, error: Exception = error, **__: Any) -> None:
                    raise error

                test.producer.publish = refused  # type: ignore[method-assign]
                await test.producer.send("orders", b"7")
                with pytest.raises(expected):
                    await test.settle()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retry_topic": "retry"}, "go together"),
        ({"retry_delays": [5]}, "go together"),
        ({"retry_topic": "retry", "retry_delays": "5m"}, "is a list"),
        ({"retry_topic": "retry", "retry_delays": ["5"]}, "no unit"),
        ({"retry_topic": "retry", "retry_delays": [-1]}, "a delay is from 0"),
        ({"retry_topic": "retry", "retry_delays": [1] * 101}, "retry_delays"),
        ({"retry_topic": "no topic", "retry_delays": [5]}, "no topic"),
        ({"retry_topic": "failed", "retry_delays": [5], "dead_letter": "failed"}, "are the same"),
        ({"retry_topic": "orders", "retry_delays": [5]}, "give it another topic"),
        ({"retry_topic": "retry", "retry_delays": [5], "delivery": "exactly_once"}, "at_least_once"),
        ({"retry_topic": "retry", "retry_delays": [5], "shared": True}, "shared=False"),
        ({"retry_topic": "retry", "retry_delays": [5], "group": ""}, "give group="),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], text: str) -> None:
    app = comet.App()

    async def handle(order: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidArgument, match=text):
        app.on("orders", **{"group": "g", **options})(handle)


def test_lists_are_refused_and_so_is_a_retry_topic_of_two_handlers() -> None:
    app = comet.App()

    async def many(orders: list[dict[str, Any]]) -> None: ...

    async def one(order: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidArgument, match="single records"):
        app.on("orders", group="g", retry_topic="retry", retry_delays=[5])(many)
    app.on("orders", group="g", retry_topic="retry", retry_delays=[5])(one)
    with pytest.raises(InvalidArgument, match="its own retry_topic"):
        app.on("trades", group="g", retry_topic="retry", retry_delays=[5])(one)


def test_the_document_of_an_app_names_its_retry_topic() -> None:
    app = failing_app([], dead_letter="orders-failed")
    document = app.asyncapi()
    assert set(document["channels"]) == {"orders", "orders-retry", "orders-failed"}
    found = sorted((one["action"], one["channel"]["$ref"]) for one in document["operations"].values())
    assert found == [
        ("receive", "#/channels/orders"), ("receive", "#/channels/orders-retry"),
        ("send", "#/channels/orders-failed"), ("send", "#/channels/orders-retry"),
    ]  # fmt: skip
