"""The reader of comet.sync."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from comet.client.client import Addresses
from comet.consumer import range_reader, ranges
from comet.consumer.consumer import Isolation
from comet.sync.background import call, made
from comet.types import StartLike


class Reader:
    """comet.Reader for synchronous code; takes the same settings.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.publish("quotes", b"EURUSD 1.08")
    >>> with comet.sync.Reader(address) as reader:
    ...     print([batch.values for batch in reader.fetch("quotes", 0).batches])
    [[b'EURUSD 1.08']]
    """

    def __init__(self, addresses: Addresses, **settings: Any) -> None:
        self._reader: range_reader.Reader = call(made(range_reader.Reader, addresses, settings))

    def fetch(
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
        topic_id: bytes = b"",
    ) -> ranges.Fetched:
        """Reads a range of a partition; see comet.Reader.fetch."""
        return call(
            self._reader.fetch(
                topic, partition, start, epoch=epoch, records_max=records_max, bytes_max=bytes_max, wait_ms=wait_ms,
                isolation=isolation, topic_id=topic_id,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Closes the connections."""
        call(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
