"""The broker's services for a share group in a partition, and the terms of the group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from comet.v1 import records_pb2
from comet_broker.core.shares import Options
from comet_broker.env import Env
from comet_broker.partitions.log_reader import LogReader
from comet_broker.sharing.chunk import Chunks
from comet_broker.sharing.journal import ShareJournal

Range = tuple[int, int]
Publish = Callable[[records_pb2.PublishRequest], Awaitable[records_pb2.PublishResponse]]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The options of a group, which all members must agree on."""

    options: Options
    dead_letter: str = ""
    filter: str = ""


@dataclass(frozen=True, slots=True)
class ShareContext:
    """The broker's services for a share group in a partition."""

    env: Env
    broker_epoch: Callable[[], int]
    reader: LogReader
    journal: ShareJournal
    chunks: Chunks
    publish: Publish  # writes a dead letter
    ended: Callable[[Any], None]  # called with a SharePartition that has ended
    check_clock: Callable[[], None]  # called by all timers; see table.ShareTable
