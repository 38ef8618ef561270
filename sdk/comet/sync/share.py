"""The share client of comet.sync."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from comet import limits
from comet.client.client import Addresses
from comet.errors import CometError
from comet.share import share_client
from comet.sync.background import call, made
from comet.types import StartLike


class ShareClient:
    """comet.ShareClient for synchronous code; takes the same settings.

    >>> with comet.sync.Producer(address) as producer:
    ...     _ = producer.publish("quotes", b"EURUSD 1.08")
    >>> with comet.sync.ShareClient(address) as shares:
    ...     [record] = shares.acquire("work", "quotes", start="earliest")
    ...     print(record.value, shares.ack([record.token]))
    b'EURUSD 1.08' [None]
    """

    def __init__(self, addresses: Addresses, **settings: Any) -> None:
        self._client: share_client.ShareClient = call(made(share_client.ShareClient, addresses, settings))

    def acquire(
        self,
        group: str,
        topic: str,
        *,
        records_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        lock_ms: int = limits.LOCK_MS,
        deliveries_max: int = 5,
        dead_letter: str = "",
        by_key: bool = False,
        start: StartLike = "latest",
    ) -> list[share_client.AcquiredRecord]:
        """Acquires up to so many records for `lock_ms`; see comet.ShareClient.acquire."""
        return call(
            self._client.acquire(
                group, topic, records_max=records_max, bytes_max=bytes_max, wait_ms=wait_ms, lock_ms=lock_ms,
                deliveries_max=deliveries_max, dead_letter=dead_letter, by_key=by_key, start=start,
            )
        )  # fmt: skip

    def ack(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Accepts records as done."""
        return call(self._client.ack(tokens, group=group))

    def nack(self, tokens: Sequence[str], *, delay_ms: int = 0, group: str = "") -> list[CometError | None]:
        """Releases records: they are delivered again after `delay_ms`."""
        return call(self._client.nack(tokens, delay_ms=delay_ms, group=group))

    def reject(self, tokens: Sequence[str], *, reason: str = "", group: str = "") -> list[CometError | None]:
        """Rejects records: they are never delivered again."""
        return call(self._client.reject(tokens, reason=reason, group=group))

    def extend(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Renews the locks of records."""
        return call(self._client.extend(tokens, group=group))

    def give_back(self, tokens: Sequence[str], *, group: str = "") -> list[CometError | None]:
        """Returns records unprocessed: they are delivered again at once, and this delivery is not counted."""
        return call(self._client.give_back(tokens, group=group))

    def close(self) -> None:
        """Closes the connections."""
        call(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
