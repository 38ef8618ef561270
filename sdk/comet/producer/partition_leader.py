"""The leader of one partition, as its sender knows it: attached, searched for while there are batches, or neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from comet import limits
from comet.client.client import Client
from comet.client.connection import Attachment
from comet.client.retry import Backoff
from comet.errors import Closed, CometError, Timeout, TopicNotFound
from comet.producer.accumulator import Accumulator


class PartitionLeader:
    """Owned by a sender, and used with its accumulator. `found` gets the leader's attachment; None if all batches were
    given up before one was found."""

    def __init__(self, client: Client, accumulator: Accumulator, found: Callable[[Attachment | None], None]) -> None:
        self.attachment: Attachment | None = None
        self.error: CometError | None = None  # why there is no attachment
        self.backoff = Backoff(client.random, max_ms=limits.ROUTE_BACKOFF_MAX_MS, free=1)
        self._client = client
        self._accumulator = accumulator
        self._found = found
        self._search: asyncio.Task[None] | None = None

    @property
    def searching(self) -> bool:
        return self._search is not None

    def find(self, delay_s: float = 0.0) -> None:
        """Searches for the leader, if no search is under way."""
        if self._search is None:
            self._search = self._client.spawn(self._find(delay_s))

    async def _find(self, delay_s: float) -> None:
        accumulator = self._accumulator
        try:
            if delay_s:
                await asyncio.sleep(delay_s)
            while accumulator.pending:
                try:
                    attachment = await self._client.attach(accumulator.topic, accumulator.partition)
                except CometError as error:
                    self.error = error
                    if _hopeless(error):
                        accumulator.fail(error)
                        continue
                    await asyncio.sleep(self.backoff.next_s(error.retry_after_ms))
                else:
                    if attachment.connection.lost is None:
                        self.attachment, self.error = attachment, None
                        self._found(attachment)
                        return
            self._found(None)
        finally:
            self._search = None

    def leave(self, error: CometError) -> None:
        """Leaves the broker that led, because of an error."""
        self.attachment = None
        self.error = error

    def misled(self, error: CometError) -> None:
        """Leaves a broker that has answered that it does not lead."""
        assert self.attachment is not None
        connection, accumulator = self.attachment.connection, self._accumulator
        connection.detach(accumulator.topic, accumulator.partition)
        self._client.misled(accumulator.topic, accumulator.partition, connection.broker_id, error)
        self.leave(error)

    def leave_draining(self, error: CometError) -> None:
        """Leaves a broker that shuts down: others lead what it has led."""
        self.leave(error)
        self._client.forget(self._accumulator.topic)


def _hopeless(error: CometError) -> bool:
    return isinstance(error, Closed | TopicNotFound) or not (
        error.retriable or error.metadata_stale or isinstance(error, Timeout)
    )
