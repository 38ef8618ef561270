"""At most, at least and exactly once, with handlers that fail and partitions that go. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

import comet
from comet import records
from comet.errors import InvalidArgument, SerdeError, StaleGeneration, TransactionAborted, Unavailable
from comet.v1 import groups_pb2 as groups_pb
from tests.sim.loop import run
from tests.unit.sdk_fake import Fate
from tests.unit.sdk_fake_group import FakeGroup, GroupApp, Place
from tests.unit.sdk_fake_transactions import TransactionBroker

P0: Place = ("in", 0)
P1: Place = ("in", 1)
Scenario = Callable[[TransactionBroker, FakeGroup, GroupApp], Awaitable[None]]


def scenario(**settings: Any) -> Callable[[Scenario], Callable[[], None]]:
    def make(function: Scenario) -> Callable[[], None]:
        async def main() -> None:
            broker = TransactionBroker({"out": 1, "dead": 1, "in": 2})
            group = FakeGroup([P0, P1])

            def check(commit: groups_pb.Commit) -> None:
                group.member.check(commit)

            broker.check_group = check
            await function(broker, group, GroupApp(broker, group, **settings))
            assert all(member.closed for member in group.members)
            assert not broker.streams

        def test() -> None:
            run(lambda loop: main())

        test.__doc__ = function.__doc__
        return test

    return make


def letters(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


def stop_when(a: GroupApp, ready: Callable[[], bool]) -> asyncio.Future[None]:
    async def watch() -> None:
        while not ready():  # noqa: ASYNC110 - what it waits for is in handlers' lists, and time is virtual
            await asyncio.sleep(0.01)
        a.stop()

    return asyncio.ensure_future(watch())


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
    assert (a.statistics()[0]["handled"], a.statistics()[0]["failed"]) == (2, 2)


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


# ---- exactly once


def written(broker: TransactionBroker) -> list[bytes | None]:
    return broker.committed("out")


def upper(a: GroupApp, **options: Any) -> dict[str, Any]:
    """An app that copies, and fails as told by what it returns."""
    told: dict[str, Any] = {"fail": {}, "calls": []}

    @a.on("in", group="g", delivery="exactly_once", **options)
    async def handle(record: comet.Record[bytes]) -> None:
        told["calls"].append(record.value)
        await a.send("out", record.value + b"!")
        if told["fail"].get(record.value, 0) > 0:
            told["fail"][record.value] -= 1
            raise ZeroDivisionError(record.value)

    return told


def marked(n: int) -> list[bytes]:
    return [letter + b"!" for letter in letters(n)]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_outputs_and_positions_are_committed_together(concurrency: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        upper(a, transaction_records=10, concurrency=concurrency)
        group.write(P0, *letters(25), key=b"k")
        stop_when(a, lambda: group.committed[P0] == 25)
        await a.serve()
        assert written(broker) == marked(25)
        assert len([one for one in broker.endings if one.commit]) == 3
        assert a.statistics()[0]["handled"] == 25

    check()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_handler_that_fails_aborts_and_everything_is_handled_again(concurrency: int) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        told = upper(a, retries=3, backoff_ms=10, concurrency=concurrency)
        told["fail"] = {b"3": 2}
        group.write(P0, *letters(10), key=b"k")
        stop_when(a, lambda: group.committed[P0] == 10)
        await a.serve()
        assert told["calls"].count(b"0") == 3
        assert written(broker) == marked(10)
        assert a.statistics()[0]["retried"] == 2

    check()


@scenario()
async def test_after_the_last_attempt_the_app_ends_with_nothing_committed(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    told = upper(a, retries=1, backoff_ms=10)
    told["fail"] = {b"3": 9}
    group.write(P0, *letters(5))
    with pytest.raises(ZeroDivisionError):
        await a.serve()
    assert written(broker) == []
    assert group.committed[P0] == 0


@scenario()
async def test_a_record_that_is_no_event_ends_the_app_too(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    @a.on("in", group="g", delivery="exactly_once")
    async def handle(number: int) -> None: ...

    group.write(P0, b"1", b"x")
    with pytest.raises(SerdeError):
        await a.serve()
    assert group.committed[P0] == 0


@scenario()
async def test_with_skip_the_rest_of_the_transaction_is_committed(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    told = upper(a, on_error="skip")
    told["fail"] = {b"3": 9}
    group.write(P0, *letters(5))
    stop_when(a, lambda: group.committed[P0] == 5)
    await a.serve()
    assert written(broker) == [b"0!", b"1!", b"2!", b"4!"]
    assert a.statistics()[0]["failed"] == 1


@scenario()
async def test_a_transaction_that_is_aborted_by_others_is_done_again(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    upper(a)
    fates: list[Any] = [TransactionAborted("time is over"), StaleGeneration("a moment"), Fate.WRITTEN]
    broker.ends = lambda ending: fates.pop(0) if fates and ending.commit else Fate.WRITTEN
    group.write(P0, *letters(5))
    stop_when(a, lambda: group.committed[P0] == 5)
    await a.serve()
    assert written(broker) == marked(5)


@pytest.mark.parametrize("is_written", [True, False])
def test_when_nobody_knows_the_group_is_asked(is_written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    @scenario()
    async def check(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
        upper(a)
        broker.ends = lambda ending: Fate.WRITTEN_UNANSWERED if is_written else Fate.LOST
        group.write(P0, *letters(5))
        serving = asyncio.ensure_future(a.serve())
        await asyncio.sleep(50)
        broker.ends = lambda ending: Fate.WRITTEN
        await asyncio.sleep(50)
        assert len(group.members) == 2, "it begins anew as another member"
        assert group.committed[P0] == 5
        assert written(broker) == marked(5)
        a.stop()
        await serving

    check()


@scenario()
async def test_records_of_a_lost_partition_are_left_out(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    entered = asyncio.Event()

    @a.on("in", group="g", delivery="exactly_once")
    async def handle(record: comet.Record[bytes]) -> None:
        await a.publish("out", record.value)
        if record.value == b"b" and not entered.is_set():
            entered.set()
            await asyncio.sleep(1)

    group.write(P0, b"a")
    group.write(P1, b"b")
    serving = asyncio.ensure_future(a.serve())
    await entered.wait()
    group.member.lose(P0)
    await asyncio.sleep(5)
    assert written(broker) == [b"b"]
    assert group.committed == {P0: 0, P1: 1}
    a.stop()
    await serving


@scenario()
async def test_a_handler_may_take_its_transaction(broker: TransactionBroker, group: FakeGroup, a: GroupApp) -> None:
    @a.on("in", group="g", delivery="exactly_once")
    async def handle(values: list[bytes], tx: comet.Transaction) -> None:
        await tx.send_many("out", values)

    group.write(P0, *letters(7))
    stop_when(a, lambda: group.committed[P0] == 7)
    await a.serve()
    assert written(broker) == letters(7)


# ---- app.transaction


@scenario()
async def test_a_handler_commits_its_message_with_what_it_sends(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    fail = [1]

    @a.on("in", group="g", retries=5, backoff_ms=1)
    async def handle(record: comet.Record[bytes]) -> None:
        async with a.transaction(record) as tx:
            await tx.send("out", record.value)
            if record.value == b"2" and fail:
                fail.pop()
                raise ZeroDivisionError

    group.write(P0, *letters(5))
    stop_when(a, lambda: len(written(broker)) == 5)
    await a.serve()
    assert written(broker) == letters(5)
    assert broker.offsets["g", "in", 0] == 5
    assert len(broker.names) == 1, "one producer does it all"


@scenario()
async def test_a_transaction_belongs_into_a_handler_that_can_commit_it(
    broker: TransactionBroker, group: FakeGroup, a: GroupApp
) -> None:
    record = comet.Record("in", 0, 1, None, b"", 0, [])
    with pytest.raises(InvalidArgument):
        async with a.transaction(record):
            pass
    async with a.transaction() as tx:  # alone
        await tx.send("out", b"1")
    assert written(broker) == [b"1"]

    @a.on("in", group="g", concurrency=2)
    async def handle(record: comet.Record[bytes]) -> None:
        async with a.transaction(record):
            pass

    group.write(P0, b"1")
    with pytest.raises(InvalidArgument, match="concurrency"):
        await a.serve()


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
        (takes, {"group": "g", "partitions": [1]}),
    ]
    for handler, options in wrong:
        with pytest.raises(InvalidArgument):
            a.on("in", **options)(handler)
