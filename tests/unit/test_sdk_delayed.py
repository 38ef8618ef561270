"""Delayed records of a producer against a broker that refuses, forgets, freezes and goes away. On virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

import comet
from comet import limits
from comet.errors import (
    Closed,
    CometError,
    Forbidden,
    InvalidArgument,
    LimitExceeded,
    PartitionNotFound,
    RecordTooLarge,
    Timeout,
    TopicNotFound,
    Unavailable,
)
from comet.producer.delayed_record import due_time
from comet.producer.delivery import ScheduledDelivery
from comet.producer.producer import Producer
from comet.producer.transaction import TransactionalProducer
from comet.v1 import records_pb2 as pb
from comet.v1 import schedules_pb2 as schedules
from comet.wire.acting import ActingFor
from comet_testing.simulation.loop import run
from tests.unit.sdk_fake import ADDRESS, FakeBroker
from tests.unit.sdk_fake_schedules import NOW_US, FakeSchedules
from tests.unit.sdk_fake_transactions import TransactionBroker

Scenario = Callable[[FakeSchedules], Awaitable[None]]


def scenario(topics: dict[str, int] | None = None) -> Callable[[Scenario], Callable[[], None]]:
    """Makes a test of a coroutine that is given a fresh broker."""

    def make(function: Scenario) -> Callable[[], None]:
        def test() -> None:
            run(lambda loop: function(FakeSchedules(topics)))  # type: ignore[arg-type,return-value]

        test.__doc__ = function.__doc__
        return test

    return make


def producer(broker: FakeBroker, **settings: Any) -> Producer:
    settings.setdefault("clock_us", lambda: NOW_US)
    return Producer(ADDRESS, connect=broker.connect, random=Random(1), **settings)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [
        (timedelta(minutes=5), 300_000), (timedelta(microseconds=1_499), 1), (5, 5_000), (1.1, 1_100), (0, 0),
        ("5m", 300_000), ("1.5h", 5_400_000), (" 250ms ", 250), (timedelta(days=366), limits.DELAY_MS_MAX),
    ],
)  # fmt: skip
def test_a_delay_is_a_duration(delay: Any, delay_ms: int) -> None:
    assert due_time(delay, None) == (delay_ms, None)


@pytest.mark.parametrize(
    "delay", [-1, timedelta(seconds=-1), "5", "", "soon", True, float("nan"), float("inf"), b"5m", "367d", "-5m"]
)
def test_a_wrong_delay_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidArgument):
        due_time(delay, None)


@pytest.mark.parametrize(
    ("due", "spec"),
    [
        (datetime(2026, 12, 1, 9, 30, tzinfo=timezone(timedelta(hours=-5))), "at 2026-12-01T14:30:00Z"),
        (datetime(2026, 12, 1, 9, 30, 0, 1, tzinfo=UTC), "at 2026-12-01T09:30:00.000001Z"),
    ],
)
def test_a_due_time_is_written_in_utc(due: datetime, spec: str) -> None:
    assert due_time(None, due).spec == spec
    assert due_time(None, due).at_us(0) == round(due.timestamp() * 1_000_000)


@pytest.mark.parametrize("due", [datetime(2026, 12, 1), "2026-12-01T09:30:00Z", 5])  # noqa: DTZ001 - it is refused
def test_a_due_time_without_a_zone_is_refused(due: Any) -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        due_time(None, due)


@scenario({"quotes": 3})
async def test_a_delayed_record_is_stored_as_it_will_be_written(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        delivery = await p.send(
            "quotes", {"bid": 1}, key="EURUSD", headers={"a": "b"}, partition=2, ttl_ms=500, delay="5m"
        )
        receipt = await delivery
        assert isinstance(delivery, ScheduledDelivery)
        assert delivery.done()
        assert delivery.result() == receipt
        assert receipt == comet.ScheduledReceipt("quotes", receipt.id, NOW_US + 300_000_000)
        assert p.statistics()["acked_records"] == 1
        assert p.statistics()["buffered_bytes"] == 0
    put = broker.stored[receipt.id]
    assert len(receipt.id) == 32
    assert put.delay_ms == 300_000
    assert put.schedule.record == pb.Record(
        key=b"EURUSD", value=b'{"bid":1}', headers=[pb.Header(name="a", value=b"b")], partition=2, ttl_ms=500
    )
    assert not any(partition.batches for partition in broker.topics["quotes"])


@scenario()
async def test_a_tombstone_without_key_and_partition_leaves_the_choice_to_the_broker(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", None, due=datetime(2026, 12, 1, tzinfo=UTC))
    (put,) = broker.stored.values()
    assert put.schedule.spec == "at 2026-12-01T00:00:00Z"
    assert put.schedule.record == pb.Record()


@scenario()
async def test_what_waits_for_an_answer_goes_together(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        deliveries = [await p.send("quotes", b"%d" % n, delay=60) for n in range(2_500)]
        await asyncio.gather(*deliveries)
    counts = [len(request.schedules) for request in broker.requests]
    assert sum(counts) == 2_500
    assert max(counts) == limits.DELAYED_RECORDS_MAX
    assert len(counts) <= 4
    assert broker.values() == [b"%d" % n for n in range(2_500)]


@scenario()
async def test_a_request_is_bounded_in_bytes(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        deliveries = [await p.send("quotes", bytes(400_000), delay=60) for _ in range(5)]
        await asyncio.gather(*deliveries)
    assert all(request.ByteSize() <= limits.DELAYED_BYTES_MAX for request in broker.requests)
    assert len(broker.stored) == 5


@scenario()
async def test_a_lost_answer_is_asked_for_again_under_the_same_id(broker: FakeSchedules) -> None:
    broker.lost = [Unavailable("the connection was cut"), Timeout("no answer")]
    async with producer(broker) as p:
        receipt = await p.publish("quotes", b"1", delay="5m")
    assert broker.values() == [b"1"]
    assert len(broker.requests) == 3
    assert receipt.duplicate, "stored by the first request"


@scenario()
async def test_only_records_whose_leader_loads_are_sent_again(broker: FakeSchedules) -> None:
    tries: dict[bytes, int] = {}

    def loading(put: schedules.SchedulePut) -> CometError | None:
        value = put.schedule.record.value
        tries[value] = tries.get(value, 0) + 1
        return Unavailable("it loads") if value.startswith(b"slow") and tries[value] < 4 else None

    broker.verdict = loading
    async with producer(broker) as p:
        deliveries = [
            await p.send("quotes", b"%s %d" % (kind, n), delay=1) for n in range(3) for kind in (b"slow", b"q")
        ]
        await asyncio.gather(*deliveries)
    assert {tries[b"slow %d" % n] for n in range(3)} == {4}
    assert {tries[b"q %d" % n] for n in range(3)} == {1}
    assert len(broker.stored) == 6


@scenario()
async def test_a_refused_record_fails_alone(broker: FakeSchedules) -> None:
    broker.verdict = lambda put: RecordTooLarge("too large") if put.schedule.record.value == b"1" else None
    p = producer(broker)
    deliveries = [await p.send("quotes", b"%d" % n, delay=1) for n in range(3)]
    await deliveries[0]
    await deliveries[2]
    with pytest.raises(RecordTooLarge):
        await deliveries[1]
    assert p.statistics()["failed_records"] == 1
    await p.close()


@scenario()
async def test_a_limit_is_tried_again_until_the_time_is_over(broker: FakeSchedules) -> None:
    broker.verdict = lambda put: LimitExceeded("too many")
    p = producer(broker, timeout_ms=3_000)
    with pytest.raises(LimitExceeded):
        await p.publish("quotes", b"1", delay=1)
    assert len(broker.requests) > 3
    await p.close()


@scenario()
async def test_flush_waits_for_delayed_records_and_raises_an_unread_failure(broker: FakeSchedules) -> None:
    broker.verdict = lambda put: Forbidden("no")
    p = producer(broker)
    delivery = await p.send("quotes", b"1", delay=1)
    with pytest.raises(Forbidden):
        await p.flush()
    assert delivery.done()
    await p.close()


@scenario()
async def test_a_silent_broker_ends_in_a_timeout_in_time(broker: FakeSchedules) -> None:
    p = producer(broker, timeout_ms=3_000)
    await p.publish("quotes", b"0")
    broker.frozen = True
    began = now()
    delivery = await p.send("quotes", b"1", delay=1)
    with pytest.raises(Timeout, match="may or may not have been stored") as caught:
        await delivery
    assert caught.value.outcome_unknown
    assert now() - began == pytest.approx(3)
    assert p.statistics()["buffered_bytes"] == 0
    broker.frozen = False
    await p.publish("quotes", b"2", delay=1)
    await p.close()
    assert b"2" in broker.values()


@scenario()
async def test_a_request_without_an_answer_is_repeated_before_the_time_is_over(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.frozen = True
        delivery = await p.send("quotes", b"1", delay=1)
        asyncio.get_running_loop().call_later(7, setattr, broker, "frozen", False)
        await delivery
    assert broker.values() == [b"1"]
    assert len(broker.authors) == 2, "the first request was given up"


@scenario()
async def test_a_broker_that_cannot_be_reached_is_tried_until_it_is_back(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        await p.publish("quotes", b"0")
        broker.up = False
        broker.cut()
        delivery = await p.send("quotes", b"1", delay=1)
        asyncio.get_running_loop().call_later(5, setattr, broker, "up", True)
        await delivery
    assert broker.values() == [b"1"]


@scenario()
async def test_waiting_records_count_against_the_buffer(broker: FakeSchedules) -> None:
    async with producer(broker, buffer_bytes=1_000) as p:
        await p.publish("quotes", b"0")
        broker.frozen = True
        await p.send("quotes", bytes(1_000), delay=1)
        waiting = asyncio.ensure_future(p.send("quotes", b"2", delay=1))
        await asyncio.sleep(1)
        assert not waiting.done()
        broker.frozen = False
        await (await waiting)
    assert len(broker.stored) == 2


@scenario()
async def test_a_given_id_is_stored_once(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        first = await p.publish("quotes", b"1", delay="5m", schedule_id="order-4711")
        again = await p.publish("quotes", b"2", delay="5m", schedule_id="order-4711")
    assert not first.duplicate
    assert again.duplicate
    assert broker.values() == [b"1"]


@scenario()
async def test_wrong_calls_are_refused_before_anything_is_sent(broker: FakeSchedules) -> None:
    send: Any
    async with producer(broker) as p:
        send = p.send
        due = datetime(2026, 12, 1, tzinfo=UTC)
        for given in (
            {"delay": 1, "due": due}, {"schedule_id": "a"}, {"delay": 1, "timestamp_us": 5}, {"delay": 1, "ttl_ms": -2},
            {"delay": 1, "schedule_id": "a b"}, {"delay": 1, "schedule_id": ""}, {"delay": 1, "key": 5},
        ):  # fmt: skip
            with pytest.raises(InvalidArgument):
                await send("quotes", b"1", **given)
        with pytest.raises(PartitionNotFound):
            await send("quotes", b"1", partition=7, delay=1)
        with pytest.raises(RecordTooLarge):
            await send("quotes", bytes(2 << 20), delay=1)
        with pytest.raises(TopicNotFound):
            await send("missing", b"1", delay=1)
        assert p.statistics()["buffered_bytes"] == 0
    assert not broker.requests


@scenario()
async def test_a_topic_that_is_deleted_meanwhile_is_looked_up_again(broker: FakeSchedules) -> None:
    p = producer(broker)
    await p.publish("quotes", b"0")
    broker.delete("quotes")
    for _ in range(2):
        with pytest.raises(TopicNotFound):
            await p.publish("quotes", b"1", delay=1)
    assert len(broker.requests) == 1, "the second one looked it up"
    broker.create("quotes", 1)
    await p.publish("quotes", b"2", delay=1)
    await p.close()


@scenario()
async def test_a_gateway_stores_records_for_its_users(broker: FakeSchedules) -> None:
    async with producer(broker) as p:
        ann, bob = p.acting_for("user:ann", ["desk"]), p.acting_for("user:bob")
        deliveries = [await one.send("quotes", b"%d" % n, delay=1) for n in range(3) for one in (p, ann, bob)]
        await asyncio.gather(*deliveries)
        assert p.statistics()["acked_records"] == 9
        assert p.statistics()["buffered_bytes"] == 0
        await (await ann.send("quotes", b"at once"))
    authors = {put.schedule.id: acting for request, acting in broker.authors for put in request.schedules}
    expected = [None, ActingFor("user:ann", ("desk",)), ActingFor("user:bob")] * 3
    assert [authors[delivery.result().id] for delivery in deliveries] == expected


@scenario()
async def test_closing_fails_what_is_not_stored(broker: FakeSchedules) -> None:
    p = producer(broker)
    await p.publish("quotes", b"0")
    broker.frozen = True
    delivery = await p.send("quotes", b"1", delay=1)
    await p._shut()
    with pytest.raises(Closed):
        await delivery
    with pytest.raises(Closed):
        await p.send("quotes", b"2", delay=1)


@scenario()
async def test_an_answer_with_another_number_of_results_is_an_error(broker: FakeSchedules) -> None:
    broker._put = lambda topic, put: schedules.SchedulePutResult()  # type: ignore[method-assign]
    answer = broker.answer

    def short(method: str, request: Any) -> Any:
        found = answer(method, request)
        return schedules.PutSchedulesResponse() if method.endswith("PutSchedules") else found

    broker.answer = short  # type: ignore[method-assign]
    p = producer(broker)
    with pytest.raises(comet.Internal, match="0 results"):
        await p.publish("quotes", b"1", delay=1)
    await p.close()


@scenario()
async def test_values_are_encrypted(broker: FakeSchedules) -> None:
    keyring = comet.Keyring({"k1": bytes(32)})
    async with producer(broker, encryption=keyring) as p:
        await p.publish("quotes", b"secret", key=b"a", delay=1)
    (put,) = broker.stored.values()
    assert b"secret" not in put.SerializeToString()
    assert put.schedule.record.key == b"a"


def test_a_transaction_refuses_delayed_records() -> None:
    async def scene() -> None:
        broker = TransactionBroker()
        async with TransactionalProducer(ADDRESS, "a", connect=broker.connect, random=Random(1)) as p:
            async with p.transaction() as tx:
                for given in ({"delay": "5m"}, {"due": datetime(2026, 12, 1, tzinfo=UTC)}):
                    with pytest.raises(InvalidArgument, match="in a handler"):
                        await tx.send("quotes", b"1", **given)
                await tx.send("quotes", b"2")
            assert tx.state == "committed"

    run(lambda loop: scene())


def test_a_handler_of_a_test_gets_a_delayed_record_when_it_is_fired() -> None:
    app = comet.App(clock_us=lambda: NOW_US)
    seen: list[tuple[bytes, int, dict[str, bytes]]] = []

    @app.on("reminders")
    async def remind(record: comet.Record[bytes]) -> None:
        seen.append((record.value, record.timestamp_us, dict(record.headers)))

    @app.on("orders", group="engine", delivery="exactly_once")
    async def order(value: bytes) -> None:
        later: dict[str, Any] = {"delay": 1} if value == b"4711" else {"schedule_id": "a"}
        await app.publish("reminders", value, **later)

    async def scene() -> None:
        async with app.test() as test:
            await app.publish("reminders", b"later", delay="5m", headers={"a": "b"}, schedule_id="one")
            await app.publish("reminders", b"again", delay="5m", schedule_id="one")
            await app.publish("reminders", b"first", due=datetime.fromtimestamp(NOW_US / 1e6 + 1, UTC))
            await test.settle()
            assert not seen
            await test.fire_delayed()
            assert [value for value, _, _ in seen] == [b"first", b"later"]
            _, at_us, headers = seen[1]
            assert at_us == NOW_US + 300_000_000
            assert headers["a"] == b"b"
            assert headers["comet-schedule-id"] == b"one"
            assert headers["comet-schedule-due"] == str(at_us).encode()
            await test.fire_delayed()
            assert len(seen) == 2
            for order_id in (b"4711", b"4712"):
                with pytest.raises(InvalidArgument, match="a transaction cannot hold a delayed record"):
                    await test.publish("orders", order_id)

    asyncio.run(scene())
