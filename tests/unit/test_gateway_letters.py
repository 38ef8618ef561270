"""Letters and notes as records, and which of them are meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import comet
from comet_gateway.dead_letters import selection
from comet_gateway.dead_letters.dead_letter import (
    PREFIX,
    REDRIVEN,
    SETTLED,
    DeadLetter,
    DeadLetterOffset,
    DeadLetterState,
    Note,
    cause_of,
    dead_letter_of,
    is_either,
    note_for,
    note_of,
    once_key,
    own_headers,
    redriven_headers,
)
from comet_gateway.dead_letters.index import DeadLetterIndex, Room
from comet_gateway.dead_letters.redrive import (
    QUEUES,
    READ_BYTES,
    READ_MAX,
    WAITING_MAX,
    Edit,
    RedriveFailure,
    RedriveProgress,
    Settling,
    Task,
    portions,
    rewritten,
)
from comet_gateway.http.problems import Problem

HEADERS = [
    ("trace", b"7"),
    (PREFIX + "topic", b"orders"),
    (PREFIX + "partition", b"1"),
    (PREFIX + "offset", b"17"),
    (PREFIX + "group", b"work"),
    (PREFIX + "attempts", b"5"),
    (PREFIX + "reason", b"ValueError: 17 < 18"),
]


def letter(offset: int = 3, **changed: bytes) -> DeadLetter:
    headers = [(name, changed.get(name.removeprefix(PREFIX), value)) for name, value in HEADERS]
    found = dead_letter_of(0, offset, 5, b"k", b"value", headers)
    assert found is not None
    return found


def test_a_letter_is_known_by_its_headers() -> None:
    found = letter()
    assert (found.topic, found.source_partition, found.source_offset) == ("orders", 1, 17)
    assert (found.group, found.attempts, found.reason) == ("work", 5, "ValueError: 17 < 18")
    assert (found.cause, found.state, found.times, found.size) == ("ValueError: # < #", DeadLetterState.PENDING, 0, 5)


@pytest.mark.parametrize(
    "wrong", [{"topic": b""}, {"partition": b"-1"}, {"offset": b"x"}, {"offset": b"9" * 20}, {"partition": b"\xd9\xa1"}]
)
def test_what_does_not_say_where_it_comes_from_is_none(wrong: dict[str, bytes]) -> None:
    headers = [(name, wrong.get(name.removeprefix(PREFIX), value)) for name, value in HEADERS]
    assert dead_letter_of(0, 1, 5, None, b"", headers) is None


def test_of_headers_that_stand_twice_the_last_counts() -> None:
    """A broker adds its own to those of a letter that dies again."""
    found = dead_letter_of(0, 1, 5, None, b"", [*HEADERS, (PREFIX + "group", b"audit"), (PREFIX + "offset", b"18")])
    assert found is not None
    assert (found.group, found.source_offset) == ("audit", 18)


@given(st.lists(st.tuples(st.sampled_from([PREFIX + "topic", PREFIX + "offset", SETTLED, "x"]), st.binary())))
def test_whatever_headers_hold_nothing_is_raised(headers: list[tuple[str, bytes]]) -> None:
    dead_letter_of(0, 1, 5, b"\xff", b"", headers)
    note_of(0, b"\xff", None, headers)
    is_either(headers)


def test_a_note_says_what_became_of_a_letter() -> None:
    key, headers = note_for(letter(), DeadLetterState.REDRIVEN, to="orders/1/99", by="me")
    assert note_of(0, key, None, headers) == Note(DeadLetterOffset(0, 3), DeadLetterState.REDRIVEN, "orders/1/99", "me")
    assert is_either(headers) and dead_letter_of(0, 4, 5, key, None, headers) is None


@pytest.mark.parametrize(
    ("partition", "key", "value", "state"),
    [
        (1, b"0/3", None, b"redriven"),  # of another partition than it is in
        (0, b"0/3", b"", b"redriven"),
        (0, b"0/3", None, b"pending"),
        (0, b"0-3", None, b"redriven"),
        (0, b"0/" + b"9" * 20, None, b"redriven"),
        (0, None, None, b"redriven"),
    ],
)
def test_what_only_looks_like_a_note_is_none(
    partition: int, key: bytes | None, value: bytes | None, state: bytes
) -> None:
    assert note_of(partition, key, value, [(SETTLED, state)]) is None


def test_causes_are_reasons_without_what_differs() -> None:
    assert cause_of("order 17 is late by 3.5 s") == cause_of("order 4 is late by 12 s") == "order # is late by # s"
    assert cause_of("first line\nsecond 1") == "first line"
    assert cause_of("at 2026-11-21 14:03:22.125") == "at # #"
    assert len(cause_of("x" * 5_000)) <= 160


def test_a_redriven_record_says_where_it_comes_from_and_is_no_letter() -> None:
    headers = redriven_headers(letter(), "failed", HEADERS)
    assert headers == [
        ("trace", b"7"),
        (REDRIVEN + "from", b"failed/0/3"),
        (REDRIVEN + "group", b"work"),
        (REDRIVEN + "reason", b"ValueError: 17 < 18"),
        (REDRIVEN + "times", b"1"),
    ]
    assert not is_either(headers)
    again = dead_letter_of(0, 9, 5, None, b"", [*headers, *HEADERS[1:]])
    assert again is not None
    assert again.times == 1
    assert redriven_headers(again, "failed", headers)[-1] == (REDRIVEN + "times", b"2")
    assert own_headers([*headers, *HEADERS]) == [("trace", b"7"), ("trace", b"7")]


# ---- the record that a letter becomes


def task(**more: object) -> Task:
    return Task(DeadLetterState.REDRIVEN, (), 1, "me", **{"partitions": {"orders": 2, "other": 4}, **more})  # type: ignore[arg-type]


RECORD = comet.Record("failed", 0, 3, b"k", b"value", 5, HEADERS)


def test_it_goes_where_it_was_with_all_that_it_had() -> None:
    topic, new = rewritten(letter(), RECORD, "failed", task())
    assert topic == "orders"
    assert (new.value, new.key, new.timestamp_us, new.partition) == (b"value", b"k", 5, 1)
    assert rewritten(letter(), RECORD, "failed", task()) == (topic, new), "the same each time, or it is not once"


def test_elsewhere_and_with_another_key_the_key_says_which_partition() -> None:
    assert rewritten(letter(), RECORD, "failed", task(to="other"))[1].partition is None
    edit = Edit(frozenset({"key"}), key=b"new")
    assert rewritten(letter(), RECORD, "failed", task(edit=edit))[1][1:5:3] == (b"new", None)
    assert rewritten(letter(partition=b"9"), RECORD, "failed", task())[1].partition is None, "there is no partition 9"


def test_an_edit_changes_what_it_gives_and_no_more() -> None:
    edit = Edit(frozenset({"value", "headers"}), value=None, headers=[("a", b"b"), (PREFIX + "topic", b"x")])
    _, new = rewritten(letter(), RECORD, "failed", task(edit=edit))
    assert (new.value, new.key) == (None, b"k")
    assert ("a", b"b") in new.headers and not is_either(new.headers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "to", "code"),
    [
        (b"failed", "", "INVALID_ARGUMENT"),
        (b"orders", "failed", "INVALID_ARGUMENT"),
        (b"__offsets", "", "INVALID_ARGUMENT"),
        (b"gone", "", "TOPIC_NOT_FOUND"),
    ],
)
def test_where_no_letter_goes(source: bytes, to: str, code: str) -> None:
    with pytest.raises(Problem) as caught:
        rewritten(letter(topic=source), RECORD, "failed", task(to=to))
    assert caught.value.code == code


def test_a_letter_has_one_key_for_all_who_write_it() -> None:
    assert once_key(b"\1" * 16, letter()) == once_key(b"\1" * 16, letter(reason=b"another"))
    assert len({once_key(topic, letter(offset)) for topic in (b"\1" * 16, b"\2" * 16) for offset in (1, 2)}) == 4


# ---- which are meant


def topic_index(*letters: DeadLetter) -> DeadLetterIndex:
    partitions = tuple(comet.PartitionInfo(index, 1, 0, (1,), (1,)) for index in range(2))
    info = comet.TopicInfo("failed", b"\1" * 16, partitions, comet.TopicConfig(), 0)
    made = DeadLetterIndex(info, Room(100), 1_000)
    for one in letters:
        made._add(made.sources[one.partition], one)
    return made


def test_those_that_are_named_and_what_is_wrong_with_the_others() -> None:
    made = topic_index(letter(1), letter(2))
    made.settle(Note(DeadLetterOffset(0, 2), DeadLetterState.DISCARDED, "", "me"))
    chosen = selection.named(
        made,
        [
            DeadLetterOffset(0, 1),
            DeadLetterOffset(0, 2),
            DeadLetterOffset(0, 9),
            DeadLetterOffset(7, 1),
            DeadLetterOffset(0, 1),
        ],
    )
    assert [one.offset for one in chosen.dead_letters] == [1]
    assert (chosen.settled, chosen.unknown) == (1, [DeadLetterOffset(0, 9), DeadLetterOffset(7, 1)])


def test_that_it_was_written_cannot_be_undone_by_a_later_note() -> None:
    made = topic_index(letter(1))
    made.settle(Note(DeadLetterOffset(0, 1), DeadLetterState.DISCARDED, "", "a"))
    made.settle(Note(DeadLetterOffset(0, 1), DeadLetterState.REDRIVEN, "orders/0/5", "b"))
    made.settle(Note(DeadLetterOffset(0, 1), DeadLetterState.DISCARDED, "", "c"))
    (found,) = made.dead_letters()
    assert (found.state, found.to, found.by) == (DeadLetterState.REDRIVEN, "orders/0/5", "b")
    assert made.states() == {DeadLetterState.REDRIVEN: 1}


def test_counts_follow_every_letter_and_note() -> None:
    made = topic_index(letter(1), letter(2, group=b"audit"), letter(3))
    made.settle(Note(DeadLetterOffset(0, 3), DeadLetterState.REDRIVEN, "", ""))
    counts = {group: dict(+one.states) for (group, _), one in made.counts.items()}
    assert counts == {
        "work": {DeadLetterState.PENDING: 1, DeadLetterState.REDRIVEN: 1},
        "audit": {DeadLetterState.PENDING: 1},
    }
    made.clear()
    assert (made.counts, list(made.dead_letters())) == ({}, [])


async def test_pages_hold_each_letter_once_the_newest_first() -> None:
    made = topic_index(*(letter(offset) for offset in range(10)))
    first, matched = await selection.newest(made, selection.Filter(), 4)
    rest, _ = await selection.newest(made, selection.Filter(), 100, selection.order(first[-1]))
    assert [one.offset for one in [*first, *rest]] == list(range(9, -1, -1))
    assert matched == 10


# ---- in portions


def test_what_is_read_at_once_is_bounded_in_letters_and_bytes() -> None:
    def sized(*sizes: int) -> list[int]:
        letters = [letter(offset) for offset in range(len(sizes))]
        for one, size in zip(letters, sizes, strict=True):
            one.size = size
        found = list(portions(letters))
        assert [one for some in found for one in some] == letters
        return [len(some) for some in found]

    assert sized() == []
    assert sized(*[10] * (READ_MAX + 1)) == [READ_MAX, 1]
    assert sized(READ_BYTES, 1, READ_BYTES - 1, 1) == [1, 2, 1]
    assert sized(3 * READ_BYTES, 3 * READ_BYTES) == [1, 1]


# ---- settling them


class Broken:
    """A producer that raises an unexpected error."""

    async def publish(self, *_: object, **__: object) -> None:
        raise RuntimeError("an unexpected error")


async def test_what_nobody_thought_of_fails_its_letter_and_holds_up_no_other() -> None:
    letters = [
        letter(offset) for offset in range(QUEUES + WAITING_MAX + 2)
    ]  # of one key, so that all are in one source
    run = Settling(
        topic_index(*letters),
        None,  # type: ignore[arg-type] # nothing is read to discard
        Broken(),  # type: ignore[arg-type]
        Task(DeadLetterState.DISCARDED, letters, 1e6, "me"),
    )
    events = [event async for event in run.events()]
    failures = [event for event in events if isinstance(event, RedriveFailure)]
    assert [one.problem.code for one in failures] == ["INTERNAL"] * len(letters)
    end = events[-1]
    assert isinstance(end, RedriveProgress) and end.over and end.failed == len(letters) and not end.stopped
