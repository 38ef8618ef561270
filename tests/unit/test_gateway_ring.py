"""What the property tests of the hub leave out: logs that are cut back, encoding once, what is counted as memory."""

from __future__ import annotations

import gc

import pytest

from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.push.chunk import Chunk, Slice, Source
from comet_gateway.push.events import Begun, Failed, Lost, Missing
from comet_gateway.push.ring import Ring
from comet_gateway.push.ring_cursor import Read, RingCursor
from comet_gateway.push.subscribe_request import Policy, SubscribeRequest, check
from comet_gateway.records.cursor import Cursor, CursorPosition
from comet_gateway.records.record_json import Values
from tests.unit.gateway_world import TOPIC, TOPIC_ID, batch_of

ASKED = SubscribeRequest(topics=(TOPIC,))


@pytest.fixture
def ring() -> Ring:
    made = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(0), 1: CursorPosition(0)}, 1 << 16)
    made.add(Source(batch_of(0, range(10), epoch=1)))
    return made


def cut_back(ring: Ring) -> None:
    """A leader was replaced by one that lacks the last three records."""
    ring.skip(Missing(0, 7, 10, "truncated"))
    ring.add(Source(batch_of(0, range(7, 9), epoch=2)))


def given(found: object) -> list[int]:
    assert isinstance(found, Slice)
    return list(found.offsets)


def test_who_follows_live_hears_of_a_log_that_was_cut_back(ring: Ring) -> None:
    follower = RingCursor(ring, ASKED)
    cut_back(ring)
    lost = follower.take()
    assert lost == Lost(TOPIC, 3, (Missing(0, 7, 10, "truncated"),), lost.cursor if isinstance(lost, Lost) else "")
    assert Cursor.parse(lost.cursor).positions[0] == CursorPosition(7)
    assert given(follower.take()) == [7, 8]


def test_who_is_not_in_step_asks_the_log_whether_his_position_is_still_there(ring: Ring) -> None:
    follower = RingCursor(ring, ASKED)
    follower.begin_at({0: CursorPosition(9, 1), 1: CursorPosition(0)})
    cut_back(ring)
    read = follower.take()
    assert read == Read(0, CursorPosition(9, 1))
    follower.missed(read, Missing(0, 7, 9, "truncated"), CursorPosition(7))
    lost = follower.take()
    assert isinstance(lost, Lost)
    assert lost.missing == (Missing(0, 7, 9, "truncated"),)
    assert given(follower.take()) == [7, 8]
    assert follower.live

    unharmed = RingCursor(ring, ASKED)
    unharmed.begin_at({0: CursorPosition(3, 1), 1: CursorPosition(0)})
    assert not ring.has(0, 3), "what is behind a cut is for the log to say"
    assert unharmed.take() == Read(0, CursorPosition(3, 1))


def test_who_walks_through_the_ring_gets_nothing_that_was_cut_off_meanwhile(ring: Ring) -> None:
    ring.add(Source(batch_of(0, range(10, 14), epoch=1)))
    ring.add(Source(batch_of(0, range(14, 20), epoch=1)))
    ring.add(Source(batch_of(1, range(3), epoch=1)))
    follower = RingCursor(ring, ASKED)
    follower.begin_at({0: CursorPosition(10, 1), 1: CursorPosition(1, 1)})
    assert given(follower.take()) == [10, 11, 12, 13]
    ring.skip(Missing(0, 16, 20, "truncated"))
    ring.add(Source(batch_of(0, range(16, 19), epoch=2)))
    read = follower.take()
    assert read == Read(0, CursorPosition(14, 1)), "the ring cannot say what comes between its place and the cut"
    follower.filled(read, [Source(batch_of(0, range(14, 16), epoch=1))], CursorPosition(16, 1), 1 << 16)
    assert given(follower.take()) == [14, 15]
    assert given(follower.take()) == [1, 2]
    assert given(follower.take()) == [16, 17, 18]
    assert follower.take() is None
    assert follower.live


def test_who_was_left_behind_before_a_cut_asks_the_log(ring: Ring) -> None:
    follower = RingCursor(ring, ASKED)
    cut_back(ring)
    follower.uproot(ring.positions_before(follower.number))
    ring.evict(ring.head)
    assert follower.take() == Read(0, CursorPosition(10, 1)), (
        "of the ring it could not hear that records 7 to 9 are others now"
    )


@pytest.mark.parametrize("position", [CursorPosition(8, 2), CursorPosition(7, 1)])
def test_who_comes_after_a_cut_is_not_led_past_what_was_cut_off(position: CursorPosition) -> None:
    ring = Ring(TOPIC, TOPIC_ID, {0: CursorPosition(0), 1: CursorPosition(0)}, 1 << 16)
    ring.add(Source(batch_of(1, range(2))))
    ring.add(Source(batch_of(0, range(10), epoch=1)))
    cut_back(ring)
    follower = RingCursor(ring, ASKED)
    follower.begin_at({0: position, 1: CursorPosition(0)})
    assert given(follower.take()) == [0, 1]
    assert given(follower.take()) == list(range(position.offset, 9))
    assert follower.take() is None
    assert follower.live


def test_who_was_further_in_a_partition_than_the_ring_knows_it_gets_nothing_twice(ring: Ring) -> None:
    follower = RingCursor(ring, ASKED)
    follower.begin_at({0: CursorPosition(8, 1), 1: CursorPosition(0), 2: CursorPosition(5, 1)})
    assert given(follower.take()) == [8, 9]
    assert follower.take() is None
    ring.add(Source(batch_of(2, range(3))))
    assert follower.take() is None
    ring.add(Source(batch_of(2, range(3, 7))))
    assert given(follower.take()) == [5, 6]
    assert follower.take() is None
    ring.add(Source(batch_of(1, range(2))))
    assert given(follower.take()) == [0, 1]
    assert follower.cursor() == ring.cursor_of(
        {0: CursorPosition(10, 1), 2: CursorPosition(7, 1), 1: CursorPosition(2, 1)}
    )


def test_a_position_is_vouched_for_only_where_its_record_is_known(ring: Ring) -> None:
    assert ring.vouches(0, CursorPosition(4, 1))
    assert ring.vouches(0, CursorPosition(10, 1))
    assert not ring.vouches(0, CursorPosition(4, 2)), "of another epoch"
    assert not ring.vouches(0, CursorPosition(4)), "of none that is known"
    assert not ring.vouches(0, CursorPosition(11, 1)), "not here yet"
    assert not ring.vouches(2, CursorPosition(0)), "of a partition that is not known"
    cut_back(ring)
    assert not ring.vouches(0, CursorPosition(8, 1))
    assert ring.vouches(0, CursorPosition(8, 2))


def test_what_is_encoded_is_made_once_and_counted_while_it_is_kept(ring: Ring) -> None:
    left, right = RingCursor(ring, ASKED), RingCursor(ring, ASKED)
    for follower in (left, right):
        follower.begin_at({0: CursorPosition(0), 1: CursorPosition(0)})
    ring.add(Source(batch_of(1, range(5))))
    live = RingCursor(ring, ASKED)
    ring.add(Source(batch_of(1, range(5, 10))))
    chunk = live.take()
    assert isinstance(chunk, Slice)
    assert chunk.members() is chunk.members()
    before = ring.bytes
    assert chunk.sse() is chunk.sse()
    assert ring.bytes > before, "another form"
    events = [(left.take(), right.take()) for _ in range(3)]
    assert events[2][0] is events[2][1] is chunk, "in step again"
    ring.evict(ring.head)
    assert ring.bytes == 0
    assert chunk.members()


def test_what_leaves_the_ring_is_freed_without_the_collector(ring: Ring) -> None:
    for first in range(10, 1_010, 10):
        ring.add(Source(batch_of(0, range(first, first + 10), epoch=1)))
    for number in range(ring.tail, ring.head):
        item = ring.at(number)
        assert isinstance(item, Chunk)
        item.whole(Values.AUTO).members()
    del item
    gc.collect()
    gc.disable()
    try:
        ring.evict(ring.head)
        assert gc.collect() < 50  # objects that only the collector could free
    finally:
        gc.enable()


def test_the_last_word_comes_after_all_that_was_there(ring: Ring) -> None:
    follower = RingCursor(ring, ASKED)
    follower.first.append(Begun(TOPIC, follower.cursor()))
    ring.add(Source(batch_of(1, range(3))))
    follower.failed = Failed("TOPIC_NOT_FOUND", "gone", {}, topic=TOPIC)
    assert isinstance(follower.take(), Begun)
    assert given(follower.take()) == [0, 1, 2]
    assert follower.take() is follower.failed
    assert follower.take() is None


@pytest.mark.parametrize(
    "asked",
    [
        SubscribeRequest(),
        SubscribeRequest(topics=("a",), pattern="b"),
        SubscribeRequest(topics=("a", "a")),
        SubscribeRequest(topics=("a",), partitions=frozenset()),
        SubscribeRequest(topics=("a",), policy=Policy.CONFLATE, interval_ms=0),
        SubscribeRequest(topics=("a",), policy=Policy.DROP_OLDEST, buffer=0),
        SubscribeRequest(topics=("a",), permits=-1),
    ],
)
def test_what_makes_no_sense_is_refused(asked: SubscribeRequest) -> None:
    with pytest.raises(Problem):
        check(asked, Limits())
