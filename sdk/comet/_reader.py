"""The reader: parts of a partition, asked for one by one. It holds no position and no subscription."""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import NamedTuple, Self

from comet._client import Addresses, Client
from comet._consumer import Isolation
from comet._record import RecordBatch
from comet._transport import Connect
from comet.types import StartLike


class Fetched(NamedTuple):
    """A part of a partition: whole and parts of batches, with nothing in them that was not asked for."""

    batches: list[RecordBatch[bytes]]
    first_offset: int  # what the start that was asked for means
    next_offset: int  # where to go on
    epoch: int | None  # of the record before next_offset, to go on with
    log_start: int
    log_end: int  # what can be read ends there, for now


class Reader:
    """Reads what is asked for: a range of a partition, once. For followers there is Consumer."""

    def __init__(
        self, addresses: Addresses, *, name: str = "", connect: Connect | None = None, random: Random | None = None
    ) -> None:
        self._client = Client(addresses, name=name, connect=connect, random=random)

    async def fetch(
        self,
        topic: str,
        partition: int,
        start: StartLike = "earliest",
        *,
        epoch: int | None = None,
        records_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """At most so many records and bytes, but one record at least where there is one; waits for the first up to
        `wait_ms`.

        With an offset, `epoch` is that of the record before it: where the log was cut behind it since, Truncated
        is raised.
        Raises OffsetOutOfRange, with `log_start` and `log_end` in its details, TopicNotFound,
        PartitionNotFound, DataLoss.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
