"""The time that the open batch of a partition waits for more records before it is sent.

linger   up to `linger_ms`, as the application has set it, while nothing else waits to be sent
gather   a moment, while a batch is in flight; that keeps a busy pipeline from sending batches of one record
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from comet import limits
from comet.producer.accumulator import ProducerBatch

GATHER_S: Final = limits.GATHER_MS_MAX / 1000
# Between records of a stream that has little to gather; a frame of gRPC costs three times as much as one of the wire.
_SLOW_US: Final = 100
_SLOW_US_GRPC: Final = 500


def gathered(batch: ProducerBatch, previous: ProducerBatch | None, *, over_wire: bool) -> bool:
    """Whether a batch that gathers records is to be sent at once, now that nothing is in flight.

    A batch with an awaited record is. So is one of a slow stream, whose records would each come just after the batch
    before them has left, and wait for a whole moment. A faster stream without awaited records keeps to the moment: that
    costs half a millisecond, and saves the broker and its readers most of the frames.
    """
    if batch.waiters is not None or previous is None:
        return True
    return batch.began_us - previous.began_us > (_SLOW_US if over_wire else _SLOW_US_GRPC) * previous.count


class Linger:
    """The wait of one partition's open batch. Owned by its sender, which goes on when it is `over`."""

    __slots__ = ("_linger_s", "_over", "_timeout_s", "gathering", "hurried", "previous", "timer")

    def __init__(self, linger_s: float, timeout_s: float, over: Callable[[], None]) -> None:
        self.hurried = False  # the open batch is to be sent without waiting
        self.gathering = False
        self.timer: asyncio.TimerHandle | None = None  # while it waits
        self.previous: ProducerBatch | None = None  # the batch that was open before; its deadline says when it began
        self._linger_s = linger_s
        self._timeout_s = timeout_s
        self._over = over

    def linger(self, batch: ProducerBatch) -> None:
        """Waits for more records; time that the batch has waited already, e.g. for a connection, counts."""
        began = batch.deadline - self._timeout_s
        self.timer = asyncio.get_running_loop().call_at(began + self._linger_s, self._end)

    def gather(self) -> None:
        """Waits for a moment, or until `gathered` after an answer."""
        self.gathering = True
        self.timer = asyncio.get_running_loop().call_later(GATHER_S, self._end)

    def stop(self) -> None:
        self.gathering = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _end(self) -> None:
        self.timer = None
        self.gathering = False
        self.hurried = True
        self._over()
