"""comet.sync consumers take records that have come without a turn of the background loop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

import comet
import comet.sync
from comet.sync import inbox
from tests.integration.test_sync_sends import TIMEOUT_S, in_a_thread, loop_at_rest


@contextmanager
def broker_with_records(count: int, partitions: int = 1) -> Iterator[str]:
    """A broker with a topic of batches of one record each, of 100 bytes."""
    with comet.testing.broker({"quotes": partitions}) as broker:
        with comet.sync.Producer(broker.address) as producer:
            for n in range(count):
                producer.publish("quotes", b"%100d" % n, partition=n % partitions)
        yield broker.address


def wait_until(holds: Callable[[], object]) -> None:
    give_up = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up


def come(consumer: Reading, count: int) -> None:
    """Waits until that many records have come."""
    wait_until(lambda: consumer.statistics()["received_bytes"] > 100 * count)


Reading = comet.sync.Consumer[bytes] | comet.sync.GroupConsumer[bytes]


def both(address: str) -> Iterator[Reading]:
    with comet.sync.Consumer(address, "quotes", start="earliest") as consumer:
        yield consumer
    with comet.sync.GroupConsumer(address, "quotes", group="engine", start="earliest") as member:
        yield member


def test_what_has_come_is_taken_while_the_loop_is_at_rest() -> None:
    with broker_with_records(30) as address:
        for consumer in both(address):
            come(consumer, 30)
            batches = consumer.batches()
            assert next(consumer).offset == 0
            with loop_at_rest():
                assert [next(consumer).offset for _ in range(9)] == list(range(1, 10))
                record = consumer.get(timeout_s=0)
                assert record is not None
                assert record.offset == 10
            assert next(batches).first_offset == 11  # what is left of a batch read record by record takes a call
            with loop_at_rest():
                assert [next(batches).first_offset for _ in range(9)] == list(range(12, 21))
                batch = consumer.get_batch(timeout_s=0)
                assert batch is not None
                assert batch.first_offset == 21
            assert [next(consumer).offset for _ in range(8)] == list(range(22, 30))
            assert consumer.get(timeout_s=0.01) is None


def test_tables_have_what_was_opened() -> None:
    with broker_with_records(30) as address:
        for consumer in both(address):
            come(consumer, 30)
            assert next(consumer).offset == 0
            tables = consumer.arrow(columns=["offset"], rows_max=20, wait_ms=10)
            found = [offset for _ in range(2) for offset in next(tables)["offset"].to_pylist()]
            assert found == list(range(1, 30))


def test_markers_and_aborted_records_are_passed_in_their_place() -> None:
    with (
        comet.testing.broker(["quotes"]) as broker,
        comet.sync.TransactionalProducer(broker.address, "writer") as writer,
    ):
        for n in range(20):
            with suppress(ZeroDivisionError), writer.transaction() as tx:
                tx.send("quotes", b"%d" % n)
                if n % 3 == 2:
                    raise ZeroDivisionError  # which aborts it
        for consumer in both(broker.address):
            found = [next(consumer).value for _ in range(14)]
            assert found == [b"%d" % n for n in range(20) if n % 3 != 2]
            assert consumer.get(timeout_s=0.01) is None
            assert set(consumer.lag().values()) == {0}, "the last marker was passed as well"

        async def read_on_a_loop() -> dict[int, int]:
            async with comet.Consumer(broker.address, "quotes", start="earliest") as consumer:
                for _ in range(14):
                    await anext(consumer)
                assert await consumer.get(timeout_s=0.01) is None
                return consumer.lag()

        assert comet.run(read_on_a_loop()) == {0: 0}


def test_threads_share_a_member_and_each_record_is_taken_once() -> None:
    found: list[bytes] = []
    with (
        broker_with_records(1000, partitions=3) as address,
        comet.sync.GroupConsumer(address, "quotes", group="engine", start="earliest") as member,
    ):

        def read() -> None:
            while True:
                try:
                    record = member.get(timeout_s=0.5)
                except comet.InvalidArgument:  # another thread waits already
                    continue
                if record is None:
                    return
                found.append(record.value)

        for thread in [in_a_thread(read) for _ in range(2)]:
            thread.join(TIMEOUT_S)
    assert sorted(map(int, found)) == list(range(1000))


def test_members_that_come_and_go_while_another_reads_take_each_record_once() -> None:
    """What is revoked in the middle of a read is handed out by its next owner, and by no other."""
    with broker_with_records(3000, partitions=6) as address:
        found: Counter[int] = Counter()
        ended = threading.Event()

        def visit() -> None:
            while not ended.is_set():
                with comet.sync.GroupConsumer(address, "quotes", group="engine", start="earliest") as guest:
                    for _ in range(20):
                        record = guest.get(timeout_s=0.01)
                        if record is not None:
                            found[int(record.value)] += 1

        with comet.sync.GroupConsumer(address, "quotes", group="engine", start="earliest") as member:
            visiting = in_a_thread(visit)
            try:
                while len(found) < 3000:
                    record = member.get(timeout_s=1)
                    if record is not None:
                        found[int(record.value)] += 1
                        if len(found) % 100 == 0:
                            member.positions()
            finally:
                ended.set()
                visiting.join(TIMEOUT_S)
        assert sorted(found) == list(range(3000))
        assert {n: count for n, count in found.items() if count > 1} == {}


def test_another_thread_closes_and_seeks() -> None:
    with broker_with_records(50) as address:
        for consumer in both(address):
            come(consumer, 50)
            assert [next(consumer).offset for _ in range(5)] == list(range(5))
            in_a_thread(partial(consumer.seek, 40)).join(TIMEOUT_S)
            assert [next(consumer).offset for _ in range(5)] == list(range(40, 45))
            in_a_thread(consumer.close).join(TIMEOUT_S)
            with pytest.raises(comet.Closed):
                next(consumer)


def test_ctrl_c_in_a_wait_loses_no_record() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            broker_with_records(3) as address,
            comet.sync.Producer(address) as producer,
            comet.sync.Consumer(address, "quotes", start="earliest") as consumer,
        ):
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            ahead = consumer._async._ahead
            assert ahead is not None

            def interrupt() -> None:
                wait_until(lambda: ahead.calls)
                os.kill(os.getpid(), signal.SIGINT)

            interrupting = in_a_thread(interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(consumer)
            interrupting.join(TIMEOUT_S)
            assert ahead.calls == 0
            for _ in range(3):
                producer.publish("quotes", b"")
            assert [next(consumer).offset for _ in range(3)] == [3, 4, 5]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_call_under_way_keeps_other_threads_from_taking_without_it() -> None:
    with broker_with_records(30) as address:
        for consumer in both(address):
            come(consumer, 30)
            assert next(consumer).offset == 0
            ahead = consumer._async._ahead
            assert ahead is not None
            with loop_at_rest():
                asking = in_a_thread(consumer.positions)
                wait_until(partial(getattr, ahead, "calls"))
                assert inbox._batch_at_hand(consumer._async) is None
                assert inbox._record_at_hand(consumer._async) is None
            asking.join(TIMEOUT_S)
            assert next(consumer).offset == 1
