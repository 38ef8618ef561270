"""The state of a share group's partition as its leader stores it in the metadata store: one value.

    shares/<topic id>/<index>/<group>

The marks are one byte for each record from the floor on, compressed: long runs are the rule. Locks are not stored;
records that were acquired when a leader died are delivered again, and their delivery count goes on.

Pure.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from comet_broker.core.cluster import Stored
from comet_broker.core.shares import Dead, WindowSnapshot

SHARES: Final = "shares/"


def share_key(topic_id: bytes, index: int, group: str) -> str:
    return f"{SHARES}{topic_id.hex()}/{index}/{group}"


class ShareRecord(Stored, frozen=True):
    """The stored value. `epoch` is that of the leader that wrote it, `sequence` counts its writes in that epoch."""

    broker: int
    broker_epoch: int
    epoch: int
    sequence: int
    floor: int
    marks: bytes = b""
    dead: tuple[tuple[int, int, str], ...] = ()  # offset, attempts, reason

    def written_by(self, broker: int, broker_epoch: int, epoch: int) -> bool:
        return (self.broker, self.broker_epoch, self.epoch) == (broker, broker_epoch, epoch)

    def snapshot(self, window_max: int) -> WindowSnapshot:
        """The stored window. Records beyond `window_max`, which may have been larger, are delivered again."""
        marks = zlib.decompressobj().decompress(self.marks, window_max) if self.marks else b""
        return WindowSnapshot(
            self.floor, marks, {offset: Dead(attempts, reason) for offset, attempts, reason in self.dead}
        )


def record_of(snapshot: WindowSnapshot, *, broker: int, broker_epoch: int, epoch: int, sequence: int) -> ShareRecord:
    marks = snapshot.marks.rstrip(b"\0")
    return ShareRecord(
        broker=broker,
        broker_epoch=broker_epoch,
        epoch=epoch,
        sequence=sequence,
        floor=snapshot.floor,
        marks=zlib.compress(marks, 1) if marks else b"",
        dead=tuple((offset, dead.attempts, dead.reason) for offset, dead in snapshot.dead.items()),
    )


def truncated_to(snapshot: WindowSnapshot, end: int) -> WindowSnapshot:
    """The snapshot without records from `end` on: the log ends there, or holds other records from there on."""
    if snapshot.floor >= end:
        return WindowSnapshot(end, b"", {offset: dead for offset, dead in snapshot.dead.items() if offset < end})
    return WindowSnapshot(
        snapshot.floor,
        snapshot.marks[: end - snapshot.floor],
        {offset: dead for offset, dead in snapshot.dead.items() if offset < end},
    )


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """The status of one group in one partition."""

    topic: str
    topic_id: bytes
    partition: int
    members: int
    floor: int
    acknowledged: int  # above the floor
    in_flight: int
    waiting: int  # to be delivered again
    redelivered: int
    dead: int  # and not written to the dead-letter topic yet
    dead_lettered: int
    dropped: int
    problem: str
