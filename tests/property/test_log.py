"""The log against a Python list: whatever is done to it, it holds what the list holds.

Hypothesis drives appends, cuts, syncs, rolls, deletions, failing disks, deaths of the process and of the machine.
After each death the log may have lost what was not synced, and nothing else; what is left is a prefix, and the producer
table is the one that these very batches give. Of transactions it tells what counts in the batches that are left.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from random import Random
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from comet import records
from comet.errors import DiskFull, LogFailed, OffsetOutOfRange
from comet.records import STAMP_BYTES, BatchHeader, make_stamp
from comet.settings.topic import TopicConfig
from comet_broker.core.epochs import EpochHistory
from comet_broker.core.producers import ProducerTable
from comet_broker.storage.log import DeleteTicket, SyncTicket
from comet_broker.storage.memory import MemoryFiles
from tests.unit.storage_world import World, apply_retention, batch, delete_before, epochs_of, read_all, read_from, sync

# Few different sizes, so that rolls, stretches and buffers are hit from both sides.
SIZES = st.sampled_from([0, 1, 100, 3_000, 20_000, 33_000, 66_000])
TIMES = st.integers(-5, 50)


class Written(NamedTuple):
    """One batch that the log took."""

    header: BatchHeader
    base_offset: int
    append_time_us: int
    epoch: int
    marker: records.Marker | None = None

    @property
    def end(self) -> int:
        return self.base_offset + self.header.record_count


Remembered = tuple[list[tuple[bytes, "array[int]"]], list[tuple[int, bytes]]]


def remembered(table: ProducerTable) -> Remembered:
    """Producers, and requests with a key."""
    snapshot = table.snapshot(0)
    return snapshot.entries, snapshot.requests


class LogMachine(RuleBasedStateMachine):
    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes | None] = []
        self.times: list[int] = []
        self.batches: list[Written] = []
        self.log_start = 0
        self.synced_end = 0
        self.sequences = {1: 0, 2: 0}
        self.transactions = {8: 1, 9: 1}  # producer -> epoch
        self.epoch = 1
        self.mark = 0
        self.was_cut = False
        # What a cut that failed may have left on the disk, beyond what the log still shows.
        self.remains: tuple[list[bytes | None], list[int], list[Written]] | None = None
        self.reset_to = -1

    @initialize(seed=st.integers(0, 1 << 32), cold=st.sampled_from([0.0, 0.3, 1.0]))
    def begin(self, seed: int, cold: float) -> None:
        self.files = MemoryFiles(Random(seed), cold=cold)
        config = TopicConfig(segment_bytes=64 << 10, retention_ms=-1, retention_bytes=140_000, segment_ms=1000)
        self.world = World(self.files, config)
        self.tickets_open: list[SyncTicket] = []
        self.deletes_open: list[DeleteTicket] = []

    # ---- writing

    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=4),
        times=st.lists(TIMES, min_size=4, max_size=4),
        producer=st.sampled_from([0, 1, 2]),
        fill=st.integers(0, 255),
        stamped=st.booleans(),
    )
    def append(self, sizes: list[int], times: list[int], producer: int, fill: int, *, stamped: bool) -> None:
        values: list[bytes | None] = [None if size == 1 else bytes([fill]) * size for size in sizes]
        sequence = self.sequences.get(producer, 0)
        header, data = batch(values, timestamps=times[: len(values)], producer=(producer, 0, sequence))
        log = self.world.log
        try:
            if stamped:  # by a leader whose clock is another
                base, at = log.log_end, self.world.clock.now_us - 7
                whole = make_stamp(base, at, self.epoch, header.length) + bytes(data[STAMP_BYTES:])
                log.append_stamped(records.verify(whole, stamped=True), whole)
            else:
                base, at, _ = log.append(header, data, self.epoch)
        except (DiskFull, LogFailed):
            return
        assert base == len(self.values)
        self.values += values
        self.times += times[: len(values)]
        self.batches.append(Written(header, base, at, self.epoch))
        if producer:
            self.sequences[producer] += len(values)

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=2), producer=st.sampled_from([8, 9]), stamped=st.booleans())
    def append_to_a_transaction(self, sizes: list[int], producer: int, *, stamped: bool) -> None:
        values: list[bytes | None] = [b"t" * size for size in sizes]
        parts = records.encode(
            values, timestamps=1, producer_id=producer, producer_epoch=self.transactions[producer], transactional=True
        )
        self.take(values, b"".join(parts), stamped=stamped)

    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=2), request=st.integers(100, 105), digest=st.integers(1, 2),
        stamped=st.booleans(),
    )  # fmt: skip
    def append_with_a_key(self, sizes: list[int], request: int, digest: int, *, stamped: bool) -> None:
        values: list[bytes | None] = [b"k" * size for size in sizes]
        parts = records.encode(values, timestamps=1, producer_id=request, base_sequence=digest, keyed=True)
        self.take(values, b"".join(parts), stamped=stamped)

    @rule(producer=st.sampled_from([8, 9]), commit=st.booleans(), stamped=st.booleans())
    def end_a_transaction(self, producer: int, *, commit: bool, stamped: bool) -> None:
        data = records.encode_marker(producer, self.transactions[producer], commit, -1, 1)
        if self.take(records.decode(data).values, data, stamped=stamped):
            self.transactions[producer] += 1

    def take(self, values: list[bytes | None], data: bytes, *, stamped: bool) -> bool:
        log, header = self.world.log, records.verify(data, stamped=False)
        try:
            if stamped:
                base, at = log.log_end, self.world.clock.now_us
                whole = make_stamp(base, at, self.epoch, header.length) + data[STAMP_BYTES:]
                log.append_stamped(records.verify(whole, stamped=True), whole)
            else:
                base, at, _ = log.append(header, data, self.epoch)
        except (DiskFull, LogFailed):
            return False
        self.values += values
        self.times += [1] * len(values)
        marker = records.marker_of(records.decode(data)) if header.control else None
        self.batches.append(Written(header, base, at, self.epoch, marker))
        return True

    @rule(seconds=st.sampled_from([-10_000, 0, 1, 10_000]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.now_us += seconds * 1_000_000
        with suppress(DiskFull, LogFailed):
            self.world.log.segments.roll_by_age()

    @rule(more=st.integers(1, 3))
    def an_epoch_begins(self, more: int) -> None:
        self.epoch += more

    @rule(share=st.floats(0, 1))
    def note_high_watermark(self, share: float) -> None:
        high_watermark = round(len(self.values) * share)
        self.world.log.durability.note_high_watermark(high_watermark)
        self.mark = max(self.mark, high_watermark)

    # ---- cutting back

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.log_start + round((len(self.values) - self.log_start) * share)
        bounds = [one.base_offset for one in self.batches if one.base_offset <= offset] + [self.log_start]
        end = max(bounds) if offset < len(self.values) else offset
        before = (self.values[:], self.times[:], self.batches[:])
        try:
            assert self.world.log.deletion.truncate(offset) == end
        except DiskFull:
            return
        except LogFailed:
            if self.world.log.log_end == len(self.values):
                return
            self.remains = before
        if end < len(before[0]):
            self.ends_at(end)

    @rule(ahead=st.integers(-300, 20))
    def reset(self, ahead: int) -> None:
        offset = max(len(self.values) + ahead, 0)
        if offset == self.log_start == len(self.values):
            return  # should it fail, nobody could tell by the log what of it was done
        before = (self.values[:], self.times[:], self.batches[:])
        try:
            self.world.log.deletion.reset(offset)
        except DiskFull:
            return
        except LogFailed:
            if self.remains is None:
                self.remains, self.reset_to = before, offset
            # An empty log tells by its producers alone whether it was truncated before the disk failed.
            log = self.world.log
            if log.log_end != len(self.values) or remembered(log.producers) != self.producers_by_the_list():
                self.batches.clear()
                self.ends_at(self.log_start)
            return
        self.ends_at(0)
        self.begins_at(offset)

    def ends_at(self, end: int) -> None:
        del self.values[end:], self.times[end:]
        self.batches = [one for one in self.batches if one.end <= end]
        self.synced_end = min(self.synced_end, end)
        self.mark = min(self.mark, end)
        self.was_cut = True
        self.settle_producers()

    def begins_at(self, offset: int) -> None:
        """With nothing in it."""
        self.log_start = self.synced_end = offset
        self.values, self.times, self.batches = [None] * offset, [0] * offset, []
        self.mark = offset
        self.settle_producers()

    def settle_producers(self) -> None:
        """Where no snapshot from before the cut is left, the segments that are tell all there is."""
        log = self.world.log
        if self.was_cut and self.producers_by_the_list() != remembered(log.producers):
            first = int(self.world.segment_names()[0][:20]) if self.batches else 0
            self.batches = [one for one in self.batches if one.base_offset >= first]
        self.sequences = {
            producer: max(
                (one.header.end_sequence for one in self.batches if one.header.producer_id == producer), default=0
            )
            for producer in self.sequences
        }
        for producer in self.transactions:  # what was cut off is begun again, or ended again
            ends = [one.header for one in self.batches if one.marker and one.header.producer_id == producer]
            self.transactions[producer] = max((end.producer_epoch for end in ends), default=0) + 1

    # ---- syncing

    @rule()
    def sync(self) -> None:
        log = self.world.log
        before = log.flushed_end
        sync(log)
        if log.failed is None:
            assert log.flushed_end == len(self.values)
        else:
            assert log.flushed_end == before
        self.synced_end = log.flushed_end

    @rule()
    def start_sync(self) -> None:
        ticket = self.world.log.durability.start_sync()
        if ticket is not None:
            self.tickets_open.append(ticket)

    @precondition(lambda self: self.tickets_open)
    @rule(data=st.data())
    def finish_sync(self, data: st.DataObject) -> None:
        ticket = self.tickets_open.pop(data.draw(st.integers(0, len(self.tickets_open) - 1)))
        error: OSError | None = None
        try:
            ticket.run()
        except OSError as caught:
            error = caught
        self.world.log.durability.finish_sync(ticket, error)
        self.synced_end = self.world.log.flushed_end
        assert self.synced_end <= len(self.values)

    # ---- deleting

    @rule(share=st.floats(0, 1))
    def delete_before(self, share: float) -> None:
        offset = self.log_start + round((len(self.values) - self.log_start) * share)
        try:
            self.log_start = delete_before(self.world.log, offset)
        except (DiskFull, LogFailed):
            return
        assert self.log_start == offset

    @rule()
    def retention(self) -> None:
        try:
            start = apply_retention(self.world.log, self.world.clock.now_us)
        except (DiskFull, LogFailed):
            return
        assert start >= self.log_start
        kept = sum(len(value or b"") for value in self.values[start:])
        assert start == self.log_start or kept > 140_000 - 66_000 * 4, "no more than the limit allows"
        self.log_start = start

    @rule(share=st.floats(0, 1), retention=st.booleans())
    def start_delete(self, share: float, *, retention: bool) -> None:
        log = self.world.log
        offset = self.log_start + round((len(self.values) - self.log_start) * share)
        try:
            ticket = (
                log.deletion.start_retention(self.world.clock.now_us)
                if retention
                else log.deletion.start_delete(offset)
            )
        except LogFailed:
            return
        if ticket is not None:
            self.deletes_open.append(ticket)

    @precondition(lambda self: self.deletes_open)
    @rule(data=st.data())
    def finish_delete(self, data: st.DataObject) -> None:
        ticket = self.deletes_open.pop(data.draw(st.integers(0, len(self.deletes_open) - 1)))
        error: OSError | None = None
        try:
            ticket.run()
        except OSError as caught:
            error = caught
        with suppress(DiskFull, LogFailed):
            self.log_start = max(self.log_start, self.world.log.deletion.finish_delete(ticket, error))
            ticket.remove()

    # ---- faults

    @rule(room=st.sampled_from([0, 100, 30_000]))
    def disk_full(self, room: int) -> None:
        self.files.faults.capacity_bytes = self.files.used_bytes + (8 << 20) + room

    @rule()
    def disk_heals(self) -> None:
        self.files.faults.capacity_bytes = None

    @rule(after=st.integers(1, 6))
    def sync_will_fail(self, after: int) -> None:
        self.files.faults.sync_fails_in = after

    @rule(torn=st.booleans())
    def append_will_fail(self, *, torn: bool) -> None:
        if torn:
            self.files.faults.append_tears_in = 1
        else:
            self.files.faults.append_fails_in = 1

    @rule(power=st.booleans())
    def crash(self, *, power: bool) -> None:
        failed = self.world.log.failed is not None
        self.tickets_open.clear()
        self.deletes_open.clear()
        self.files.crash(power=power)
        self.files.faults.capacity_bytes = None
        self.world.open()
        if not power and not failed and self.files.faults.sync_fails_in is None:
            assert self.world.log.log_end == len(self.values), "the page cache outlives the process"
        self.reconcile()

    @rule()
    def close_and_open(self) -> None:
        self.files.faults.capacity_bytes = None
        self.files.faults.sync_fails_in = None
        self.files.faults.append_fails_in = self.files.faults.append_tears_in = None
        self.tickets_open.clear()
        self.deletes_open.clear()
        failed = self.world.log.failed is not None
        self.world.log.close()
        self.world.open()
        if not failed:
            assert self.world.log.recovered.clean
            assert self.world.log.log_end == len(self.values)
        self.reconcile()

    def reconcile(self) -> None:
        """The list forgets what the log was free to lose."""
        log = self.world.log
        if self.remains is not None:
            if log.log_start == log.log_end == self.reset_to:
                self.ends_at(0)
                self.begins_at(self.reset_to)
            elif log.log_end > len(self.values):
                self.values, self.times, self.batches = self.remains
            self.remains, self.reset_to = None, -1
        assert log.lost == (), "nothing was damaged, so nothing is lost"
        assert self.synced_end <= log.log_end <= len(self.values) or log.log_end == log.log_start == self.log_start
        assert log.log_start == self.log_start or log.log_start > self.log_start
        self.log_start = log.log_start
        del self.values[log.log_end :]
        del self.times[log.log_end :]
        self.batches = [one for one in self.batches if one.end <= log.log_end]
        self.settle_producers()
        while self.producers_by_the_list() != remembered(log.producers):
            # Batches that were deleted before they were synced: the machine's death took the memory of the last ones.
            forgotten = [one for one in self.batches if self.synced_end < one.end <= log.log_start]
            assert forgotten, "what was synced or not deleted is remembered"
            self.batches.remove(forgotten[-1])
        self.synced_end = log.flushed_end
        assert log.flushed_end == log.log_end == len(self.values)
        assert log.high_watermark <= min(self.mark, log.log_end)
        self.mark = log.high_watermark
        self.settle_producers()
        self.was_cut = False
        self.check_everything()

    # ---- what must hold

    @invariant()
    def the_ends_agree(self) -> None:
        log = self.world.log
        assert (log.log_start, log.log_end) == (self.log_start, len(self.values))
        assert log.log_start <= log.log_end
        assert log.flushed_end <= log.log_end

    @rule()
    def check_everything(self) -> None:
        found, lost = read_all(self.world.log, size=10_000)
        assert not lost
        assert list(found) == list(range(self.log_start, len(self.values)))
        assert list(found.values()) == self.values[self.log_start :]
        assert remembered(self.world.log.producers) == self.producers_by_the_list()
        self.check_transactions()
        assert epochs_of(self.world.log) == self.epochs_by_the_list()

    def epochs_by_the_list(self) -> tuple[tuple[int, int], ...]:
        history = EpochHistory()
        for one in self.batches:
            if one.end > self.log_start:
                history.begin(one.epoch, max(one.base_offset, self.log_start))
        return history.entries

    def producers_by_the_list(self) -> Remembered:
        table = ProducerTable()
        for one in self.batches:
            table.record(one.header, one.base_offset, one.append_time_us, one.marker)
        return remembered(table)

    def check_transactions(self) -> None:
        isolation, end = self.world.log.producers.isolation, len(self.values)
        ends = {(one.header.producer_id, one.header.producer_epoch): one for one in self.batches if one.marker}
        here = [one for one in self.batches if one.header.transactional and not one.marker and one.end > self.log_start]
        aborted = isolation.aborted(self.log_start, end)
        assert aborted == isolation.aborted(0, end), "what lies below the log's start is forgotten"
        for one in here:
            key = (one.header.producer_id, one.header.producer_epoch)
            dropped = any((it.producer_id, it.epoch) == key and it.first <= one.base_offset < it.end for it in aborted)
            marker = ends[key].marker if key in ends else None
            assert dropped == (marker is not None and not marker.commit)
        stable = isolation.last_stable_offset(end + 1)
        still = [one for one in here if (one.header.producer_id, one.header.producer_epoch) not in ends]
        assert stable <= min((one.base_offset for one in still), default=end + 1)
        if not still:
            assert stable == end + 1, "nobody waits for what is not there"

    @rule(offset=st.integers(-2, 80))
    def read_somewhere(self, offset: int) -> None:
        log = self.world.log
        if self.log_start <= offset < len(self.values):
            _, following = read_from(log, offset)
            assert offset < following <= len(self.values)
            return
        try:
            log.extent(offset)
        except OffsetOutOfRange:
            return
        raise AssertionError("an offset that is not there")

    @rule(at=TIMES)
    def find_time(self, at: int) -> None:
        expected = (n for n, time in enumerate(self.times) if time >= at and n >= self.log_start)
        assert self.world.log.segments.find_time(at) == next(expected, len(self.times))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.check_everything()


LogMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestLog = LogMachine.TestCase
