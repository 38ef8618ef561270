"""The transactional ids of one slot: found by name and by producer, bounded in number, forgotten when unused.

A forgotten id counts as fenced: its producer is refused, and opens it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator

from comet.errors import CometError, LimitExceeded
from comet_broker import limits
from comet_broker.coordination.group import MemberConnection
from comet_broker.core.transactions import GENERATED_PREFIX, TransactionRecord, TransactionState


class Transactional:
    """One transactional id. Owned by the table; changed by the slot's transactions only."""

    def __init__(self, name: str, record: TransactionRecord, now: float) -> None:
        self.name = name
        self.record = record  # the latest, written or not
        self.written: asyncio.Future[CometError | None] | None = None  # the last write: answers wait for it
        self.finished: asyncio.Future[None] | None = None  # while its markers are being written
        self.touched = now
        self.stream: MemberConnection | None = None  # of a generated id: the stream that uses it
        self.failed = ""  # the unexpected error that stopped it

    @property
    def generated(self) -> bool:
        return self.name.startswith(GENERATED_PREFIX)

    @property
    def at_rest(self) -> bool:
        written = self.written is None or self.written.done()
        return written and self.record.state is TransactionState.EMPTY and not self.failed


class TransactionalIds:
    """Owned by the transactions of one slot."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Transactional] = OrderedDict()  # the longest idle first
        self._by_producer: dict[int, Transactional] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Transactional]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Transactional | None:
        return self._by_name.get(name)

    def of_producer(self, producer_id: int) -> Transactional | None:
        return self._by_producer.get(producer_id)

    def add(self, one: Transactional) -> None:
        assert one.name not in self._by_name
        self._by_name[one.name] = one
        self._by_producer[one.record.producer_id] = one

    def touch(self, one: Transactional, now: float) -> None:
        one.touched = now
        self._by_name.move_to_end(one.name)

    def renumber(self, one: Transactional, before: int) -> None:
        """Updates the index after a possible change of the producer id."""
        self._by_producer.pop(before, None)
        self._by_producer[one.record.producer_id] = one

    def remove(self, one: Transactional) -> None:
        del self._by_name[one.name]
        if self._by_producer.get(one.record.producer_id) is one:
            del self._by_producer[one.record.producer_id]

    def states(self) -> Counter[TransactionState]:
        return Counter(one.record.state for one in self._by_name.values())

    def idle(self, now: float) -> list[Transactional]:
        """Ids that are not used any more."""
        found: list[Transactional] = []
        for one in self._by_name.values():
            idle_s = now - one.touched
            if idle_s < limits.TRANSACTIONAL_ID_ABANDONED_S:
                break
            if one.stream is not None and one.stream.closed:
                one.stream = None
            abandoned = one.generated and one.stream is None
            if one.at_rest and (abandoned or idle_s >= limits.TRANSACTIONAL_ID_IDLE_S_MAX):
                found.append(one)
        return found

    def in_the_way(self, now: float) -> Transactional | None:
        """The id to forget before another can be added, if any. Raises when all are in use."""
        if len(self._by_name) < limits.TRANSACTIONAL_IDS_MAX:
            return None
        for one in self._by_name.values():
            if now - one.touched < limits.TRANSACTIONAL_ID_IDLE_S_MIN:
                break
            if one.at_rest:
                return one
        raise LimitExceeded(
            f"limit of {limits.TRANSACTIONAL_IDS_MAX} transactional ids in use reached on this coordinator",
            retry_after_ms=1000,
        )
