"""Batches of updates are written once, whatever happened to whoever wrote them before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import comet
from comet.spark.update_writer import UpdateWriter, last_of

TOPIC = "bars"


@pytest.fixture
def broker() -> Iterator[comet.testing.TestBroker]:
    with comet.testing.broker({TOPIC: 2}) as one:
        yield one


def written(broker: comet.testing.TestBroker) -> list[tuple[str, str]]:
    """Key and value of all that readers of committed records see."""
    table = comet.read(TOPIC, start="earliest", bootstrap=broker.address).to_arrow()
    rows = zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    return sorted((key.decode(), value.decode()) for key, value in rows)


def store(updates: UpdateWriter, number: int, *rows: str, query: str = "one") -> None:
    keys = [row.split()[0] for row in rows]
    comet.sync.call(updates.store(query, number, keys, list(rows)))


def close(*all_of: UpdateWriter) -> None:
    for one in all_of:
        comet.sync.call(one.close())


def test_the_last_batch_may_come_again_from_the_same_job_or_another(broker: comet.testing.TestBroker) -> None:
    first, second = UpdateWriter(broker.address, TOPIC), UpdateWriter(broker.address, TOPIC)
    store(first, 0, "a 1", "b 1")
    store(first, 0, "a 1", "b 1")
    store(first, 1, "a 2")
    store(second, 1, "a 2")
    store(second, 2, "b 2")
    close(first, second)
    assert written(broker) == [("a", "a 1"), ("a", "a 2"), ("b", "b 1"), ("b", "b 2")]


def test_a_batch_without_rows_is_remembered_too(broker: comet.testing.TestBroker) -> None:
    first, second = UpdateWriter(broker.address, TOPIC), UpdateWriter(broker.address, TOPIC)
    store(first, 0)
    store(second, 0, "a 1")
    store(second, 1, "a 2")
    close(first, second)
    assert written(broker) == [("a", "a 2")]


def test_queries_do_not_know_of_each_other(broker: comet.testing.TestBroker) -> None:
    one, other = UpdateWriter(broker.address, TOPIC), UpdateWriter(broker.address, TOPIC)
    store(one, 5, "a 5")
    store(other, 0, "b 0", query="other")
    close(one, other)
    assert written(broker) == [("a", "a 5"), ("b", "b 0")]


def test_a_checkpoint_from_before_is_refused_instead_of_writing_what_is_old(broker: comet.testing.TestBroker) -> None:
    one = UpdateWriter(broker.address, TOPIC)
    store(one, 7, "a 7")
    with pytest.raises(comet.DataLoss, match=r"batch 6 .* after batch 7 .* Start with a new one"):
        store(one, 6, "a 6")
    store(one, 8, "a 8")
    close(one)
    assert written(broker) == [("a", "a 7"), ("a", "a 8")]


def test_one_that_was_put_aside_asks_anew_when_its_batch_comes_again(broker: comet.testing.TestBroker) -> None:
    """As after a pause so long that another job took over, and ended."""
    old, new = UpdateWriter(broker.address, TOPIC), UpdateWriter(broker.address, TOPIC)
    store(old, 0, "a 0")
    store(new, 1, "a 1")
    with pytest.raises(comet.ProducerFenced):
        store(old, 1, "a 1")
    store(old, 1, "a 1")
    close(old, new)
    assert written(broker) == [("a", "a 0"), ("a", "a 1")]


def test_a_query_that_is_started_again_does_not_leave_connections_behind(broker: comet.testing.TestBroker) -> None:
    with UpdateWriter(broker.address, TOPIC) as writer:
        store(writer, 0, "a 0")
        first = writer._producer
        store(writer, 0, "b 0", query="other")
        second = writer._producer
        assert first is not None and second is not None
        assert [one._closed for one in (first, second)] == [True, False]
        store(writer, 1, "a 1", query="other")
        states = [writer.connected]
    assert [*states, writer.connected] == [True, False]
    assert second._closed
    assert written(broker) == [("a", "a 0"), ("a", "a 1"), ("b", "b 0")]


@pytest.mark.parametrize(("note", "batch"), [(b"", -1), (b"batch 0", 0), (b"batch 123", 123), (b"other", -1)])
def test_a_note_says_which_batch_was_the_last(note: bytes, batch: int) -> None:
    assert last_of(note) == batch
