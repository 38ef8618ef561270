"""What a WebSocket writes to topics: produce frames in, receipts out, in the order of the frames.

    frame ─► records ─► the producer's buffers, in the order they came ─► queue ─► receipt, when it is known

Frames may follow each other without waiting. At most `in_flight_max` are not answered: with more under way no frame is
read, until the oldest is answered, which a time-out bounds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat

import comet
from comet.errors import CometError
from comet.types import Receipt, check_topic_name
from comet_gateway.backend import Backend
from comet_gateway.problems import Problem
from comet_gateway.push import frames
from comet_gateway.schemas.records import columns

Say = Callable[[frames.ServerFrame], Awaitable[None]]


class Writing:
    """Of one connection. `write` is called by its reader, `run` by a task."""

    def __init__(self, backend: Backend, say: Say, in_flight_max: int) -> None:
        self._backend = backend
        self._say = say
        self._in_flight_max = in_flight_max
        self._waiting: deque[tuple[str, Sequence[Awaitable[Receipt]] | Problem]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def write(self, frame: frames.Produce) -> None:
        """Hands the records over. What is wrong with them is said in the receipt's place."""
        await self._room.wait()
        try:
            outcome: Sequence[Awaitable[Receipt]] | Problem = await self._hand_over(frame)
        except Problem as problem:
            outcome = problem
        except CometError as error:
            outcome = Problem.of(error)
        self._waiting.append((frame.id, outcome))
        self._changed.set()
        if len(self._waiting) >= self._in_flight_max:
            self._room.clear()

    async def run(self) -> None:
        """Says the receipts. Cancelled at the end of the connection; what was handed over is written all the same."""
        while True:
            while not self._waiting:
                self._changed.clear()
                await self._changed.wait()
            # It stays in the queue until it is answered, for it is under way until then.
            id_, outcome = self._waiting[0]
            answer = await self._answer(id_, outcome)
            self._waiting.popleft()
            if len(self._waiting) < self._in_flight_max:
                self._room.set()
            await self._say(answer)

    async def _hand_over(self, frame: frames.Produce) -> Sequence[Awaitable[Receipt]]:
        try:
            topic = check_topic_name(frame.topic)
        except CometError as error:
            raise Problem("INVALID_ARGUMENT", error.message) from None
        producer = self._backend.producers[comet.Acks.of(frame.acks)]
        found = columns([frame.record] if frame.record is not None else frame.records or [])
        rows = zip(
            found.values,
            found.keys or repeat(None),
            found.headers or repeat(None),
            found.timestamps_us or repeat(None),
            found.partitions or repeat(None),
            strict=False,
        )  # all were looked at before one is written
        return [
            await producer.send(topic, value, key=key, headers=headers, timestamp_us=timestamp_us, partition=partition)
            for value, key, headers, timestamp_us, partition in rows
        ]

    @staticmethod
    async def _answer(id_: str, outcome: Sequence[Awaitable[Receipt]] | Problem) -> frames.Receipt | frames.Error:
        if isinstance(outcome, Problem):
            return frames.error_of(outcome, id_=id_, of="produce")
        results: list[frames.Written] = []
        problems: list[Problem] = []
        for delivery in outcome:
            try:
                results.append(_written(await delivery))
            except CometError as error:
                problems.append(Problem.of(error))
                results.append(frames.Written(problem=problems[-1].document()))
        if problems and len(problems) == len(results) and len({one.code for one in problems}) == 1:
            return frames.error_of(problems[0], id_=id_, of="produce")
        return frames.Receipt(id_, results)


def _written(receipt: Receipt) -> frames.Written:
    return frames.Written(receipt.partition, str(receipt.offset) if receipt.offset >= 0 else None)
