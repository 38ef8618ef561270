"""The last record of each key, in SQLite, against a plain dictionary."""

from __future__ import annotations

from random import Random

import pytest

from comet.records import CompactionPlan
from comet_broker import limits
from comet_broker.key_values.table import KeyRecord, KeyTable


@pytest.fixture
def table() -> KeyTable:
    return KeyTable()


def row(key: bytes, revision: int, value: bytes | None = b"v") -> KeyRecord:
    return KeyRecord(key, revision, value is not None, b"%s@%d" % (key, revision))


def test_the_last_record_of_a_key_counts(table: KeyTable) -> None:
    table.put(row(b"a", 1))
    table.put_many([row(b"b", 2), row(b"a", 3), row(b"b", 4, None)])
    assert table.last(b"a") == row(b"a", 3)
    assert table.last(b"b") == row(b"b", 4, None)
    assert table.last(b"c") is None


def test_the_greatest_offset_counts_and_not_the_last_write(table: KeyTable) -> None:
    """The records of a transaction come when it is committed, after later ones of others."""
    table.put_open(7, 0, [row(b"a", 1), row(b"b", 2)])
    table.put(row(b"a", 3))
    table.decide(7, 0, commit=True)
    assert table.last(b"a") == row(b"a", 3)
    assert table.last(b"b") == row(b"b", 2)


def test_a_transaction_counts_once_it_is_committed(table: KeyTable) -> None:
    table.put(row(b"a", 1))
    table.put_open(7, 0, [row(b"a", 2), row(b"a", 3)])
    table.put_open(8, 0, [row(b"b", 4)])
    assert table.last(b"a") == row(b"a", 1)
    assert table.is_open(b"a")
    assert table.is_open(b"b")
    table.decide(8, 0, commit=False)
    assert not table.is_open(b"b")
    assert table.last(b"b") is None
    table.decide(7, 0, commit=True)
    assert not table.any_open
    assert table.last(b"a") == row(b"a", 3)
    assert table.revisions(b"a") == [3, 2, 1]


def test_a_transaction_is_named_by_producer_and_epoch(table: KeyTable) -> None:
    table.put_open(7, 0, [row(b"a", 1)])
    table.put_open(7, 1, [row(b"a", 2)])
    table.decide(7, 0, commit=False)
    assert table.is_open(b"a")
    table.decide(7, 1, commit=True)
    assert table.revisions(b"a") == [2]


def test_as_many_revisions_are_known_as_the_limit_says(table: KeyTable) -> None:
    """Offsets have all bytes there are, zeros included."""
    offsets = [at * 0x0100_0000_01FF for at in range(3 * limits.KEY_HISTORY_MAX)]
    for at, offset in enumerate(offsets):
        table.put(row(b"a", offset, None if at % 3 == 0 else b"v"))
    assert table.revisions(b"a") == offsets[: -limits.KEY_HISTORY_MAX - 1 : -1]


@pytest.mark.parametrize(
    ("prefix", "after", "limit", "found"),
    [
        (b"", None, 10, [b"\x00", b"a", b"ab", b"b", b"\xff", b"\xff\xff"]),
        (b"a", None, 10, [b"a", b"ab"]),
        (b"a", b"a", 10, [b"ab"]),
        (b"a", b"ab", 10, []),
        (b"a", b"\x00", 10, [b"a", b"ab"]),
        (b"\xff", None, 10, [b"\xff", b"\xff\xff"]),
        (b"\xff\xff\xff", None, 10, []),
        (b"", b"a", 2, [b"ab", b"b"]),
    ],
)
def test_a_range_has_a_prefix_a_start_and_a_limit(
    table: KeyTable, prefix: bytes, after: bytes | None, limit: int, found: list[bytes]
) -> None:
    table.put_many([row(key, at) for at, key in enumerate([b"b", b"ab", b"a", b"\xff", b"\x00", b"\xff\xff"])])
    assert [one.key for one in table.range(prefix, after, limit)] == found


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_dictionary_is(table: KeyTable, seed: int) -> None:
    random = Random(seed)
    last: dict[bytes, KeyRecord] = {}
    undecided: dict[int, list[KeyRecord]] = {}
    for revision in range(400):
        one = row(b"k%d" % random.randrange(20), revision, random.choice([None, b"v"]))
        match random.randrange(4):
            case 0:
                producer = random.randrange(3)
                undecided.setdefault(producer, []).append(one)
                table.put_open(producer, 0, [one])
            case 1 if undecided:
                producer = random.choice(list(undecided))
                commit = random.random() < 0.5
                table.decide(producer, 0, commit=commit)
                for ended in undecided.pop(producer):
                    if commit and ended.revision > last.get(ended.key, row(b"", -1)).revision:
                        last[ended.key] = ended
            case _:
                last[one.key] = one
                table.put(one)
    assert table.range(b"", None, 100) == [last[key] for key in sorted(last)]
    assert table.any_open == bool(undecided)


def test_what_a_compaction_removes_is_forgotten(table: KeyTable) -> None:
    table.put_many([row(b"a", 1, None), row(b"b", 2), row(b"c", 3, None), row(b"d", 8, None)])
    table.put(row(b"e", 4)._replace(expires_us=50))
    table.put(row(b"f", 5)._replace(expires_us=51))
    table.put(row(b"g", 9)._replace(expires_us=50))
    table.forget(CompactionPlan(clean_end=8, now_us=50, tombstones_end=3))
    assert [found.key for found in table.range(b"", None, 10)] == [b"b", b"c", b"d", b"f", b"g"]
