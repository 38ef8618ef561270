"""Writes of a WebSocket to topics: produce frames in, receipts out, in the order of the frames.

    frame ─► records ─► the producer's buffers, in order of arrival ─► queue ─► receipt, when the result is known

Frames can be sent without waiting. At most `in_flight_max` are unanswered, of `in_flight_bytes_max` or a little more:
above that no frame is read, until the oldest is answered, which a timeout bounds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import comet
from comet.errors import CometError
from comet.types import Receipt, check_topic_name
from comet_gateway.brokers.backend import Backend
from comet_gateway.config import Limits
from comet_gateway.http.problems import Problem
from comet_gateway.http.traffic import Traffic
from comet_gateway.http.wire import Gone
from comet_gateway.metrics import Metrics
from comet_gateway.push import frames
from comet_gateway.records.write import WriteResult, write, write_once
from comet_gateway.schemas.records import read_records

TIMEOUT_S: Final = 30.0
_MEMBERS: Final = ("type", *frames.Produce.__struct_fields__)
SendText = Callable[[bytes], Awaitable[None]]
Outcome = WriteResult | asyncio.Task[list[Receipt]] | Problem


class Writing:
    """The writes of one connection, which closes it. `write` is called by its reader, `run` by a task."""

    def __init__(
        self,
        backend: Backend,
        send: SendText,
        limits: Limits,
        metrics: Metrics,
        traffic: Traffic,
        check: Callable[[str], Awaitable[None]],
        acting: Callable[[comet.Producer], comet.Producer],
    ) -> None:
        self._backend = backend
        self._send = send
        self._check = check  # raises the Problem of a topic that the user may not write
        self._acting = acting  # the producer whose delayed records have the user as their author
        self._in_flight_max = limits.in_flight_max
        self._in_flight_bytes_max = limits.in_flight_bytes_max
        self._records_max = limits.records_max
        self._metrics = metrics
        self._traffic = traffic
        self._held = 0  # bytes of unanswered frames
        self._waiting: deque[tuple[str, float, int, Outcome]] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = False  # receipts are no longer sent

    async def write(self, frame: frames.Produce, text: str | bytes) -> None:
        """Passes the records of a frame to the producer. Errors go into its receipt. Raises Gone."""
        await self._room.wait()
        if self._over:
            raise Gone
        deadline, size = asyncio.get_running_loop().time() + TIMEOUT_S, len(text)
        outcome: Outcome
        try:
            self._traffic.hold(size)
        except Problem as problem:
            outcome, size = problem, 0
        else:
            self._held += size
            try:
                outcome = await self._hand_over(frame, text, deadline)
            except Problem as problem:
                outcome = problem
            except CometError as error:
                outcome = Problem.of(error)
        self._waiting.append((frame.id, deadline, size, outcome))
        self._changed.set()
        if not self._has_room():
            self._room.clear()

    def _has_room(self) -> bool:
        return len(self._waiting) < self._in_flight_max and self._held <= self._in_flight_bytes_max

    async def run(self) -> None:
        """Sends the receipts. Cancelled at the end of the connection; records passed on are written all the same."""
        try:
            await self._run()
        finally:
            self._over = True
            self._room.set()  # the reader must not wait for receipts that are never sent

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._changed.clear()
                await self._changed.wait()
            # It stays in the queue until it is answered, since it is under way until then.
            id_, deadline, size, outcome = self._waiting[0]
            receipt = await _receipt(id_, deadline, outcome)
            self._waiting.popleft()
            self._release(size)
            if self._has_room():
                self._room.set()
            await self._send(receipt)

    def close(self) -> None:
        """Releases what is left. Called after `write` and `run` have ended."""
        for _, _, _, outcome in self._waiting:
            _abandon(outcome)
        self._waiting.clear()
        self._release(self._held)

    def _release(self, size: int) -> None:
        self._held -= size
        self._traffic.release(size)

    async def _hand_over(self, frame: frames.Produce, text: str | bytes, deadline: float) -> Outcome:
        try:
            topic = check_topic_name(frame.topic)
        except CometError as error:
            raise Problem("INVALID_ARGUMENT", error.message) from None
        records = [frame.record] if frame.record is not None else frame.records or []
        data = text.encode() if isinstance(text, str) else text
        await self._check(topic)
        found = read_records(data, records, _MEMBERS, self._records_max)
        self._metrics.records_in += len(found)
        acks = comet.Acks.of(frame.acks)
        producer = self._acting(self._backend.producers[acks])
        key = frame.idempotency_key
        if key is None:
            return await write(producer, self._backend.catalog, topic, found, deadline)
        once = write_once(producer, topic, found, key, acks, round(TIMEOUT_S * 1000))
        return asyncio.create_task(once, name="gateway: write once")


async def _receipt(id_: str, deadline: float, outcome: Outcome) -> bytes:
    """The receipt of a frame, once the results are known."""
    try:
        if isinstance(outcome, Problem):
            raise outcome
        if isinstance(outcome, WriteResult):
            await outcome.wait(deadline)
            outcome.refuse()
            results = ",".join(outcome.texts).encode()
            return b'{"type":"receipt","id":%b,"results":[%b]}' % (frames.encode(id_), results)
        receipts = [
            frames.WrittenItem(one.partition, str(one.offset), duplicate=one.duplicate) for one in await outcome
        ]
        return frames.encode(frames.Receipt(id_, receipts))
    except Problem as problem:
        return frames.encode(frames.error_of(problem, id_=id_, of="produce"))
    except CometError as error:
        return frames.encode(frames.error_of(Problem.of(error), id_=id_, of="produce"))


def _abandon(outcome: Outcome) -> None:
    """Ignores the outcome."""
    if isinstance(outcome, WriteResult):
        outcome.abandon()
    elif isinstance(outcome, asyncio.Task):
        outcome.add_done_callback(lambda task: task.cancelled() or task.exception())
