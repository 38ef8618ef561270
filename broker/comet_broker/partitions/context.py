"""What a partition needs from the broker it is on, and whom it tells what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from comet.errors import CometError
from comet_broker.core.cluster import Place
from comet_broker.core.tail import TailBudget
from comet_broker.metadata.store import MetadataStore
from comet_broker.ports import Clock, Worker
from comet_broker.tasks import Tasks

if TYPE_CHECKING:
    from comet_broker.partitions.partition import Partition

Durable = Callable[[CometError | None], None]


class Waiter(Protocol):
    """Somebody who has read all there is."""

    def advanced(self) -> None: ...
    def partition_closed(self, error: CometError) -> None: ...


class Reader(Protocol):
    """Somebody who reads, wherever it is. `leader_only` ones leave when this broker does not lead any more."""

    @property
    def leader_only(self) -> bool: ...
    @property
    def next_offset(self) -> int: ...
    def partition_closed(self, error: CometError) -> None: ...


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What a partition needs from the broker it is on."""

    me: int
    clock: Clock
    worker: Worker
    tasks: Tasks
    tail_budget: TailBudget
    store: MetadataStore
    replica_lag_s: float
    alive: Callable[[], bool]  # this broker's lease holds, by its own clock
    broker_epoch: Callable[[], int]
    registered: Callable[[], dict[int, int]]  # broker -> broker epoch of all that are alive
    folders: Callable[[], dict[int, str]]  # broker -> data folder of all that are alive
    fit: Callable[[int, Partition], bool]  # nobody has said that this broker's replica must not lead
    whereabouts: Callable[[int], dict[str, str]]  # of a broker, as details of an error
    unfit: Callable[[Partition], None]  # this replica must not lead: tell the cluster
    broke: Callable[[Partition, Exception], None]  # the same, after an unexpected error
    unopened: Callable[[Place, str], None]  # the same of one that cannot be opened, and why
    mended: Callable[[Partition], None]  # it may lead again, if it could not
    # Producer, epoch, topic id, index: the partition belongs to the transaction from now on, or that is refused.
    add_partition: Callable[[int, int, bytes, int], Awaitable[None]]
    # Producer, epoch: whether the transaction was committed; None as long as it is not over.
    outcome: Callable[[int, int], Awaitable[bool | None]]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that is in the log, now or since an earlier attempt."""

    base_offset: int
    end_offset: int
    append_time_us: int
    duplicate: bool = False


class Gap(Exception):
    """A follower was sent something that does not continue its log."""
