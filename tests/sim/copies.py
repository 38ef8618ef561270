"""The log of a partition as a monitor knows it: one replica on one disk, and what all of them have agreed on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Batch(NamedTuple):
    """Where a batch is, and what it is: its checksums cover every byte of it."""

    base: int
    end: int
    epoch: int
    digest: tuple[int, int]
    path: str
    position: int
    position_end: int
    process: int  # which of the broker's processes wrote it


class Gone(NamedTuple):
    """A batch that nobody took away: power or the disk did. These processes had it."""

    first: int
    last: int


@dataclass(slots=True)
class Commit:
    base: int
    end: int
    epoch: int
    digest: tuple[int, int]
    at: float
    data: bytes = b""

    def holds(self, offset: int, value: bytes) -> bool:
        return self.base <= offset < self.end and value in self.data


@dataclass(slots=True)
class Copy:
    """One replica on one disk. `agreed` counts how many of the committed batches it holds, from the first on."""

    batches: dict[int, Batch] = field(default_factory=dict)  # by base offset
    files: dict[str, list[Batch]] = field(default_factory=dict)
    parsed: dict[str, int] = field(default_factory=dict)
    gone: dict[tuple[int, tuple[int, int]], Gone] = field(default_factory=dict)  # by base offset and digest
    agreed: int = 0
    lossy: bool = False  # lost committed records, and does not have them again yet
    mending: bool = False  # so, and it was the disk: the cluster may not know yet
    lies: bool = False  # so, and its broker cannot know: a disk was put back from a copy, or lost the end of a file
    poisoned: bool = False  # an fsync failed: what is on disk shows at the next start
    damaged: set[int] = field(default_factory=set)  # base offsets of batches with a flipped bit: it cannot know yet

    def drop(self, path: str, size: int, process: int) -> bool:
        """The file ends at `size` now. What lies behind a flipped bit goes when this process finds it: the earlier ones
        had it."""
        kept = self.files.get(path, [])
        gone = False
        harmed = min(self.damaged, default=None)
        while kept and kept[-1].position_end > size:
            batch = kept.pop()
            gone = True
            if harmed is not None and batch.base >= harmed:
                self.lose([batch], process - 1)
            if self.batches.get(batch.base) is batch:
                del self.batches[batch.base]
                self.damaged.discard(batch.base)
        return gone

    def had(self, process: int, base: int, digest: tuple[int, int]) -> bool:
        """Whether that process of the broker held this batch, though power or the disk may have taken it since."""
        batch = self.batches.get(base)
        if batch is not None and batch.digest == digest:
            return batch.process <= process
        gone = self.gone.get((base, digest))
        return gone is not None and gone.first <= process <= gone.last

    def lose(self, batches: Iterable[Batch], process: int) -> None:
        """These went while that process ran, or with it."""
        for batch in batches:
            self.gone[batch.base, batch.digest] = Gone(batch.process, process)


@dataclass(slots=True)
class Loss:
    """What was committed, and is not any more since another life of the partition began: in this epoch, from here."""

    epoch: int
    at: float
    start: int
    commits: list[Commit]

    @property
    def end(self) -> int:
        return self.commits[-1].end

    def covers(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def took(self, offset: int, value: bytes) -> bool:
        return any(commit.holds(offset, value) for commit in self.commits)


@dataclass(slots=True)
class Agreed:
    """What is committed of a partition, and what was and is lost with a reason."""

    commits: list[Commit] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    doubted: bool = False  # a disk lied of it: its broker may have told readers that there is less
    ruined: set[tuple[int, int]] = field(default_factory=set)  # of these the only copy that counts was damaged
    reached: int = 0  # how far it ever was committed

    @property
    def end(self) -> int:
        return self.commits[-1].end if self.commits else 0

    def add(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.reached = max(self.reached, commit.end)

    def cut(self, offset: int) -> list[Commit]:
        """Ends at `offset`; returns what that takes away."""
        kept = [commit for commit in self.commits if commit.end <= offset]
        taken, self.commits = self.commits[len(kept) :], kept
        return taken

    def said_in(self, epoch: int, end: int) -> int:
        """How much of a watermark that is known in an epoch has a meaning still: beyond the start of a later life it
        tells of what is lost, until the one who says it hears of that life."""
        return min([end, *(loss.start for loss in self.losses if loss.epoch > epoch)])

    def holds(self, offset: int, value: bytes) -> bool:
        """Whether this very record is committed there, and not lost."""
        return any(commit.holds(offset, value) for commit in self.commits)

    def covers(self, offset: int) -> bool:
        """Whether a loss, for a reason, made room for another record at this offset."""
        return any(loss.covers(offset) for loss in self.losses)

    def returned(self, commit: Commit) -> bool:
        """Whether it was committed before, lost for a reason, and is back: a replica that still has it leads."""
        return any(
            one.base == commit.base and one.digest == commit.digest for loss in self.losses for one in loss.commits
        )

    def took(self, offset: int, value: bytes) -> bool:
        """Whether this very record was committed there and lost for a reason."""
        return any(loss.took(offset, value) for loss in self.losses)
