"""A share group's partition, record by record, as slow and plain as can be: what core.shares is held against."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from comet_broker.core.shares import Granted, Holder, Options


class Is(Enum):
    FREE = auto()
    ACQUIRED = auto()
    ACKNOWLEDGED = auto()
    DEAD = auto()
    NOTHING = auto()  # no record that anybody is to have


@dataclass(slots=True)
class Record:
    offset: int
    key: int | None
    state: Is = Is.FREE
    attempts: int = 0
    due: float = 0.0
    holder: Holder | None = None
    deadline: float = 0.0

    @property
    def over(self) -> bool:
        return self.state in {Is.ACKNOWLEDGED, Is.DEAD, Is.NOTHING}


class Oracle:
    def __init__(self, records: list[Record], options: Options, window_max: int) -> None:
        self.records = records
        self.options = options
        self.window_max = window_max
        self.start = 0

    @property
    def floor(self) -> int:
        """The least record that is not over, as far as anybody may know: what was never looked at is not below it."""
        for record in self.records[self.start :]:
            if not record.over:
                return record.offset
        return len(self.records)

    def free(self, record: Record, now: float) -> bool:
        if record.state is not Is.FREE or record.due > now or record.attempts >= self.options.deliveries_max:
            return False
        if not self.options.by_key or record.key is None:
            return True
        earlier = self.records[self.start : record.offset]
        return all(one.over for one in earlier if one.key == record.key)

    def granted(self, holder: Holder, granted: list[Granted], now: float, end: int) -> None:
        for first, upto, delivery_count in granted:
            for record in self.records[first:upto]:
                assert self.free(record, now), f"{record} was given to {holder}"
                assert record.offset < end, "nobody can read that yet"
                record.attempts += 1
                assert delivery_count == record.attempts
                record.state, record.holder = Is.ACQUIRED, holder
                record.deadline = now + self.options.lock_s

    def give_back(self, record: Record, due: float = 0.0) -> None:
        assert record.state is Is.ACQUIRED
        record.state, record.holder, record.due = Is.FREE, None, due
        if record.attempts >= self.options.deliveries_max:
            record.state = Is.DEAD

    def lost(self, holder: Holder, first: int, end: int) -> set[int]:
        return {
            offset
            for offset in range(first, end)
            if offset >= len(self.records)
            or self.records[offset].state is not Is.ACQUIRED
            or self.records[offset].holder is not holder
        }

    def held(self, holder: Holder, first: int, end: int) -> list[Record]:
        lost = self.lost(holder, first, end)
        return [self.records[offset] for offset in range(first, end) if offset not in lost]

    def expire(self, now: float) -> None:
        for record in self.records:
            if record.state is Is.ACQUIRED and record.deadline <= now:
                self.give_back(record)

    def restart(self) -> None:
        """A new leader: locks and delays are forgotten; what was delivered as often as may be is dead once found."""
        for record in self.records:
            if record.state is Is.ACQUIRED:
                self.give_back(record)
            record.due = 0.0

    def open_of(self, holder: Holder) -> int:
        return sum(record.holder is holder for record in self.records if record.state is Is.ACQUIRED)
