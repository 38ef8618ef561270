"""Requests with an idempotency key, as one partition remembers them."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from comet.errors import CorruptBatch, KeyReused, SequenceGap, SequenceTooOld
from comet.records import BatchHeader, Content, Flag
from comet_broker.core.producers import PRODUCERS_MAX, Duplicate, ProducerTable
from comet_broker.core.requests import REQUESTS_MAX, digest_of, id_of
from tests.unit.test_producers import header


def keyed(number: int, digest: int = 1, count: int = 1) -> BatchHeader:
    return header(digest, count, producer=number)._replace(flags=int(Flag.KEYED))


def test_a_request_is_written_once_and_its_key_is_good_for_nothing_else() -> None:
    table = ProducerTable()
    assert table.check(keyed(5, digest=77, count=3)) is None
    table.record(keyed(5, digest=77, count=3), 10, 100)
    assert table.check(keyed(5, digest=77, count=3)) == Duplicate(10, 100)
    for other in (keyed(5, digest=78, count=3), keyed(5, digest=77, count=2)):
        with pytest.raises(KeyReused) as refused:
            table.check(other)
        assert refused.value.details == {"offset": "10"}
    assert table.check(keyed(6, digest=77, count=3)) is None


def test_requests_and_producers_do_not_meet() -> None:
    table = ProducerTable()
    for number in range(1, PRODUCERS_MAX + 1):
        table.record(header(0, producer=number), number, number)
    for number in range(1, 2 * PRODUCERS_MAX):
        assert table.check(keyed(number)) is None, "a producer of that number is another thing"
        table.record(keyed(number), 5000 + number, 0)
    assert (len(table), len(table.requests)) == (PRODUCERS_MAX, 2 * PRODUCERS_MAX - 1)
    assert table.check(header(1, producer=1)) is None
    with pytest.raises(SequenceGap):
        table.check(header(2, producer=1))


def test_the_one_written_longest_ago_is_forgotten_when_there_are_too_many() -> None:
    table = ProducerTable()
    for number in range(1, REQUESTS_MAX + 1):
        table.record(keyed(number), number, 0)
    assert table.check(keyed(1)) == Duplicate(1, 0), "asking after it does not keep it"
    table.record(keyed(9999), 9999, 0)
    assert table.check(keyed(2)) == Duplicate(2, 0)
    assert len(table.requests) == REQUESTS_MAX
    offset, restored = ProducerTable.restore(table.snapshot(7).encode())
    assert (offset, restored.snapshot(7)) == (7, table.snapshot(7))
    for one in (table, restored):
        with pytest.raises(SequenceTooOld, match="not written"):
            one.check(keyed(1))
        with pytest.raises(KeyReused, match="other content"):
            one.check(keyed(1, 2))


def test_a_snapshot_with_requests_damaged_anywhere_is_refused() -> None:
    table = ProducerTable()
    table.record(keyed(1), 0, 0)
    table.record(keyed(2, digest=3, count=4), 1, 9)
    data = table.snapshot(5).encode()
    assert ProducerTable.restore(data)[1].snapshot(5) == table.snapshot(5)
    for at in range(len(data)):
        with pytest.raises(CorruptBatch):
            ProducerTable.restore(data[:at])
    cut = data[:-40]
    with pytest.raises(CorruptBatch):
        ProducerTable.restore(cut + crc32c(cut).to_bytes(4, "little"))


def test_the_numbers_are_those_of_the_specification() -> None:
    """A leader of a later version, or one in another language, has to find the same ones in the log."""
    assert id_of("quotes", "order 4711") == 0xE29FEA3F76B9526
    records = [Content(-1, 0, b"k", b"v", [("größe", b"9")]), Content(3, 5, None, None, [])]
    assert digest_of(records) == 0x32D0DC01FE54BB17


texts = st.sampled_from(["", "a", "b", "ab", "\0", "a\0b"])
contents = st.builds(
    Content,
    st.integers(-1, 2),
    st.integers(0, 2),
    st.none() | st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=2)), max_size=2),
    st.integers(-1, 2),
)


@given(st.lists(contents, max_size=3), st.lists(contents, max_size=3))
def test_two_contents_have_one_digest_only_if_they_are_one(first: list[Content], second: list[Content]) -> None:
    assert (digest_of(first) == digest_of(second)) == (first == second)
    assert 0 < digest_of(first) < 1 << 62


@given(texts, texts, texts, texts)
def test_keys_of_two_topics_are_two_requests(topic: str, key: str, other_topic: str, other_key: str) -> None:
    if "\0" not in topic + other_topic:  # no name of a topic has one
        assert (id_of(topic, key) == id_of(other_topic, other_key)) == ((topic, key) == (other_topic, other_key))


requests = st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 2))


@given(st.lists(requests | st.sampled_from(["restart", "cut"]), max_size=60))
def test_it_knows_what_a_list_knows(moves: list[tuple[int, int, int] | str]) -> None:
    """The oracle is the log itself, read from its beginning."""
    table = ProducerTable()
    log: list[tuple[int, int, int, int]] = []  # number, digest, count, offset
    for move in moves:
        end = log[-1][3] + log[-1][2] if log else 0
        if isinstance(move, str):
            if move == "cut":
                del log[len(log) // 2 :]
                table = ProducerTable()
                for number, digest, count, offset in log:
                    table.record(keyed(number, digest, count), offset, offset)
            else:
                table = ProducerTable.restore(table.snapshot(end).encode())[1]
            continue
        number, digest, count = move
        before = [entry for entry in log if entry[0] == number]
        if not before:
            assert table.check(keyed(*move)) is None
            table.record(keyed(*move), end, end)
            log.append((*move, end))
        elif before[0][1:3] == (digest, count):
            assert table.check(keyed(*move)) == Duplicate(before[0][3], before[0][3])
        else:
            with pytest.raises(KeyReused):
                table.check(keyed(*move))
    assert len({entry[0] for entry in log}) == len(log) == len(table.requests)
