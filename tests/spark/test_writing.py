"""One task that writes, and what may become of it: what it has in its hands is written once. Without Spark."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import comet
from comet import limits
from comet.errors import (
    Closed,
    DataLoss,
    InvalidArgument,
    ProducerFenced,
    RecordTooLarge,
    Timeout,
    TransactionAborted,
    Unavailable,
)
from comet.spark import writing
from comet.spark.sink_options import SinkOptions
from comet.spark.write_unit import Unit
from comet.spark.writing import TaskRows, WriteResult, write_rows, write_unit
from tests.robustness.process import BrokerProcess, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
Broker = comet.testing.TestBroker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with comet.testing.broker() as one:
        yield one


@pytest.fixture
def unit(request: pytest.FixtureRequest) -> Unit:
    """Of a query of this test's own."""
    return Unit(f"query-{abs(hash(request.node.name))}", 0, 17)


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    """With a topic of its own, and without what the test before it knew."""
    with comet.sync.Admin(shared.address) as admin:
        admin.create_topic("bars", partitions=2)
        yield shared
        _forget()
        admin.delete_topic("bars")


def _forget() -> None:
    """A worker that begins anew."""
    for options in list(writing._producers):
        writing._discard(options)


def _options(address: str, worker: int = 0) -> SinkOptions:
    """Those of another worker differ, so that it has a producer of its own in this process."""
    return SinkOptions(bootstrap=address, topic="bars", timeout_ms=20_000 + worker)


def _batches(
    count: int = 4, rows: int = 3, meanwhile: Callable[[int], None] = lambda number: None
) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        meanwhile(number)
        values = [str(number * rows + row) for row in range(rows)]
        yield pa.RecordBatch.from_pydict({"key": values, "value": values})


def _read(address: str, isolation: str = "committed") -> list[int]:
    with comet.sync.Admin(address) as admin:
        ends = admin.offsets("bars", "latest")
    found: list[int] = []
    for partition, end in ends.items():
        at = 0
        while at < end:
            with comet.sync.Reader(address) as reader:
                part = reader.fetch("bars", partition, at, records_max=1000, isolation=isolation)  # type: ignore[arg-type]
            if part.next_offset == at:
                break
            found += [int(value) for batch in part.batches for value in batch.values if value is not None]
            at = part.next_offset
    return sorted(found)


def test_a_unit_is_written_once_by_whichever_worker(broker: Broker, unit: Unit) -> None:
    assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12)
    for worker in (0, 1):
        assert write_unit(unit, _batches(), _options(broker.address, worker)) == WriteResult(12, before=True)
    assert write_unit(unit._replace(partition=1), _batches(0), _options(broker.address)) == WriteResult(0)
    assert write_unit(unit._replace(partition=1), _batches(0), _options(broker.address, 1)) == WriteResult(
        0, before=True
    )
    assert _read(broker.address) == list(range(12))
    assert write_unit(unit._replace(batch=18), _batches(1), _options(broker.address, 1)) == WriteResult(3)
    with pytest.raises(DataLoss, match="comes after batch 18 was written"):
        write_unit(unit, _batches(), _options(broker.address))
    assert len(_read(broker.address)) == 15


def test_an_attempt_that_lives_on_writes_nothing_once_another_has_begun(broker: Broker, unit: Unit) -> None:
    """As of an executor that was taken for dead, or a task that Spark has started twice."""

    def take_over(number: int) -> None:
        if number == 2:
            assert write_unit(unit, _batches(), _options(broker.address, 1)) == WriteResult(12)

    with pytest.raises(ProducerFenced, match="was taken over by another attempt"):
        write_unit(unit, _batches(meanwhile=take_over), _options(broker.address))
    assert _read(broker.address) == list(range(12))
    assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12, before=True)


def test_an_attempt_that_died_leaves_nothing(broker: Broker, unit: Unit) -> None:
    def die(number: int) -> None:
        if number == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_unit(unit, _batches(meanwhile=die), _options(broker.address))
    assert _read(broker.address) == []
    assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12)
    assert _read(broker.address) == list(range(12))


def test_rows_that_an_attempt_did_not_come_to_are_counted_by_the_next() -> None:
    rows = TaskRows(_batches())
    assert sum(map(len, rows)) == rows.count == 12
    assert rows.rewind()
    assert len(next(iter(rows))) == 3, "and then the attempt fails"
    assert sum(map(len, rows)) == 9
    assert rows.count == 12
    assert rows.rewind()
    assert sum(map(len, rows)) == rows.count == 12


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_a_commit_without_an_answer_is_looked_into(
    broker: Broker, unit: Unit, monkeypatch: pytest.MonkeyPatch, held: bool, written: bool
) -> None:
    committed, lost = writing._committed, True

    async def unanswered(transaction: comet.Transaction, note: bytes) -> None:
        nonlocal lost
        if lost and not written:
            lost = False
            await transaction.__aexit__(Closed, Closed("gone"), None)
            raise Timeout("no answer, and nothing was decided")
        await committed(transaction, note)
        if lost:
            lost = False
            raise Timeout("no answer, and it was decided")

    monkeypatch.setattr(writing, "_committed", unanswered)
    if not held:
        monkeypatch.setattr(writing, "HELD_BYTES", 10)
    if written:
        assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12, before=True)
    elif held:
        assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12)
    else:
        with pytest.raises(Timeout):
            write_unit(unit, _batches(), _options(broker.address))
        assert write_unit(unit, _batches(), _options(broker.address)) == WriteResult(12)
    assert _read(broker.address) == list(range(12))


def test_more_rows_than_were_written_are_told(broker: Broker, unit: Unit) -> None:
    assert write_unit(unit, _batches(2), _options(broker.address)) == WriteResult(6)
    with pytest.raises(DataLoss, match="with 6 rows, and has 12 now"):
        write_unit(unit, _batches(4), _options(broker.address))
    passing = replace(_options(broker.address), fail_on_loss=False)
    assert write_unit(unit, _batches(4), passing) == WriteResult(6, before=True)
    assert write_unit(unit, _batches(1), _options(broker.address)) == WriteResult(6, before=True)
    assert _read(broker.address) == list(range(6))


@pytest.mark.parametrize("write", [write_rows, partial(write_unit, Unit("big", 0, 1))])
def test_what_one_task_writes_is_not_held_in_memory(
    broker: Broker, write: Callable[[Iterable[pa.RecordBatch], SinkOptions], WriteResult]
) -> None:
    """But what it would need for another attempt, while that is little; and what is on its way."""
    options = replace(_options(broker.address), exactly_once=write is not write_rows)
    value = b"x" * 10_000
    alive: list[int] = []
    buffered: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        made: list[weakref.ref[pa.RecordBatch]] = []
        for _ in range(30):
            made.append(weakref.ref(batch := pa.RecordBatch.from_pydict({"value": [value] * 400})))
            yield batch
            del batch
            alive.append(sum(one() is not None for one in made))
            buffered.append(writing._producers[options].statistics()["buffered_bytes"])

    assert write(batches(), options) == WriteResult(30 * 400)
    held = writing.HELD_BYTES // (len(value) * 400)
    assert max(alive) <= held + 1, "the one in hand"
    assert max(buffered) <= limits.PRODUCER_BUFFER_BYTES + limits.BULK_BATCH_BYTES
    assert alive[-1] == 1, "there is too much for another attempt here"


def test_a_load_under_an_id_of_another_topic_is_refused(broker: Broker, unit: Unit) -> None:
    load = unit._replace(batch=None)
    assert write_unit(load, _batches(), _options(broker.address)) == WriteResult(12)
    elsewhere = replace(_options(broker.address), topic="quotes")
    with pytest.raises(InvalidArgument, match="to topic 'bars' before, and is now for 'quotes': a batch write of"):
        write_unit(load, _batches(), elsewhere)
    assert write_unit(load, _batches(), _options(broker.address)) == WriteResult(12, before=True)


def test_what_no_attempt_can_write_is_not_tried_again(broker: Broker, unit: Unit) -> None:
    began = 0

    def count(number: int) -> None:
        nonlocal began
        began += 1

    def batches() -> Iterator[pa.RecordBatch]:
        yield from _batches(1, meanwhile=count)
        yield pa.RecordBatch.from_pydict({"value": ["x" * (2 << 20)]})

    with pytest.raises(RecordTooLarge):
        write_unit(unit, batches(), _options(broker.address))
    assert began == 1
    assert _read(broker.address) == []


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """Those that somebody opened, each time it was tried."""
    found: list[Unit] = []
    look = writing._last_batch

    def counted(unit: Unit, options: SinkOptions) -> int | None:
        found.append(unit)
        return look(unit, options)

    monkeypatch.setattr(writing, "_last_batch", counted)
    return found


def test_where_nobody_is_a_task_waits_once(unit: Unit, looks: list[Unit]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=f"not reached at {nowhere} within 200 ms"):
        write_unit(unit, _batches(), SinkOptions(bootstrap=nowhere, topic="bars", timeout_ms=200))
    assert len(looks) == 1
    assert not writing._producers


def test_a_broker_that_stays_away_is_waited_for_once(tmp_path: Path, unit: Unit, looks: list[Unit]) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.start()

    def kill(number: int) -> None:
        if number == 2:
            process.kill()

    try:
        with comet.sync.Admin(process.address) as admin:
            admin.create_topic("bars", partitions=2)
        with pytest.raises(TransactionAborted, match="within 8 s"):
            write_unit(
                unit, _batches(meanwhile=kill), SinkOptions(bootstrap=process.address, topic="bars", timeout_ms=8_000)
            )
        assert len(looks) == 1
    finally:
        process.kill()
        _forget()


def test_a_broker_that_dies_in_between_is_waited_for(tmp_path: Path, unit: Unit) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.start()

    def kill(number: int) -> None:
        if number == 2:
            process.kill()
            process.start()

    try:
        with comet.sync.Admin(process.address) as admin:
            admin.create_topic("bars", partitions=2)
        for batch in (17, 18):
            assert (
                write_unit(unit._replace(batch=batch), _batches(meanwhile=kill), _options(process.address)).rows == 12
            )
        plain = replace(_options(process.address), exactly_once=False)
        assert write_rows(_batches(meanwhile=kill), plain).rows == 12
        assert _read(process.address) == sorted([*range(12)] * 3)
        assert not process.complaints()
    finally:
        process.kill()
        _forget()
