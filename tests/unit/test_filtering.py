"""What a broker makes of batches for a subscriber with a filter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comet import records
from comet.filters import parse
from comet.records import Batch, iterate, stamped
from comet_broker.core.filter_time import BURST_S, PAUSE_S_MAX, SENT_BYTES_PER_S, FilterTime
from comet_broker.partitions.filtering import FilteredDelivery
from tests.unit.replica_world import HeldWorker
from tests.unit.storage_world import HandClock


def batch(base: int, values: list[bytes | None], epoch: int = 1, **more: Any) -> bytes:
    return stamped(records.encode(values, timestamps=1, **more), base, append_time_us=7, leader_epoch=epoch)


def numbers(first: int, end: int, epoch: int = 1, **more: Any) -> bytes:
    return batch(first, [b'{"n":%d}' % at for at in range(first, end)], epoch, **more)


async def left_of(data: bytes, text: str, time: FilterTime | None = None) -> list[Batch]:
    clock = HandClock()
    delivery = FilteredDelivery(parse(text, now_us=0), 0, time or FilterTime(clock, 20), asyncio.Lock(), HeldWorker())
    await delivery.take(memoryview(data))
    found = delivery.batches()
    assert len(found) == delivery.size
    return list(iterate(found))


def told(batches: list[Batch]) -> list[tuple[int, int, list[int]]]:
    return [(one.header.base_offset, one.header.next_offset, list(one.offsets)) for one in batches]


async def test_rows_that_match_are_left_and_all_offsets_are_covered() -> None:
    data = numbers(0, 4) + numbers(4, 8) + numbers(8, 12) + numbers(12, 16)
    assert told(await left_of(data, "n = 9 || n = 10")) == [(0, 8, []), (8, 12, [9, 10]), (12, 16, [])]
    assert told(await left_of(data, "n >= 0")) == [
        (0, 4, [0, 1, 2, 3]),
        (4, 8, [4, 5, 6, 7]),
        (8, 12, [8, 9, 10, 11]),
        (12, 16, [12, 13, 14, 15]),
    ]
    assert told(await left_of(data, "n > 99")) == [(0, 16, [])]


async def test_what_all_matches_is_sent_as_it_is() -> None:
    data = numbers(0, 4, producer_id=5, base_sequence=9)
    (left,) = await left_of(data, "n >= 0")
    assert left.header == records.read_header(data)


async def test_offsets_of_other_epochs_are_covered_by_batches_of_their_own() -> None:
    data = numbers(0, 4) + numbers(4, 8, epoch=2) + numbers(8, 12, epoch=2)
    left = await left_of(data, "n > 99")
    assert [(one.header.leader_epoch, one.header.next_offset) for one in left] == [(1, 4), (2, 12)]


async def test_markers_are_covered_and_transactions_stay_what_they_are() -> None:
    marker = stamped([records.encode_marker(5, 1, False, 0, 1)], 4, append_time_us=7, leader_epoch=1)
    data = numbers(0, 4, producer_id=5, producer_epoch=1, transactional=True) + marker
    left = await left_of(data, "n = 1")
    assert told(left) == [(0, 4, [1]), (4, 5, [])]
    assert left[0].header.transactional and left[0].header.producer_id == 5


async def test_without_time_left_all_is_sent() -> None:
    clock = HandClock()
    time = FilterTime(clock, 50)
    time.spend(BURST_S)
    assert told(await left_of(numbers(0, 4), "n = 1", time)) == [(0, 4, [0, 1, 2, 3])]
    assert time.unfiltered_batches == 1
    clock.now_us += 1_000_000
    assert told(await left_of(numbers(0, 4), "n = 1", time)) == [(0, 4, [1])]
    never = FilterTime(clock, 0)
    clock.now_us += 1_000_000
    assert told(await left_of(numbers(0, 4), "n = 1", never)) == [(0, 4, [0, 1, 2, 3])]


def test_a_filter_is_charged_with_what_it_takes_beyond_sending() -> None:
    time = FilterTime(HandClock(), 50)
    time.spend(2 * BURST_S, unsent_bytes=round(2 * BURST_S * SENT_BYTES_PER_S))
    time.spend(1.0, unsent_bytes=1 << 40)  # nothing is saved up by it
    assert time.allows()
    assert time.spent_s == 2 * BURST_S + 1.0
    time.spend(BURST_S + 1.0, unsent_bytes=round(SENT_BYTES_PER_S))
    assert not time.allows()


@pytest.mark.parametrize("text", ["n = 1", "n > 99", "n >= 0"])
async def test_what_was_left_out_is_what_was_not_sent(text: str) -> None:
    unsent = list[int]()

    class Noted(FilterTime):
        def spend(self, seconds: float, unsent_bytes: int = 0) -> None:
            unsent.append(unsent_bytes)

    data = numbers(0, 40) + numbers(40, 80)
    left = FilteredDelivery(parse(text, now_us=0), 0, Noted(HandClock(), 20), asyncio.Lock(), HeldWorker())
    await left.take(memoryview(data))
    covers = left.size
    left.finish()
    assert sum(unsent) == len(data) - covers
    assert (sum(unsent) == 0) == (text == "n >= 0")


class UsedUp(FilterTime):
    """It is used up as soon as a slice has begun."""

    looks = 0

    def allows(self) -> bool:
        self.looks += 1
        return self.looks == 1


async def test_an_exact_delivery_sends_nothing_else_also_if_the_time_ends_meanwhile() -> None:
    chosen = parse("n = 1", now_us=0)
    for exact in (False, True):
        time = UsedUp(HandClock(), 20)
        left = FilteredDelivery(chosen, 0, time, asyncio.Lock(), HeldWorker(), exact=exact)
        if not exact:
            time.looks = 1
        await left.take(memoryview(numbers(0, 4) + numbers(4, 8)))
        assert [len(one) for one in iterate(left.batches())] == ([1, 0] if exact else [4, 4])


def test_a_pause_is_as_long_as_what_is_owed_and_bounded() -> None:
    time = FilterTime(HandClock(), 50)
    time.spend(BURST_S + 0.01)
    assert time.pause_s() == pytest.approx(0.02)
    time.spend(5.0)
    assert time.pause_s() == PAUSE_S_MAX == FilterTime(HandClock(), 0).pause_s()


async def test_a_damaged_batch_is_left_to_the_reader() -> None:
    """Its rows would get a checksum that is right."""
    damaged = bytearray(numbers(0, 4))
    damaged[damaged.index(b'"n":2') + 1] ^= 1
    left = FilteredDelivery(parse("n = 1", now_us=0), 0, FilterTime(HandClock(), 20), asyncio.Lock(), HeldWorker())
    await left.take(memoryview(bytes(damaged)))
    assert left.batches() == bytes(damaged)


async def test_a_batch_that_cannot_be_read_is_left_to_the_reader() -> None:
    whole = bytearray(numbers(0, 4, keys=[b"a", b"b", b"c", b"d"]))
    at = whole.index(b"abcd") - 8  # the last offset of the keys, and padding
    whole[at : at + 4] = b"\xff\xff\xff\x7f"
    left = FilteredDelivery(parse("n = 1", now_us=0), 0, FilterTime(HandClock(), 20), asyncio.Lock(), HeldWorker())
    await left.take(memoryview(bytes(whole)))
    assert left.batches() == bytes(whole)


@pytest.mark.parametrize("text", ['@key = "b"', "@offset = 1", "@partition = 0 && n = 1", "@timestamp = 1 && n = 1"])
async def test_parts_beside_the_value_are_read_as_well(text: str) -> None:
    data = numbers(0, 4, keys=[b"a", b"b", b"c", b"d"])
    assert told(await left_of(data, text)) == [(0, 4, [1])]
