"""Coordinator slots: names of groups and transactional ids are spread over slots, slots over brokers.

A slot goes to the broker with the highest hash of the two (rendezvous hashing), so that a broker that joins or leaves
moves only its own slots, and every broker computes the same coordinator from the same list.

A transactional producer's id carries its slot, so that the leader of a partition finds its coordinator.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from comet.errors import InvalidArgument
from comet.types import check_topic_name

SLOTS: Final = 32
_SLOT_SHIFT: Final = 56  # the ids of producers without transactions are below 2^62 as well; their slot is not used
PRODUCER_BITS: Final = 56

assert SLOTS << _SLOT_SHIFT < 1 << 63


def slot_of(name: str) -> int:
    """The slot of a group or transactional id."""
    return crc32c(name.encode()) % SLOTS


def check_name(name: str) -> str:
    """Checks the name of a group or transactional id, by the rules for topics."""
    try:
        return check_topic_name(name)
    except InvalidArgument:
        raise InvalidArgument(
            f"{name!r} is not a valid group name or transactional id: use 1 to 249 letters, digits, '.', '_' and '-', "
            "beginning with a letter, digit or '_'"
        ) from None


def chosen(slot: int, brokers: Iterable[int]) -> int | None:
    """The broker that is to have the slot; None if there are no brokers."""
    return max(brokers, key=lambda broker: (crc32c(b"%d/%d" % (slot, broker)), broker), default=None)


def producer_in(slot: int, number: int) -> int:
    """The id of a producer whose transactions the slot coordinates. `number` is random, and not 0."""
    assert 0 <= slot < SLOTS and 0 < number < 1 << PRODUCER_BITS
    return slot << _SLOT_SHIFT | number


def slot_of_producer(producer_id: int) -> int | None:
    """The slot of a transactional producer's id; None for an id that no coordinator has given out."""
    slot = producer_id >> _SLOT_SHIFT
    return slot if 0 <= slot < SLOTS else None
