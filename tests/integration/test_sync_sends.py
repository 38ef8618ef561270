"""comet.sync.Producer.send hands records over to the background loop without waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import comet
import comet.sync
from comet import event_loop
from comet.sync import outbox

TIMEOUT_S = 30


@contextmanager
def loop_at_rest() -> Iterator[None]:
    """The background loop stands still, as in a callback that computes."""
    rests, goes_on = threading.Event(), threading.Event()

    async def rest() -> None:
        rests.set()
        goes_on.wait(TIMEOUT_S)

    resting = event_loop.begin(rest())
    assert rests.wait(TIMEOUT_S)
    try:
        yield
    finally:
        goes_on.set()
        resting.result(TIMEOUT_S)


def in_a_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def values_of(address: str, topic: str, count: int) -> list[bytes]:
    with comet.sync.Consumer(address, topic, start="earliest") as consumer:
        return [next(consumer).value for _ in range(count)]


def test_a_send_does_not_wait_for_the_loop_and_wakes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[object] = []

    def begin(work: Any) -> Any:
        woken.append(work)
        return event_loop.begin(work)

    monkeypatch.setattr(outbox, "begin", begin)
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", b"first")
        with loop_at_rest():
            deliveries = [producer.send("quotes", b"%d" % n) for n in range(100)]
            assert not any(delivery.done() for delivery in deliveries)
            assert [delivery.exception() for delivery in deliveries] == [None] * 100
        assert [delivery.result(TIMEOUT_S).offset for delivery in deliveries] == list(range(1, 101))
        assert len(woken) == 1
        assert values_of(broker.address, "quotes", 101)[1:] == [b"%d" % n for n in range(100)]


def test_what_is_wrong_with_a_record_is_raised_by_its_send() -> None:
    with comet.testing.broker(["quotes"], record_bytes_max=1000) as broker:
        with comet.sync.Producer(broker.address) as producer:
            producer.publish("quotes", b"opens the topic")
            with loop_at_rest():
                with pytest.raises(comet.RecordTooLarge):
                    producer.send("quotes", bytes(1001))
                with pytest.raises(comet.RecordTooLarge, match="with key and headers"):
                    producer.send("quotes", b"", key=bytes(1 << 23))
                with pytest.raises(comet.SerdeError):
                    producer.send("quotes", object())
                with pytest.raises(comet.InvalidArgument, match="key"):
                    producer.send("quotes", b"", key=4711)  # type: ignore[call-overload]
                with pytest.raises(comet.InvalidArgument, match="headers"):
                    producer.send("quotes", b"", headers={"number": 4711})  # type: ignore[arg-type]
                with pytest.raises(comet.InvalidArgument, match="timestamp_us"):
                    producer.send("quotes", b"", timestamp_us=-1)
                with pytest.raises(comet.PartitionNotFound):
                    producer.send("quotes", b"", partition=7)
            with pytest.raises(comet.TopicNotFound):
                producer.send("unknown", b"")
        with pytest.raises(comet.Closed):
            producer.send("quotes", b"")
        assert producer.statistics()["acked_records"] == 1


def test_key_headers_timestamp_and_partition_arrive() -> None:
    readings: list[int] = []

    def clock_us() -> int:
        readings.append(100 + len(readings))
        return readings[-1]

    with (
        comet.testing.broker({"quotes": 3}) as broker,
        comet.sync.Producer(broker.address, clock_us=clock_us) as producer,
    ):
        producer.publish("quotes", b"opens the topic", partition=0)
        delivery = producer.send("quotes", "text", key="k", headers={"h": "1"}, timestamp_us=5, partition=2)
        receipt = delivery.result(TIMEOUT_S)
        assert (receipt.partition, receipt.offset) == (2, 0)
        with comet.sync.Consumer(broker.address, "quotes", start="earliest", partitions=[2]) as consumer:
            record = next(consumer)
            assert (record.value, record.key, record.timestamp_us) == (b"text", b"k", 5)
            assert dict(record.headers) == {"h": b"1"}
            before = len(readings)
            with loop_at_rest():
                producer.send("quotes", b"", partition=2)
                (sent_us,) = readings[before:]
            assert next(consumer).timestamp_us == sent_us, "the time of a record is that of its send"


def test_what_is_called_after_sends_comes_after_them() -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address, linger_ms=5) as producer:
        producer.publish("quotes", b"0")
        with loop_at_rest():
            for n in range(1, 50):
                producer.send("quotes", b"%d" % n)
            bulk = in_a_thread(lambda: producer.send_many("quotes", [b"50", b"51"]))
        bulk.join(TIMEOUT_S)
        producer.send("quotes", b"52")
        assert producer.publish("quotes", b"53").offset == 53
        producer.send("quotes", b"54")
        producer.flush()
        counted = producer.statistics()
        assert (counted["acked_records"], counted["failed_records"], counted["buffered_bytes"]) == (55, 0, 0)
        producer.send("quotes", b"55")
        producer.close()
        assert values_of(broker.address, "quotes", 56) == [b"%d" % n for n in range(56)]


def test_a_sender_that_is_too_fast_waits_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_WAITING_BYTES_MAX", 10_000)
    sent: list[comet.sync.Delivery] = []
    waits = threading.Event()
    called = event_loop.call

    def call(work: Any) -> Any:
        waits.set()
        return called(work)

    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", b"opens the topic")
        monkeypatch.setattr(outbox, "call", call)
        with loop_at_rest():
            sending = in_a_thread(lambda: sent.extend(producer.send("quotes", bytes(1000)) for _ in range(100)))
            assert waits.wait(TIMEOUT_S)
            assert sum(isinstance(one, outbox.PendingDelivery) for one in producer._outbox._waiting) < 11
        sending.join(TIMEOUT_S)
        assert [delivery.result(TIMEOUT_S).offset for delivery in sent] == list(range(1, 101))


def test_a_full_buffer_holds_up_the_sender_and_loses_nothing() -> None:
    with (
        comet.testing.broker(["quotes"]) as broker,
        comet.sync.Producer(broker.address, buffer_bytes=10_000) as producer,
    ):
        for n in range(2000):
            producer.send("quotes", b"%1000d" % n)
        producer.send_many("quotes", [b"2000"])
        producer.flush()
        assert [int(value) for value in values_of(broker.address, "quotes", 2001)] == list(range(2001))


def test_threads_share_a_producer_and_each_keeps_its_order() -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:

        def write(number: int) -> None:
            for n in range(2000):
                producer.send("quotes", b"%d %d" % (number, n))
                if n % 500 == 0:
                    producer.flush()

        for thread in [in_a_thread(lambda number=number: write(number)) for number in range(4)]:  # type: ignore[misc]
            thread.join(TIMEOUT_S)
        producer.flush()
        found: dict[int, list[int]] = {}
        for value in values_of(broker.address, "quotes", 8000):
            number, n = map(int, value.split())
            found.setdefault(number, []).append(n)
        assert found == {number: list(range(2000)) for number in range(4)}


def test_a_topic_that_is_gone_by_then_fails_the_deliveries_of_its_records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(topic: str) -> Any:
        raise comet.TopicNotFound(f"topic {topic!r} does not exist")

    with comet.testing.broker(["quotes", "other"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", b"1")
        producer.publish("other", b"1")
        with loop_at_rest():
            lost = producer.send("quotes", b"2")
            unread = producer.send("quotes", b"3")
            good = producer.send("other", b"2")
            producer._async._routes.lapse("quotes")  # as the answer to another batch does meanwhile
            monkeypatch.setattr(producer._async._client, "topic", gone)
        with pytest.raises(comet.TopicNotFound):
            lost.result(TIMEOUT_S)
        assert good.result(TIMEOUT_S).offset == 1
        with pytest.raises(comet.TopicNotFound):
            producer.flush()  # that of the one whose result was not read
        assert isinstance(unread.exception(), comet.TopicNotFound)
        producer.flush()
        assert producer.statistics()["failed_records"] == 2


def test_an_unexpected_error_fails_its_record_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", b"1")
        send = producer._outbox._send

        async def breaking(topic: str, value: Any, **others: Any) -> comet.Delivery:
            if value == b"bad":
                raise ZeroDivisionError("a bug")
            return await send(topic, value, **others)

        producer._outbox._send = breaking
        with loop_at_rest():
            bad, good = producer.send("quotes", b"bad"), producer.send("quotes", b"good")
        with pytest.raises(comet.Internal, match="a bug"):
            bad.result(TIMEOUT_S)
        assert good.result(TIMEOUT_S).offset == 1


def test_leaving_after_ctrl_c_does_not_wait_for_records_that_are_not_taken() -> None:
    with comet.testing.broker(["quotes"]) as broker:
        producer = comet.sync.Producer(broker.address, buffer_bytes=1000)
        producer.publish("quotes", b"1")
        blocked = threading.Event()

        async def never(*_: Any, **__: Any) -> comet.Delivery:
            blocked.set()
            await producer._async._budget.wait()  # as with a full buffer
            raise AssertionError

        producer._outbox._send = never
        producer._async._budget.used_bytes += 1000
        with suppress(KeyboardInterrupt), producer:
            waiting = producer.send("quotes", b"2")
            assert blocked.wait(TIMEOUT_S)
            raise KeyboardInterrupt
        with pytest.raises(comet.Closed):
            waiting.result(TIMEOUT_S)


def test_sends_of_a_transaction_are_in_it_and_none_is_taken_after_its_end() -> None:
    with (
        comet.testing.broker(["quotes"]) as broker,
        comet.sync.TransactionalProducer(broker.address, "writer") as writer,
    ):
        with writer.transaction() as first:
            for n in range(500):
                first.send("quotes", b"%d" % n)
        with pytest.raises(comet.TransactionNotOpen):
            first.send("quotes", b"late")
        given_up = writer.transaction()
        with suppress(ValueError), given_up:
            given_up.send("quotes", b"never seen")
            raise ValueError("changed my mind")
        with writer.transaction() as second:
            second.send("quotes", b"last")
        assert values_of(broker.address, "quotes", 501) == [*(b"%d" % n for n in range(500)), b"last"]


def test_the_loop_itself_may_not_send() -> None:
    with comet.testing.broker(["quotes"]) as broker, comet.sync.Producer(broker.address) as producer:
        producer.publish("quotes", b"1")
        with pytest.raises(comet.InvalidArgument, match="its own event loop"):
            comet.sync.call(event_loop.computed(lambda: producer.send("quotes", b"2")))
        producer.send("quotes", b"3")
        producer.flush()
        assert values_of(broker.address, "quotes", 2) == [b"1", b"3"]
