"""What a partition remembers of its producers, against an oracle that remembers everything.

The table is small, so that producers lose their windows, their last batches and their epochs all the time. Retries come
as late as a client may send them; wall clocks jump; the table is restored from snapshots and cut back with its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from comet.errors import LimitExceeded, ProducerFenced, SequenceGap, SequenceTooOld, UnknownProducer
from comet.records import BatchHeader
from comet_broker import limits
from comet_broker.core import forgotten, producers
from comet_broker.core.producers import PROTECTED_US, STEP_US, ProducerTable

PRODUCERS, KNOWN, IDS, RUNS = 3, 8, 4, 3
JUMPS_MAX = 4  # that the margin of PROTECTED_US covers
RETRY_US = 1000 * limits.RETRY_MS_MAX


class Sent(NamedTuple):
    producer: int
    epoch: int
    sequence: int
    records: int
    first_us: int  # when it was sent first, in real time

    def header(self) -> BatchHeader:
        return BatchHeader(
            base_offset=0, append_time_us=0, leader_epoch=0, length=0, stamp_crc=0, crc=0, version=1, codec=0, flags=0,
            record_count=self.records, producer_id=self.producer, base_sequence=self.sequence, min_timestamp_us=0,
            max_timestamp_us=0, last_offset_delta=self.records - 1, producer_epoch=self.epoch, body_size=0, schema_id=0,
        )  # fmt: skip


class Written(NamedTuple):
    sent: Sent
    offset: int
    append_us: int  # by the leader's wall clock


@contextmanager
def small_tables() -> Iterator[None]:
    changed = [
        (producers, "PRODUCERS_MAX", PRODUCERS), (producers, "KNOWN_MAX", KNOWN), (producers, "BATCHES_MAX", 8),
        (producers, "_WINDOW_ITEMS", 16), (forgotten, "RUN_IDS", IDS), (forgotten, "RUNS_MAX", RUNS),
    ]  # fmt: skip
    before = [(where, name, getattr(where, name)) for where, name, _ in changed]
    for where, name, value in changed:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


class World:
    """A leader's table, the log that it is derived from, and producers that number their batches as the SDK does."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.table = ProducerTable()
        self.log: list[Written] = []
        self.snapshots: list[tuple[int, bytes]] = [(0, ProducerTable().snapshot(0).encode())]
        self.sent: list[Sent] = []
        self.following: dict[int, tuple[int, int]] = {}  # of each producer: epoch and sequence of its next batch
        self.refused = 0
        self.now_us = 0  # real time
        self.skew_us = 0
        self.jumps = 0
        self.written_at = 0

    # ---- moves

    def wait(self) -> None:
        self.now_us += self.random.choice((1, 1000, 60_000_000, RETRY_US // 8))

    def jump(self) -> None:
        """The leader's wall clock, or another leader with another one."""
        if self.jumps < JUMPS_MAX:
            self.jumps += 1
            self.skew_us += self.random.choice((-30, -1, 1, 30)) * 86_400_000_000

    def begin(self) -> None:
        """A producer that wrote nothing before."""
        producer = len(self.following) + 1
        self.following[producer] = (0, 0)
        self._send_next(producer)

    def go_on(self) -> None:
        if self.following:
            recent = list(self.following)[-2 * KNOWN :]
            self._send_next(self.random.choice(recent))

    def retry(self) -> None:
        """Of a batch that was written or refused, by a client that still may."""
        fresh = [one for one in self.sent if self.now_us - one.first_us <= RETRY_US]
        if fresh:
            self._send(self.random.choice(fresh))

    def restore(self) -> None:
        data = self.table.snapshot(len(self.log)).encode()
        offset, restored = ProducerTable.restore(data)
        assert offset == len(self.log) and restored.snapshot(offset) == self.table.snapshot(offset)
        self.snapshots.append((offset, data))
        self.table = restored
        self.written_at = self.now_us  # another process: it has not seen when the last batch was written

    def cut_back(self) -> None:
        """A follower gives up the end of its log, and leads then."""
        end = self.random.randint(max(0, len(self.log) - 5), len(self.log))
        gone = {one.sent for one in self.log[end:]}
        del self.log[end:]
        self.snapshots = [one for one in self.snapshots if one[0] <= end]
        begin, data = self.snapshots[-1]
        self.table = self._replay(ProducerTable.restore(data)[1], begin)
        self.written_at = self.now_us
        for one in gone:  # their producers are told of a gap, and begin another epoch
            epoch, _ = self.following[one.producer]
            self.following[one.producer] = (epoch + 1, 0)
        self.sent = [one for one in self.sent if one not in gone]

    # ---- sending

    def _send_next(self, producer: int) -> None:
        epoch, sequence = self.following[producer]
        sent = Sent(producer, epoch, sequence, self.random.randint(1, 3), self.now_us)
        if self._send(sent):
            self.sent.append(sent)
            self.following[producer] = (epoch, sequence + sent.records)
        else:  # UnknownProducer: rule 5 of the SDK
            self.following[producer] = (epoch + 1, 0)

    def _send(self, sent: Sent) -> bool:
        """False if it needs another epoch."""
        before = [one for one in self.log if one.sent == sent]
        assert len(before) <= 1
        others = [one.sent for one in self.log if one.sent.producer == sent.producer]
        latest = others[-1] if others else None
        try:
            found = self.table.check(sent.header(), lambda: self.now_us - self.written_at)
        except UnknownProducer:
            assert self._behind(sent.producer) >= KNOWN - 1, "one of those that wrote last is known"
            return False
        except SequenceTooOld:
            assert before and latest != sent
        except ProducerFenced:
            assert latest is not None and latest.epoch > sent.epoch
        except SequenceGap:
            assert not before
            return False
        except LimitExceeded:
            assert not before and self._behind(sent.producer) >= KNOWN
            assert self._young() >= KNOWN + (RUNS - 1) * IDS, "so many have written within the time"
            self.refused += 1
            return latest is None  # then it is sent again as it is
        else:
            if found is None:
                assert not before, "it is written twice"
                self._write(sent)
            else:
                assert before and found == (before[0].offset, before[0].append_us)
        return True

    def _write(self, sent: Sent) -> None:
        offset, wall_us = len(self.log), self.now_us + self.skew_us
        self.table.record(sent.header(), offset, wall_us)
        self.log.append(Written(sent, offset, wall_us))
        self.written_at = self.now_us

    def _behind(self, producer: int) -> int:
        """How many others have written since it wrote last."""
        others: set[int] = set()
        for one in reversed(self.log):
            if one.sent.producer == producer:
                break
            others.add(one.sent.producer)
        return len(others)

    def _young(self) -> int:
        """How many writes of producers may still be protected: time without batches counts for little."""
        return len({(one.sent.producer, one.sent.epoch) for one in self.log})

    # ---- what always holds

    def _replay(self, table: ProducerTable, begin: int) -> ProducerTable:
        for one in self.log[begin:]:
            table.record(one.sent.header(), one.offset, one.append_us)
        return table

    def check(self) -> None:
        follower = self._replay(ProducerTable(), 0)
        assert follower.snapshot(0) == self.table.snapshot(0)
        assert len(self.table) <= KNOWN
        assert self.table.statistics()["producers_forgotten"] <= (RUNS + 1) * IDS


@settings(deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 20), min_size=30, max_size=200))
def test_what_may_have_been_written_is_never_written_again(seed: int, moves: list[int]) -> None:
    with small_tables():
        world = World(Random(seed))
        for move in moves:
            if move < 10:
                world.begin()
            elif move < 13:
                world.go_on()
            elif move < 17:
                world.retry()
            else:
                (world.wait, world.jump, world.restore, world.cut_back)[move - 17]()
        world.check()


def test_the_margin_covers_the_jumps() -> None:
    assert RETRY_US + JUMPS_MAX * STEP_US < PROTECTED_US


def test_a_run_comes_to_all_that_is_refused_and_dropped() -> None:
    """So that the property is about something."""
    with small_tables():
        world = World(Random(5))
        for _ in range(2 * (KNOWN + RUNS * IDS)):
            world.begin()
        assert world.refused
        first = world.log[0].sent
        for _ in range(2 * PROTECTED_US // STEP_US):
            world.now_us += STEP_US
            world.begin()
        assert world.table.check(first.header()) is None, "it was dropped, later than it is sent again"
        world.check()
