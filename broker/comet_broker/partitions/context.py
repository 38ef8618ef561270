"""The broker's services for a partition, and the interfaces of its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from comet.errors import CometError
from comet_broker.core.cluster import PartitionId
from comet_broker.core.tail import TailBudget
from comet_broker.memory.in_flight import InFlight
from comet_broker.metadata.store import MetadataStore
from comet_broker.ports import Clock, Worker
from comet_broker.storage.log import Log
from comet_broker.tasks import Tasks

Durable = Callable[[CometError | None], None]


class Replica(Protocol):
    """The part of a partition that decides whether it may lead."""

    tp: PartitionId
    log: Log
    fault: str
    closed: CometError | None

    @property
    def whole(self) -> bool: ...
    def take_out(self, reason: str) -> None: ...


class Waiter(Protocol):
    """A reader at the end of the partition, which waits for more. The key is the one by which it waits."""

    def advanced(self, key: Any, /) -> None: ...
    def partition_closed(self, key: Any, error: CometError, /) -> None: ...


class Reader(Protocol):
    """One that reads the partition at any offset, once or several times, by key."""

    def next_offset(self, key: Any, /) -> int: ...
    def partition_closed(self, key: Any, error: CometError, /) -> None: ...


class MissingRecords(Protocol):
    """The note that records are missing on this broker's disk; see storage.data_folder.DataFolder."""

    lost_here: bool

    def note_missing(self, *, counted: bool) -> None: ...
    async def note_lost(self, *, counted: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """The broker's services for a partition."""

    me: int
    clock: Clock
    worker: Worker
    tasks: Tasks
    in_flight: InFlight
    tail_budget: TailBudget
    store: MetadataStore
    replica_lag_s: float
    compacting: asyncio.Lock  # held by the partition that is compacted
    compaction_rate: int  # bytes a second
    compaction_memory: int
    alive: Callable[[], bool]  # this broker's lease holds, by its own clock
    broker_epoch: Callable[[], int]
    registered: Callable[[], dict[int, int]]  # broker -> broker epoch of all live brokers
    folders: Callable[[], dict[int, str]]  # broker -> data folder of all live brokers
    may_lead: Callable[[int, Replica], bool]  # this broker's replica may lead, as far as is known
    whereabouts: Callable[[int], dict[str, str]]  # address of a broker, as details of an error
    disqualify: Callable[[Replica], None]  # report that this replica must not lead
    halt: Callable[[Replica, Exception], None]  # the same, after an unexpected error
    unopened: Callable[[PartitionId, str], None]  # report a replica that cannot be opened, and why
    requalify: Callable[[Replica], None]  # withdraw such a report
    missing: MissingRecords
    # Producer, epoch, topic id, index: adds the partition to the transaction, or raises.
    add_partition: Callable[[int, int, bytes, int], Awaitable[None]]
    # Producer, epoch: whether the transaction was committed; None while it is open.
    outcome: Callable[[int, int], Awaitable[bool | None]]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that is in the log, now or since an earlier attempt."""

    base_offset: int
    end_offset: int
    append_time_us: int
    duplicate: bool = False


class Gap(Exception):
    """A leader's batches do not continue the follower's log."""
