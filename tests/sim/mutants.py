"""Planted bugs: each is a mistake that somebody could make, patched into the real code while a run lasts.

A checker that never failed has proved nothing. So every promise has mutants that break it, each with a profile that
gives the bug its chance, and a test demands that each is found, by an invariant that it breaks, within a bounded
number of seeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from comet import records
from comet.consumer.broker_subscription import PartitionSubscription
from comet.errors import CometError, DiskFull, SequenceGap, Unavailable
from comet.producer.accumulator import Accumulator, ProducerBatch
from comet.records import BatchHeader
from comet.settings.topic import Flush, TopicConfig
from comet.types import AtOffset, Latest, Position
from comet.wire.frames import Outgoing
from comet_broker.core.producers import Duplicate, ProducerTable
from comet_broker.core.push import Cursor, PushQueue
from comet_broker.partitions import partition as broker_partition
from comet_broker.partitions.context import Accepted
from comet_broker.partitions.flushing import Flushing
from comet_broker.partitions.partition import Partition
from comet_broker.storage import deletion as storage_deletion
from comet_broker.storage import extent, recovery, rules, scan
from comet_broker.storage import log as storage_log
from comet_broker.storage.log import Appended, Log
from comet_broker.storage.recovery import Recovered
from comet_broker.storage.rules import Action
from comet_broker.storage.segment import Segment
from comet_broker.storage.state import LogState
from comet_broker.storage.sync import SyncTicket
from comet_broker.streams.produce_frames import ProduceFrames
from comet_broker.streams.subscriptions import Feed
from tests.sim.planting import Mutant, Patch
from tests.sim.scenario import Profile

MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(
    why: str, breaks: str, profile: Profile, caught_by: int = 0
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        MUTANTS[patches.__name__] = Mutant("broker", why, tuple(breaks.split()), profile, patches, caught_by)
        return patches

    return register


CUTS: Final = ("cut_links", "cut_links", "stall_links")
QUIET: Final = Profile(
    faults=(), flush=Flush.OS, acks=1, idempotent=True, final_crash="none", retention_records=-1, wires=0.0
)


def profile(*faults: str, flush: Flush = Flush.OS, final_crash: str = "none", **more: Any) -> Profile:
    given: dict[str, Any] = {
        "acks": 1,
        "idempotent": True,
        "retention_records": -1,
        "deletes": False,
        "wires": 0.0,
        **more,
    }
    return Profile(faults=faults, flush=flush, final_crash=final_crash, **given)


# ---- durability


@mutant("an acknowledgement does not wait for the fsync", "C1", profile("power_cut", flush=Flush.ALWAYS), caught_by=14)
def ack_before_fsync() -> list[Patch]:
    return [(Partition, "when_acked", lambda self, end, acks, done: True)]


@mutant(
    "readers see what is written but not yet on disk",
    "C7",
    profile("slow_disk", "slow_disk", "power_cut", flush=Flush.ALWAYS),
    caught_by=29,  # a reader has to look while a slow sync is under way that the power cut then interrupts
)
def deliver_beyond_the_high_watermark() -> list[Patch]:
    serve = Feed._serve

    def serve_all(self: Feed, cursor: Cursor[Partition]) -> Outgoing | None:
        marks = cursor.partition.watermarks
        before = marks.high_watermark, marks.last_stable_offset
        marks.high_watermark = marks.last_stable_offset = cursor.partition.log.log_end
        try:
            return serve(self, cursor)
        finally:
            marks.high_watermark, marks.last_stable_offset = before

    return [(Feed, "_serve", serve_all)]


@mutant(
    "a flush timer that fires once and is never set again",
    "C1",
    profile(flush=Flush.INTERVAL, final_crash="power"),
)
def flush_only_once() -> list[Patch]:
    start = Flushing.start

    def start_once(self: Flushing) -> None:
        if self._state.flushed_end == self._state.log_start:
            start(self)

    return [(Flushing, "start", start_once)]


# ---- what is taken


@mutant("a leader takes a batch with a right checksum, whatever its columns say", "C29", profile())
def take_unchecked_columns() -> list[Patch]:
    admit = vars(broker_partition)["admit"]

    def take(header: BatchHeader, batch: memoryview, topic: str, config: TopicConfig) -> None:
        check = vars(records.Batch)["check"]
        records.Batch.check = lambda self, *, times=True: None  # type: ignore[method-assign]
        try:
            admit(header, batch, topic, config)
        finally:
            records.Batch.check = check  # type: ignore[method-assign]

    return [(broker_partition, "admit", take)]


# ---- idempotence and order


@mutant("a repeated batch is written again", "C9 C10", profile(*CUTS))
def skip_deduplication() -> list[Patch]:
    return [(ProducerTable, "check", lambda self, header, idle_us: None)]


@mutant("after a gap the broker takes the batch all the same", "C10", profile("no_room_for_one"), caught_by=15)
def take_batches_behind_a_gap() -> list[Patch]:
    check = ProducerTable.check

    def take_gaps(self: ProducerTable, header: BatchHeader, idle_us: Callable[[], int]) -> Duplicate | None:
        try:
            return check(self, header, idle_us)
        except SequenceGap:
            return None

    return [(ProducerTable, "check", take_gaps)]


class ForgetfulTable(ProducerTable):
    """Takes an unknown producer at any sequence."""

    def check(self, header: BatchHeader, idle_us: Callable[[], int] = lambda: 0) -> Duplicate | None:
        return super().check(header, idle_us) if header.producer_id in self._producers else None


@mutant("a restart forgets which batches were written", "C9 C10", profile("kill", "kill", "cut_links"), caught_by=11)
def lose_deduplication_on_restart() -> list[Patch]:
    recover: Callable[..., Recovered] = vars(storage_log)["recover"]

    def forgetful(*arguments: Any) -> Recovered:
        recovered = recover(*arguments)
        recovered.producers = ForgetfulTable()
        return recovered

    return [(storage_log, "recover", forgetful)]


@mutant("the producer gives a batch that may be written a new identity", "C9 C10", profile(*CUTS))
def resend_with_a_new_sequence() -> list[Patch]:
    lost = Accumulator.lost

    def renumber(self: Accumulator, error: CometError) -> None:
        lost(self, error)
        for batch in self.queue:
            batch.maybe_written = False
        self._next_epoch()

    return [(Accumulator, "lost", renumber)]


@mutant("a producer without idempotence sends again what may be written", "C9", profile(*CUTS, idempotent=False))
def repeat_without_idempotence() -> list[Patch]:
    give_up = Accumulator._give_up

    def keep(self: Accumulator, batches: Any, why: str) -> None:
        if self._idempotent:
            give_up(self, batches, why)
        else:
            for batch in batches:
                batch.maybe_written = False

    return [(Accumulator, "_give_up", keep)]


@mutant("the producer calls failed what may be written", "C2", profile(*CUTS, idempotent=False))
def report_unknown_as_failed() -> list[Patch]:
    finish = Accumulator._finish

    def pretend(self: Accumulator, batch: ProducerBatch, error: CometError | None) -> None:
        finish(self, batch, None if error is None else Unavailable("nothing was written"))

    return [(Accumulator, "_finish", pretend)]


# ---- acknowledgements and delivery


@mutant("an acknowledgement names the offset after the record's", "C1 C3", QUIET)
def acknowledge_the_wrong_offset() -> list[Patch]:
    acknowledge = ProduceFrames._acknowledge

    def off_by_one(self: ProduceFrames, request: int, base_offset: int, append_time_us: int) -> None:
        acknowledge(self, request, base_offset + 1, append_time_us)

    return [(ProduceFrames, "_acknowledge", off_by_one)]


@mutant("a batch that was refused is acknowledged", "C1", profile("disk_full", "disk_full"))
def acknowledge_what_was_refused() -> list[Patch]:
    produce = Partition.produce

    def pretend(self: Partition, batch: memoryview, acks: int) -> Any:
        try:
            return produce(self, batch, acks)
        except DiskFull:
            return Accepted(self.log.log_end, self.high_watermark, 1)

    return [(Partition, "produce", pretend)]


@mutant("deliveries cost no credit", "C29", QUIET)
def ignore_credit() -> list[Patch]:
    served = PushQueue.served

    def free(self: PushQueue[Any], cursor: Cursor[Any], size: int, next_offset: int) -> None:
        served(self, cursor, 0, next_offset)

    return [(PushQueue, "served", free)]


@mutant("a subscriber that has read all is not woken by what comes", "C25 C29", QUIET)
def forget_to_wake() -> list[Patch]:
    return [(Feed, "advanced", lambda self, cursor: None)]


@mutant("a consumer that reconnects goes on one record too far", "C20 C22 C29", profile(*CUTS))
def skip_on_reconnect() -> list[Patch]:
    resume = PartitionSubscription.resume_position

    def further(self: PartitionSubscription) -> Position:
        position = resume(self)
        return AtOffset(position.offset + 1) if isinstance(position, AtOffset) else position

    return [(PartitionSubscription, "resume_position", further)]


@mutant("a consumer that reconnects begins at the end", "C20 C22", profile(*CUTS))
def jump_to_the_end_on_reconnect() -> list[Patch]:
    resume = PartitionSubscription.resume_position

    def latest(self: PartitionSubscription) -> Position:
        position = resume(self)
        if not isinstance(position, AtOffset):
            return position
        self.position = -1
        return Latest()

    return [(PartitionSubscription, "resume_position", latest)]


@mutant("a consumer that reconnects gets some records again", "C20", profile(*CUTS))
def repeat_on_reconnect() -> list[Patch]:
    resume = PartitionSubscription.resume_position

    def earlier(self: PartitionSubscription) -> Position:
        position = resume(self)
        if not isinstance(position, AtOffset) or position.offset < 3:
            return position
        self.position = position.offset - 3
        return AtOffset(position.offset - 3)

    return [(PartitionSubscription, "resume_position", earlier)]


# ---- the log


@mutant(
    "a failed fsync is taken for a good one",
    "C1 C7",
    profile("failing_sync", flush=Flush.ALWAYS, final_crash="power"),
)
def retry_after_a_failed_fsync() -> list[Patch]:
    def swallow(self: SyncTicket) -> None:
        with contextlib.suppress(OSError):
            self._sync()
        self._write_derived()

    return [(SyncTicket, "run", swallow)]


@mutant(
    "segments that were rolled meanwhile are not synced",
    "C1 C4 C7 C22",
    profile("power_cut", flush=Flush.ALWAYS),
    caught_by=2,
)
def forget_to_sync_rolled_segments() -> list[Patch]:
    def only_the_last(self: SyncTicket) -> None:
        assert self.active.file is not None
        if not self.active.synced:
            self.active.file.sync()
        self._files.sync_folder(self._folder)

    return [(SyncTicket, "_sync", only_the_last)]


@mutant(
    "recovery believes batches without their checksums", "C2 C7 C29 C4", profile("power_cut", "power_cut"), caught_by=8
)
def ignore_checksums_in_recovery() -> list[Patch]:
    def believe(buffer: Any, at: int = 0, *, stamped: bool) -> BatchHeader:
        return records.read_header(buffer, at)

    return [(scan, "verify", believe)]


@mutant("recovery drops the last whole batch", "C1 C7 C8", profile("kill", "kill"))
def recover_one_batch_too_few() -> list[Patch]:
    walk = vars(recovery)["walk"]

    def short(*arguments: Any) -> Iterator[Any]:
        items = list(walk(*arguments))
        return iter(items[:-1])

    return [(recovery, "walk", short)]


@mutant("a damaged batch in the middle is taken for the torn end", "C1 C7 C8", profile("flip_bit", "flip_bit"))
def cut_at_damage() -> list[Patch]:
    cutting = {(finding, known): (Action.CUT, why) for (finding, known), (_, why) in rules.RULES.items()}
    return [(recovery, "RULES", cutting)]


@mutant("batches are sent from disk without a look at their checksums", "C2 C29", profile("flip_bit", "flip_bit"))
def send_without_verifying() -> list[Patch]:
    def trusting(buffer: memoryview, expected: int, end: int) -> tuple[int, int, int]:
        at = 0
        while expected < end and len(buffer) - at >= records.HEADER_BYTES:
            length = int.from_bytes(buffer[at + 20 : at + 24], "little")
            if len(buffer) - at < length or length <= records.HEADER_BYTES:
                return (at, expected, max(length, records.HEADER_BYTES)) if not at else (at, expected, scan.ENDED)
            expected = expected + 1 + int.from_bytes(buffer[at + 72 : at + 76], "little")
            at += length
        return at, expected, scan.ENDED

    return [(extent, "whole_batches", trusting)]


@mutant("a full disk rolls back one batch too many", "C1 C2 C4 C7 C22 C25 C29", profile("disk_full", "disk_full"))
def roll_back_too_far() -> list[Patch]:
    failed = Log._write_failed

    def further(self: Log, error: OSError, segment: Segment) -> CometError:
        assert segment.file is not None
        segment.file.truncate(max(segment.size - 100, 64))
        return failed(self, error, segment)

    return [(Log, "_write_failed", further)]


@mutant(
    "what a torn write left behind is written after",
    "C1 C4 C7 C22 C25 C29",
    profile("failing_append", "failing_append"),
)
def write_after_a_torn_write() -> list[Patch]:
    def harmless(self: Log, error: OSError, segment: Segment) -> CometError:
        return DiskFull("the batch did not fit")

    return [(Log, "_write_failed", harmless)]


@mutant("an offset is given out twice after a refused batch", "C1 C3 C4", profile("disk_full", "disk_full"))
def reuse_an_offset() -> list[Patch]:
    append = Log.append

    def step_back(self: Log, header: BatchHeader, batch: Any, leader_epoch: int) -> Appended:
        try:
            return append(self, header, batch, leader_epoch)
        except DiskFull:
            self.state.log_end = max(self.log_end - 1, self.log_start)
            raise

    return [(Log, "append", step_back)]


@mutant(
    "retention deletes one segment more than the limit allows",
    "C1 C7",
    profile(retention_records=50),
)
def delete_too_much_by_retention() -> list[Patch]:
    expired: Callable[..., int] = vars(storage_deletion)["expired_segments"]

    def greedy(segments: Any, *arguments: Any) -> int:
        return min(expired(segments, *arguments) + 1, len(segments) - 1)

    return [(storage_deletion, "expired_segments", greedy)]


@mutant(
    "deleted records come back after a crash",
    "C8 C4 C22",
    profile("kill", "kill", "power_cut", deletes=True),
    caught_by=9,
)
def forget_deletions() -> list[Patch]:
    return [(storage_deletion, "raise_checkpoint", lambda files, folder, checkpoint: None)]


@mutant("the end of the log goes back when it is opened", "C1 C3 C8", profile("drain", "drain"))
def reopen_one_record_short() -> list[Patch]:
    init = LogState.__init__

    def shorter(self: LogState, config: TopicConfig, recovered: Recovered) -> None:
        init(self, config, recovered)
        active = recovered.segments[-1]
        if self.log_end - self.log_start > 1 and active.next_offset - active.base_offset > 1:
            self.log_end -= 1
            self.flushed_end -= 1

    return [(LogState, "__init__", shorter)]
