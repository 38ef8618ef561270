"""The requests of one connection that the broker has not answered, by number.

call      gets the answer, or its error
batch     is acknowledged, or refused
one way   is answered only if it is refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from comet import limits
from comet.errors import CometError, LimitExceeded, Unavailable
from comet.v1 import records_pb2 as pb

NUMBER_MAX: Final = (1 << 32) - 1


class Produced(Protocol):
    """One batch on the wire. One of the two is called once, or its accumulator is told that the connection ended."""

    def acked(self, base_offset: int, append_time_us: int) -> None: ...
    def refused(self, error: CometError) -> None: ...


class InFlightRequests:
    """Owned by a connection. A number is free again once its request is answered or forgotten."""

    def __init__(self, address: str) -> None:
        self.batches: dict[int, Produced] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}  # of a ServerFrame, or of the two parts of a fetched one
        self._one_way: dict[int, Callable[[CometError], None]] = {}
        self._address = address
        self._last = 0

    def next_number(self) -> int:
        """A number for the next request that no pending one has; never 0."""
        while True:
            self._last = self._last % NUMBER_MAX + 1
            taken = self._last in self._calls or self._last in self._one_way
            if not taken and self._last not in self.batches:
                return self._last

    @property
    def answer_due(self) -> bool:
        """Whether the broker owes an answer."""
        return bool(self.batches or self._calls)

    # ---- requests

    def add_call(self, frame: pb.ClientFrame) -> asyncio.Future[Any]:
        """Numbers a request; returns the future of its answer."""
        if len(self._calls) >= limits.REQUESTS_MAX:
            raise LimitExceeded(
                f"{len(self._calls)} requests to {self._address} are in flight; await some of them first"
            )
        frame.request = self.next_number()
        future = self._calls[frame.request] = asyncio.get_running_loop().create_future()
        return future

    def forget_call(self, number: int) -> None:
        self._calls.pop(number, None)

    def add_batch(self, number: int, produced: Produced) -> None:
        self.batches[number] = produced

    def forget_batch(self, number: int) -> None:
        """Stops waiting for a batch; a late answer is ignored."""
        self.batches.pop(number, None)

    def add_one_way(self, number: int, refused: Callable[[CometError], None]) -> None:
        self._one_way[number] = refused
        if len(self._one_way) > limits.ONE_WAY_REQUESTS_MAX:
            del self._one_way[next(iter(self._one_way))]

    # ---- answers

    def acknowledge(self, acks: Iterable[tuple[int, int, int]]) -> None:
        """Each is (request, base_offset, append_time_us)."""
        take = self.batches.pop
        for number, base_offset, append_time_us in acks:
            produced = take(number, None)
            if produced is not None:
                produced.acked(base_offset, append_time_us)

    def answer(self, number: int, answer: object) -> None:
        future = self._calls.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def refuse(self, number: int, error: CometError) -> bool:
        """Passes the broker's error on; False if no request has that number."""
        if (produced := self.batches.pop(number, None)) is not None:
            produced.refused(error)
        elif (future := self._calls.pop(number, None)) is not None:
            _fail(future, error)
        elif (refused := self._one_way.pop(number, None)) is not None:
            refused(error)
        else:
            return False
        return True

    def close(self, why: str) -> None:
        """Fails the calls with Unavailable. The connection itself tells the owners of batches that it is lost."""
        calls, self._calls = self._calls, {}
        for future in calls.values():
            _fail(future, Unavailable(why))
        self.batches.clear()
        self._one_way.clear()


def _fail(future: asyncio.Future[Any], error: CometError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks the error as retrieved, also if the waiter has given up
