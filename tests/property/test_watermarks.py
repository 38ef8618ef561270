"""The account of a partition's watermarks against a naive one that looks at everything each time.

Batches and markers are written, synced, copied to followers; records are deleted; the log is truncated, or begins
elsewhere. After each step every offset is compared with what the lists say, and the bounds that are said to have moved
with those that have: a reader that is not woken would wait for ever, and one that is woken for nothing looks in vain.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from comet.records import Marker
from comet_broker.core.isolation import Isolation
from comet_broker.core.watermarks import Moved, ReadBound, Watermarks

PRODUCERS = st.sampled_from([1, 2, 3])
SHARE = st.floats(0, 1)


class Written(NamedTuple):
    """One batch of the log; a marker has `commit`."""

    producer: int  # 0: no transaction's
    epoch: int
    first: int
    end: int
    commit: bool | None = None


class WatermarksMachine(RuleBasedStateMachine):
    @initialize(available=st.booleans(), flushed=st.booleans())
    def open(self, *, available: bool, flushed: bool) -> None:
        self.available = available
        self.flushed = flushed  # flush=always: what is on disk counts
        self.log: list[Written] = []
        self.log_start = self.begun_at = 0
        self.flushed_end = self.followers_end = 0
        self.committed = self.visible = 0
        self.marks = Watermarks(durable=0, committed=0, isolation=Isolation(), log_start=0)
        self.before = self.offsets()

    # ---- the lists' answers

    @property
    def log_end(self) -> int:
        return self.log[-1].end if self.log else self.begun_at

    @property
    def durable(self) -> int:
        return self.flushed_end if self.flushed else self.log_end

    @property
    def stable(self) -> int:
        """The first offset of a transaction whose marker is not below what is visible."""
        first: dict[tuple[int, int], int] = {}
        for one in self.log:
            if one.producer and one.commit is None and one.end > self.log_start:
                first.setdefault((one.producer, one.epoch), one.first)
        decided = {(one.producer, one.epoch) for one in self.log if one.commit is not None and one.first < self.visible}
        undecided = [offset for transaction, offset in first.items() if transaction not in decided]
        return max(min([self.visible, *undecided]), self.log_start)

    def offsets(self) -> dict[ReadBound, int]:
        return {ReadBound.HIGH_WATERMARK: self.visible, ReadBound.LAST_STABLE_OFFSET: self.stable}

    def boundary(self, share: float, lowest: int) -> int:
        ends = sorted({lowest, *(one.end for one in self.log if one.end >= lowest)})
        return ends[round(share * (len(ends) - 1))]

    # ---- what happens to a partition

    def moved(self) -> None:
        """As a partition does it, with its log and its followers as they are now."""
        assert self.marks.commit(self.followers_end) == (self.followers_end > self.committed)
        self.committed = max(self.committed, self.followers_end)
        self.visible = max(self.visible, self.committed, self.durable if self.available else 0)
        self.check(self.marks.advance(self.durable, available=self.available, log_start=self.log_start))

    def check(self, moved: Moved) -> None:
        now = self.offsets()
        assert list(moved) == [bound for bound in now if now[bound] > self.before[bound]]
        self.before = now

    @rule(producer=st.just(0) | PRODUCERS, count=st.integers(1, 3))
    def write(self, producer: int, count: int) -> None:
        epoch = 1 + sum(one.commit is not None for one in self.log if one.producer == producer)
        self.log.append(Written(producer, epoch, self.log_end, self.log_end + count))
        note(self.marks.isolation, self.log[-1])
        self.moved()

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, *, commit: bool) -> None:
        epoch = 1 + sum(one.commit is not None for one in self.log if one.producer == producer)
        self.log.append(Written(producer, epoch, self.log_end, self.log_end + 1, commit))
        note(self.marks.isolation, self.log[-1])
        self.moved()

    @rule(share=SHARE)
    def sync(self, share: float) -> None:
        self.flushed_end = self.boundary(share, self.flushed_end)
        self.moved()

    @rule(share=SHARE)
    def follow(self, share: float) -> None:
        self.followers_end = self.boundary(share, min(self.followers_end, self.log_end))
        self.moved()

    @rule()
    def configure(self) -> None:
        self.flushed = not self.flushed
        self.moved()

    @rule(share=SHARE)
    def delete(self, share: float) -> None:
        self.log_start += round(share * max(0, self.visible - self.log_start))
        self.marks.isolation.forget_before(self.log_start)
        self.check(self.marks.stabilize(self.log_start))

    @rule(share=SHARE)
    def truncate(self, share: float) -> None:
        end = self.boundary(share, self.log_start)
        self.log = [one for one in self.log if self.log_start < one.end <= end]
        self.begun_at = end if not self.log else self.begun_at
        self.take_over(min(self.committed, end), end)

    @rule(offset=st.integers(0, 30))
    def begin_elsewhere(self, offset: int) -> None:
        self.log = []
        self.log_start = self.begun_at = self.flushed_end = offset
        self.take_over(offset, offset)

    def take_over(self, committed: int, end: int) -> None:
        self.flushed_end, self.followers_end = min(self.flushed_end, end), min(self.followers_end, end)
        self.committed = committed
        self.visible = min(self.visible, end)
        isolation = Isolation()
        isolation.forget_before(self.log_start)
        for one in self.log:
            note(isolation, one)
        isolation.forget_before(self.log_start)
        self.marks.truncate(committed=committed, log_end=end)
        self.marks.replace_isolation(isolation)
        self.marks.advance(self.durable, available=self.available, log_start=self.log_start)
        self.marks.stabilize(self.log_start)
        self.visible = max(self.visible, self.committed, self.durable if self.available else 0)
        self.before = self.offsets()

    @invariant()
    def every_offset_is_as_the_lists_say(self) -> None:
        marks = self.marks
        assert marks.durable == self.durable
        assert marks.committed == self.committed
        assert marks.high_watermark == self.visible
        assert marks.last_stable_offset == self.stable
        assert marks.last_stable_offset <= max(marks.high_watermark, self.log_start)
        assert marks.high_watermark <= self.log_end


def note(isolation: Isolation, one: Written) -> None:
    if one.commit is not None:
        isolation.note_marker(one.producer, one.epoch, Marker(one.commit, -1), one.first)
    elif one.producer:
        isolation.note_batch(one.producer, one.epoch, one.first, one.end)


WatermarksMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestWatermarks = WatermarksMachine.TestCase
