"""Names to slots, slots to brokers."""

from __future__ import annotations

from collections import Counter

from comet_broker.core import slots


def test_a_slot_moves_only_when_its_broker_comes_or_goes() -> None:
    brokers = [1, 2, 3, 4, 5]
    before = {slot: slots.chosen(slot, brokers) for slot in range(slots.SLOTS)}
    after = {slot: slots.chosen(slot, [1, 2, 4, 5]) for slot in range(slots.SLOTS)}
    assert all(before[slot] == after[slot] for slot in before if before[slot] != 3)
    assert 3 in before.values() and 3 not in after.values()


def test_the_order_of_the_list_does_not_matter() -> None:
    for slot in range(slots.SLOTS):
        assert slots.chosen(slot, [3, 1, 2]) == slots.chosen(slot, [1, 2, 3])
    assert slots.chosen(0, []) is None


def test_slots_are_spread_over_brokers_and_names_over_slots() -> None:
    load = Counter(slots.chosen(slot, [1, 2, 3]) for slot in range(slots.SLOTS))
    assert len(load) == 3 and max(load.values()) <= 2 * slots.SLOTS // 3
    names = Counter(slots.slot_of(f"group-{number}") for number in range(3200))
    assert set(names) == set(range(slots.SLOTS))
    assert max(names.values()) < 200


def test_a_producer_id_tells_its_slot() -> None:
    for slot in range(slots.SLOTS):
        for number in (1, (1 << slots.PRODUCER_BITS) - 1):
            producer_id = slots.producer_in(slot, number)
            assert 0 < producer_id < 1 << 63
            assert slots.slot_of_producer(producer_id) == slot
    assert slots.slot_of_producer(-1) is None
    assert slots.slot_of_producer((1 << 63) - 1) is None
