"""The memory that live readers are served from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comet import records
from comet.wire.frames import PARTS_FROM_BYTES, FrameParts, Outgoing, joined, parse_delivery
from comet_broker.core.tail import ENTRY_OVERHEAD_BYTES, RECENT_ENTRIES, Tail, TailBudget


def batch(count: int = 1, size: int = 10) -> bytes:
    return b"".join(records.encode([b"x" * size] * count, timestamps=1))


def push(tail: Tail, base: int, data: bytes) -> int:
    header = records.read_header(data)
    stamp = records.make_stamp(base, 5, 1, header.length)
    end = base + header.record_count
    tail.push(base, end, stamp, memoryview(data)[records.STAMP_BYTES :])
    return end


def offsets(outgoing: Outgoing) -> list[int]:
    frame = joined(outgoing)
    assert parse_delivery(frame) is not None
    return [offset for one in records.iterate(frame[32:]) for offset in one.offsets]


def test_a_reader_at_the_end_gets_the_last_batch_and_all_readers_the_same_bytes() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    end = push(tail, 0, batch(3))
    push(tail, end, batch(2))
    first = tail.frame_from(3, 5, 5, 1, 1 << 20)
    second = tail.frame_from(4, 5, 5, 1, 1 << 20)
    assert first is not None
    assert second is not None
    assert offsets(first.frame) == [3, 4]
    assert first.next_offset == 5
    assert first.frame is second.frame


def test_a_reader_behind_gets_several_batches_in_one_frame() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    end = 0
    for _ in range(5):
        end = push(tail, end, batch(2))
    got = tail.frame_from(3, end, end, 1, 1 << 20)
    assert got is not None
    assert offsets(got.frame) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert got.size == len(got.frame) - 32
    assert tail.frame_from(2, end, end, 1, 1 << 20) is got, "readers at the same batches share one encoding"


def test_a_reader_far_behind_gets_what_follows_its_place() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    end = 0
    for _ in range(3 * RECENT_ENTRIES):
        end = push(tail, end, batch(2))
    for offset in (1, end - 2 * RECENT_ENTRIES - 1, end - 2 * RECENT_ENTRIES, end - 3):
        got = tail.frame_from(offset, end, end, 1, 1 << 20)
        assert got is not None
        assert offsets(got.frame) == list(range(offset - offset % 2, end))


def test_the_size_wanted_is_kept_but_for_the_first_batch() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    end = 0
    for _ in range(5):
        end = push(tail, end, batch(2))
    one = len(batch(2))
    got = tail.frame_from(0, end, end, 1, 2 * one)
    assert got is not None
    assert got.next_offset == 4
    small = tail.frame_from(0, end, end, 1, 1)
    assert small is not None
    assert small.next_offset == 2


def test_nothing_above_the_high_watermark_goes_out() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    push(tail, 0, batch(2))
    push(tail, 2, batch(2))
    assert tail.frame_from(2, 2, 2, 1, 1 << 20) is None
    got = tail.frame_from(0, 2, 2, 1, 1 << 20)
    assert got is not None
    assert got.next_offset == 2


def test_a_large_batch_is_delivered_from_the_memory_in_which_it_came() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    data = batch(1, PARTS_FROM_BYTES)
    end = push(tail, 0, data)
    readers, follower = (tail.frame_from(0, end, end, 1, 1 << 20, follower=follower) for follower in (False, True))
    assert readers is not None and follower is not None
    for frame in (readers.frame, follower.frame):
        assert isinstance(frame, FrameParts)
        last = frame.parts[-1]
        assert isinstance(last, memoryview) and last.obj is data
        assert len(frame) == sum(map(len, frame.parts)) == 32 + len(data)
    assert offsets(readers.frame) == offsets(follower.frame) == [0]


def test_a_large_batch_is_joined_once_for_all_transports_that_need_it() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    end = push(tail, push(tail, 0, batch(1, PARTS_FROM_BYTES)), batch(1, PARTS_FROM_BYTES))
    alone = tail.frame_from(1, end, end, 1, 1 << 20)
    assert alone is not None
    whole = joined(alone.frame)
    again = tail.frame_from(1, end, end, 1, 1 << 20)
    assert again is not None and joined(again.frame) is whole
    assert tail.entries[-1].rest.obj is whole, "the tail keeps one copy"
    both = tail.frame_from(0, end, end, 1, 1 << 20)
    assert both is not None and offsets(both.frame) == [0, 1]


def test_a_gap_clears_what_came_before() -> None:
    tail = Tail(7, TailBudget(1 << 20, 1 << 20))
    push(tail, 0, batch(2))
    push(tail, 10, batch(2))
    assert tail.frame_from(0, 12, 12, 1, 1 << 20) is None
    assert tail.frame_from(10, 12, 12, 1, 1 << 20) is not None


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 400)), max_size=60),
    st.integers(1, 4),
)
def test_the_budget_holds_and_what_is_served_is_what_was_pushed(pushes: list[tuple[int, int, int]], scale: int) -> None:
    budget = TailBudget(4000 * scale, 2500 * scale)
    tails = [Tail(handle, budget) for handle in range(3)]
    ends = [0, 0, 0]
    for which, count, size in pushes:
        base = ends[which]
        ends[which] = push(tails[which], base, batch(count, size))
        assert budget.used_bytes <= budget.total_bytes_max
        assert budget.used_bytes == sum(tail.used_bytes for tail in tails)
        for tail, end in zip(tails, ends, strict=True):
            assert tail.used_bytes <= budget.partition_bytes_max
            assert tail.used_bytes == sum(entry.size + ENTRY_OVERHEAD_BYTES for entry in tail.entries)
            for offset in range(end):
                got = tail.frame_from(offset, end, end, 1, 300)
                if got is not None:
                    served = offsets(got.frame)
                    assert offset in served
                    assert served == list(range(served[0], got.next_offset))
    for tail in tails:
        tail.clear()
    assert budget.used_bytes == 0
