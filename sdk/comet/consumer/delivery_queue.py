"""The queue between the connections and the consumer: deliveries, and errors in their place, until they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from comet.consumer.broker_subscription import BrokerSubscription, PartitionSubscription
from comet.errors import CometError, InvalidArgument


class DeliveryQueue:
    """Owned by a fetcher, and read by one task. Credit bounds it: a delivery gives its credit back when it is taken.

    `goes_on` is asked when the error of a partition is taken: whether reading continues at another offset, or the
    error is to be raised.
    """

    def __init__(self, goes_on: Callable[[PartitionSubscription, CometError], bool]) -> None:
        self.received_bytes = 0
        self._goes_on = goes_on
        # Each with its reader, the reader's generation, and the subscription whose credit it used.
        self._entries: deque[tuple[PartitionSubscription, int, memoryview | CometError, BrokerSubscription | None]] = (
            deque()
        )
        self._ended: CometError | None = None  # the error that ended all reading
        self._arrival: asyncio.Future[None] | None = None

    # ---- arrival

    def add(self, reader: PartitionSubscription, batches: memoryview) -> None:
        self.received_bytes += len(batches)
        self._entries.append((reader, reader.generation, batches, reader.subscription))
        if self._arrival is not None:
            self.wake()

    def add_error(self, reader: PartitionSubscription, error: CometError) -> None:
        """The error is raised after the partition's deliveries that have arrived."""
        self._entries.append((reader, reader.generation, error, None))
        self.wake()

    def end(self, error: CometError) -> None:
        """Ends all reading: the consumer gets the error after the deliveries that have arrived."""
        self._ended = error
        self.wake()

    def close(self, error: CometError) -> None:
        """Ends all reading at once."""
        self._entries.clear()
        self.end(error)

    def wake(self) -> None:
        """Wakes the task that waits for an arrival."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    def charge(self, subscription: BrokerSubscription, readers: Collection[PartitionSubscription]) -> None:
        """Counts deliveries that are not taken yet against the window of a new subscription."""
        self._entries = deque(
            (reader, generation, arrived, subscription if reader in readers else old)
            for reader, generation, arrived, old in self._entries
        )

    # ---- taking

    def arrival(self) -> asyncio.Future[None]:
        """Done once there is something to take. Raises the error that ended the consumer. One waiter at a time."""
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self._arrival is not None and not self._arrival.done():
            raise InvalidArgument("another task already reads this consumer; give every task its own")
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    def waiting(self, after: int) -> list[memoryview | CometError]:
        """Deliveries and errors that were not taken yet, from the `after`th on."""
        return [self._entries[at][2] for at in range(after, len(self._entries))]

    def has_delivery(self) -> bool:
        """Whether `take` gives a delivery, and raises nothing."""
        if not self._entries:
            return False
        reader, generation, arrived, _ = self._entries[0]
        return generation == reader.generation and isinstance(arrived, memoryview)

    def take(self) -> tuple[PartitionSubscription, memoryview] | None:
        """The next delivery, with its credit returned; None if there is none. Raises a stopped partition's error."""
        while self._entries:
            reader, generation, arrived, subscription = self._entries.popleft()
            current = generation == reader.generation
            if isinstance(arrived, memoryview):
                _taken(reader, arrived, subscription)
                if current:
                    return reader, arrived
            elif current and not self._goes_on(reader, arrived):
                arrived.details.update(topic=reader.topic, partition=str(reader.partition))
                raise arrived.with_traceback(None)
        return None


def _taken(reader: PartitionSubscription, batches: memoryview, subscription: BrokerSubscription | None) -> None:
    reader.queued_bytes -= len(batches)
    assert reader.queued_bytes >= 0
    reader.taken(batches)
    if subscription is not None and subscription.connection.lost is None:
        subscription.taken(len(batches))  # also if its partition has moved: the subscription stays
