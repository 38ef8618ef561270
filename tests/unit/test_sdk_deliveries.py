"""At most and at least once, with handlers that fail and partitions that go. On virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import comet
from comet import records
from comet.errors import InvalidArgument, StaleGeneration, Unavailable
from tests.unit.delivery_world import P0, P1, letters, scenario, stop_when
from tests.unit.sdk_fake_group import FakeGroup, GroupApp
from tests.unit.sdk_fake_transactions import TransactionBroker


@scenario()
async def test_at_least_once_commits_after_the_handler(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    seen: list[tuple[bytes, int]] = []

    @a.on("in", group="g")
    async def handle(value: bytes) -> None:
        seen.append((value, group.committed[P0]))
        await asyncio.sleep(0.2)

    group.write(P0, *letters(10))
    stop_when(a, lambda: len(seen) == 10)
    await a.serve()
    assert [value for value, _ in seen] == letters(10)
    assert all(committed <= n for n, (_, committed) in enumerate(seen)), "nothing ahead of the handler"
    assert seen[-1][1] > 0, "and not only at the end"
    assert group.committed == {P0: 10, P1: 0}
    assert a.statistics()[0]["handled"] == 10


@scenario()
async def test_an_app_that_stops_finishes_what_it_is_at_and_commits_it(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g")
    async def handle(value: bytes) -> None:
        if value == b"2":
            a.stop()
            await asyncio.sleep(1)

    group.write(P0, *letters(10))
    await a.serve()
    assert group.committed[P0] == 3


@scenario()
async def test_a_handler_that_fails_is_called_again_and_then_the_app_ends(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    calls: list[tuple[bytes, float]] = []

    @a.on("in", group="g", retries=3, backoff_ms=1000)
    async def handle(value: bytes) -> None:
        calls.append((value, asyncio.get_running_loop().time()))
        if value == b"1":
            raise ZeroDivisionError

    group.write(P0, *letters(3))
    with pytest.raises(ZeroDivisionError):
        await a.serve()
    assert [value for value, _ in calls] == [b"0", b"1", b"1", b"1", b"1"]
    waits = [later - sooner for (_, sooner), (_, later) in pairwise(calls[1:])]
    assert 0.5 <= waits[0] <= 1 <= waits[1] <= 2 <= waits[2] <= 4, "about 1, 2 and 4 s"
    assert group.committed[P0] == 1


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_fails_for_good_goes_to_the_dead_letter_topic_as_it_was(delivery: Any) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        @a.on("in", group="g", retries=1, backoff_ms=1, dead_letter="dead", delivery=delivery)
        async def handle(number: int) -> None:
            if number == 2:
                raise ZeroDivisionError("two")

        group.write(P0, b"1", b"2", b"x", b"4", key=b"k")
        stop_when(a, lambda: group.committed[P0] == 4)
        await a.serve()
        dead = [batch for _, batch in broker.topics["dead"][0].batches]
        found = [
            record
            for header, batch in broker.topics["dead"][0].batches
            if not header.transactional or broker.outcomes[header.producer_id, header.producer_epoch]
            for record in zip(
                *(getattr(records.decode(batch), name) for name in ("values", "keys", "headers", "timestamps")),
                strict=True,
            )
        ]
        assert dead
        assert [(value, key, time) for value, key, _, time in found] == [(b"2", b"k", 7), (b"x", b"k", 7)]
        headers = dict(found[0][2])
        assert int(headers.pop("comet-dead-letter-time-us")) > 0
        frames = headers.pop("comet-dead-letter-traceback").decode()
        assert 'raise ZeroDivisionError("two")' in frames
        assert len(frames.encode()) <= 4_000
        assert headers == {
            "comet-dead-letter-topic": b"in",
            "comet-dead-letter-partition": b"0",
            "comet-dead-letter-offset": b"1",
            "comet-dead-letter-group": b"g",
            "comet-dead-letter-attempts": b"2",
            "comet-dead-letter-reason": b"ZeroDivisionError: two",
        }
        assert b"SerdeError" in dict(found[1][2])["comet-dead-letter-reason"]
        statistics = a.statistics()[0]
        assert (statistics["handled"], statistics["dead_lettered"]) == (2, 2)

    check()


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once", "exactly_once"])
def test_malformed_records_are_skipped_counted_and_logged(
    delivery: Any, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    if delivery == "at_most_once" and concurrency > 1:
        return

    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        seen: list[int] = []

        @a.on("in", group="g", delivery=delivery, concurrency=concurrency)
        async def handle(number: int) -> None:
            seen.append(number)

        group.write(P0, b"1", b"x", *[b"y"] * 50, b"4", key=b"k")
        stop_when(a, lambda: len(seen) == 2 and group.committed[P0] == 53)
        await a.serve()
        assert seen == [1, 4]
        found = a.statistics()[0]
        assert (found["handled"], found["skipped"], found["failed"]) == (2, 51, 0)

    check()
    said = [record.message for record in caplog.records if "malformed" in record.message]
    assert len(said) == 1, "one line a second"
    assert "skipped malformed records, 1 so far: record 1 of in/0: cannot decode as int" in said[0]
    assert 'dead_letter="in-failed"' in said[0]


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once", "exactly_once"])
def test_a_malformed_record_ends_the_app_where_it_is_to_stop(delivery: Any) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        @a.on("in", group="g", delivery=delivery, on_malformed="stop", on_error="skip")
        async def handle(number: int) -> None: ...

        group.write(P0, b"1", b"x", b"3")
        with pytest.raises(comet.SerdeError):
            await a.serve()
        assert a.statistics()[0]["failed"] == 1

    check()


@scenario()
async def test_a_dead_letter_that_cannot_be_written_does_not_count_as_done(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g", dead_letter="nowhere")
    async def handle(value: bytes) -> None:
        raise ZeroDivisionError

    group.write(P0, b"1")
    with pytest.raises(comet.TopicNotFound):
        await a.serve()
    assert group.committed[P0] == 0


@scenario()
async def test_with_skip_what_fails_is_done(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
    @a.on("in", group="g", on_error="skip")
    async def handle(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError

    group.write(P0, b"1", b"2", b"x", b"4")
    stop_when(a, lambda: group.committed[P0] == 4)
    await a.serve()
    found = a.statistics()[0]
    assert (found["handled"], found["failed"], found["skipped"]) == (2, 1, 1)


@scenario()
async def test_several_run_at_once_but_one_per_key_and_the_commit_stays_below_what_runs(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    running: list[bytes] = []
    done: list[bytes] = []
    most = [0]

    @a.on("in", group="g", concurrency=4)
    async def handle(record: comet.Record[bytes]) -> None:
        assert record.key is not None
        assert record.key not in running
        running.append(record.key)
        most[0] = max(most[0], len(running))
        await asyncio.sleep(5 if record.value == b"0" else 0.1)
        running.remove(record.key)
        done.append(record.value)
        assert record.value == b"0" or group.committed[P0] <= 0 or b"0" in done

    for n in range(20):
        group.write(P0, b"%d" % n, key=b"ab"[n % 2 : n % 2 + 1] if n < 10 else b"%d" % n)
    group.write(P1, b"x", key=b"y")
    stop_when(a, lambda: len(done) == 21)
    await a.serve()
    assert [value for value in done if value in {b"0", b"2", b"4", b"6", b"8"}] == [b"0", b"2", b"4", b"6", b"8"]
    assert [value for value in done if value in {b"1", b"3", b"5"}] == [b"1", b"3", b"5"]
    assert most[0] >= 3
    assert group.committed == {P0: 20, P1: 1}


@scenario()
async def test_a_failure_among_several_ends_the_app_and_is_not_committed(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    finished: list[bytes] = []

    @a.on("in", group="g", concurrency=3)
    async def handle(value: bytes) -> None:
        if value == b"1":
            await asyncio.sleep(0.1)
            raise ZeroDivisionError
        await asyncio.sleep(1)
        finished.append(value)

    group.write(P0, *letters(10))
    with pytest.raises(ZeroDivisionError):
        await a.serve()
    assert sorted(finished) == [b"0", b"2"], "what ran finishes, nothing more is begun"
    assert group.committed[P0] == 1


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_partition_that_goes_is_finished_committed_and_then_released(concurrency: int, delivery: Any) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        seen: list[bytes] = []

        @a.on(
            "in", group="g", concurrency=concurrency, delivery=delivery, transaction_records=concurrency,
            transaction_ms=1,
        )  # fmt: skip
        async def handle(value: bytes) -> None:
            await asyncio.sleep(1)
            seen.append(value)

        group.write(P0, *letters(10))
        serving = asyncio.ensure_future(a.serve())
        await asyncio.sleep(1.5)
        begun = asyncio.get_running_loop().time()
        await group.member.revoke(P0)
        assert 0.4 < asyncio.get_running_loop().time() - begun < 0.6, "what ran was waited for"
        assert len(seen) == group.committed[P0] == 2 * concurrency, "and committed"
        await asyncio.sleep(5)
        assert len(seen) == 2 * concurrency, "nothing more of it"
        group.write(P1, b"other")
        await asyncio.sleep(2)
        assert seen[-1] == b"other"
        group.member.gain(P0)
        await asyncio.sleep(20)
        assert sorted(seen) == sorted([*letters(10), b"other"]), "it goes on where it was"
        a.stop()
        await serving
        assert group.committed == {P0: 10, P1: 1}

    check()


@scenario()
async def test_a_handler_that_does_not_finish_keeps_no_partition_for_ever(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g")
    async def handle(value: bytes) -> None:
        await asyncio.sleep(100)

    group.write(P0, *letters(2))
    serving = asyncio.ensure_future(a.serve())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await group.member.revoke(P0)
    assert 29 < asyncio.get_running_loop().time() - began < 31
    await asyncio.sleep(100)
    a.stop()
    await serving
    assert group.committed[P0] == 0, "it was another's when the handler was done"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_was_lost_is_not_committed(concurrency: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        seen: list[bytes] = []

        @a.on("in", group="g", concurrency=concurrency)
        async def handle(value: bytes) -> None:
            seen.append(value)
            await asyncio.sleep(1)

        group.write(P0, *letters(4))
        serving = asyncio.ensure_future(a.serve())
        await asyncio.sleep(0.5)
        group.member.lose(P0)
        await asyncio.sleep(3)
        assert seen == letters(concurrency), "nothing more is begun"
        assert group.committed[P0] == 0
        a.stop()
        await serving
        assert group.committed[P0] == 0

    check()


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_is_no_event_is_passed_over_once_nothing_is_to_be_done(concurrency: int, delivery: Any) -> None:
    """Else a group would seem to be behind for ever by the mark at the end of a transaction."""

    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        held = asyncio.Event()

        @a.on("in", group="g", concurrency=concurrency, delivery=delivery)
        async def handle(value: bytes) -> None:
            if value == b"4":
                await held.wait()

        group.write(P0, *letters(5))
        serving = asyncio.ensure_future(a.serve())
        await asyncio.sleep(2)
        group.member.at[P0] = 6  # behind a mark
        await asyncio.sleep(2)
        assert group.committed[P0] < 5, "the last is not done"
        held.set()
        await asyncio.sleep(2)
        assert group.committed[P0] == 6
        commits = len(group.commits)
        await asyncio.sleep(5)
        assert len(group.commits) == commits, "and not again and again"
        await group.member.revoke(P0)
        a.stop()
        await serving
        assert group.committed[P0] == 6

    check()


@scenario()
async def test_commits_that_fail_for_now_are_made_up_for(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g")
    async def handle(value: bytes) -> None: ...

    group.write(P0, *letters(10))
    group.refuse = Unavailable("no coordinator")
    serving = asyncio.ensure_future(a.serve())
    await asyncio.sleep(5)
    group.refuse = None
    await asyncio.sleep(1)
    assert group.committed[P0] == 10
    a.stop()
    await serving


# ---- at most once


@scenario()
async def test_at_most_once_commits_before_the_handler(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    seen: list[tuple[bytes, int]] = []
    group.batch_records = 250

    @a.on("in", group="g", delivery="at_most_once")
    async def handle(value: bytes) -> None:
        seen.append((value, group.committed[P0]))

    group.write(P0, *letters(250))
    stop_when(a, lambda: len(seen) == 250)
    await a.serve()
    assert [value for value, _ in seen] == letters(250)
    assert [committed for _, committed in seen] == [100] * 100 + [200] * 100 + [250] * 50


@scenario()
async def test_at_most_once_handles_nothing_that_it_could_not_commit(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    seen: list[bytes] = []

    @a.on("in", group="g", delivery="at_most_once", on_error="skip")
    async def handle(value: bytes) -> None:
        seen.append(value)
        if value == b"2":
            raise ZeroDivisionError("not called again")

    group.refuse = StaleGeneration("not yours")
    group.write(P0, *letters(5))
    stop_when(a, lambda: len(seen) == 5)
    serving = asyncio.ensure_future(a.serve())
    await asyncio.sleep(1)
    assert not seen
    group.refuse = Unavailable("later")
    group.write(P0, *letters(5))
    await asyncio.sleep(1)
    assert not seen
    group.refuse = None
    await serving
    assert seen == letters(5)
    assert group.committed[P0] == 10


def test_options_that_do_not_go_together_are_refused() -> None:
    async def takes(value: bytes) -> None: ...
    async def takes_list(values: list[bytes]) -> None: ...
    async def takes_transaction(value: bytes, tx: comet.Transaction) -> None: ...

    a = comet.App("localhost")
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (takes, {"delivery": "exactly_once"}),
        (takes, {"retries": 1}),
        (takes, {"shared": True}),
        (takes, {"group": "g", "delivery": "twice"}),
        (takes, {"group": "g", "delivery": "at_most_once", "retries": 1}),
        (takes, {"group": "g", "delivery": "at_most_once", "concurrency": 2}),
        (takes, {"group": "g", "shared": True, "delivery": "exactly_once"}),
        (takes_list, {"group": "g", "shared": True}),
        (takes_transaction, {"group": "g"}),
        (takes_transaction, {}),
        (takes, {"group": "g", "retries": -1}),
        (takes, {"group": "g", "concurrency": 0}),
        (takes, {"group": "g", "dead_letter": "no topic!"}),
        (takes, {"group": "g", "dead_letter": "dead", "on_error": "skip"}),
        (takes, {"group": "g", "dead_letter": "dead", "on_malformed": "stop"}),
        (takes, {"on_malformed": "log"}),
        (takes, {"group": "g", "partitions": [1]}),
    ]
    for handler, options in wrong:
        with pytest.raises(InvalidArgument):
            a.on("in", **options)(handler)
