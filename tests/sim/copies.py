"""The log of a partition as a monitor knows it: one replica on one disk, and what all of them have agreed on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Batch(NamedTuple):
    """Where a batch is, and what it is: its checksums cover every byte of it."""

    base: int
    end: int
    epoch: int
    digest: tuple[int, int]
    path: str
    position_end: int


@dataclass(slots=True)
class Commit:
    base: int
    end: int
    epoch: int
    digest: tuple[int, int]
    at: float


@dataclass(slots=True)
class Copy:
    """One replica on one disk. `agreed` counts how many of the committed batches it holds, from the first on."""

    batches: dict[int, Batch] = field(default_factory=dict)  # by base offset
    files: dict[str, list[Batch]] = field(default_factory=dict)
    parsed: dict[str, int] = field(default_factory=dict)
    agreed: int = 0
    lossy: bool = False  # lost committed records, and does not have them again yet
    mending: bool = False  # so, and it was the disk: the cluster may not know yet
    poisoned: bool = False  # an fsync failed: what is on disk shows at the next start
    forgiven_until: float = 0.0
    damaged: set[int] = field(default_factory=set)  # base offsets of batches with a flipped bit: it cannot know yet

    def drop(self, path: str, size: int) -> bool:
        """The file ends at `size` now."""
        kept = self.files.get(path, [])
        gone = False
        while kept and kept[-1].position_end > size:
            batch = kept.pop()
            gone = True
            if self.batches.get(batch.base) is batch:
                del self.batches[batch.base]
                self.damaged.discard(batch.base)
        return gone


@dataclass(slots=True)
class Agreed:
    """What is committed of a partition."""

    commits: list[Commit] = field(default_factory=list)
    excuses: list[tuple[float, int]] = field(default_factory=list)  # at this time, all from this offset on

    @property
    def end(self) -> int:
        return self.commits[-1].end if self.commits else 0

    def renewed(self, offset: int) -> bool:
        """Whether what is there may belong to an earlier life of the partition, of which that was lost elsewhere."""
        return any(start <= offset for _, start in self.excuses)

    def excused(self, offset: int, known_at: float) -> bool:
        """Whether what was known by then may be lost."""
        return any(start <= offset and known_at <= at for at, start in self.excuses)
